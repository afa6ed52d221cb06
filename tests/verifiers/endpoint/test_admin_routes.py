import asyncio

import pytest

from verifiers.endpoint.weights import save_checkpoint, write_safetensors

HI = {"messages": [{"role": "user", "content": "hi"}], "return_token_ids": True}
GREEDY = {**HI, "max_tokens": 10, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def new_folder(folder, make_tensors, tiny_config):
    save_checkpoint(folder, tiny_config, make_tensors(9))
    return folder


async def greedy_ids(caller) -> list[int]:
    _, answer = await caller.post("/v1/chat/completions", GREEDY)
    return answer["choices"][0]["token_ids"]


async def test_prime_rls_sequence_pauses_updates_and_resumes_in_flight(tiny, new_folder):
    body = {**HI, "max_tokens": 50, "ignore_eos": True}
    requests = [asyncio.create_task(tiny.post("/v1/chat/completions", body)) for _ in range(4)]
    engine = tiny.endpoint.engine
    await tiny.until(lambda: engine.status.running == 4 and engine.counts["generation_tokens"] > 12)
    assert (await tiny.post("/pause?mode=keep", None))[1]["mode"] == "keep"
    written = engine.counts["generation_tokens"]
    assert (await tiny.get("/is_paused"))[1] == {"is_paused": True}
    status, update = await tiny.post(
        "/update_weights", {"weight_dir": str(new_folder), "version": 5}
    )
    assert (status, update["version"], update["in_flight"]) == (200, 5, 4)
    assert engine.counts["generation_tokens"] == written
    assert (await tiny.post("/resume", None))[0] == 200
    for request in requests:
        _, answer = await request
        versions = answer["choices"][0]["token_versions"]
        assert versions == sorted(versions)
        assert set(versions) == {0, 5}
    assert (await tiny.get("/weight_info"))[1] == {"weight_version": "5"}


async def test_an_update_without_a_pause_is_applied_between_two_tokens(tiny, new_folder):
    body = {**HI, "max_tokens": 58, "ignore_eos": True, "n": 16}
    request = asyncio.create_task(tiny.post("/v1/chat/completions", body))
    await tiny.until(lambda: tiny.endpoint.engine.counts["generation_tokens"] > 16)
    assert (await tiny.post("/update_weights", {"weight_dir": str(new_folder)}))[1]["version"] == 1
    _, answer = await request
    assert {version for choice in answer["choices"] for version in choice["token_versions"]} == {
        0,
        1,
    }


async def test_vllms_sequence_applies_everything_at_the_finish(
    tiny, tmp_path, make_tensors, new_folder
):
    before = await greedy_ids(tiny)
    tensors = sorted(make_tensors(9).items())
    write_safetensors(tmp_path / "a.safetensors", dict(tensors[:5]))
    write_safetensors(tmp_path / "b.safetensors", dict(tensors[5:]))
    assert (await tiny.post("/init_weight_transfer_engine", {"init_info": {}}))[0] == 200
    assert (await tiny.post("/start_weight_update", {"is_checkpoint_format": True}))[0] == 200
    for name in ("a", "b"):
        info = {"update_info": {"weight_dir": str(tmp_path / f"{name}.safetensors")}}
        status, answer = await tiny.post("/update_weights", info)
        assert (status, answer["message"]) == (200, "Weights updated")
        assert await greedy_ids(tiny) == before
    assert (await tiny.post("/finish_weight_update", {"weight_version": "12"}))[1]["version"] == 12
    after = await greedy_ids(tiny)
    assert after != before
    await tiny.post("/update_weights", {"weight_dir": str(new_folder)})
    assert await greedy_ids(tiny) == after
    assert (await tiny.get("/get_world_size"))[1] == {"world_size": 1}


async def test_the_first_weights_can_be_restored(
    serve, tiny_model, new_folder, tiny_config, make_tensors, tmp_path
):
    save_checkpoint(tmp_path / "first", tiny_config, make_tensors(0))
    async with serve(tiny_model, weights=tmp_path / "first") as caller:
        before = await greedy_ids(caller)
        await caller.post("/update_weights", {"weight_dir": str(new_folder)})
        assert await greedy_ids(caller) != before
        assert (await caller.post("/reload_weights", None))[1]["version"] == 2
        assert await greedy_ids(caller) == before


async def test_an_unfinished_update_is_dropped_by_the_next_start(tiny, new_folder):
    await tiny.post("/start_weight_update", None)
    await tiny.post("/update_weights", {"update_info": {"weight_dir": str(new_folder)}})
    await tiny.post("/start_weight_update", None)
    status, answer = await tiny.post("/finish_weight_update", None)
    assert (status, "missing" in answer["error"]["message"]) == (400, True)
    assert (await tiny.post("/finish_weight_update", None))[0] == 409


async def test_refused_weights_leave_those_in_use(tiny, tmp_path, new_folder):
    before = await greedy_ids(tiny)
    whole = (new_folder / "model.safetensors").read_bytes()
    (new_folder / "model.safetensors").write_bytes(whole[:-7])
    for body, words in (
        ({"weight_dir": str(new_folder)}, "is not a valid safetensors file"),
        ({"weight_dir": str(tmp_path / "none")}, "No such file"),
        ({"weight_dir": ""}, "weight_dir=''"),
        ({"weight_dir": 5}, "weight_dir=5"),
        ({"weight_dir": "a\0b"}, "weight_dir='a\\x00b'"),
        ({"weight_dir": None}, "Give 'weight_dir'"),
        ({"weight_dir": str(new_folder), "version": -1}, "version=-1"),
        ({"weight_dir": str(new_folder), "version": "new"}, "version='new'"),
    ):
        status, answer = await tiny.post("/update_weights", body)
        assert (status, words in answer["error"]["message"]) == (400, True), answer
    assert await greedy_ids(tiny) == before
    assert tiny.endpoint.engine.version == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        (
            "/update_weights",
            {"update_info": {"weight_dir": "x"}},
            409,
            "POST /start_weight_update first",
        ),
        ("/finish_weight_update", {}, 409, "POST /start_weight_update first"),
        (
            "/init_weight_transfer_engine",
            {"init_info": {"master_address": "h"}},
            501,
            "not by NCCL",
        ),
        ("/init_weight_transfer_engine", {}, 400, "init_info=None"),
        ("/start_weight_update", {"is_checkpoint_format": False}, 400, "is_checkpoint_format"),
        ("/init_broadcaster", {"host": "h"}, 501, "not by NCCL"),
        ("/load_lora_adapter", {"lora_name": "a"}, 501, "LoRA adapters are not supported"),
        (
            "/pause",
            {"mode": "later"},
            400,
            "mode='later' is not valid: expected one of keep, abort, wait",
        ),
        ("/abort_requests", {"request_ids": ["x"]}, 400, "request_ids=['x']"),
    ],
)
async def test_what_this_server_cannot_do_is_said(tiny, path, body, status, words):
    got, answer = await tiny.post(path, body)
    assert (got, words in answer["error"]["message"]) == (status, True), answer


