"""v0 import path of `vf-eval`; also `python -m verifiers.scripts.eval`."""

import sys

from verifiers.clients.connect import PROVIDERS
from verifiers.loading import evaluation_defaults as get_env_eval_defaults
from vf_cli.main import eval_main as main

PROVIDER_CONFIGS = {name: {"url": p.base_url, "key": p.key_var} for name, p in PROVIDERS.items()}
__all__ = ["PROVIDER_CONFIGS", "get_env_eval_defaults", "main"]
if __name__ == "__main__":
    sys.exit(main())
