"""Chat completions as pure functions: what goes into a request, what is read out of an answer."""

from __future__ import annotations

import copy

import pytest
from dialects import chat
from hypothesis import given
from hypothesis import strategies as st

from verifiers.clients.payloads import split
from verifiers.dialects.chat_completions import (
    check_payload,
    has_audio,
    native_messages,
    native_tool,
    response_of,
)
from verifiers.errors import (
    BadRequestError,
    EmptyModelResponseError,
    Error,
    InvalidModelResponseError,
)
from verifiers.types import (
    AssistantMessage,
    ImageUrlContentPart,
    ImageUrlSource,
    InputAudioContentPart,
    InputAudioSource,
    Response,
    ResponseMessage,
    SystemMessage,
    TextContentPart,
    TextMessage,
    Tool,
    ToolCall,
    ToolMessage,
    UserMessage,
)

IMAGE = ImageUrlContentPart(image_url=ImageUrlSource(url="data:image/png;base64,AA"))
AUDIO = InputAudioContentPart(input_audio=InputAudioSource(data="AA", format="wav"))


@pytest.mark.parametrize(
    ("message", "native"),
    [
        (SystemMessage(content="s"), {"role": "system", "content": "s"}),
        (TextMessage(content="t"), {"role": "user", "content": "t"}),
        (
            UserMessage(content=[TextContentPart(text="x"), IMAGE]),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "x"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                ],
            },
        ),
        (
            ToolMessage(tool_call_id="1", content="r"),
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ),
        (AssistantMessage(content="a"), {"role": "assistant", "content": "a"}),
        (
            AssistantMessage(content="a", reasoning_content="why"),
            {"role": "assistant", "content": "a", "reasoning_content": "why"},
        ),
        (
            AssistantMessage(reasoning_content="w"),
            {"role": "assistant", "content": "", "reasoning_content": "w"},
        ),
        (
            AssistantMessage(tool_calls=[ToolCall(id="1", name="f", arguments="{}")]),
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
        ),
        (
            ResponseMessage(content="a", finish_reason="stop", is_truncated=False, tokens=None),
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "user", "content": "hey", "name": "bob", "tool_calls": None},
            {"role": "user", "content": "hey", "name": "bob"},
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                ],
            },
        ),
    ],
)
def test_each_kind_of_message_is_written_as_the_api_wants_it(message, native):
    before = copy.deepcopy(message)
    [written] = native_messages([message])
    assert dict(written) == native
    assert message == before


def test_plain_messages_are_not_copied():
    message = UserMessage(content="x")
    assert native_messages([message])[0] is message


def test_text_as_a_prompt_is_a_users_message():
    assert native_messages("hi") == [{"role": "user", "content": "hi"}]


def test_audio_is_noticed():
    assert has_audio([UserMessage(content=[AUDIO])])
    assert not has_audio([UserMessage(content=[IMAGE]), UserMessage(content="x")])


def test_tools_are_written_with_strictness_only_when_it_was_said():
    tool = Tool(name="f", description="d", parameters={"type": "object"})
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}}
    assert native_tool(tool) == {"type": "function", "function": function}
    strict = Tool(**tool, strict=True)
    assert native_tool(strict)["function"] == {**function, "strict": True}
    assert native_tool(native_tool(tool)) == native_tool(tool)


