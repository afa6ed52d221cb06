# ruff: noqa: T201 - what it prints is its result
"""Ways out of a sandbox, each tried in a process of its own. Standard library only: it runs inside.

usage: abuse_probes FACTS.json [PROBE …]    prints {"probe": "allowed: …" | "denied: …"}
A probe returns a true value when it got through; an exception or a false value means that it was stopped.
"""

import importlib
import json
import os
import signal
import sys

from probing import FACTS, PROBES, content

for name in ("host_files", "other_processes", "network", "privileges", "kernel_surfaces", "guest"):
    importlib.import_module(name)


def attempt(function):
    """The outcome of one probe, from a forked child that may die or hang."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(3)
        try:
            outcome = function()
            text = f"allowed: {str(outcome)[:120]}" if outcome else "denied: nothing found"
        except BaseException as error:
            text = f"denied: {type(error).__name__}: {error}"
        os.write(write_end, text.encode()[:1000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return text or f"denied: the probe was killed (status {status})"


if __name__ == "__main__":
    FACTS.update(json.loads(content(sys.argv[1])), guest_pid=os.getppid())
    wanted = sys.argv[2:] or list(PROBES)
    print(json.dumps({name: attempt(PROBES[name]) for name in wanted}))
