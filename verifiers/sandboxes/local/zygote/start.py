"""Executed as a script by a fresh interpreter: `python -I -S start.py DESCRIPTOR`.

It gives this folder and the agent's a package to live in without importing `verifiers`, whose own modules (and
their dependencies) have no business in a process that must stay small and single-threaded.
"""

from __future__ import annotations

import os
import sys
import types


def _package(name: str, folder: str) -> None:
    package = types.ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package


def make_packages() -> None:
    """Let `sandboxes.guest` and `sandboxes.local.zygote` be imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    local = os.path.dirname(here)
    _package("sandboxes", os.path.dirname(local))
    _package("sandboxes.local", local)


def refuse(descriptor: int) -> None:
    """Tell the host program that this interpreter is too old, and end."""
    import json
    import socket

    version = ".".join(map(str, sys.version_info[:2]))
    reason = f"the agent needs Python 3.9 or newer, {sys.executable} is {version}"
    socket.socket(fileno=descriptor).send(
        json.dumps({"event": "failed", "reason": reason}).encode()
    )
    sys.exit(1)


def main() -> None:
    """Set the packages up and serve."""
    if sys.version_info < (3, 9):  # noqa: UP036 - the host runs a newer one, this may be any
        refuse(int(sys.argv[1]))
    make_packages()
    from sandboxes.local.zygote import server  # pyright: ignore[reportMissingImports]

    server.main(int(sys.argv[1]))


if __name__ == "__main__":
    main()
