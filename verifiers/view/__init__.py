"""A viewer of saved runs: pages that are rendered on the server from a source of runs.

sources.py      where runs come from: the interface `RunSource`, and folders on this machine
columns.py      the short form of a run in memory: a few numbers per rollout, in arrays
filters.py      the language of filter expressions
search.py       rollouts that match a filter or contain a text, read in portions
overview.py     the numbers of a run, or of a part of it
comparing.py    the comparison of runs, and answers side by side
transcript.py   messages and scores of a rollout, prepared for a page
charts.py       charts as SVG
rendering.py    templates, formats, links
descriptions.py the metadata of a run and the keys of a rollout, prepared for a page
pages.py        what each page shows
app.py          the application: access, headers, errors
notes.py        notes and labels, stored beside the results
bundle.py       a run as a folder of static files
"""
