"""A dataset that is built on first use, objects of the rubric's class, and metrics."""

import json
from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.types import DatasetBuilder, Info, RewardFunc, State
from verifiers.utils.async_utils import maybe_await, maybe_call_with_named_args

REPLIES = ["4", "4", "5"]
REWARDS = [2.0, 2.0, 0.5]
CALLED: list[str] = []


def builder(split: str) -> DatasetBuilder:
    def build() -> Dataset:
        CALLED.append(f"build {split}")
        info = json.dumps({"split": split, "difficulty": 2})
        return Dataset.from_list(
            [{"question": f"q{n}", "answer": "4", "info": info} for n in range(3)]
        )

    return build


class Grader:
    async def grade(self, text: str, answer: str) -> float:
        CALLED.append("grade")
        return float(text == answer)


class Graded(vf.Rubric):
    def __init__(self, grader: Grader, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.class_objects["grader"] = grader
        self.add_reward_func(self.graded, weight=1.5)
        self.add_reward_func(always)
        self.add_metric(self.num_steps)

    async def graded(self, grader: Grader, completion: Any, answer: str, **kwargs: Any) -> float:
        return await maybe_await(grader.grade, completion[-1]["content"], answer)

    async def num_steps(self, state: State) -> float:
        CALLED.append("num_steps")
        return float(len(state["trajectory"]))


async def always(info: Info) -> float:
    CALLED.append("always")
    return await maybe_call_with_named_args(_half, info=info, unknown=3)


def _half(info: Info) -> float:
    return info["difficulty"] / 4


FUNCS: list[RewardFunc] = [always]


def load_environment(difficulty: str = "easy", **kwargs: Any) -> vf.Environment:
    assert CALLED == []
    return vf.SingleTurnEnv(
        dataset=builder("train"),
        eval_dataset=builder("eval"),
        rubric=Graded(Grader()),
        env_id="lazy-rows",
        env_args={"difficulty": difficulty},
        **kwargs,
    )
