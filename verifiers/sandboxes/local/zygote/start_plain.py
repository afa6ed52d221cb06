"""Executed as a script: an agent without namespaces, either restricted by Landlock or not protected at all.

usage: python -I start_plain.py STREAM_DESCRIPTOR    with the JSON of `PlainSettings` on stdin
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Set the packages up and serve."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import start

    start.make_packages()
    del sys.path[0]
    from sandboxes.local.zygote import plain  # pyright: ignore[reportMissingImports]

    plain.main(int(sys.argv[1]))


if __name__ == "__main__":
    main()
