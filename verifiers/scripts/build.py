"""v0 import path of `vf-build`; also `python -m verifiers.scripts.build`."""

import sys

from verifiers.packages.build import build_environment
from vf_cli.main import build_main as main

__all__ = ["build_environment", "main"]
if __name__ == "__main__":
    sys.exit(main())