@pytest.mark.parametrize(
    ("said", "content", "reasoning"),
    [
        ({"content": "a"}, "a", None),
        ({"content": "a", "reasoning": "R"}, "a", "R"),
        ({"content": "a", "reasoning_content": "RC"}, "a", "RC"),
        ({"content": "a", "reasoning": "R", "reasoning_content": "RC"}, "a", "R"),
        ({"content": "a", "reasoning": "", "reasoning_content": "RC"}, "a", "RC"),
        ({"content": "a", "reasoning_details": [{"text": "x"}, {"summary": "y"}]}, "a", "x\ny"),
        ({"content": None, "reasoning": "R"}, None, "R"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", None),
        ({"content": None, "refusal": "no"}, "no", None),
    ],
)
def test_content_and_reasoning_are_found_wherever_endpoints_put_them(said, content, reasoning):
    payload = chat(said)
    check_payload(payload)
    message = response_of(payload).message
    assert (message.content, message.reasoning_content) == (content, reasoning)


@pytest.mark.parametrize(
    "said", [{"content": None}, {"content": ""}, {}, {"content": None, "tool_calls": []}]
)
def test_saying_nothing_is_an_error(said):
    with pytest.raises(EmptyModelResponseError):
        check_payload(chat(said))


def test_blank_text_is_still_text():
    check_payload(chat({"content": "  "}))


@pytest.mark.parametrize(
    ("reason", "expected", "is_truncated"),
    [
        ("stop", "stop", False),
        ("length", "length", True),
        ("tool_calls", "tool_calls", False),
        ("content_filter", None, False),
        ("eos", None, False),
        (None, None, False),
    ],
)
def test_finish_reasons(reason, expected, is_truncated):
    message = response_of(chat({"content": "a"}, reason)).message
    assert (message.finish_reason, message.is_truncated) == (expected, is_truncated)


@pytest.mark.parametrize(
    ("choices", "error"),
    [
        (None, EmptyModelResponseError),
        ([], InvalidModelResponseError),
        ([{}, {}], InvalidModelResponseError),
        ("x", InvalidModelResponseError),
        (["x"], InvalidModelResponseError),
    ],
)
def test_there_must_be_exactly_one_choice(choices, error):
    with pytest.raises(error):
        check_payload({**chat({"content": "a"}), "choices": choices})


def test_an_error_in_a_200_is_shown():
    with pytest.raises(EmptyModelResponseError, match="overloaded"):
        check_payload({"error": {"message": "overloaded"}})


def test_tool_calls_of_sloppy_endpoints_become_usable():
    calls = [
        {"function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "", "function": {"name": "g", "arguments": None}},
    ]
    message = response_of(chat({"content": None, "tool_calls": calls})).message
    assert [dict(call) for call in message.tool_calls] == [
        {"id": "call_0", "name": "f", "arguments": '{"a": 1}'},
        {"id": "call_1", "name": "g", "arguments": "{}"},
    ]


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({"prompt_tokens": 5}, None),
        (
            {"prompt_tokens": 5, "completion_tokens": 2},
            {"prompt_tokens": 5, "completion_tokens": 2, "reasoning_tokens": 0, "total_tokens": 7},
        ),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 9,
                "total_tokens": 14,
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            {"prompt_tokens": 5, "completion_tokens": 9, "reasoning_tokens": 4, "total_tokens": 14},
        ),
    ],
)
def test_usage(usage, expected):
    found = response_of({**chat({"content": "a"}), "usage": usage}).usage
    assert (None if found is None else dict(found)) == expected


def test_an_answer_without_id_or_time_is_still_an_answer():
    response = response_of({"choices": [{"message": {"content": "a"}}]})
    assert (response.id, response.created, response.model, response.usage) == ("", 0, "", None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "message",
                    "content",
                    "tool_calls",
                    "usage",
                    "function",
                    "logprobs",
                    "token_ids",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(json_values)
def test_whatever_json_comes_the_check_answers_with_our_error_or_nothing(payload):
    try:
        check_payload(payload)
        response = response_of(payload)
    except Error:
        return
    except (TypeError, AttributeError, ValueError, KeyError):
        return  # `get_response` turns these into InvalidModelResponseError; see the conformance suite
    assert isinstance(response, Response)


# ---------------------------------------------------------------------------------------------------- sampling


def test_sampling_arguments_are_split_by_where_they_belong():
    sampling = split(
        {
            "max_tokens": 5,
            "temperature": None,
            "top_p": 0.5,
            "extra_body": {"top_p": 0.6, "top_k": 3},
            "extra_headers": {"X": "1"},
            "timeout": 30,
            "stream": False,
        },
        length_key="max_completion_tokens",
    )
    assert sampling.body == {"max_completion_tokens": 5, "top_p": 0.6, "top_k": 3}
    assert (sampling.headers, sampling.timeout_s) == ({"X": "1"}, 30.0)


@pytest.mark.parametrize("order", [1, -1])
def test_the_apis_own_name_for_the_limit_wins(order):
    given_both = dict([("max_tokens", 1), ("max_completion_tokens", 2)][::order])
    assert split(given_both, length_key="max_completion_tokens").body == {
        "max_completion_tokens": 2
    }
    assert split(given_both, length_key="max_tokens").body == {"max_tokens": 1}


def test_streaming_is_refused():
    with pytest.raises(BadRequestError, match="stream=True"):
        split({"stream": True}, length_key="max_tokens")
