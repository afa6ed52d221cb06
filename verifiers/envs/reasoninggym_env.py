"""v0 import path of `ReasoningGymEnv`."""

from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv

__all__ = ["ReasoningGymEnv"]
