"""A Python child that ends with its parent, however the parent ends.

The parent holds the writing end of the child's standard input, and sends its settings through it as one line: keys in
them are visible to nobody. When the pipe closes, the child has lost its parent.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

GRACE_S = 5.0
"""How long a child that has lost its parent may clean up, in seconds."""

_START = (
    "import json, sys\n"
    "path = json.loads(sys.argv[2])\n"
    "if path: sys.path[:] = path\n"
    "import importlib\n"
    "importlib.import_module(sys.argv[1]).main()\n"
)


def command(module: str, python: str | None) -> list[str]:
    """The command that runs `main()` of a module. The same interpreter also gets this process's `sys.path`."""
    # -P: a folder the user happens to stand in must not shadow a module.
    path = [] if python else [entry or os.getcwd() for entry in sys.path]
    return [python or sys.executable, "-P", "-c", _START, module, json.dumps(path)]


def settings_line(settings: dict[str, Any]) -> bytes:
    """The settings as the line that `read_settings` reads."""
    return json.dumps(settings).encode() + b"\n"


def read_settings() -> dict[str, Any]:
    """The settings the parent sent. Reads byte by byte: nothing after the line may be swallowed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)  # the parent died before it said anything
        line += byte
    return json.loads(line)


def when_orphaned(stop: Callable[[], None], grace_s: float = GRACE_S) -> None:
    """Call `stop` once the parent is gone, and end this process and its children if that takes too long.

    In a thread, because the main thread may be busy loading or stuck in an environment's code.
    """
    parent = os.getppid()

    def watch() -> None:
        import select

        while (
            os.getppid() == parent
        ):  # a copy of the pipe may live on in a sibling; the parent's id does not
            with suppress(OSError):
                ready, _, _ = select.select([0], [], [], 1.0)
                if ready and not os.read(0, 1):
                    break
        with suppress(Exception):
            stop()
        time.sleep(grace_s)
        end_group()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def end_group() -> None:
    """End this process at once, with its children when it leads its group."""
    if os.getpgid(0) == os.getpid():
        with suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


def kill_group(pid: int) -> None:
    """End what is left of a process that led a group: the programs it had started."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def described_exit(code: int | None) -> str:
    """How a process ended, in words."""
    if code is None:
        return "is gone"
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"
