"""Executed as a script by an interpreter: prints as JSON what that interpreter needs to see of this machine.

usage: python -I print_view.py    (with -S for the standard library alone)
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Print `InterpreterView`'s fields."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import start

    start.make_packages()
    del sys.path[0]
    from sandboxes.local.zygote import rootfs  # pyright: ignore[reportMissingImports]

    prefixes = rootfs.interpreter_prefixes(())
    view = {
        "executable": sys.executable,
        "prefixes": prefixes,
        "hidden": rootfs.host_packages_to_hide(prefixes),
        "program_folders": rootfs.program_folders(),
    }
    sys.stdout.write(json.dumps(view))


if __name__ == "__main__":
    main()
