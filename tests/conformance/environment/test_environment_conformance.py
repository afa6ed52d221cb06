"""Every environment class keeps every promise of `verifiers.testing.check_environment`."""

from collections.abc import Callable
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import call
from verifiers.testing.environment_contract import PROMISES, environment_problems

ROWS = [{"question": f"What is {n}+{n}?", "answer": str(2 * n), "info": {"n": n}} for n in range(4)]


def right(completion: Any, answer: str) -> float:
    return float(bool(completion) and completion[-1].get("content") == answer)


def ranked(states: Any) -> list[float]:
    return [float(len(state["trajectory"])) for state in states]


def add(a: int = 1, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
        return f"Turn {len(state['trajectory'])}."


class Noted(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_tool(self.note, args_to_skip=["notes"])

    def note(self, notes: list[str], text: str = "") -> str:
        """Write a note."""
        notes.append(text)
        return f"{len(notes)} notes"

    async def setup_state(self, state: vf.State) -> vf.State:
        state["notes"] = []
        return state

    def update_tool_args(
        self, tool_name: str, tool_args: Any, messages: Any, state: vf.State, **kwargs: Any
    ) -> Any:
        return {**tool_args, "notes": state["notes"]}

    @vf.cleanup
    async def forget(self, state: vf.State) -> None:
        state["notes"] = list(state["notes"])


def rubric() -> vf.Rubric:
    return vf.Rubric(funcs=[right])


def group(**kwargs: Any) -> vf.EnvGroup:
    single = vf.SingleTurnEnv(dataset=ROWS, rubric=rubric())
    return vf.EnvGroup([single, Talk(dataset=ROWS, max_turns=2)], **kwargs)


ENVIRONMENTS: dict[str, Callable[[], vf.Environment]] = {
    "SingleTurnEnv": lambda: vf.SingleTurnEnv(dataset=ROWS, rubric=rubric()),
    "SingleTurnEnv of text": lambda: vf.SingleTurnEnv(
        dataset=[{"prompt": "2+2=", "answer": "4"}], rubric=rubric(), message_type="completion"
    ),
    "SingleTurnEnv with group rewards": lambda: vf.SingleTurnEnv(
        dataset=ROWS, rubric=vf.RubricGroup([rubric(), vf.Rubric(funcs=[ranked])])
    ),
    "MultiTurnEnv": lambda: Talk(dataset=ROWS, rubric=rubric(), max_turns=3),
    "ToolEnv": lambda: vf.ToolEnv(dataset=ROWS, tools=[add], rubric=rubric()),
    "StatefulToolEnv": lambda: Noted(dataset=ROWS, rubric=rubric()),
    "EnvGroup": group,
    "EnvGroup in an EnvGroup": lambda: vf.EnvGroup([group(), Talk(dataset=ROWS, max_turns=1)]),
}


class Countdown:
    """The smallest environment in Gymnasium's form: three steps, a point for the word "go"."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.left = 3
        return f"{self.left} left", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"{self.left} left", float(action == "go"), self.left == 0, False, {}


INTEGRATIONS: dict[str, tuple[str, Callable[[], vf.Environment]]] = {
    "GymEnv": (
        "gymnasium",
        lambda: vf.GymEnv(Countdown, num_train_episodes=4, num_eval_episodes=4),
    ),
    "ReasoningGymEnv": (
        "reasoning_gym",
        lambda: vf.ReasoningGymEnv("basic_arithmetic", num_train_examples=4, num_eval_examples=4),
    ),
}
"""Name → the package it needs, and how to make one."""


def made(name: str) -> vf.Environment:
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name]()
    package, make = INTEGRATIONS[name]
    pytest.importorskip(package)
    try:
        return make()
    except ImportError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("name", [*ENVIRONMENTS, *INTEGRATIONS])
async def test_the_environment_keeps_the_promise(name: str, promise: str) -> None:
    others = [other for other in PROMISES if other != promise]
    async with made(name) as env:
        assert await environment_problems(env, except_for=others) == []


async def test_an_environment_whose_tool_call_carries_arguments_keeps_all() -> None:
    def answer(prompt: Any) -> Any:
        return "4" if prompt[-1]["role"] == "tool" else [call("note", text="a"), call("note")]

    assert await environment_problems(ENVIRONMENTS["StatefulToolEnv"](), answer=answer) == []
