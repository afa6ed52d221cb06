"""The server around the generations: models, metrics, health, ends."""

import asyncio
import json
import time

import aiohttp
import pytest

from verifiers.endpoint.chat_template import render_chat
from verifiers.endpoint.tokenizer import USER, encode

USER_HI = {"role": "user", "content": "hi"}
LONG = {"messages": [USER_HI], "max_tokens": 50, "ignore_eos": True}


async def events(response: aiohttp.ClientResponse) -> list[dict]:
    assert response.content_type == "text/event-stream"
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def test_models_are_listed_with_their_context_length(serve, tiny_model):
    async with serve(tiny_model, model_names=("one", "org/two")) as caller:
        _, models = await caller.get("/v1/models")
        assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [
            ("one", 64),
            ("org/two", 64),
        ]
        status, card = await caller.get("/v1/models/org/two")
        assert (status, card["id"]) == (200, "org/two")
        assert (await caller.get("/v1/models/three"))[0] == 404
        answer = await caller.chat("hi", model="org/two")
        assert answer["model"] == "org/two"


async def test_tokenize_and_detokenize_agree_with_the_prompts(tiny):
    _, chat = await tiny.post("/tokenize", {"model": "embedded", "messages": [USER_HI]})
    assert chat == {
        "count": 5,
        "max_model_len": 64,
        "tokens": render_chat([USER_HI]),
        "token_strs": None,
    }
    body = {"messages": [USER_HI], "add_generation_prompt": False, "return_token_strs": True}
    _, plain = await tiny.post("/tokenize", body)
    assert plain["token_strs"] == ["<|user|>", "h", "i", "<|end|>"]
    _, text = await tiny.post("/tokenize", {"prompt": "<|user|>é"})
    assert text["tokens"] == [USER, *encode("é")]
    _, back = await tiny.post("/detokenize", {"tokens": text["tokens"]})
    assert back == {"prompt": "<|user|>é"}
    long = {"messages": [{"role": "user", "content": "x" * 500}]}
    assert (await tiny.post("/tokenize", long))[1]["count"] == 503


async def test_metrics_count_what_happened(tiny):
    await tiny.chat("hi", ignore_eos=True, n=2)
    _, text = await tiny.get("/metrics")
    values = dict(line.split() for line in text.splitlines() if not line.startswith("#"))
    assert values["verifiers_endpoint_requests_total"] == "2"
    assert values["verifiers_endpoint_generation_tokens_total"] == "16"
    assert values["verifiers_endpoint_finished_length_total"] == "2"
    assert values["verifiers_endpoint_running"] == "0"
    assert float(values["verifiers_endpoint_busy_seconds_total"]) > 0


@pytest.mark.parametrize("path", ["/health", "/liveness", "/ping"])
async def test_health_answers_while_generations_run(serve, shipped_model, path):
    async with serve(shipped_model) as caller:
        body = {"messages": [USER_HI], "max_tokens": 1900, "ignore_eos": True, "n": 64}
        generation = asyncio.create_task(caller.post("/v1/chat/completions", body))
        await caller.until(lambda: caller.endpoint.engine.status.running == 64)
        status, health = await caller.get(path)
        assert (status, health["status"], health["running"]) == (200, "ok", 64)
        generation.cancel()
        await caller.until(lambda: caller.endpoint.engine.status.running == 0)


async def test_a_client_that_goes_away_frees_its_rows(serve, shipped_model):
    async with serve(shipped_model) as caller:
        engine = caller.endpoint.engine
        body = {"messages": [USER_HI], "max_tokens": 1900, "ignore_eos": True, "n": 3}
        for stream in (False, True):
            request = asyncio.create_task(
                caller.post("/v1/chat/completions", body | {"stream": stream})
            )
            await caller.until(lambda: engine.status.running == 3)
            request.cancel()
            await asyncio.wait([request])
            await caller.until(lambda: engine.status.running == 0)
        assert engine.counts["finished_abort"] == 6


async def test_an_engine_that_fails_answers_500_and_health_503(tiny, caplog, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(tiny.endpoint.engine.model, "prefill", fail)
    status, answer = await tiny.post("/v1/chat/completions", LONG)
    assert (status, "boom" in answer["error"]["message"]) == (500, True)
    assert (await tiny.post("/v1/chat/completions", LONG))[0] == 500
    assert (await tiny.get("/health"))[0] == 503


async def test_closing_the_endpoint_ends_what_is_under_way(serve, shipped_model):
    async with serve(shipped_model) as caller:
        body = {"messages": [USER_HI], "max_tokens": 1900, "ignore_eos": True, "n": 64}
        request = asyncio.create_task(caller.post("/v1/chat/completions", body))
        engine = caller.endpoint.engine
        await caller.until(lambda: engine.status.running == 64)
    with pytest.raises(aiohttp.ClientError):
        await request
    assert engine.status[:2] == (0, 0)


async def test_64_requests_of_64_tokens_meet_the_trainers_rate(shipped):
    body = {"max_tokens": 64, "ignore_eos": True, "logprobs": True, "return_token_ids": True}
    await asyncio.gather(*(shipped.chat(f"warm up {index}", **body) for index in range(64)))
    started = time.process_time()
    await asyncio.gather(*(shipped.chat(f"question {index}", **body) for index in range(256)))
    tokens_per_cpu_s = 256 * 64 / (time.process_time() - started)
    # The client's work in this process counts as well; about 20,000 are usual.
    assert tokens_per_cpu_s >= 3000


async def test_an_engine_that_fails_in_a_stream_says_so_in_it(tiny, caplog, monkeypatch):
    def fail(*arguments):
        raise ZeroDivisionError("boom")

    url = tiny.endpoint.base_url + "/chat/completions"
    async with tiny.session.post(url, json=LONG | {"stream": True}) as response:
        await response.content.readline()
        monkeypatch.setattr(tiny.endpoint.engine.model, "decode", fail)
        rest = await response.text()
    assert "boom" in rest
    assert rest.endswith("data: [DONE]\n\n")
