import asyncio
import json
import shutil
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError

import verifiers as vf
from verifiers.endpoint import EmbeddedEndpoint
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.errors import AuthenticationError, ConfigError, EndpointUnavailable
from verifiers.testing import Reply, ScriptedClient
from verifiers.training.difficulty import DifficultyConfig
from verifiers.training.dispatch_events import CancelReason
from verifiers.training.inference_admin import AdminConfig, UpdateFailed
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.samples import samples_of
from verifiers.training.source import RolloutSource, SourceStalled
from verifiers.training.source_config import SourceConfig
from verifiers.training.validation import validate


def right(completion, answer) -> float:
    return float(answer in completion[-1]["content"])


def environment(count=8, **options):
    rows = [{"question": f"q{n}", "answer": "yes"} for n in range(count)]
    options = {"rubric": vf.Rubric(funcs=[right])} | options
    return vf.SingleTurnEnv(dataset=rows, **options)


def half_right():
    """Answers right every second time."""
    count = iter(range(10**9))
    return ScriptedClient(lambda _: "no" if next(count) % 2 else "yes", token_ids=True)


def source(env, client=None, *, endpoints=None, state=None, **changed):
    options = {
        name: changed.pop(name)
        for name in list(changed)
        if (name.startswith("on_") and name != "on_stale") or name == "version"
    }
    config = {"groups_per_batch": 2, "rollouts_per_group": 2, "max_in_flight": 8} | changed
    chosen = endpoints or [PolicyEndpoint(client or half_right())]
    return RolloutSource(env, chosen, SourceConfig(**config), model="m", state=state, **options)


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
        with pytest.raises(
            SourceStalled, match=r"10 groups in a row|1\d groups in a row"
        ) as caught:
            await rollouts.next_batch()
        assert "every reward is 1" in str(caught.value)
    assert reasons[CancelReason.NO_SIGNAL] >= 10
    async with source(environment(), client, keep_without_signal=True) as rollouts:
        batch = await rollouts.next_batch()
        assert {sample.advantage for sample in batch.samples} == {0.0}


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


async def test_an_evaluation_runs_while_training_goes_on():
    env = environment(eval_dataset=[{"question": f"e{n}", "answer": "yes"} for n in range(4)])
    client = half_right()
    async with source(env, client) as rollouts:
        evaluation, batch = await asyncio.gather(
            rollouts.evaluate(3, 2, state_columns=["trajectory"]), rollouts.next_batch()
        )
        assert len(evaluation.outputs) == 6
        assert [output["example_id"] for output in evaluation.outputs] == [0, 0, 1, 1, 2, 2]
        assert evaluation.mean_reward == np.mean([o["reward"] for o in evaluation.outputs])
        assert evaluation.versions == (0, 0)
        assert evaluation.outputs[0]["prompt"][-1]["content"] == "e0"
        assert evaluation.outputs[0]["trajectory"]
        assert len(batch.entries) == 2
        assert not rollouts._evaluations


async def test_an_evaluation_that_is_cancelled_leaves_nothing_behind():
    never = asyncio.Event()
    count = iter(range(10**9))

    def reply(prompt):
        if prompt[-1]["content"].startswith("e"):
            return Reply("x", after=never)
        return "no" if next(count) % 2 else "yes"

    env = environment(eval_dataset=[{"question": "e0", "answer": "yes"}])
    client = ScriptedClient(reply, token_ids=True)
    async with source(env, client) as rollouts:
        task = asyncio.create_task(rollouts.evaluate(rollouts_per_example=3))
        await rollouts.next_batch()
        await rollouts.next_batch()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not rollouts._evaluations
        assert (await rollouts.next_batch()).entries
    assert client.in_flight == 0


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


