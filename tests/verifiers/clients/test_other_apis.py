"""What is particular to text completions, responses, Anthropic messages and NeMo RL."""

from __future__ import annotations

import pytest
from dialects import chat, message, response, said, text
from loopback import Answer

from verifiers.clients.openai_responses_client import OPENAI_RESPONSES_OUTPUT_FIELD
from verifiers.errors import BadRequestError, InvalidModelResponseError
from verifiers.state import State
from verifiers.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    InputAudioContentPart,
    InputAudioSource,
    SystemMessage,
    TextContentPart,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)

USER = UserMessage(content="u")
INLINE = ImageUrlContentPart(image_url=ImageUrlSource(url="data:image/png;base64,AA"))
REMOTE = ImageUrlContentPart(image_url=ImageUrlSource(url="http://x/i.png"))
AUDIO = InputAudioContentPart(input_audio=InputAudioSource(data="AA", format="wav"))
CALLS = [
    ToolCall(id="a", name="f", arguments='{"x": 1}'),
    ToolCall(id="b", name="g", arguments="bad"),
]
TOOL = Tool(name="f", description="d", parameters={"type": "object"}, strict=True)


@pytest.fixture
def sent(endpoint, make_client):
    """The body that a client sends for a prompt and sampling arguments."""
    answers = {
        "openai_completions": text("t"),
        "openai_responses": response([said("t")]),
        "anthropic_messages": message([{"type": "text", "text": "t"}]),
    }

    async def send(client_type, prompt, sampling_args=None, tools=None):
        endpoint.script(Answer(body=answers[client_type]))
        await make_client(client_type).get_response(prompt, "m", sampling_args or {}, tools)
        return endpoint.requests[0].body

    return send


# ------------------------------------------------------------------------------------------- text completions


@pytest.mark.parametrize(
    ("prompt", "joined"),
    [
        ("raw", "raw"),
        ([USER], "u"),
        (
            [SystemMessage(content="s"), USER, AssistantMessage(content=None), USER],
            "s\n\nu\n\n\n\nu",
        ),
        ([UserMessage(content=[TextContentPart(text="a"), TextContentPart(text="b")])], "ab"),
    ],
)
async def test_a_base_model_gets_the_texts_joined(sent, prompt, joined):
    assert (await sent("openai_completions", prompt))["prompt"] == joined


async def test_a_base_model_gets_no_images(sent):
    with pytest.raises(BadRequestError, match=r"image_url.*openai_chat_completions"):
        await sent("openai_completions", [UserMessage(content=[INLINE])])


async def test_tokens_of_a_text_completion_are_read(endpoint, make_client):
    payload = text("t")
    payload["choices"][0] |= {
        "prompt_token_ids": [1, 2],
        "token_ids": [3],
        "logprobs": {"tokens": ["t"], "token_logprobs": [-0.5]},
    }
    endpoint.script(Answer(body=payload))
    answer = await make_client("openai_completions").get_response("p", "m", {})
    assert (answer.message.tokens.prompt_ids, answer.message.tokens.completion_ids) == ([1, 2], [3])


# --------------------------------------------------------------------------------------------------- responses


async def test_responses_take_messages_as_items(sent):
    prompt = [
        SystemMessage(content="s"),
        UserMessage(content=[TextContentPart(text="x"), INLINE]),
        AssistantMessage(content="c", tool_calls=CALLS),
        ToolMessage(tool_call_id="a", content="r"),
        AssistantMessage(content=""),
    ]
    body = await sent("openai_responses", prompt, tools=[TOOL])
    assert body["input"] == [
        {"type": "message", "role": "system", "content": "s"},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "x"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
            ],
        },
        {"type": "message", "role": "assistant", "content": "c"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "b", "name": "g", "arguments": "bad"},
        {"type": "function_call_output", "call_id": "a", "output": "r"},
    ]
    assert body["tools"] == [
        {
            "type": "function",
            "name": "f",
            "description": "d",
            "parameters": {"type": "object"},
            "strict": True,
        }
    ]


async def test_reasoning_items_go_back_unchanged(sent, endpoint, make_client):
    output = [
        {
            "type": "reasoning",
            "id": "rs",
            "summary": [],
            "encrypted_content": "enc",
            "status": None,
        },
        {"type": "function_call", "id": "fc", "call_id": "a", "name": "f", "arguments": "{}"},
    ]
    endpoint.script(Answer(body=response(output)))
    answer = await make_client("openai_responses").get_response([USER], "m", {})
    items = answer.message[OPENAI_RESPONSES_OUTPUT_FIELD]
    assert "status" not in items[0]

    again = AssistantMessage(**{**answer.message, "tokens": None})
    body = await sent("openai_responses", [USER, again, ToolMessage(tool_call_id="a", content="r")])
    assert body["input"][1:3] == items


@pytest.mark.parametrize(
    ("sampling_args", "expected"),
    [
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "function", "name": "f"}},
        ),
        (
            {"response_format": {"type": "json_object"}},
            {"text": {"format": {"type": "json_object"}}},
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}},
                }
            },
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}},
        ),
        ({"logprobs": True, "n": 1}, {"include": ["message.output_text.logprobs"]}),
    ],
)
async def test_chat_sampling_arguments_are_translated_for_responses(sent, sampling_args, expected):
    body = await sent("openai_responses", [USER], sampling_args)
    assert {key: body.get(key) for key in expected} == expected
    assert "n" not in body


@pytest.mark.parametrize("sampling_args", [{"n": 2}, {"stop": ["x"]}])
@pytest.mark.parametrize("client_type", ["openai_responses", "anthropic_messages"])
async def test_what_an_api_cannot_do_is_refused_here(sent, client_type, sampling_args):
    if client_type == "anthropic_messages" and "stop" in sampling_args:
        assert (await sent(client_type, [USER], sampling_args))["stop_sequences"] == ["x"]
        return
    with pytest.raises(BadRequestError):
        await sent(client_type, [USER], sampling_args)


