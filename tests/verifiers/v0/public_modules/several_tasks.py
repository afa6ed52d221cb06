"""Environments in a group, with the route of either generation."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.envs.env_group import EnvGroup, EnvGroupRubric
from verifiers.types import State

REPLIES = ["a", "b"]
REWARDS = [1.0, 2.0]
CALLED: list[str] = []


def first(state: State, task: str) -> float:
    CALLED.append("first")
    assert (task, state["info"]["env_id"]) == ("letters", "letters")
    return 1.0


def second(completion: Any, **kwargs: Any) -> float:
    CALLED.append("second")
    assert kwargs["info"]["env_id"] == "more"
    return 2.0


def load_environment() -> vf.Environment:
    envs = [
        vf.SingleTurnEnv(
            dataset=Dataset.from_list([{"question": name, "answer": ""}]),
            rubric=vf.Rubric(funcs=[func]),
        )
        for name, func in (("a", first), ("b", second))
    ]
    group = EnvGroup(envs=envs, env_names=["letters", "more"])
    assert isinstance(group.rubric, EnvGroupRubric)
    assert group.env_map["more"] is envs[1]
    return group
