"""v0 import path of `vf-init`; also `python -m verifiers.scripts.init`."""

import sys

from verifiers.packages.scaffold import init_environment
from vf_cli.main import init_main as main

__all__ = ["init_environment", "main"]
if __name__ == "__main__":
    sys.exit(main())
