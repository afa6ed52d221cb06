"""What the endpoint's routes generate."""

import asyncio
import json

import aiohttp
import numpy as np
import pytest

from verifiers.endpoint.chat_template import render_chat
from verifiers.endpoint.model import Segment
from verifiers.endpoint.tokenizer import END, USER, decode, encode

USER_HI = {"role": "user", "content": "hi"}
LONG = {"messages": [USER_HI], "max_tokens": 50, "ignore_eos": True}


async def events(response: aiohttp.ClientResponse) -> list[dict]:
    assert response.content_type == "text/event-stream"
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


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
