"""Programs against tests: `cases` (what a test is, what counts as right) · `runner` (the host's side; the other is
`sandboxes.guest.case_runner`) · `extraction` (the program in a completion).

What a test expects never enters the sandbox: the program, which could read it there, only gets inputs, and its answers
are judged outside.
"""