@pytest.mark.parametrize("answered", [0, 3, 5])
async def test_an_evaluation_under_way_is_continued_after_resuming(answered):
    """Neither what it has is played again, nor is it lost."""
    evaluation = [{"question": f"e{n}", "answer": "yes"} for n in range(3)]
    fast = half_right()

    def client(limit, asked):
        async def reply(prompt):
            if prompt[-1]["content"].startswith("e"):
                asked.append(prompt[-1]["content"])
                if len(asked) > limit:
                    await asyncio.Event().wait()
                return f"yes {len(asked)} of {limit}"
            return (await fast.get_response(prompt, "m", {})).message.content

        return ScriptedClient(reply, token_ids=True)

    first: list[str] = []
    env = environment(eval_dataset=evaluation)
    async with source(env, client(answered, first), max_in_flight=6, version=4) as rollouts:
        task = asyncio.create_task(rollouts.evaluate(3, 2, sampling_args={"temperature": 0.0}))
        while len(first) < min(6, answered + 1) or finished(rollouts) < answered:  # noqa: ASYNC110
            await asyncio.sleep(0)
        saved = json.loads(json.dumps(rollouts.state_dict()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    second: list[str] = []
    async with source(env, client(99, second), max_in_flight=6, state=saved, version=5) as resumed:
        again = json.loads(json.dumps(resumed.state_dict()))["evaluations"]
        assert again == saved["evaluations"]  # saved once more before it is asked for again
        result = await resumed.evaluate(3, 2, sampling_args={"temperature": 0.0})
        assert resumed.state_dict()["evaluations"] == []
    assert len(second) == 6 - answered
    assert result.versions == (4, 5)
    assert [output["example_id"] for output in result.outputs] == [0, 0, 1, 1, 2, 2]
    kept = [o for o in result.outputs if f"of {answered}" in o["completion"][-1]["content"]]
    assert len(kept) == answered
    assert result.mean_reward == 1.0


def finished(rollouts):
    """Rollouts of evaluations that have a result."""
    return sum(
        result is not None
        for saved in rollouts.state_dict()["evaluations"]
        for _, results in saved["groups"]
        for result in results
    )


async def test_another_evaluation_than_the_saved_one_begins_anew():
    env = environment(eval_dataset=[{"question": "e0", "answer": "yes"}])
    async with source(env) as rollouts:
        saved = rollouts.state_dict()
    request = {"examples": 1, "rollouts_per_example": 2, "sampling_args": {}, "state_columns": []}
    saved["evaluations"] = [{"request": request, "version": 0, "groups": [[0, [None, None]]]}]
    async with source(env, state=saved) as resumed:
        assert len((await resumed.evaluate(1, 3)).outputs) == 3
        assert resumed.state_dict()["evaluations"] == saved["evaluations"]


async def test_a_source_begins_with_the_version_the_policy_has():
    async with source(environment(), version=7) as rollouts:
        assert rollouts.version == 7
        batch = await rollouts.next_batch()
        assert batch.version == 7
        assert {entry.version for entry in batch.entries} == {7}
        saved = rollouts.state_dict()
    with pytest.raises(ConfigError, match="state is of policy version 7, the policy of version 6"):
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
    with pytest.raises(ValidationError, match="no advantage 'grpo'"):
        SourceConfig(groups_per_batch=1, rollouts_per_group=1, advantage="grpo")
    with pytest.raises(ConfigError, match="at least one endpoint"):
        RolloutSource(
            environment(), [], SourceConfig(groups_per_batch=1, rollouts_per_group=1), model="m"
        )


# ------------------------------------------------------------------------------------------------ real servers


def letters():
    """Short answers with rewards that vary: the share of letters an answer shares with the question."""

    def overlap(completion, prompt) -> float:
        content = completion[-1]["content"] or ""
        wanted = set(prompt[-1]["content"])
        return len(wanted & set(content)) / len(wanted)

    rows = [
        {"question": "".join(chr(97 + (n * k) % 26) for k in range(1, 7)), "answer": ""}
        for n in range(1, 12)
    ]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[overlap]))


QUICK = AdminConfig(max_attempts=2, first_wait_s=0.0)


@pytest.mark.parametrize("dialect", ["prime_rl", "vllm"])
async def test_two_servers_get_new_weights_in_flight_and_every_token_knows_its_version(
    dialect, tmp_path
):
    weights = [shutil.copytree(SHIPPED_WEIGHTS, tmp_path / f"step_{n}") for n in range(4)]
    played = []
    async with EmbeddedEndpoint() as one, EmbeddedEndpoint() as two:
        admin = QUICK.model_copy(update={"dialect": dialect})
        endpoints = [PolicyEndpoint.at(server.url, admin=admin) for server in (one, two)]
        rollouts = RolloutSource(
            letters(),
            endpoints,
            SourceConfig(
                groups_per_batch=2,
                rollouts_per_group=4,
                max_in_flight=16,
                max_off_policy_steps=2,
                keep_without_signal=True,
            ),
            model="embedded",
            sampling_args={"max_tokens": 24, "temperature": 1.0},
            on_rollout=played.append,
        )
        async with rollouts:
            for step in range(1, 4):
                batch = await rollouts.next_batch()
                assert batch.metrics["staleness/max"] <= 2
                for sample in batch.samples:
                    assert sample.versions is not None
                    assert sample.versions[sample.mask].min() >= batch.version - 2
                    assert sample.versions[sample.mask].max() <= batch.version
                    assert (sample.versions[~sample.mask] == -1).all()
                await rollouts.update_weights(weights[step], step)
                assert rollouts.version == step
                assert [s.engine.version for s in (one, two)] == [step, step]
            evaluation = await rollouts.evaluate(2)
            assert evaluation.versions == (3, 3)
        assert all(server.engine.counts["requests"] > 0 for server in (one, two))
        for endpoint in endpoints:
            await endpoint.client.aclose()
    for state in played:
        if state["error"] is None:
            assert validate(samples_of(state), state, vocabulary_size=264).is_ok


