"""Errors of v0 as values: in the state, in a chain, and as the end of a rollout."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.errors import (
    EmptyModelResponseError,
    InfraError,
    ModelError,
    OverlongPromptError,
    SandboxError,
    ToolCallError,
)
from verifiers.testing import call
from verifiers.types import State
from verifiers.utils.error_utils import ErrorChain, get_vf_error_chain

REPLIES = [[call("look")]]
REWARDS = [0.25]
CALLED: list[str] = []


class SearchDown(vf.ToolError):
    """The search does not respond."""


async def look() -> str:
    """Look."""
    CALLED.append("look")
    raise SearchDown("no route") from TimeoutError("30 s")


def graded(state: State) -> float:
    CALLED.append("graded")
    error = state["error"]
    chain = ErrorChain(error)
    assert SearchDown in chain
    assert str(chain).startswith("SearchDown")
    assert get_vf_error_chain(error)[0] is error
    assert not isinstance(error, InfraError)
    return 0.25


def load_environment() -> vf.Environment:
    assert issubclass(SandboxError, InfraError)
    assert issubclass(OverlongPromptError, vf.Error)
    assert issubclass(EmptyModelResponseError, ModelError)
    assert issubclass(ToolCallError, vf.ToolError)
    return vf.ToolEnv(
        tools=[look],
        stop_errors=[SearchDown, vf.InfraError],
        dataset=Dataset.from_list([{"question": "q"}]),
        rubric=vf.Rubric(funcs=[graded]),
        max_turns=3,
    )


def check(outputs: list[Any]) -> None:
    assert outputs[0]["error"]["error"] == "SearchDown"
    assert outputs[0]["stop_condition"] == "has_error"
