"""What runs inside a sandbox: one process on one byte stream, which starts commands, interpreters and file copies.

Standard library only, Python 3.9 or newer, and nothing from outside this folder: the folder is carried into foreign
images as it is. Files: `frames` (wire format, both sides) · `output` (what is kept of long output, both sides) ·
`archive` (directory copies, both sides) · `loop` (the process) · `jobs` (one command) · `launch` (starting
processes) · `processes` (who belongs to whom, killing, memory) · `throttle` (fairness without control groups) ·
`programs` (Python by fork) · `cells` (interpreter sessions) ·
`case_runner` (a program's tests, in one such fork) · `rehearsal` (what forks need not learn) ·
`files` (file copies) ·
`stdio` (the process in a container that somebody else has made).
"""
