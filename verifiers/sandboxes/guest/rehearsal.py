"""What a process can learn before it is forked, so that no fork has to: a fork pays for each page that it writes to.

What the interpreter finds out while it runs code (which method a name means, which instruction suits the values) it
writes into its objects. What it knows already costs no process a page.
"""

from __future__ import annotations

import io
import json
import os
import sys

TIMES = 16
"""Code is specialised after eight runs or so."""
_PROGRAM = "n = int(input())\nprint(sum(i * i for i in range(n)))\n"


def rehearse() -> None:
    """Run a small program a few times. Standard output must lead nowhere."""
    streams = sys.stdin, sys.stdout, sys.stderr
    with open(os.memfd_create("rehearsal"), "wb+", buffering=0) as file:
        file.write(b"3\n")
        for _ in range(TIMES):
            file.seek(0)
            reader = io.BufferedReader(io.FileIO(file.fileno(), closefd=False))
            sys.stdin = io.TextIOWrapper(reader, "utf-8", "replace")
            sys.stdout, sys.stderr = (
                io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "w", closefd=False)), "utf-8")
                for number in (1, 2)
            )
            exec(compile(_PROGRAM, "<program>", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            json.loads(json.dumps({"text": ["", 1, 1.0, None, True]}, ensure_ascii=False))
    sys.stdin, sys.stdout, sys.stderr = streams
