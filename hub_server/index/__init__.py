"""The package index that pip and uv read.

`service` selects the content of a page, `pages` renders it, `cache` keeps it, `sending` sends it. `pinned` makes
copies of
wheels for the public `prime` command.
"""
