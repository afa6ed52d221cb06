"""A source and its inference servers: new weights in flight, servers that die, hang or are restarted."""

import asyncio
import shutil

import pytest
from sources import QUICK, environment, half_right, letters, source

import verifiers as vf
from verifiers.endpoint import EmbeddedEndpoint
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.errors import ConfigError, EndpointUnavailable
from verifiers.state import RolloutTiming, TimeSpan
from verifiers.testing import Reply, ScriptedClient
from verifiers.training import policy
from verifiers.training.inference_admin import InferenceAdmin, UpdateFailed
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.rollout_results import hang_of
from verifiers.training.samples import samples_of
from verifiers.training.source import RolloutSource, SourceStalled
from verifiers.training.source_config import SourceConfig
from verifiers.training.validation import validate


@pytest.fixture
def quick_watch(monkeypatch):
    monkeypatch.setattr(policy, "HEALTH_INTERVAL_S", 0.01)


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


async def test_an_endpoint_that_dies_is_left_out_and_used_again_when_it_is_back(quick_watch):
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


class WatchedAdmin(InferenceAdmin):
    """Notes what it found."""

    def __init__(self, *args):
        super().__init__(*args)
        self.found = []

    async def status(self):
        self.found.append(await super().status())
        return self.found[-1]


class Switched:
    """A model behind an administered server; `down` makes both unreachable."""

    def __init__(self, url):
        self.model = half_right()
        self.url = url
        self.is_down = False
        client = ScriptedClient(self._reply, token_ids=True)
        self.endpoint = PolicyEndpoint(client, WatchedAdmin(url, QUICK))

    async def _reply(self, prompt):
        if self.is_down:
            raise EndpointUnavailable("down")
        return (await self.model.get_response(prompt, "m", {})).message.content

    def down(self):
        self.is_down, self.endpoint.admin.url = True, "http://127.0.0.1:9"

    def up(self, url=None):
        self.is_down, self.endpoint.admin.url = False, url or self.url


async def batches_until(rollouts, healthy):
    while rollouts._open_dispatch.healthy_endpoints() != healthy:
        await rollouts.next_batch()


async def seen_by_the_watch(rollouts, admin):
    """Take batches until the server was found to be up, and some more."""
    admin.found.clear()
    while not any(status.is_healthy for status in admin.found):
        await rollouts.next_batch()
    for _ in range(5):
        await rollouts.next_batch()


@pytest.fixture
async def servers():
    async with EmbeddedEndpoint() as one, EmbeddedEndpoint() as two:
        yield one, two


async def test_a_server_that_missed_an_update_is_not_used_before_the_next_one(
    quick_watch, servers, tmp_path
):
    one, two = servers
    weights = [shutil.copytree(SHIPPED_WEIGHTS, tmp_path / f"step_{n}") for n in range(3)]
    flaky, steady = Switched(one.url), Switched(two.url)
    ends = [flaky.endpoint, steady.endpoint]
    async with source(environment(), endpoints=ends, max_in_flight=4) as rollouts:
        await rollouts.next_batch()
        flaky.down()
        await batches_until(rollouts, [False, True])
        with pytest.raises(UpdateFailed, match="1 of 2"):
            await rollouts.update_weights(weights[1], 1)
        flaky.up()
        asked = len(flaky.model.requests)
        await seen_by_the_watch(rollouts, flaky.endpoint.admin)
        assert rollouts._open_dispatch.healthy_endpoints() == [False, True]
        assert len(flaky.model.requests) == asked
        await rollouts.update_weights(weights[2], 2)
        assert rollouts._open_dispatch.healthy_endpoints() == [True, True]
        assert (one.engine.version, two.engine.version) == (2, 2)


