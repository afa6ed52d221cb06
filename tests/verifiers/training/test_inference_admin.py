"""Against the embedded endpoint, which speaks both dialects, and against servers that fail in known ways."""

import asyncio
import shutil

import pytest
from aiohttp import web

import verifiers as vf
from verifiers.endpoint import EmbeddedEndpoint, EndpointConfig
from verifiers.endpoint.model import SHIPPED_WEIGHTS
from verifiers.training.inference_admin import (
    AdminConfig,
    AdminRefused,
    AdminUnavailable,
    InferenceAdmin,
    cache_salt,
    update_all,
)
from verifiers.training.policy import PolicyClient, PolicyEndpoint

QUICK = {"max_attempts": 2, "first_wait_s": 0.0}


@pytest.fixture
def weights(tmp_path):
    return shutil.copytree(SHIPPED_WEIGHTS, tmp_path / "step_1")


def administration(url, dialect="prime_rl", **options):
    return InferenceAdmin(url, AdminConfig(dialect=dialect, **(QUICK | options)))


@pytest.mark.parametrize("dialect", ["prime_rl", "vllm"])
@pytest.mark.parametrize("pause", [True, False])
async def test_new_weights_are_in_use_afterwards_and_the_server_goes_on(dialect, pause, weights):
    async with EmbeddedEndpoint() as endpoint, administration(endpoint.url, dialect) as admin:
        assert await admin.status() == (True, 0, "ok")
        await admin.update_weights(weights, 7, pause=pause)
        assert (await admin.status()).version == 7
        assert not endpoint.engine.status.paused
        assert endpoint.engine.counts["weight_updates"] == 1


async def test_parts_are_applied_together(weights, tmp_path):
    from verifiers.endpoint.weights import read_safetensors, write_safetensors

    tensors = read_safetensors(weights / "model.safetensors")
    names = sorted(tensors)
    parts = []
    for number, own in enumerate((names[::2], names[1::2])):
        folder = tmp_path / f"part_{number}"
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", {n: tensors[n] for n in own})
        parts.append({"weight_dir": str(folder)})
    async with EmbeddedEndpoint() as endpoint, administration(endpoint.url, "vllm") as admin:
        await admin.update_weights(parts, 3)
        assert (await admin.status()).version == 3
        with pytest.raises(AdminRefused, match="is not a checkpoint of this model: missing"):
            await admin.update_weights(parts[:1], 4)
        assert (await admin.status()).version == 3


@pytest.mark.parametrize("dialect", ["prime_rl", "vllm"])
async def test_weights_that_cannot_be_used_are_refused_and_generation_goes_on(dialect, tmp_path):
    async with EmbeddedEndpoint() as endpoint, administration(endpoint.url, dialect) as admin:
        with pytest.raises(AdminRefused) as caught:
            await admin.update_weights(tmp_path / "nothing", 1)
        assert caught.value.status == 400
        assert "nothing" in str(caught.value)
        assert not endpoint.engine.status.paused
        assert (await admin.status()).version == 0


async def test_both_failures_of_a_lost_server_are_reported(weights):
    async with administration("http://127.0.0.1:9") as admin:
        with pytest.raises(
            AdminUnavailable, match=r"POST .*/pause failed.*Resuming failed as well"
        ):
            await admin.update_weights(weights, 1)


async def test_a_cancelled_update_still_resumes(weights):
    async with EmbeddedEndpoint() as endpoint, administration(endpoint.url) as admin:
        entered = asyncio.Event()

        async def never(*_):
            entered.set()
            await asyncio.Event().wait()

        admin.load_weights = never
        task = asyncio.create_task(admin.update_weights(weights, 1))
        await entered.wait()
        assert endpoint.engine.status.paused
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not endpoint.engine.status.paused


async def test_a_server_without_adapters_says_so(tmp_path):
    async with EmbeddedEndpoint() as endpoint:
        for dialect in ("prime_rl", "vllm"):
            async with administration(endpoint.url, dialect) as admin:
                with pytest.raises(AdminRefused, match="whole weights only") as caught:
                    await admin.load_lora("step_1", tmp_path)
                assert caught.value.status == 501
                with pytest.raises(AdminRefused):
                    await admin.unload_lora("step_1")


async def test_keys_are_sent_and_wrong_ones_refused(weights):
    async with EmbeddedEndpoint(EndpointConfig(api_key="right")) as endpoint:
        async with InferenceAdmin(
            endpoint.base_url, AdminConfig(**QUICK), api_key="right"
        ) as admin:
            await admin.update_weights(weights, 1)
        async with InferenceAdmin(endpoint.url, AdminConfig(**QUICK), api_key="wrong") as admin:
            with pytest.raises(AdminRefused, match="API key is wrong"):
                await admin.pause()


