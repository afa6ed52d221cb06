"""A source that goes on where another one was saved."""

import asyncio
import json
import math
from collections import Counter

import pytest
from sources import environment, right, source

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.testing import Reply, ScriptedClient
from verifiers.training.dispatch import CancelReason
from verifiers.training.rollout_results import RolloutResult, decoded, encoded


async def test_resuming_neither_repeats_nor_loses_an_example():
    trained = []
    saved = None

    def note(cancelled):
        if cancelled.reason is not CancelReason.CLOSED:
            trained.append(cancelled.example)

    for _ in range(4):  # each run takes three batches of two, from twelve examples
        async with source(
            environment(12), state=saved, max_in_flight=5, on_cancellation=note
        ) as rollouts:
            for _ in range(3):
                batch = await rollouts.next_batch()
                trained += [entry.example for entry in batch.entries]
            saved = json.loads(json.dumps(rollouts.state_dict()))
    assert batch.step == 12
    counts = Counter(trained)
    # However often it was stopped, no example is an epoch ahead of another, and every group begun is somewhere.
    begun = saved["dispatch"]["open"] + saved["dispatch"]["ready"]
    for group in begun:
        counts[group["example"]] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    assert sum(counts.values()) == saved["dispatch"]["tally"]["groups_begun"]


async def test_a_source_begins_with_the_version_the_policy_has():
    async with source(environment(), version=7) as rollouts:
        assert rollouts.version == 7
        batch = await rollouts.next_batch()
        assert batch.version == 7
        assert {entry.version for entry in batch.entries} == {7}
        saved = rollouts.state_dict()
    with pytest.raises(
        ConfigError, match="state has policy version 7, but the policy has version 6"
    ):
        await source(environment(), state=saved, version=6).__aenter__()
    # A later policy than the saved state's: what has become too old is not trained on.
    dropped = []
    async with source(
        environment(), state=saved, version=9, max_off_policy_steps=1,
        on_cancellation=lambda one: dropped.append((one.reason, one.version)),
    ) as rollouts:  # fmt: skip
        assert {e.version for e in (await rollouts.next_batch()).entries} == {9}
    stale = [version for reason, version in dropped if reason is CancelReason.STALE]
    assert set(stale) == {7}


async def test_groups_that_were_ready_are_trained_after_resuming_without_playing_them_again():
    async with source(environment(), max_groups_ahead=4) as rollouts:
        while rollouts._open_dispatch.ready_groups < 4:
            rollouts._changed.clear()
            await rollouts._changed.wait()
        saved = json.loads(json.dumps(rollouts.state_dict()))
    silent = ScriptedClient(lambda _: Reply("x", after=asyncio.Event()), token_ids=True)
    async with source(environment(), silent, state=saved) as resumed:
        batch = await resumed.next_batch()
        assert batch.step == 1
        assert [entry.group for entry in batch.entries] == [0, 1]
        assert Counter(s.advantage for s in batch.samples) == {0.5: 2, -0.5: 2}
        assert all(s.spans and s.trained_count for s in batch.samples)
    with pytest.raises(ConfigError, match="format None"):
        await source(environment(), state={}).__aenter__()


async def test_metrics_that_are_no_numbers_survive_json():
    class Odd(vf.Rubric):
        async def score_rollout(self, state, *args, **kwargs):
            await super().score_rollout(state, *args, **kwargs)
            state["metrics"] = {**(state["metrics"] or {}), "odd": float("nan")}

    env = environment(rubric=Odd(funcs=[right]))
    async with source(env, max_groups_ahead=4) as rollouts:
        while rollouts._open_dispatch.ready_groups < 2:
            rollouts._changed.clear()
            await rollouts._changed.wait()
        saved = rollouts.state_dict()
    text = json.dumps(saved, allow_nan=False)  # what is not JSON becomes null in some encoders
    async with source(env, state=json.loads(text), max_groups_ahead=4) as resumed:
        batch = await resumed.next_batch()
    assert math.isnan(batch.metrics["metric/odd"])
    assert batch.metrics["metric/right"] == 0.5
    failed = RolloutResult(math.nan, "its reward is nan", [], math.inf, {"odd": math.inf})
    again = decoded(json.loads(json.dumps(encoded(failed), allow_nan=False)))
    assert math.isnan(again.reward)
    assert again.advantage is None
