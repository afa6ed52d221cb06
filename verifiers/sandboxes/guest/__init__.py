"""The guest: our process inside a sandbox. It starts commands, interpreters and file copies for the host.

The guest uses the standard library of Python 3.9 and imports nothing from outside this folder, because back ends
copy
the folder into foreign images. Read in this order: `frames` (wire format and output limits, also used by the host)
·
`loop` (the process) · `jobs` (one command) · `launch` (starting processes) · `processes` (which job a process
belongs
to, killing, memory, fairness) · `interpreter` (Python programs and sessions in forks) · `case_runner` (a program
against test cases) · `files` and `archive` (file copies) · `seccomp` (system call filters) · `stdio` (the entry
point
in containers that other software made).
"""
