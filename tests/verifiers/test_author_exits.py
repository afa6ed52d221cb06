"""Author code that calls `sys.exit` ends its own rollout or score, never the program that evaluates it."""

import sys
from typing import Any

import pytest

import verifiers as vf
from verifiers.testing import ScriptedClient, call


def leave(completion: Any) -> float:
    sys.exit(3)


async def leave_later(completion: Any) -> float:
    sys.exit(0)


def leave_as_group(completions: list[Any]) -> list[float]:
    sys.exit(3)


def fine(completion: Any) -> float:
    return 1.0


def quit_tool() -> str:
    """Leave."""
    sys.exit("bye")


class LeavingEnv(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        sys.exit(4)


@pytest.mark.parametrize("leaves", [leave, leave_later, leave_as_group])
async def test_a_reward_function_that_exits_counts_zero_and_is_reported(leaves):
    env = vf.SingleTurnEnv(
        dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric(funcs=[leaves, fine])
    )
    results = await env.evaluate(
        ScriptedClient(["a", "a"]), "m", num_examples=1, rollouts_per_example=2
    )
    for output in results["outputs"]:
        assert output["reward"] == 1.0
        assert output["errors"][0]["function"] == leaves.__name__
        assert "SystemExit" in output["errors"][0]["message"]


async def test_an_environment_that_exits_ends_its_own_rollout_with_an_error():
    env = LeavingEnv(
        dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric(funcs=[fine]), max_turns=3
    )
    results = await env.evaluate(ScriptedClient(["a"]), "m", num_examples=1, rollouts_per_example=1)
    (output,) = results["outputs"]
    assert output["stop_condition"] == "has_error"
    assert "SystemExit" in output["error"]["error_chain_repr"]


async def test_a_tool_that_exits_is_a_message_to_the_model():
    env = vf.ToolEnv(
        dataset=[{"question": "q", "answer": "a"}],
        tools=[quit_tool],
        rubric=vf.Rubric(funcs=[fine]),
        max_turns=3,
    )
    results = await env.evaluate(
        ScriptedClient([[call("quit_tool")], "done"]),
        "m",
        num_examples=1,
        rollouts_per_example=1,
    )
    (output,) = results["outputs"]
    assert "quit_tool" in output["completion"][1]["content"]
    assert "bye" in output["completion"][1]["content"]
    assert output["completion"][-1]["content"] == "done"
