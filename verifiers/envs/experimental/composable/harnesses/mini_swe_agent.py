"""v0 import path of the harness of mini-swe-agent. It is the module itself, because callers replace its globals."""

import sys

from verifiers.envs.agents.harnesses import mini_swe_agent

sys.modules[__name__] = mini_swe_agent
