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
    """Let `sandboxes.agent` and `sandboxes.local.zygote` be imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    local = os.path.dirname(here)
    _package("sandboxes", os.path.dirname(local))
    _package("sandboxes.local", local)


def main() -> None:
    """Set the packages up and serve."""
    make_packages()
    from sandboxes.local.zygote import server  # pyright: ignore[reportMissingImports]

    server.main(int(sys.argv[1]))


if __name__ == "__main__":
    main()
