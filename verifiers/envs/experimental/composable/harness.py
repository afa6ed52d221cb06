"""v0 import path of `Harness`."""

from verifiers.envs.agents.harness import Harness

__all__ = ["Harness"]
