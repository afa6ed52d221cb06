"""v0 import path of `SingleTurnEnv`."""

from verifiers.envs.multiturn_env import SingleTurnEnv as SingleTurnEnv
