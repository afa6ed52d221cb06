"""v0 import path of `ComposableEnv`."""

import tarfile as tarfile

from verifiers.envs.agents.composable_env import ComposableEnv, HarnessMetricsRubricGroup

__all__ = ["ComposableEnv", "HarnessMetricsRubricGroup"]
