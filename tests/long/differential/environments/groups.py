"""`EnvGroup`: members of different classes, names, nested groups."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import call, calls, case


def single(word: str, reward: float, **fields: Any) -> vf.Environment:
    async def fixed(completion: Any) -> float:
        return reward

    fixed.__name__ = f"{word}_reward"
    rows = [{"question": f"{word}?", "answer": word, **fields}]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[fixed]),
        system_prompt=f"Be {word}.",
    )


def rows_of(env: Any) -> Any:
    names = ("example_id", "info", "answer", "prompt")
    return [{name: row.get(name) for name in names} for row in env.get_dataset()]


@case(["a"], ["b"], rollouts=2, probe=rows_of)
def group_of_two() -> vf.Environment:
    return vf.EnvGroup([single("red", 0.25), single("blue", 0.5)], env_names=["red", "blue"])


@case(["a"], probe=rows_of)
def group_without_names() -> vf.Environment:
    return vf.EnvGroup(
        [single("red", 0.25, info={"level": 1}), single("blue", 0.5, info={"level": 2})]
    )


@case(["a"], probe=rows_of)
def group_in_a_group() -> vf.Environment:
    warm = vf.EnvGroup([single("red", 0.1), single("orange", 0.2)], env_names=["red", "orange"])
    cold = vf.EnvGroup([single("blue", 0.3)], env_names=["blue"])
    return vf.EnvGroup([warm, cold], env_names=["warm", "cold"])


@case(rows={"sum": [[calls(call("add", a=1, b=2)), "3"]], "": [["red"]]})
def group_with_tools() -> vf.Environment:
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def final(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    tools = vf.ToolEnv(
        tools=[add],
        dataset=Dataset.from_list([{"question": "sum?", "answer": "3"}]),
        rubric=vf.Rubric(funcs=[final]),
    )
    return vf.EnvGroup([single("red", 0.5), tools], env_names=["word", "sum"])


@case(["a"], ["b"], rollouts=2)
def group_with_group_reward() -> vf.Environment:
    def first(completions: Any) -> list[float]:
        texts = [completion[-1]["content"] for completion in completions]
        return [float(text == min(texts)) for text in texts]

    other = vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"question": "which?", "answer": "a"}]),
        rubric=vf.Rubric(funcs=[first]),
    )
    return vf.EnvGroup([single("red", 0.5), other], env_names=["red", "other"])


@case(["a", "b"], columns=["count"])
def group_of_several_turns() -> vf.Environment:
    class Counts(vf.MultiTurnEnv):
        async def setup_state(self, state: vf.State) -> vf.State:
            state["count"] = 1
            return state

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            state["count"] += 1
            return [{"role": "user", "content": "more"}]

    def counted(state: Any) -> float:
        return float(state["count"])

    counting = Counts(
        dataset=Dataset.from_list([{"question": "count", "answer": ""}]),
        rubric=vf.Rubric(funcs=[counted]),
        max_turns=2,
    )
    return vf.EnvGroup([single("red", 0.5), counting], env_names=["red", "count"])


@case(["a"])
def group_of_evaluation_rows() -> vf.Environment:
    async def one(completion: Any) -> float:
        return 1.0

    members = [
        vf.SingleTurnEnv(
            eval_dataset=Dataset.from_list([{"question": word, "answer": word}]),
            rubric=vf.Rubric(funcs=[one]),
        )
        for word in ("red", "blue")
    ]
    return vf.EnvGroup(members, env_names=["red", "blue"])


@case(["a"])
def group_with_equal_names() -> vf.Environment:
    """Members whose reward functions have one name, and a rubric of the group itself is absent."""

    def member(word: str, value: float) -> vf.Environment:
        def score(completion: Any) -> float:
            return value

        return vf.SingleTurnEnv(
            dataset=Dataset.from_list([{"question": word, "answer": word}]),
            rubric=vf.Rubric(funcs=[score]),
            sampling_args={"temperature": value},
        )

    return vf.EnvGroup([member("red", 0.25), member("blue", 0.75)], env_names=["red", "blue"])