async def test_a_server_that_does_not_take_weights_is_left_out_and_the_other_goes_on(tmp_path):
    weights = shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "step_1")
    async with EmbeddedEndpoint() as one, EmbeddedEndpoint() as two:
        endpoints = [PolicyEndpoint.at(server.url, admin=QUICK) for server in (one, two)]
        rollouts = RolloutSource(
            letters(),
            endpoints,
            SourceConfig(
                groups_per_batch=1, rollouts_per_group=4, max_in_flight=8, keep_without_signal=True
            ),
            model="embedded",
            sampling_args={"max_tokens": 8},
        )
        async with rollouts:
            await rollouts.next_batch()
            endpoints[1].admin.url = "http://127.0.0.1:9"
            with pytest.raises(UpdateFailed, match="1 of 2") as caught:
                await rollouts.update_weights(weights, 1)
            assert caught.value.updated == [one.url]
            assert rollouts.version == 1
            assert rollouts._open_dispatch.healthy_endpoints() == [True, False]
            assert (await rollouts.next_batch()).samples
            endpoints[0].admin.url = "http://localhost:9"
            with pytest.raises(UpdateFailed, match="2 of 2"):
                await rollouts.update_weights(weights, 2)
            assert rollouts.version == 1
        for endpoint in endpoints:
            await endpoint.client.aclose()


async def test_an_endpoint_that_dies_is_left_out_and_used_again_when_it_is_back(monkeypatch):
    import verifiers.training.endpoint_watch as endpoint_watch

    monkeypatch.setattr(endpoint_watch, "HEALTH_INTERVAL_S", 0.01)
    down = True
    fast = half_right()

    async def reply(prompt):
        if down:
            raise EndpointUnavailable("down")
        return (await fast.get_response(prompt, "m", {})).message.content

    async with EmbeddedEndpoint() as server:
        admin = PolicyEndpoint.at(server.url, admin=QUICK).admin
        flaky = PolicyEndpoint(ScriptedClient(reply, token_ids=True), admin)
        steady = PolicyEndpoint(half_right())
        async with source(environment(), endpoints=[flaky, steady], max_in_flight=2) as rollouts:
            admin.url = "http://127.0.0.1:9"
            batch = await rollouts.next_batch()
            assert all(len(entry.outcome.rewards) == 2 for entry in batch.entries)
            assert rollouts._open_dispatch.healthy_endpoints() == [False, True]
            down, admin.url = False, server.url
            while not all(rollouts._open_dispatch.healthy_endpoints()):
                await rollouts.next_batch()
            before = len(fast.requests)
            while len(fast.requests) == before:
                await rollouts.next_batch()


async def test_when_no_endpoint_answers_for_long_the_source_says_so():
    client = ScriptedClient(then=EndpointUnavailable("down"), token_ids=True)
    admin = PolicyEndpoint.at("http://127.0.0.1:9", admin=QUICK).admin
    endpoints = [PolicyEndpoint(client, admin)]
    async with source(environment(), endpoints=endpoints, unreachable_timeout_s=0.05) as rollouts:
        with pytest.raises(SourceStalled, match=r"No endpoint answered for 0.05 s.*127.0.0.1:9"):
            await rollouts.next_batch()


async def test_without_administration_weights_are_the_callers_business():
    async with source(environment()) as rollouts:
        with pytest.raises(ConfigError, match="set_version"):
            await rollouts.update_weights("somewhere", 1)
        await rollouts.set_version(5)
        assert rollouts.version == 5
        with pytest.raises(ValueError, match="went back"):
            await rollouts.set_version(4)
