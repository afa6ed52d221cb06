"""v0 import path of `ComposableEnv`. It is the module itself, because callers replace its globals."""

import sys

from verifiers.envs.agents import composable_env

sys.modules[__name__] = composable_env
