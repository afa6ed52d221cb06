"""Ending a process of the hub."""

import contextlib
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    obstore's threads may still let go of Python objects when the interpreter goes down, and then the process is
    aborted (exit code 134, one time in five after a request that failed at once). Where it is loaded the
    interpreter is not taken down at all: everything of ours is closed by now.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if "obstore" in sys.modules:
        os._exit(code)
    sys.exit(code)
