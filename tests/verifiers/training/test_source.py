"""Batches of a source: groups, staleness, failures, what is dropped."""

import asyncio
from collections import Counter

import pytest
from pydantic import ValidationError
from sources import environment, half_right, source

import verifiers as vf
from verifiers.errors import AuthenticationError, ConfigError, EndpointUnavailable
from verifiers.testing import Reply, ScriptedClient
from verifiers.training.batch import batch_metrics
from verifiers.training.difficulty import DifficultyConfig
from verifiers.training.dispatch import CancelReason
from verifiers.training.samples import samples_of
from verifiers.training.source import RolloutSource, SourceStalled
from verifiers.training.source_config import SourceConfig
from verifiers.training.validation import validate


async def test_a_batch_has_groups_with_advantages_and_samples_that_were_sampled():
    played = []
    async with source(environment(), on_rollout=played.append, groups_per_batch=3) as rollouts:
        batch = await rollouts.next_batch()
        assert (batch.step, batch.version) == (1, 0)
        assert len(batch.entries) == 3
        assert len(batch.samples) == 6
        assert Counter(s.advantage for s in batch.samples) == {0.5: 3, -0.5: 3}
        assert len({s.group_id for s in batch.samples}) == 3
        assert batch.metrics["reward/mean"] == 0.5
        assert batch.metrics["staleness/max"] == 0.0
        assert batch.metrics["tokens/trained"] == sum(s.trained_count for s in batch.samples)
        assert (await rollouts.next_batch()).step == 2
    by_id = {state["trajectory_id"]: state for state in played}
    for sample in batch.samples:
        state = by_id[sample.rollout_id]
        assert sample.example_id == state["example_id"]
        assert validate(samples_of(state), state).is_ok


async def test_a_slow_rollout_holds_up_its_own_group_only():
    never = asyncio.Event()
    first = iter([True])
    fast = half_right()

    async def reply(prompt):
        if next(first, False):
            await never.wait()
        return (await fast.get_response(prompt, "m", {})).message.content

    client = ScriptedClient(reply, token_ids=True)
    async with source(environment(), client, max_in_flight=3) as rollouts:
        for _ in range(3):
            batch = await rollouts.next_batch()
            assert 0 not in [entry.group for entry in batch.entries]
    assert client.in_flight == 0  # leaving the source stopped it


async def test_a_group_too_old_is_stopped_in_flight_and_its_rollouts_replaced():
    never = asyncio.Event()
    count = iter(range(10**9))

    def reply(_):
        number = next(count)
        return Reply("yes", after=never) if number == 0 else ("no" if number % 2 else "yes")

    dropped = []
    client = ScriptedClient(reply, token_ids=True)
    async with source(
        environment(), client, max_in_flight=2, max_off_policy_steps=1,
        groups_per_batch=1, on_cancellation=dropped.append,
    ) as rollouts:  # fmt: skip
        await rollouts.next_batch()
        await rollouts.set_version(1)
        assert client.in_flight >= 1
        await rollouts.set_version(2)
        stale = [one for one in dropped if one.reason is CancelReason.STALE]
        assert 0 in [one.group for one in stale]
        batch = await rollouts.next_batch()
        assert batch.version == 2
        assert batch.entries[0].version >= 1
        assert batch.metrics["cancelled/stale"] >= 1
        assert batch.metrics["stale/rollouts"] >= 1  # the one in flight too
        assert batch.metrics["stale/length_selection"] > 0
        assert (await rollouts.next_batch()).metrics["stale/length_selection"] == 1.0
        assert (
            not rollouts._played_s.keys()
            - rollouts._open_dispatch._open.keys()
            - {group.number for group in rollouts._open_dispatch._ready}
        )


def test_dropping_long_rollouts_is_reported_as_a_selection_by_length():
    figures = {"version": 0, "cancelled": [], "durations_s": [], "wall_s": 1.0}
    found = batch_metrics([], batch_s=[1.0, 1.0], stale_s=[4.0], **figures)
    assert found["stale/rollouts"] == 1.0
    assert found["stale/length_selection"] == 0.5
    nothing_dropped = batch_metrics([], batch_s=[1.0, 3.0], **figures)
    assert nothing_dropped["stale/length_selection"] == 1.0


