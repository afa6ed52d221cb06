"""The script that a fresh interpreter executes: `python -I start.py zygote|plain DESCRIPTOR` or `… start.py view`.

- `zygote`: the process that makes sandboxes by forking; DESCRIPTOR is its socket to the host.
- `plain`: a guest without namespaces, with the JSON of `PlainSettings` on stdin; DESCRIPTOR is its stream.
- `view`: print as JSON which files of this machine the interpreter needs. With `-S`: the standard library alone.

The script makes packages for this folder and the guest's without importing `verifiers`, whose modules and dependencies
must stay out of a process that has to be small and single-threaded.
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
    """Make `sandboxes.guest` and `sandboxes.local.zygote` importable."""
    here = os.path.dirname(os.path.abspath(__file__))
    local = os.path.dirname(here)
    _package("sandboxes", os.path.dirname(local))
    _package("sandboxes.local", local)


def refuse_old_python(mode: str) -> None:
    """Report that this interpreter is too old, to the host or on stderr, and exit."""
    import json
    import socket

    version = ".".join(map(str, sys.version_info[:2]))
    reason = f"the guest needs Python 3.9 or newer, {sys.executable} is {version}"
    if mode != "zygote":
        sys.exit(reason)
    socket.socket(fileno=int(sys.argv[2])).send(
        json.dumps({"event": "failed", "reason": reason}).encode()
    )
    sys.exit(1)


def print_view() -> None:
    """Print which parts of the machine this interpreter needs."""
    import json

    from sandboxes.local.zygote import rootfs  # pyright: ignore[reportMissingImports]

    prefixes = rootfs.interpreter_prefixes(())
    view = {
        "executable": sys.executable,
        "prefixes": prefixes,
        "hidden": rootfs.host_packages_to_hide(prefixes),
        "program_folders": rootfs.program_folders(),
    }
    sys.stdout.write(json.dumps(view))


def main() -> None:
    """Make the packages and run the process that the first argument names."""
    mode = sys.argv[1]
    if sys.version_info < (3, 9):  # noqa: UP036 - the host runs a newer one, this may be any
        refuse_old_python(mode)
    make_packages()
    if mode == "zygote":
        from sandboxes.local.zygote import server  # pyright: ignore[reportMissingImports]

        server.main(int(sys.argv[2]))
    elif mode == "plain":
        from sandboxes.local.zygote import plain  # pyright: ignore[reportMissingImports]

        plain.main(int(sys.argv[2]))
    else:
        print_view()


if __name__ == "__main__":
    main()