async def test_a_server_that_was_restarted_with_its_first_weights_is_not_used(
    quick_watch, servers, tmp_path
):
    one, two = servers
    weights = shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "step_1")
    flaky, steady = Switched(one.url), Switched(two.url)
    ends = [flaky.endpoint, steady.endpoint]
    async with (
        EmbeddedEndpoint() as restarted,
        source(environment(), endpoints=ends, max_in_flight=4) as rollouts,
    ):
        await rollouts.update_weights(weights, 1)
        flaky.down()
        await batches_until(rollouts, [False, True])
        flaky.up(restarted.url)
        await seen_by_the_watch(rollouts, flaky.endpoint.admin)
        assert rollouts._open_dispatch.healthy_endpoints() == [False, True]
        # The same server, not restarted, has what it was given.
        flaky.up()
        await batches_until(rollouts, [True, True])


async def test_when_the_only_server_lost_its_weights_the_source_says_so(
    quick_watch, servers, tmp_path
):
    one, two = servers
    weights = shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "step_1")
    only = Switched(one.url)
    async with source(
        environment(), endpoints=[only.endpoint], unreachable_timeout_s=0.2
    ) as rollouts:
        await rollouts.update_weights(weights, 1)
        only.down()
        only.endpoint.admin.url = two.url
        with pytest.raises(SourceStalled, match="with weights of version 0, but the policy has"):
            await batches_until(rollouts, [])


async def test_who_gives_the_weights_himself_may_use_every_server_again(
    quick_watch, servers, tmp_path
):
    one, two = servers
    weights = shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "step_1")
    flaky, steady = Switched(one.url), Switched(two.url)
    ends = [flaky.endpoint, steady.endpoint]
    async with source(environment(), endpoints=ends) as rollouts:
        flaky.endpoint.admin.url = "http://127.0.0.1:9"
        with pytest.raises(UpdateFailed):
            await rollouts.update_weights(weights, 1)
        assert rollouts._open_dispatch.healthy_endpoints() == [False, True]
        flaky.up()
        await rollouts.set_version(2)
        assert rollouts._open_dispatch.healthy_endpoints() == [True, True]


async def test_older_weights_are_refused_before_a_server_has_them(servers, tmp_path):
    one, _ = servers
    weights = [shutil.copytree(SHIPPED_WEIGHTS, tmp_path / f"step_{n}") for n in range(2)]
    only = Switched(one.url)
    async with source(environment(), endpoints=[only.endpoint], version=5) as rollouts:
        with pytest.raises(ConfigError, match="went back from 5 to 3"):
            await rollouts.update_weights(weights[0], 3)
        assert one.engine.version == 0
        # Two at once are made one after another, so the older of them is refused.
        ends = await asyncio.gather(
            rollouts.update_weights(weights[1], 7),
            rollouts.update_weights(weights[0], 6),
            return_exceptions=True,
        )
        assert [type(end) for end in ends] == [type(None), ConfigError]
        assert (one.engine.version, rollouts.version) == (7, 7)


async def test_an_endpoint_that_hangs_gives_its_places_back():
    silent = ScriptedClient(lambda _: Reply("yes", after=asyncio.Event()), token_ids=True)
    ends = [PolicyEndpoint(silent), PolicyEndpoint(half_right())]
    async with source(
        environment(), endpoints=ends, max_in_flight=4, groups_per_batch=1, max_attempts=1,
        rollout_timeout_s=0.3,
    ) as rollouts:  # fmt: skip
        batches = [await rollouts.next_batch() for _ in range(6)]
    assert {len(entry.outcome.rewards) for batch in batches for entry in batch.entries} == {2}
    assert sum(batch.metrics["cancelled/failed"] for batch in batches) > 0
    assert silent.in_flight == 0


@pytest.mark.parametrize(
    ("asked", "sampled", "timed_out", "expected"),
    [
        (True, False, True, "EndpointUnavailable"),
        (False, False, True, "InfraError"),  # a setup that hangs is not the endpoint's doing
        (True, True, True, "NoneType"),  # what was sampled counts as it is
        (True, False, False, "NoneType"),
    ],
)
def test_a_time_limit_before_the_first_token_is_a_failure(asked, sampled, timed_out, expected):
    state = vf.State(timed_out=timed_out, trajectory=[{}] if sampled else [])
    state["timing"] = RolloutTiming()
    if asked:
        state.timing.model.spans.append(TimeSpan(0.0, 1.0))
    assert type(hang_of(state, 1.0)).__name__ == expected