async def test_an_update_without_tensors_in_a_file_is_refused(tiny):
    await tiny.post("/start_weight_update", None)
    status, answer = await tiny.post(
        "/update_weights", {"update_info": {"names": ["a"], "shapes": [[1]]}}
    )
    assert (status, "has no 'weight_dir'" in answer["error"]["message"]) == (400, True)


async def test_pause_abort_is_the_default_and_gives_partial_answers(tiny):
    request = asyncio.create_task(
        tiny.post("/v1/chat/completions", {**HI, "max_tokens": 58, "ignore_eos": True})
    )
    await tiny.until(lambda: tiny.endpoint.engine.counts["generation_tokens"] > 3)
    assert (await tiny.post("/pause", None))[1]["mode"] == "abort"
    _, answer = await request
    assert answer["choices"][0]["finish_reason"] == "abort"
    assert answer["usage"]["completion_tokens"] > 0
    late = asyncio.create_task(tiny.post("/v1/chat/completions", {**HI, "max_tokens": 2}))
    await tiny.until(lambda: tiny.endpoint.engine.status.waiting == 1)
    await tiny.post("/resume", None)
    assert (await late)[0] == 200


async def test_pause_wait_returns_when_what_runs_has_ended(tiny):
    request = asyncio.create_task(
        tiny.post("/v1/chat/completions", {**HI, "max_tokens": 58, "ignore_eos": True})
    )
    await tiny.until(lambda: tiny.endpoint.engine.status.running == 1)
    assert (await tiny.post("/pause?mode=wait", None))[0] == 200
    assert tiny.endpoint.engine.status[:3] == (0, 0, True)
    assert (await request)[1]["choices"][0]["finish_reason"] == "length"


async def test_everything_can_be_aborted(tiny):
    request = asyncio.create_task(
        tiny.post("/v1/chat/completions", {**HI, "max_tokens": 58, "ignore_eos": True})
    )
    await tiny.until(lambda: tiny.endpoint.engine.status.running == 1)
    assert (await tiny.post("/abort_requests", {"request_ids": []}))[1] == {"aborted": 1}
    assert (await request)[1]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("path", ["/update_weights", "/pause", "/resume", "/start_weight_update"])
async def test_the_routes_can_be_closed(serve, tiny_model, path):
    async with serve(tiny_model, admin=False) as caller:
        status, answer = await caller.post(path, {})
        assert (status, "--admin" in answer["error"]["message"]) == (403, True)


def test_the_routes_are_open_only_here_or_with_a_key():
    from verifiers.endpoint import EndpointConfig

    assert EndpointConfig().admin_is_open
    assert not EndpointConfig(host="0.0.0.0").admin_is_open
    assert EndpointConfig(host="0.0.0.0", api_key="k").admin_is_open
    assert EndpointConfig(host="0.0.0.0", admin=True).admin_is_open