async def test_too_old_tokens_can_be_masked_instead():
    async with source(
        environment(), on_stale="mask", max_off_policy_steps=0, max_groups_ahead=2, max_in_flight=2
    ) as rollouts:
        while rollouts._open_dispatch.ready_groups < 2:
            await rollouts._changed.wait()
            rollouts._changed.clear()
        # Nothing says which version sampled them, so they are as old as their groups: no token is left.
        await rollouts.set_version(1)
        batch = await rollouts.next_batch()
        assert {entry.version for entry in batch.entries} == {1}
        assert batch.metrics["cancelled/stale"] == 2


async def test_groups_without_signal_are_dropped_and_the_source_does_not_search_for_ever():
    client = ScriptedClient(then="yes", token_ids=True)
    reasons = Counter()

    def note(cancelled):
        reasons[cancelled.reason] += 1

    async with source(environment(), client, give_up_after=10, on_cancellation=note) as rollouts:
        with pytest.raises(SourceStalled, match=r"1\d consecutive groups") as caught:
            await rollouts.next_batch()
        assert "every reward is 1" in str(caught.value)
    assert reasons[CancelReason.NO_SIGNAL] >= 10
    async with source(environment(), client, keep_without_signal=True) as rollouts:
        batch = await rollouts.next_batch()
        assert {sample.advantage for sample in batch.samples} == {0.0}


@pytest.mark.parametrize("kept", [False, True])
async def test_groups_that_never_differ_are_warned_about_once_and_again_when_doubled(kept, caplog):
    client = ScriptedClient(then="yes", token_ids=True)
    options = {"keep_without_signal": kept, "give_up_after": 9, "max_in_flight": 2}
    async with source(environment(), client, **options) as rollouts:
        if kept:
            for _ in range(5):
                await rollouts.next_batch()
        else:
            with pytest.raises(SourceStalled):
                await rollouts.next_batch()
    warned = [r.getMessage() for r in caplog.records if "same reward" in r.getMessage()]
    assert warned[0].startswith(
        "In each of the last 4 groups all rollouts have the same reward (1 "
    )
    assert warned[1].startswith("In each of the last 8 groups")
    caplog.clear()
    async with source(environment()) as rollouts:
        for _ in range(5):
            await rollouts.next_batch()
    assert not caplog.records


async def test_rollouts_that_the_machinery_fails_are_played_again_then_dropped():
    client = ScriptedClient(then=EndpointUnavailable("down"), token_ids=True)
    async with source(environment(), client, give_up_after=4, max_attempts=2) as rollouts:
        with pytest.raises(SourceStalled, match="the rollout failed: EndpointUnavailable"):
            await rollouts.next_batch()
        tally = rollouts._open_dispatch.tally
        assert tally.rollouts_retried > 0
    flaky = iter(range(10**9))

    def reply(_):
        number = next(flaky)
        return EndpointUnavailable("busy") if number % 3 == 0 else ("no" if number % 2 else "yes")

    async with source(environment(), ScriptedClient(reply, token_ids=True)) as rollouts:
        batch = await rollouts.next_batch()
        assert all(len(entry.outcome.rewards) == 2 for entry in batch.entries)


async def test_failed_rollouts_are_in_no_batch_but_their_siblings_are():
    def boom(completion, answer) -> float:
        content = completion[-1]["content"]
        if content == "boom":
            raise ValueError(content)
        return float(content == "yes")

    replies = iter(["boom", "yes", "no"] * 100)
    client = ScriptedClient(lambda _: next(replies), token_ids=True)
    env = environment(rubric=vf.Rubric(funcs=[boom]))
    async with source(env, client, rollouts_per_group=3, max_in_flight=3) as rollouts:
        batch = await rollouts.next_batch()
    for entry in batch.entries:
        assert sorted(entry.outcome.rewards) == [0.0, 1.0]
        assert "ValueError" in entry.outcome.failures[0] or "boom" in entry.outcome.failures[0]
    assert {sample.advantage for sample in batch.samples} == {0.5, -0.5}
    assert batch.metrics["rollouts/failed"] == 2.0


