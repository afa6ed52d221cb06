"""Environments that the tests of adapters play, and models that play them."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from verifiers.testing import ScriptedClient
from verifiers.training.adapters.play import play_groups


def said_yes(completion) -> float:
    return float("yes" in completion[-1]["content"])


def question_env(count: int = 4, **options: Any) -> vf.Environment:
    rows = [{"question": f"q{n}", "answer": str(n)} for n in range(count)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[said_yes]), **options)


class TwoTurns(vf.MultiTurnEnv):
    """Answers "go on" once; `edits`: rewrites the first answer then, so that the second turn continues nothing."""

    edits = False

    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": "go on"}]

    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        if self.edits and state["trajectory"]:
            return [*messages[:-2], {"role": "assistant", "content": "(left out)"}, messages[-1]]
        return messages


class EditedTurns(TwoTurns):
    edits = True


def two_turns(kind: type[vf.MultiTurnEnv] = TwoTurns, **options: Any) -> vf.Environment:
    rows = [{"question": f"q{n}", "answer": str(n)} for n in range(4)]
    return kind(dataset=rows, rubric=vf.Rubric(funcs=[said_yes]), max_turns=2, **options)


def alternating() -> ScriptedClient:
    """Says "yes" and "no" by turns, with token ids."""
    count = iter(range(10**9))
    return ScriptedClient(lambda _: "no" if next(count) % 2 else "yes", token_ids=True)


def text_of(ids: list[int]) -> str:
    """Scripted token ids are bytes."""
    return bytes(ids).decode()


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


def tool_game(**options: Any) -> vf.Environment:
    rows = [{"question": "2 + 3?", "answer": "5"}]
    return vf.ToolEnv(dataset=rows, tools=[add], rubric=vf.Rubric(funcs=[said_yes]), **options)


async def play(env: vf.Environment, client: Any, size: int = 2) -> list[Any]:
    """A group of rollouts of the first row."""
    row = env.source("train").inputs(1)[0]
    [states] = await play_groups(env, [[row] * size], client, "m", max_retries=0)
    return states
