"""v0 import path of `vf-gepa`; also `python -m verifiers.scripts.gepa`."""

import sys

from verifiers.prompt_search.config_file import load_gepa_toml_config, resolve_gepa_config_args
from vf_cli.main import gepa_main as main

__all__ = ["load_gepa_toml_config", "main", "resolve_gepa_config_args"]
if __name__ == "__main__":
    sys.exit(main())