@pytest.mark.parametrize("error", [AuthenticationError("bad key"), ConfigError("no such model")])
async def test_what_no_retry_helps_stops_the_source_and_is_raised(error):
    async with source(environment(), ScriptedClient(then=error, token_ids=True)) as rollouts:
        with pytest.raises(type(error), match=str(error)):
            await rollouts.next_batch()
        with pytest.raises(type(error), match=str(error)):
            await rollouts.evaluate(1)


async def test_an_endpoint_without_token_ids_stops_the_source_and_says_what_to_do():
    async with source(environment(), ScriptedClient(lambda _: "yes")) as rollouts:
        with pytest.raises(vf.Error, match="openai_chat_completions_token"):
            await rollouts.next_batch()


async def test_rewards_of_whole_groups_and_advantages_of_environments_are_used():
    def best(completions, **_) -> list[float]:
        contents = [completion[-1]["content"] for completion in completions]
        return [float(content == max(contents)) for content in contents]

    env = environment(rubric=vf.Rubric(funcs=[best]))
    assert env.requires_group_rollouts
    async with source(env) as rollouts:
        batch = await rollouts.next_batch()
    assert Counter(s.advantage for s in batch.samples) == {0.5: 2, -0.5: 2}


async def test_environments_of_a_group_are_mixed_by_weight_and_named_on_samples():
    group = vf.EnvGroup([environment(4), environment(4)], env_names=["math", "code"])
    async with source(
        group, env_weights={"math": 1.0, "code": 0.0}, groups_per_batch=4
    ) as rollouts:
        batch = await rollouts.next_batch()
    assert {sample.env_id for sample in batch.samples} == {"math"}
    with pytest.raises(ConfigError, match="chess"):
        await source(group, env_weights={"chess": 1.0}).__aenter__()


async def test_examples_the_policy_always_solves_are_drawn_less():
    env = environment(20)

    def reply(prompt):
        number = int(prompt[-1]["content"][1:])
        return "yes" if number < 10 or next(count) % 2 else "no"

    count = iter(range(10**9))
    client = ScriptedClient(reply, token_ids=True)
    difficulty = DifficultyConfig(mixture={"normal": 1.0})
    async with source(
        env, client, difficulty=difficulty, max_in_flight=2, max_groups_ahead=2
    ) as rollouts:
        for _ in range(15):
            batch = await rollouts.next_batch()
        easy = batch.metrics["difficulty/easy"]
        begun = rollouts._open_dispatch.tally.groups_begun
        dropped = rollouts._open_dispatch.tally.cancelled[CancelReason.NO_SIGNAL]
    assert easy == 10
    assert dropped <= 10 + begun * 0.1  # each of the easy ones once, then never again


async def test_what_the_trainer_raises_passes_and_everything_is_stopped():
    never = asyncio.Event()
    client = ScriptedClient(lambda _: Reply("x", after=never), token_ids=True)

    async def train():
        async with source(environment(), client):
            while not client.in_flight:  # noqa: ASYNC110 - a script has no event for it
                await asyncio.sleep(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await train()
    assert client.in_flight == 0
    # and when it is left before any rollout has had its first step
    async with source(environment(), client) as rollouts:
        pass
    assert rollouts._open_dispatch.in_flight == 0
    with pytest.raises(RuntimeError, match="async with"):
        await source(environment()).next_batch()


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ValidationError, match="would then never fill"):
        SourceConfig(groups_per_batch=4, rollouts_per_group=1, max_groups_ahead=3)
    with pytest.raises(ValidationError, match="'grpo' is not an advantage estimator"):
        SourceConfig(groups_per_batch=1, rollouts_per_group=1, advantage="grpo")
    with pytest.raises(ConfigError, match="at least one endpoint"):
        RolloutSource(
            environment(), [], SourceConfig(groups_per_batch=1, rollouts_per_group=1), model="m"
        )
