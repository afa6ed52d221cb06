"""What the endpoint refuses, and in which words."""

import json

import aiohttp
import pytest

from verifiers.endpoint import EmbeddedEndpoint, EndpointConfig
from verifiers.errors import ConfigError

USER_HI = {"role": "user", "content": "hi"}
LONG = {"messages": [USER_HI], "max_tokens": 50, "ignore_eos": True}


async def events(response: aiohttp.ClientResponse) -> list[dict]:
    assert response.content_type == "text/event-stream"
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


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
    ({"temperature": 1e999}, "not valid JSON"),
    ({"temperature": float("nan")}, "not valid JSON"),
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
