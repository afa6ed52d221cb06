"""v0 import path of `GymEnv`."""

from verifiers.envs.integrations.gym_env import (
    EpisodicSumRubric,
    GymEnv,
    ResetOut,
    StepOut,
    StepResetEnv,
    normalize_reset,
    normalize_step,
    sum_step_rewards,
)

__all__ = [
    "EpisodicSumRubric",
    "GymEnv",
    "ResetOut",
    "StepOut",
    "StepResetEnv",
    "normalize_reset",
    "normalize_step",
    "sum_step_rewards",
]
