"""v0 import path of `CPTaskSet`."""

from verifiers.envs.agents.tasksets.cp import (
    CPRubric,
    CPTaskSet,
)

__all__ = [
    "CPRubric",
    "CPTaskSet",
]
