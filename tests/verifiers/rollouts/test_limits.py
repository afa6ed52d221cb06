"""Limits end a rollout gracefully: it says why, and is scored as it is."""

import asyncio
from typing import Any

import pytest

import verifiers as vf
from verifiers.rollouts.limits import RolloutLimits, current_limits, run_limits
from verifiers.runs.prices import ModelPrice, PriceTable
from verifiers.testing import Reply, ScriptedClient, run

USAGE = vf.Usage(prompt_tokens=60, completion_tokens=40, total_tokens=100)


class Talk(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
        return "go on"


def talk(**kwargs: Any) -> Talk:
    rubric = vf.Rubric(funcs=[lambda state: float(len(state["trajectory"]))])
    return Talk(dataset=[{"question": "q"}], rubric=rubric, **kwargs)


def talker() -> ScriptedClient:
    return ScriptedClient(then=Reply("words", usage=USAGE))


async def test_a_token_limit_stops_before_the_turn_that_would_start_beyond_it() -> None:
    [output] = await run(talk(), talker(), max_total_tokens=250)
    assert (output["stop_condition"], output["reward"]) == ("max_total_tokens_reached", 3.0)
    assert (output["error"], output["errors"]) == (None, [])


async def test_a_limit_of_written_tokens_counts_only_those() -> None:
    env = talk()
    env.set_max_total_completion_tokens(80)
    [output] = await run(env, talker())
    assert output["stop_condition"] == "max_total_completion_tokens_reached"
    assert output["reward"] == 2.0


async def test_a_cost_limit_needs_prices_and_then_stops() -> None:
    with pytest.raises(vf.ConfigError, match="needs prices"):
        await run(talk(), talker(), max_cost_usd=1.0)
    prices = PriceTable({"scripted": ModelPrice(1e4, 1e4)})
    [output] = await run(talk(), talker(), max_cost_usd=1.5, prices=prices)
    assert (output["stop_condition"], output["reward"]) == ("max_cost_reached", 2.0)


@pytest.mark.parametrize("by", ["environment", "run"])
async def test_a_timeout_stops_and_scores_what_is_there(by: str) -> None:
    script = ["one", Reply("late", after=asyncio.Event())]
    env = talk(timeout_seconds=0.05) if by == "environment" else talk()
    options = {"rollout_timeout_s": 0.05} if by == "run" else {}
    [output] = await run(env, ScriptedClient(script), **options)
    assert (output["stop_condition"], output["reward"]) == ("timeout_reached", 1.0)
    assert (output["error"], output["is_completed"]) == (None, True)


async def test_a_timeout_error_of_the_authors_own_is_not_the_rollouts_timeout() -> None:
    class Own(Talk):
        async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> str:
            raise TimeoutError("my own")

    env = Own(dataset=[{"question": "q"}], timeout_seconds=60.0)
    [output] = await run(env, talker())
    assert output["stop_condition"] == "has_error"
    assert "my own" in output["error"]["error_chain_repr"]


async def test_max_turns_of_minus_one_is_no_limit() -> None:
    [output] = await run(talk(max_turns=-1), talker(), max_total_tokens=2000)
    assert output["reward"] == 20.0


@pytest.mark.parametrize("field", ["rollout_timeout_s", "max_total_tokens", "max_cost_usd"])
def test_limits_must_be_positive(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be positive; got 0"):
        RolloutLimits(**{field: 0, "input_usd_per_token": 0.0})


def test_limits_hold_inside_the_block_only() -> None:
    limits = RolloutLimits(rollout_timeout_s=1.0)
    with run_limits(limits):
        assert current_limits() is limits
    assert current_limits().rollout_timeout_s is None
