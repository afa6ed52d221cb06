"""v0 import path of `vf-install`; also `python -m verifiers.scripts.install`."""

import sys

from verifiers.packages.install import install as install_environment
from vf_cli.main import install_main as main

__all__ = ["install_environment", "main"]
if __name__ == "__main__":
    sys.exit(main())
