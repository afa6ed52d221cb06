"""The clients of a run, as callers of v0 replace them: `env.env_client` and `environment.resolve_client`."""

import asyncio
from typing import Any
from unittest import mock

import pytest

import verifiers as vf
from verifiers.testing import ScriptedClient
from verifiers.types import EndpointClientConfig


def environment(count: int = 3) -> vf.SingleTurnEnv:
    async def right(completion: Any, answer: str) -> float:
        return float(completion[-1]["content"] == answer)

    rows = [{"question": f"q{index}", "answer": "4"} for index in range(count)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))


def two_endpoints(client_idx: int = 0) -> vf.ClientConfig:
    return vf.ClientConfig(
        client_idx=client_idx,
        endpoint_configs=[
            EndpointClientConfig(api_base_url="http://first.lan/v1"),
            EndpointClientConfig(api_base_url="http://second.lan/v1"),
        ],
    )


class Remote:
    """A client of an environment server as v0's callers write it: only these two methods, in this form."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.settings: list[Any] = []

    async def run_rollout(
        self,
        input: Any,
        client_config: Any,
        model: str,
        sampling_args: Any,
        max_retries: int,
        state_columns: Any,
    ) -> Any:
        self.hosts.append(client_config.api_base_url.split("/")[2].removesuffix(".lan"))
        self.settings.append((model, sampling_args.get("temperature"), max_retries, state_columns))
        local = environment()
        return await local.run_rollout(input, ScriptedClient(then="4"), model, sampling_args)

    async def run_group(
        self,
        group_inputs: Any,
        client_config: Any,
        model: str,
        sampling_args: Any,
        max_retries: int,
        state_columns: Any,
    ) -> Any:
        asked = (client_config, model, sampling_args, max_retries, state_columns)
        outputs = [await self.run_rollout(row, *asked) for row in group_inputs]
        self.hosts[-len(outputs) :] = [f"{self.hosts[-1]} x{len(outputs)}"]
        return outputs


async def test_single_rollouts_and_groups_run_on_the_server_that_is_set() -> None:
    env, remote = environment(), Remote()
    env.env_client = remote
    [row] = env.get_dataset(n=1)

    one = await env.run_rollout(row, two_endpoints(), "m", {"temperature": 0.5}, 2, ["trajectory"])
    both = await env.run_group([row, row], two_endpoints(client_idx=3), "m", {"temperature": 1})

    assert [one["reward"], *(output["reward"] for output in both)] == [1.0] * 3
    assert remote.hosts == ["first", "second x2"]
    assert remote.settings[0] == ("m", 0.5, 2, ["trajectory"])
    assert remote.settings[1] == ("m", 1, 0, None)


@pytest.mark.parametrize(
    ("client_idx", "independent_scoring", "hosts"),
    [
        (0, False, ["first x2", "second x2", "first x2"]),
        (1, False, ["second x2", "first x2", "second x2"]),
        (0, True, ["first", "second"] * 3),
    ],
)
async def test_a_run_on_a_server_sends_each_request_to_the_next_endpoint(
    client_idx: int, independent_scoring: bool, hosts: list[str]
) -> None:
    env, remote = environment(), Remote()
    env.env_client = remote

    results = await env.evaluate(
        two_endpoints(client_idx),
        "m",
        rollouts_per_example=2,
        max_concurrent=1,
        independent_scoring=independent_scoring,
    )

    assert results["metadata"]["avg_reward"] == 1.0
    assert [output["example_id"] for output in results["outputs"]] == [0, 0, 1, 1, 2, 2]
    assert remote.hosts == hosts


async def test_a_client_that_cannot_be_sent_to_a_server_is_refused() -> None:
    env = environment()
    env.env_client = Remote()
    [row] = env.get_dataset(n=1)
    for call in (
        env.run_rollout(row, ScriptedClient(), "m", {}),
        env.run_group([row], ScriptedClient(), "m", {}),
        env.generate([row], object(), "m"),
    ):
        with pytest.raises(ValueError, match="client must be have type ClientConfig"):
            await call


class Closable(ScriptedClient):
    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_clients_of_a_replaced_resolver_serve_the_groups_in_turn_and_are_closed() -> None:
    made: dict[str, Closable] = {}

    def resolve(client: Any) -> Any:
        if not isinstance(client, vf.ClientConfig):
            return client
        return made.setdefault(client.api_base_url, Closable(then="4"))

    with mock.patch("verifiers.envs.environment.resolve_client", resolve):
        results = await environment().generate(
            environment().get_dataset(), two_endpoints(), "m", max_concurrent=1
        )

    assert results["metadata"]["avg_reward"] == 1.0
    assert [len(client.requests) for client in made.values()] == [2, 1]
    assert [client.closed for client in made.values()] == [1, 1]


async def test_clients_already_made_are_closed_when_a_later_one_fails() -> None:
    first = Closable()
    with (
        mock.patch(
            "verifiers.envs.environment.resolve_client", side_effect=[first, RuntimeError("second")]
        ),
        pytest.raises(RuntimeError, match="second"),
    ):
        await environment().generate(environment().get_dataset(), two_endpoints(), "m")
    assert (first.closed, first.requests) == (1, [])


async def test_a_client_of_the_caller_stays_open() -> None:
    client = Closable(then="4")
    with mock.patch("verifiers.envs.environment.resolve_client", side_effect=lambda one: one):
        await environment().evaluate(client, "m")
    assert (len(client.requests), client.closed) == (3, 0)


async def test_states_are_made_with_the_replaced_resolver() -> None:
    client = ScriptedClient(then="4")
    env = environment()
    [row] = env.get_dataset(n=1)
    with mock.patch("verifiers.envs.environment.resolve_client", return_value=client) as resolve:
        state = await env.init_state(row, vf.ClientConfig(), "m")
        output = await env.run_rollout(row, vf.ClientConfig(), "m", {})
    assert (state["client"], output["reward"]) == (client, 1.0)
    assert resolve.call_count >= 2


def test_environments_are_made_while_the_signals_of_the_module_are_patched() -> None:
    with mock.patch("verifiers.envs.environment.signal.signal") as signal:
        env = environment()
    assert len(env.get_dataset()) == 3
    signal.assert_not_called()
    assert asyncio.run(env.evaluate(ScriptedClient(then="4"), "m"))["metadata"]["avg_reward"] == 1.0
