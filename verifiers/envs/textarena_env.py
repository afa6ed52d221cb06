"""v0 import path of `TextArenaEnv`."""

from verifiers.envs.integrations.textarena_env import TextArenaEnv

__all__ = ["TextArenaEnv"]
