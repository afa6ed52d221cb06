"""Each promise is really checked: an environment that breaks it is told so in a sentence."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import ContractBroken, check_environment

ROWS = [{"question": f"q{n}", "answer": str(n)} for n in range(4)]
COUNTER = itertools.count()


class Talk(vf.MultiTurnEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"dataset": ROWS, "max_turns": 2, **kwargs})

    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
        return "go on"


class Swallows(Talk):
    async def rollout(self, *args: Any, **kwargs: Any) -> vf.State:
        try:
            return await super().rollout(*args, **kwargs)
        except BaseException:
            return vf.State(error=None, is_completed=True, stop_condition="swallowed")


class Raises(Talk):
    async def rollout(self, *args: Any, **kwargs: Any) -> vf.State:
        state = await super().rollout(*args, **kwargs)
        if isinstance(state["error"], vf.ModelError):
            raise state["error"]
        return state


class Unfinished(Talk):
    async def rollout(self, *args: Any, **kwargs: Any) -> vf.State:
        state = await super().rollout(*args, **kwargs)
        state["is_completed"] = False
        return state


class Live(Talk):
    async def setup_state(self, state: vf.State) -> None:
        state["board"] = object()


class Shared(Talk):
    board: list[int] = [0]

    async def setup_state(self, state: vf.State) -> None:
        state["board"] = self.board


class Changing(Talk):
    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
        return f"number {next(COUNTER)}"


class Cleans(Talk):
    @vf.cleanup
    async def tidy(self, state: vf.State) -> None: ...

    async def rollout(self, *args: Any, **kwargs: Any) -> vf.State:
        state = await super().rollout(*args, **kwargs)
        await self.cleanup(state)
        return state


class Breaks(Talk):
    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
        raise KeyError("board")


def random_rows() -> Any:
    while True:
        yield {"question": str(random.SystemRandom().random())}


class Redrawn(Talk):
    def source(self, split: str) -> Any:
        return Talk(dataset=random_rows).source(split)


def judged(func: Callable[..., Any]) -> Talk:
    return Talk(rubric=vf.Rubric(funcs=[func]))


def divides(completion: Any) -> float:
    return 1.0 / len(completion[-1]["content"])


def needs_text(completion: Any) -> float:
    return float(completion[-1]["content"][0] == "I")


BROKEN: list[tuple[str, Callable[[], vf.Environment], str]] = [
    ("no rows", lambda: Talk(dataset=[]), "The dataset is empty"),
    ("bad rows", lambda: Talk(dataset=[{"text": "x"}]), "neither 'prompt' nor 'question'"),
    (
        "rows JSON cannot hold",
        lambda: Talk(dataset=[{"question": "q", "thing": object()}]),
        "'thing' holds a object, which JSON does not support",
    ),
    ("rows that change", Redrawn, "Reading the rows twice gives different rows"),
    ("no end", lambda: Talk(max_turns=-1), "no stop condition held after 64 responses"),
    ("broken code", Breaks, "the rollout failed although the model responded"),
    ("not completed", Unfinished, "state['is_completed'] is false"),
    ("reward that raises", lambda: judged(lambda answer: 1 / 0), "ZeroDivisionError"),
    ("misspelt argument", lambda: judged(lambda anwser: 1.0), "asks for 'anwser'"),
    ("empty answer", lambda: judged(needs_text), "Scoring an empty answer"),
    ("live state", Live, "state['board'] is not JSON serializable"),
    ("shared state", Shared, "Two rollouts of a row share the object in state['board']"),
    ("not repeatable", Changing, "gave different prompts"),
    ("cancellation swallowed", Swallows, "A cancelled rollout continued"),
    ("model error raised", Raises, "must be the rollout's state['error']; it was raised"),
    ("cleaned twice", Cleans, "After success the cleanup handler 'tidy' ran 2 times"),
]


@pytest.mark.parametrize(("make", "sentence"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_broken_promise_is_a_sentence(make: Callable[[], vf.Environment], sentence: str) -> None:
    with pytest.raises(ContractBroken) as broken:
        check_environment(make())
    assert sentence in str(broken.value)
    assert all(
        problem[0].isupper() or problem.startswith("state[") for problem in broken.value.problems
    )


def test_a_good_environment_passes_and_promises_can_be_left_out() -> None:
    check_environment(Talk())
    check_environment(Live(), except_for=["results can be saved"])
    with pytest.raises(ValueError, match=r"Unknown promises: \['nonsense'\]"):
        check_environment(Talk(), except_for=["nonsense"])


async def test_the_check_works_inside_a_running_loop() -> None:
    check_environment(Talk(), rows=1)
