import asyncio
import json
import time

import aiohttp
import numpy as np
import pytest

from verifiers.endpoint import EmbeddedEndpoint, EndpointConfig
from verifiers.endpoint.chat_template import render_chat
from verifiers.endpoint.model import Segment
from verifiers.endpoint.tokenizer import END, USER, decode, encode
from verifiers.errors import ConfigError

USER_HI = {"role": "user", "content": "hi"}
LONG = {"messages": [USER_HI], "max_tokens": 50, "ignore_eos": True}


async def events(response: aiohttp.ClientResponse) -> list[dict]:
    assert response.content_type == "text/event-stream"
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


# --- generation ---


async def test_chat_answers_in_openais_shape_with_token_fields(tiny, tiny_model):
    answer = await tiny.chat(
        "hi",
        seed=1,
        temperature=0.7,
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
        ignore_eos=True,
    )
    [choice] = answer["choices"]
    prompt = render_chat([USER_HI])
    ids = choice["token_ids"]
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "embedded"
    assert answer["prompt_token_ids"] == prompt
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == len(ids) == 8
    assert choice["message"] == {"role": "assistant", "content": decode(ids)}
    assert (choice["finish_reason"], choice["token_versions"]) == ("length", [0] * 8)
    logits = tiny_model.prefill(
        [Segment(0, 0, prompt + ids)], tiny_model.new_cache(1), all_positions=True
    )
    scaled = logits[len(prompt) - 1 : -1] / 0.7
    logprobs = scaled - np.log(np.exp(scaled).sum(1, keepdims=True))
    for place, entry in enumerate(choice["logprobs"]["content"]):
        assert entry["logprob"] == pytest.approx(float(logprobs[place, ids[place]]), abs=1e-3)
        assert len(entry["top_logprobs"]) == 2
        assert entry["bytes"] == list(entry["token"].encode()) or entry["token"].startswith("<0x")


async def test_tokens_can_be_named_by_id(tiny):
    answer = await tiny.chat(
        "hi", logprobs=True, return_tokens_as_token_ids=True, return_token_ids=True
    )
    [choice] = answer["choices"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
        f"token_id:{token}" for token in choice["token_ids"]
    ]


async def test_a_prompt_of_token_ids_equals_the_rendered_messages(tiny):
    body = {"seed": 5, "max_tokens": 8}
    _, chat = await tiny.post("/v1/chat/completions", {"messages": [USER_HI], **body})
    _, tokens = await tiny.post(
        "/v1/chat/completions/tokens",
        {
            "model": "embedded",
            "messages": [],
            "tools": None,
            "tokens": render_chat([USER_HI]),
            **body,
        },
    )
    assert chat["choices"][0]["message"] == tokens["choices"][0]["message"]


async def test_the_next_turn_reuses_the_tokens_of_the_last(tiny):
    first = await tiny.chat("hi", return_token_ids=True, logit_bias={str(END): 100})
    prompt = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    history = [USER_HI, {"role": "assistant", "content": first["choices"][0]["message"]["content"]}]
    body = {
        "messages": [*history, {"role": "user", "content": "more"}],
        "max_tokens": 2,
        "return_token_ids": True,
    }
    _, second = await tiny.post("/v1/chat/completions", body)
    assert second["prompt_token_ids"][: len(prompt)] == prompt
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(prompt) - 1


async def test_choices_differ_and_each_is_reproducible(tiny):
    first = await tiny.chat("hi", n=5, seed=3)
    again = await tiny.chat("hi", n=5, seed=3)
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in again["choices"]]
    assert [choice["index"] for choice in first["choices"]] == list(range(5))
    assert len(set(texts)) > 1
    assert first["usage"]["completion_tokens"] == again["usage"]["completion_tokens"]


async def test_completions_take_text_lists_and_token_ids(tiny):
    async def texts(prompt, **options):
        status, answer = await tiny.post(
            "/v1/completions", {"prompt": prompt, "seed": 2, **options}
        )
        assert status == 200, answer
        assert answer["object"] == "text_completion"
        return [choice["text"] for choice in answer["choices"]]

    [abc], [ids], [xyz] = await texts("abc"), await texts(encode("abc")), await texts("xyz")
    assert abc == ids
    assert await texts(["abc", "xyz"]) == [abc, xyz]
    assert await texts([encode("abc"), encode("xyz")]) == [abc, xyz]
    assert len(await texts(["abc", "xyz"], n=3)) == 6
    assert await texts("abc", echo=True) == ["abc" + abc]


async def test_control_tokens_in_a_completions_prompt_are_parsed(tiny):
    _, answer = await tiny.post(
        "/v1/completions", {"prompt": "<|user|>a", "return_token_ids": True}
    )
    assert answer["prompt_token_ids"] == [USER, *encode("a")]
    assert answer["choices"][0]["prompt_token_ids"] == [USER, *encode("a")]


