"""v0 import path of `OpenCodeQAEnv`."""

from verifiers.envs.agents.open_code_qa_env import OpenCodeQAEnv

__all__ = ["OpenCodeQAEnv"]