@pytest.mark.parametrize("client_type", ["openai_responses", "anthropic_messages"])
async def test_audio_is_refused_where_the_api_has_none(sent, client_type):
    with pytest.raises(BadRequestError, match="not support audio"):
        await sent(client_type, [UserMessage(content=[AUDIO])])


async def test_a_failed_response_says_why(endpoint, make_client):
    failed = response([], "failed") | {"error": {"code": "server_error", "message": "boom"}}
    endpoint.script(Answer(body=failed))
    with pytest.raises(InvalidModelResponseError, match="boom"):
        await make_client("openai_responses").get_response([USER], "m", {})


# --------------------------------------------------------------------------------------------------- anthropic


async def test_messages_take_turns_and_one_system_text(sent):
    prompt = [
        SystemMessage(content="s"),
        SystemMessage(content="s2"),
        UserMessage(content=[TextContentPart(text="x"), INLINE, REMOTE]),
        AssistantMessage(content=None, tool_calls=CALLS),
        ToolMessage(tool_call_id="a", content="r"),
        ToolMessage(tool_call_id="b", content=[TextContentPart(text="y"), INLINE]),
        AssistantMessage(content=""),
        UserMessage(content="more"),
    ]
    body = await sent("anthropic_messages", prompt, tools=[TOOL])
    inline = {"type": "base64", "media_type": "image/png", "data": "AA"}
    assert body["system"] == "s\n\ns2"
    assert body["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x"},
                {"type": "image", "source": inline},
                {"type": "image", "source": {"type": "url", "url": "http://x/i.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "b", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "r"},
                {
                    "type": "tool_result",
                    "tool_use_id": "b",
                    "content": [{"type": "text", "text": "y"}, {"type": "image", "source": inline}],
                },
            ],
        },
        {"role": "user", "content": "more"},
    ]
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    assert body["max_tokens"] == 4096


async def test_thinking_blocks_go_back_with_their_signature(sent, endpoint, make_client):
    blocks = [
        {"type": "thinking", "thinking": "T", "signature": "s"},
        {"type": "redacted_thinking", "data": "z"},
        {"type": "text", "text": "b"},
    ]
    endpoint.script(Answer(body=message(blocks)))
    answer = await make_client("anthropic_messages").get_response([USER], "m", {})
    assert (answer.message.content, answer.message.reasoning_content) == ("b", "T")

    again = AssistantMessage(
        content=answer.message.content, thinking_blocks=answer.message.thinking_blocks
    )
    body = await sent("anthropic_messages", [USER, again, USER])
    assert body["messages"][1]["content"] == blocks


@pytest.mark.parametrize(
    ("sampling_args", "expected"),
    [
        ({"stop": "x"}, {"stop_sequences": ["x"]}),
        ({"tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}),
        ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tool_choice": {"type": "tool", "name": "f"}},
        ),
        (
            {"parallel_tool_calls": False},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        ({"max_completion_tokens": 7}, {"max_tokens": 7}),
    ],
)
async def test_chat_sampling_arguments_are_translated_for_messages(sent, sampling_args, expected):
    body = await sent("anthropic_messages", [USER], sampling_args, tools=[TOOL])
    assert {key: body.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("stop_reason", "expected", "is_truncated"),
    [
        ("stop_sequence", "stop", False),
        ("refusal", None, False),
        ("model_context_window_exceeded", "length", True),
    ],
)
async def test_stop_reasons_of_messages(endpoint, make_client, stop_reason, expected, is_truncated):
    endpoint.script(Answer(body=message([{"type": "text", "text": "b"}], stop_reason)))
    answer = (await make_client("anthropic_messages").get_response([USER], "m", {})).message
    assert (answer.finish_reason, answer.is_truncated) == (expected, is_truncated)


async def test_cached_prompt_tokens_are_counted(endpoint, make_client):
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 5,
        "output_tokens": 4,
    }
    endpoint.script(Answer(body=message([{"type": "text", "text": "b"}]) | {"usage": usage}))
    answer = await make_client("anthropic_messages").get_response([USER], "m", {})
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (18, 22)


# ----------------------------------------------------------------------------------------------------- nemo rl


async def test_earlier_answers_go_back_with_their_token_ids(endpoint, make_client):
    payload = chat(
        {"content": "b", "generation_token_ids": ["5", "6"], "prompt_token_ids": [1, 2, 3, 4]}
    )
    payload["choices"][0]["message"]["generation_log_probs"] = [-0.5, -0.25]
    endpoint.script(Answer(body=payload))
    example = AssistantMessage(content="an example")
    prompt = [USER, example, USER, AssistantMessage(content="a"), UserMessage(content="v")]
    tokens = {"prompt_ids": [1, 2], "completion_ids": [3], "completion_logprobs": [-0.1]}
    state = State(input={"prompt": prompt}, trajectory=[{"tokens": tokens}], model="m")
    answer = await make_client("nemorl_chat_completions").get_response(prompt, "m", {}, state=state)

    messages = endpoint.requests[0].body["messages"]
    assert messages[1] == {"role": "assistant", "content": "an example"}
    assert messages[3] == {
        "role": "assistant",
        "content": "a",
        "prompt_token_ids": [1, 2],
        "generation_token_ids": [3],
        "generation_log_probs": [-0.1],
    }
    assert "generation_token_ids" not in prompt[3], "the prompt must not change"
    assert answer.message.tokens.completion_ids == [5, 6]
    assert answer.message.tokens.completion_logprobs == [-0.5, -0.25]
