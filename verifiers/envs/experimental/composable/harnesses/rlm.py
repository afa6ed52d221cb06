"""v0 import path of the RLM harness. It is the module itself, because callers replace its globals."""

import sys

from verifiers.envs.agents.harnesses import rlm

sys.modules[__name__] = rlm