async def test_echo_scores_the_prompt_without_writing_anything(tiny, tiny_model):
    body = {"prompt": "score", "echo": True, "logprobs": 1, "max_tokens": 0}
    _, answer = await tiny.post("/v1/completions", body)
    [choice] = answer["choices"]
    assert choice["text"] == "score"
    assert answer["usage"]["completion_tokens"] == 0
    ids = encode("score")
    logits = tiny_model.prefill([Segment(0, 0, ids)], tiny_model.new_cache(1), all_positions=True)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = [float(logprobs[place, ids[place + 1]]) for place in range(4)]
    assert choice["logprobs"]["token_logprobs"] == [
        None,
        *(pytest.approx(value, abs=1e-3) for value in expected),
    ]
    assert choice["logprobs"]["tokens"] == list("score")
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


async def test_completion_logprobs_are_parallel_lists(tiny):
    body = {"prompt": "é", "logprobs": 2, "max_tokens": 5, "ignore_eos": True, "echo": True}
    _, answer = await tiny.post("/v1/completions", body)
    logprobs = answer["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {7}
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:3] == [0, 1, 1]


@pytest.mark.parametrize(
    "options", [{}, {"stop": ["e", "th"]}, {"n": 3}, {"max_tokens": 1}], ids=str
)
async def test_streamed_chat_joins_to_the_answer_at_once(shipped, options):
    body = {"messages": [{"role": "user", "content": "What is 47 + 85?"}], "seed": 11, "logprobs": True,
            "return_token_ids": True, "temperature": 1.5, "max_tokens": 60, **options}  # fmt: skip
    _, whole = await shipped.post("/v1/chat/completions", body)
    url = shipped.endpoint.base_url + "/chat/completions"
    streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with shipped.session.post(url, json=streaming) as response:
        chunks = await events(response)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert chunks[-1]["choices"] == []
    usages = [
        {k: v for k, v in u.items() if k.endswith("_tokens")}
        for u in (chunks[-1]["usage"], whole["usage"])
    ]
    assert usages[0] == usages[1]
    for index, choice in enumerate(whole["choices"]):
        parts = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
        assert (
            "".join(part["delta"].get("content", "") for part in parts)
            == choice["message"]["content"]
        )
        assert [token for part in parts for token in part.get("token_ids", [])] == choice[
            "token_ids"
        ]
        streamed = [
            entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]
        ]
        assert [entry["token"] for entry in streamed] == [
            e["token"] for e in choice["logprobs"]["content"]
        ]
        assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [
            choice["finish_reason"]
        ]
        assert parts[-1]["stop_reason"] == choice["stop_reason"]


async def test_streamed_completions_join_to_the_answer_at_once(tiny):
    body = {"prompt": ["abc", "x"], "seed": 4, "max_tokens": 12, "logprobs": 1, "temperature": 2.0}
    _, whole = await tiny.post("/v1/completions", body)
    url = tiny.endpoint.base_url + "/completions"
    async with tiny.session.post(url, json=body | {"stream": True}) as response:
        chunks = await events(response)
    for choice in whole["choices"]:
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name in ("tokens", "text_offset"):
            joined = [
                value for part in parts if part["logprobs"] for value in part["logprobs"][name]
            ]
            assert joined == choice["logprobs"][name]


async def test_tool_calls_are_parsed_and_streamed_the_same(shipped):
    tool = {
        "type": "function",
        "function": {"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}},
    }
    body = {"messages": [{"role": "user", "content": "What is 12 + 34?"}], "tools": [tool],
            "temperature": 0, "max_tokens": 100}  # fmt: skip
    _, whole = await shipped.post("/v1/chat/completions", body)
    [choice] = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]).keys() == {"a", "b"}
    url = shipped.endpoint.base_url + "/chat/completions"
    async with shipped.session.post(url, json=body | {"stream": True}) as response:
        parts = [chunk["choices"][0] for chunk in await events(response)]
    assert "".join(part["delta"].get("content", "") for part in parts) == (
        choice["message"]["content"] or ""
    )
    [calls] = [part["delta"]["tool_calls"] for part in parts if "tool_calls" in part["delta"]]
    assert [c["function"] for c in calls] == [call["function"]]
    assert parts[-1]["finish_reason"] == "tool_calls"
    _, plain = await shipped.post("/v1/chat/completions", body | {"tool_choice": "none"})
    assert "tool_calls" not in plain["choices"][0]["message"]


async def test_any_unicode_is_served(tiny):
    answer = await tiny.chat("naïve 😀 \u202e \x00 漢", max_tokens=3)
    assert answer["usage"]["prompt_tokens"] == len("naïve 😀 \u202e \x00 漢".encode()) + 3


