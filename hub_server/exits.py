"""Ending a process of the hub."""

import atexit
import contextlib
import multiprocessing
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    obstore's threads may still let go of Python objects when the interpreter goes down, and then the process is
    aborted (exit code 134, one time in five after a request that failed at once). Where it is loaded the
    interpreter is not taken down at all: everything of ours is closed by now.
    """
    _flush()
    if "obstore" in sys.modules:
        os._exit(code)
    sys.exit(code)


def leave_at_exit() -> None:
    """For a worker, whose end is not ours to call: when it ends in good order, do what `leave` does.

    uvicorn starts workers by `multiprocessing`, which returns to the interpreter and lets it go down.
    """
    if multiprocessing.parent_process() is not None:
        atexit.register(_leave_in_good_order)


def _leave_in_good_order() -> None:
    if "obstore" in sys.modules:
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