@pytest.fixture
async def failing_server():
    """A server that answers each path with the statuses listed for it, then 200; it keeps what it was asked."""
    statuses: dict[str, list[int]] = {}
    asked: list[tuple[str, dict | None]] = []

    async def answer(request):
        body = await request.json() if request.can_read_body else None
        asked.append((request.path, body))
        left = statuses.get(request.path, [])
        status = left.pop(0) if left else 200
        return web.json_response({"detail": f"status {status}"}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", statuses, asked
    await runner.cleanup()


async def test_failures_that_may_pass_are_tried_again_and_others_are_not(failing_server):
    url, statuses, asked = failing_server
    async with administration(url, max_attempts=3) as admin:
        statuses["/pause"] = [503, 500]
        await admin.pause()
        assert [path for path, _ in asked] == ["/pause"] * 3
        statuses["/resume"] = [503, 503, 503]
        with pytest.raises(AdminUnavailable, match="/resume answered 503: status 503"):
            await admin.resume()
        asked.clear()
        statuses["/resume"] = [403]
        with pytest.raises(AdminRefused, match="403"):
            await admin.resume()
        assert len(asked) == 1


async def test_an_interrupted_update_in_parts_begins_anew(failing_server):
    url, statuses, asked = failing_server
    statuses["/update_weights"] = [200, 503]
    async with administration(url, "vllm") as admin:
        await admin.load_weights([{"part": 1}, {"part": 2}], 5)
    assert [path for path, _ in asked] == [
        "/start_weight_update",
        "/update_weights",
        "/update_weights",
        "/start_weight_update",
        "/update_weights",
        "/update_weights",
        "/finish_weight_update",
    ]
    assert asked[-1][1] == {"weight_version": "5"}
    assert asked[-2][1] == {"update_info": {"part": 2}}


async def test_a_missing_lora_route_says_how_vllm_is_started(failing_server):
    url, statuses, asked = failing_server
    statuses["/load_lora_adapter"] = [404]
    async with administration(url) as admin:
        with pytest.raises(AdminRefused, match="--enable-lora"):
            await admin.load_lora("a", "/adapters/a")
        await admin.load_lora("a", "/adapters/a")
    assert asked[-1][1] == {"lora_name": "a", "lora_path": "/adapters/a", "load_inplace": True}


async def test_a_server_that_is_not_there_is_unhealthy_and_named():
    async with administration("http://127.0.0.1:9", request_timeout_s=2) as admin:
        status = await admin.status()
        assert not status.is_healthy
        assert "127.0.0.1:9" in status.detail
        with pytest.raises(AdminUnavailable, match="is not up after 0 s"):
            await admin.wait_until_healthy(0)
    with pytest.raises(RuntimeError, match="async with"):
        await administration("http://127.0.0.1:9").pause()


async def test_several_servers_are_updated_at_once_and_those_that_fail_are_known(weights):
    async with (
        EmbeddedEndpoint() as one,
        EmbeddedEndpoint() as two,
        administration(one.url) as first,
        administration(two.url) as second,
        administration("http://127.0.0.1:9") as gone,
    ):
        assert await update_all([first, second], weights, 2) == [None, None]
        assert [(await admin.status()).version for admin in (first, second)] == [2, 2]
        updated, failed = await update_all([first, gone], weights, 3)
        assert updated is None
        assert "127.0.0.1:9" in str(failed)
        assert (await first.status()).version == 3
        assert not one.engine.status.paused


# ------------------------------------------------------------------------------------------------ the policy's client


async def test_tokens_say_which_version_sampled_them_also_when_it_changes_in_flight(weights):
    async with EmbeddedEndpoint() as server:
        endpoint = PolicyEndpoint.at(server.url)
        env = vf.SingleTurnEnv(dataset=[{"question": "abc", "answer": ""}], rubric=vf.Rubric())
        row = env.get_dataset()[0]

        async def long_rollout():
            return await env.rollout(
                row, endpoint.client, "embedded", {"max_tokens": 600, "min_tokens": 600}
            )

        async with endpoint.admin:
            task = asyncio.create_task(long_rollout())
            while server.engine.counts["generation_tokens"] < 20:  # noqa: ASYNC110 - the engine has no event for it
                await asyncio.sleep(0)
            await endpoint.admin.update_weights(weights, 1)
            endpoint.set_version(1)
            state = await task
            later = await env.rollout(row, endpoint.client, "embedded", {"max_tokens": 3})
    assert state["error"] is None
    versions = state["trajectory"][0]["tokens"].versions
    assert len(versions) == 600
    assert set(versions) == {0, 1}
    assert versions == sorted(versions)
    assert later["trajectory"][0]["tokens"].versions == 1
    await endpoint.client.aclose()


async def test_a_server_that_says_no_versions_gets_those_of_the_requests_and_a_salt(failing_server):
    client = PolicyClient(vf.ClientConfig(api_base_url="http://127.0.0.1:9/v1"), version=4)
    body = client.request_body([{"role": "user", "content": "x"}], "m", _sampling(), None, {})
    assert body["cache_salt"] == cache_salt(4) == "policy-4"
    client.version = 5
    payload = {
        "policy_version": 4,
        "prompt_token_ids": [1],
        "choices": [
            {
                "message": {"content": "x"},
                "finish_reason": "stop",
                "token_ids": [2, 3],
                "logprobs": {"content": [{"logprob": -1.0}, {"logprob": -2.0}]},
            }
        ],
    }
    assert client.response_of(payload).message.tokens["versions"] == 4
    client.salts = False
    assert "cache_salt" not in client.request_body([], "m", _sampling(), None, {})


def _sampling():
    from verifiers.clients.payloads import split

    return split({}, length_key="max_tokens")