async def test_requests_are_batched_and_all_answered(tiny):
    answers = await asyncio.gather(
        *(tiny.chat(f"q{index}", ignore_eos=True) for index in range(200))
    )
    assert all(answer["usage"]["completion_tokens"] == 8 for answer in answers)
    engine = tiny.endpoint.engine
    assert engine.counts["steps"] < 200 * 8 / 4, "requests must share steps"
    assert engine.status[:2] == (0, 0)


# --- the server around it ---


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


# --- refusals ---

BAD_CHAT = [
    ({"messages": []}, "messages=[] is not valid"),
    ({"messages": None}, "messages=None"),
    ({"messages": "hi"}, "messages='hi'"),
    ({"messages": ["hi"]}, "messages[0] is 'hi'"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role='robot'"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role=['user']"),
    ({"messages": [{"role": "user"}]}, "messages[0].content=None"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content=5"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type='image_url'",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]},
        "messages[0].content[0].text=1",
    ),
    ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls='x'"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        "messages[0].tool_calls[0].function is None",
    ),
    (
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
            ]
        },
        "messages[0].tool_calls[0].function.arguments={}",
    ),
    ({"tools": "x"}, "tools='x'"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type='web_search'"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name=None"),
    (
        {
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"properties": 1}}}
            ]
        },
        "properties is 1",
    ),
    ({"n": 0}, "n=0 is not valid: expected an integer from 1 to 128"),
    ({"n": 10**9}, "n=1000000000"),
    ({"n": 1.5}, "n=1.5"),
    ({"n": True}, "n=True"),
    ({"temperature": -0.1}, "temperature=-0.1"),
    ({"temperature": "warm"}, "temperature='warm'"),
    ({"temperature": 1e999}, "no valid JSON"),
    ({"temperature": float("nan")}, "no valid JSON"),
    ({"top_p": 0}, "top_p=0"),
    ({"top_p": 1.1}, "top_p=1.1"),
    ({"top_k": -2}, "top_k=-2"),
    ({"min_p": 2}, "min_p=2"),
    ({"presence_penalty": 3}, "presence_penalty=3"),
    ({"repetition_penalty": 0}, "repetition_penalty=0"),
    ({"max_tokens": -5}, "max_tokens=-5"),
    ({"max_tokens": 0}, "max_tokens=0"),
    ({"max_tokens": "many"}, "max_tokens='many'"),
    ({"max_completion_tokens": 1.0}, "max_completion_tokens=1.0"),
    ({"seed": 2**64}, "seed=1.8446744073709552e+19"),
    ({"seed": "x"}, "seed='x'"),
    ({"stop": ""}, "not empty"),
    ({"stop": [1]}, "stop=[1]"),
    ({"stop": ["x"] * 65}, "at most 64"),
    ({"stop_token_ids": [999]}, "stop_token_ids holds 999"),
    ({"logit_bias": {"x": 1}}, "logit_bias={'x': 1}"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5=101"),
    ({"logit_bias": [1]}, "logit_bias is [1]"),
    ({"logprobs": 5}, "logprobs=5"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs=21"),
    ({"top_logprobs": 2}, "needs logprobs=True"),
    ({"stream": "yes"}, "stream='yes'"),
    ({"stream_options": {"include_usage": True}}, "needs stream=True"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage=1"),
    ({"tool_choice": "required"}, "tool_choice='required' is not supported"),
    (
        {"response_format": {"type": "json_object"}},
        "response_format={'type': 'json_object'} is not supported",
    ),
    ({"echo": True}, "echo=True is not supported"),
    ({"prompt_logprobs": 1}, "prompt_logprobs=1 is not supported"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"temprature": 1}, "'temprature'. Did you mean 'temperature'?"),
    ({"cache_salt": 5}, "cache_salt=5"),
    ({"model": 5}, "model=5"),
]


@pytest.mark.parametrize(("change", "words"), BAD_CHAT, ids=[words for _, words in BAD_CHAT])
async def test_chat_refuses_wrong_values_by_name(tiny, change, words):
    body = json.dumps({"messages": [USER_HI], "max_tokens": 2} | change)
    status, answer = await tiny.post("/v1/chat/completions", data=body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert answer["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": None}, "prompt=None"),
        ({"prompt": []}, "prompt=[]"),
        ({"prompt": ""}, "empty prompt"),
        ({"prompt": [""]}, "empty prompt"),
        ({"prompt": [[]]}, "empty prompt"),
        ({"prompt": [1, "a"]}, "prompt holds 'a'"),
        ({"prompt": [264]}, "prompt holds 264"),
        ({"prompt": ["a", 5]}, "prompt[1]=5"),
        ({"prompt": {"a": 1}}, "prompt={'a': 1}"),
        ({"logprobs": 21}, "logprobs=21"),
        ({"echo": True, "stream": True}, "echo=True cannot be streamed"),
        ({"best_of": 3}, "best_of=3 is not supported"),
        ({"suffix": "x"}, "suffix='x' is not supported"),
        ({"n": 128, "prompt": ["a"] * 33}, "makes 4224 completions"),
        ({"messages": [USER_HI]}, "'messages'"),
    ],
)
async def test_completions_refuse_wrong_values_by_name(tiny, change, words):
    status, answer = await tiny.post("/v1/completions", {"prompt": "a"} | change)
    assert (status, words in answer["error"]["message"]) == (400, True), answer


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/chat/completions/tokens", {"messages": [USER_HI]}, "'tokens' is missing"),
        ("/v1/chat/completions/tokens", {"tokens": "abc"}, "tokens='abc'"),
        ("/v1/chat/completions/tokens", {"tokens": []}, "empty prompt"),
        ("/tokenize", {}, "Give 'prompt'"),
        ("/tokenize", {"prompt": 5}, "prompt=5"),
        ("/detokenize", {"tokens": [-1]}, "tokens holds -1"),
        ("/detokenize", {}, "'tokens' is missing"),
    ],
)
async def test_other_routes_refuse_wrong_values_by_name(tiny, path, body, words):
    status, answer = await tiny.post(path, body)
    assert (status, words in answer["error"]["message"]) == (400, True), answer


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'{"a": NaN}', b"[1]", b'"x"', b"null", b"[" * 5000]
)
async def test_malformed_json_is_refused(tiny, raw):
    status, answer = await tiny.post("/v1/chat/completions", data=raw)
    assert status == 400
    assert "JSON" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("length", "limit", "words"),
    [
        (100, 5, "However, your request has 103 tokens in the messages"),
        (100, None, "However, your request has 103 tokens in the messages"),
        (50, 20, "However, you requested 73 tokens (53 in the messages, 20 in the completion)"),
        (61, None, "However, your request has 64 tokens in the messages"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_refused_in_vllms_words(tiny, length, limit, words):
    body = {"messages": [{"role": "user", "content": "x" * length}], "max_tokens": limit}
    status, answer = await tiny.post("/v1/chat/completions", body)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert answer["error"]["message"].startswith(
        "This model's maximum context length is 64 tokens. "
    )
    assert words in answer["error"]["message"]


async def test_a_prompt_that_just_fits_is_served(tiny):
    answer = await tiny.chat("x" * 60, max_tokens=None, ignore_eos=True)
    assert answer["usage"]["total_tokens"] == 64


async def test_an_unknown_model_is_404_and_names_what_is_served(tiny):
    status, answer = await tiny.post("/v1/chat/completions", LONG | {"model": "gpt-4"})
    assert (status, answer["error"]["code"]) == (404, "model_not_found")
    assert answer["error"]["message"] == "The model 'gpt-4' does not exist. Served here: embedded."


async def test_unknown_routes_and_methods_answer_in_json(tiny):
    status, answer = await tiny.get("/v2/nothing")
    assert (status, "/v2/nothing" in answer["error"]["message"]) == (404, True)
    assert (await tiny.get("/v1/chat/completions"))[0] == 405


async def test_a_body_that_is_too_large_is_413(serve, tiny_model):
    async with serve(tiny_model, max_body_bytes=1000) as caller:
        status, answer = await caller.post("/v1/completions", {"prompt": "x" * 2000})
        assert (status, "1000" in answer["error"]["message"]) == (413, True)


@pytest.mark.parametrize("header", [None, "Bearer wrong", "key", "Basic key", "Bearer ké"])
async def test_an_api_key_guards_everything_but_health(serve, tiny_model, header):
    headers = {} if header is None else {"Authorization": header}
    async with serve(tiny_model, api_key="key") as caller:
        for path in ("/v1/chat/completions", "/tokenize", "/update_weights", "/pause"):
            status, answer = await caller.post(path, {}, headers=headers)
            assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert (await caller.get("/v1/models", headers=headers))[0] == 401
        assert (await caller.get("/health", headers=headers))[0] == 200
        assert (await caller.get("/v1/models", headers={"Authorization": "Bearer key"}))[0] == 200


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 70000}, "port=70000"),
        ({"port": -1}, "port=-1"),
        ({"model_names": ()}, "model_names"),
        ({"max_running": 0}, "max_running=0"),
        ({"api_key": ""}, "api_key is empty"),
    ],
)
def test_a_wrong_configuration_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        EndpointConfig(**options)


async def test_a_taken_port_is_an_error_and_leaves_nothing_running(tiny, tiny_model):
    port = int(tiny.endpoint.url.rsplit(":", 1)[1])
    second = EmbeddedEndpoint(EndpointConfig(port=port), model=tiny_model)
    with pytest.raises(OSError, match="address already in use"):
        async with second:
            pass
    with pytest.raises(RuntimeError, match="not running"):
        second.base_url  # noqa: B018
