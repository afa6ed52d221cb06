"""What agents ask in four APIs, as one conversation; and that nothing they send is more than a refusal."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.dialects import DIALECTS, dialect_of_path
from verifiers.dialects.dialect import AgentRequest, UnusableRequest
from verifiers.messages import normalize_messages


def read_request(body: Any, api_format: str) -> AgentRequest:
    return DIALECTS[api_format].read_request(body)


ADD = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is 1 + 2?"},
    {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    {"role": "user", "content": "Well?"},
]
ANTHROPIC = {
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is 1 + 2?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
                {"type": "text", "text": "Well?"},
            ],
        },
    ],
    "tools": [{"name": "add", "description": "Adds.", "input_schema": ADD["parameters"]}],
}
RESPONSES = {
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "What is 1 + 2?"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see."}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"role": "user", "content": "Well?"},
    ],
    "tools": [{"type": "function", **ADD}, {"type": "web_search"}],
}
BODIES: list[tuple[Any, dict[str, Any]]] = [
    (
        "openai_chat_completions",
        {"messages": CHAT, "tools": [{"type": "function", "function": ADD}]},
    ),
    ("anthropic_messages", ANTHROPIC),
    ("openai_responses", RESPONSES),
]


@pytest.mark.parametrize(("api_format", "body"), BODIES, ids=[name for name, _ in BODIES])
def test_one_conversation_reads_the_same_in_every_api(api_format: Any, body: dict[str, Any]):
    asked = read_request(body, api_format)
    assert normalize_messages(asked.messages) == normalize_messages(CHAT)
    assert asked.tools == [{"type": "function", "function": ADD}]
    assert not asked.is_streamed


@pytest.mark.parametrize("name", ["anthropic_messages", "openai_responses"])
def test_our_own_requests_are_read_back(name: str):
    dialect = DIALECTS[name]
    native, extra = dialect.native_prompt(normalize_messages(CHAT))
    body = dialect.request_body(native, "m", {}, None, extra)
    assert normalize_messages(dialect.read_request(body).messages) == normalize_messages(CHAT)


def test_images_and_thoughts_are_kept():
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="},
    }
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "See"}, image]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "A cat."}]},
        ]
    }
    seen, said = read_request(body, "anthropic_messages").messages
    assert seen["content"][1]["image_url"]["url"] == "data:image/png;base64,QQ=="
    assert (said["reasoning_content"], said["thinking_blocks"]) == ("hm", [thought])


def test_a_text_completion_is_its_prompt():
    assert read_request({"prompt": "Once"}, "openai_completions").messages == "Once"


def test_a_stream_says_whether_it_ends_with_the_counts():
    body = {"messages": CHAT, "stream": True, "stream_options": {"include_usage": True}}
    asked = read_request(body, "openai_chat_completions")
    assert (asked.is_streamed, asked.wants_usage) == (True, True)


@pytest.mark.parametrize(
    ("api_format", "body", "says"),
    [
        ("openai_chat_completions", [], "JSON object"),
        ("openai_chat_completions", {}, "messages"),
        ("openai_chat_completions", {"messages": []}, "no messages"),
        ("openai_chat_completions", {"messages": "hello"}, "must be a list"),
        ("openai_chat_completions", {"messages": [1]}, "must be an object"),
        ("openai_chat_completions", {"messages": [{"role": "cat", "content": ""}]}, "cat"),
        ("openai_chat_completions", {"messages": CHAT, "n": 2}, "n must be 1"),
        ("openai_chat_completions", {"messages": CHAT, "tools": "add"}, "tools must be a list"),
        (
            "openai_chat_completions",
            {"messages": CHAT, "tools": [{"type": "function", "function": {"name": ""}}]},
            "needs a name",
        ),
        ("openai_completions", {"prompt": ["a", "b"]}, "one text"),
        ("openai_responses", {"input": "x", "previous_response_id": "r"}, "whole conversation"),
        ("openai_responses", {"input": [{"type": "computer_call"}]}, "computer_call"),
        (
            "anthropic_messages",
            {"messages": [{"role": "tool", "content": ""}]},
            "'tool' is not a valid role",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(api_format: Any, body: Any, says: str):
    with pytest.raises(UnusableRequest, match=says):
        read_request(body, api_format)


KEYS = (
    *(
        "role",
        "content",
        "type",
        "text",
        "messages",
        "input",
        "tools",
        "function",
        "name",
        "system",
    ),
    *("tool_calls", "id", "call_id", "output", "source", "parameters", "arguments", "prompt", "n"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner | st.sampled_from(["user", "assistant", "tool", "text", "tool_use", "message"]),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(
    json_values,
    st.sampled_from(
        ["openai_chat_completions", "openai_completions", "openai_responses", "anthropic_messages"]
    ),
)
def test_whatever_is_sent_is_understood_or_refused(body: Any, api_format: Any):
    try:
        asked = read_request(body, api_format)
    except UnusableRequest:
        return
    assert normalize_messages(asked.messages)


@pytest.mark.parametrize(
    ("path", "api_format"),
    [
        ("/rollout/r/v1/chat/completions", "openai_chat_completions"),
        ("/rollout/r/v1/completions", "openai_completions"),
        ("/rollout/r/v1/responses", "openai_responses"),
        ("/v1/messages", "anthropic_messages"),
        ("/elsewhere", "openai_chat_completions"),
    ],
)
def test_the_path_says_which_api_is_spoken(path: str, api_format: str):
    assert dialect_of_path(path).name == api_format
