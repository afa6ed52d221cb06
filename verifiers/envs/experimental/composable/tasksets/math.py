"""v0 import path of `MathTaskSet`."""

from verifiers.envs.agents.tasksets.math import (
    MathTaskSet,
)

__all__ = [
    "MathTaskSet",
]
