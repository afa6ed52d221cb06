import json
from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.messages import (
    concat_messages,
    content_text,
    format_messages,
    from_raw_message,
    get_messages,
    message_to_printable,
    messages_to_printable,
    normalize_messages,
    sanitize_tool_calls,
    serialize_messages_for_output,
)
from verifiers.testing import ScriptedClient, run

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def test_raw_messages_become_records_without_empty_keys() -> None:
    raw = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "name": "x"}
    message = from_raw_message(raw)
    assert message == {
        "role": "assistant",
        "name": "x",
        "tool_calls": [{"id": "c", "name": "f", "arguments": '{"a": 1}'}],
    }
    assert type(message) is vf.AssistantMessage
    assert raw["content"] is None  # the caller's dict stays as it is


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        json.dumps(CALL),
        vf.ToolCall(id="c", name="f", arguments='{"a": 1}'),
        {"id": "c", "name": "f", "arguments": '{"a": 1}'},
    ],
)
def test_tool_calls_of_every_shape(call: Any) -> None:
    message = from_raw_message({"role": "assistant", "tool_calls": [call]})
    assert message["tool_calls"][0] == vf.ToolCall(id="c", name="f", arguments='{"a": 1}')


def test_objects_with_model_dump_are_messages() -> None:
    from openai.types.chat import ChatCompletionMessage

    message = from_raw_message(ChatCompletionMessage(role="assistant", content="a"))
    assert message == {"role": "assistant", "content": "a"}


def test_a_developer_message_is_a_system_message() -> None:
    assert from_raw_message({"role": "developer", "content": "a"}) == vf.SystemMessage(content="a")


@pytest.mark.parametrize(
    ("message", "error", "said"),
    [
        ({"role": "alien", "content": "x"}, ValueError, "Unknown role 'alien'"),
        ({"content": "x"}, ValueError, "Unknown role None"),
        ({"role": "user"}, ValueError, "A user message needs a 'content'"),
        ({"role": "tool", "content": "x"}, ValueError, "needs a 'tool_call_id'"),
        ("text", TypeError, "got str: 'text'"),
        (SimpleNamespace(role="user"), TypeError, "got SimpleNamespace"),
    ],
)
def test_what_is_no_message_says_why(message: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        from_raw_message(message)


def test_normalizing() -> None:
    records = [vf.UserMessage(content="a")]
    assert normalize_messages(records) is records
    assert normalize_messages("a") == [vf.TextMessage(content="a")]
    assert normalize_messages({"role": "user", "content": "a"}) == records
    assert normalize_messages(iter([{"role": "user", "content": "a"}])) == records
    with pytest.raises(TypeError, match="few_shot must be text or a list of messages; got int"):
        normalize_messages(5, field_name="few_shot")
    assert get_messages([*records, {"role": "system", "content": "s"}], "user") == records


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("a", "a"),
        ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "b"], "a b"),
        (5, "5"),
    ],
)
def test_text_of_content(content: Any, text: str) -> None:
    assert content_text(content) == text


def test_images_and_audio_are_named_for_people() -> None:
    parts = [{"type": kind} for kind in ("image_url", "input_audio", "video_url")]
    message = {"role": "user", "content": [{"type": "text", "text": "see"}, *parts]}
    assert message_to_printable(message)["content"] == "see [image] [audio] [video_url]"
    assert messages_to_printable("text") == "text"
    assert type(message_to_printable(vf.UserMessage(content=message["content"]))) is vf.UserMessage


def test_joining_lists_of_messages() -> None:
    one, other = vf.UserMessage(content="a"), vf.AssistantMessage(content="b")
    assert concat_messages([[one], other, [one]]) == [one, other, one]


def test_saved_tool_calls_are_text() -> None:
    message = vf.AssistantMessage(tool_calls=[vf.ToolCall(id="c", name="f", arguments="{}")])
    [saved] = sanitize_tool_calls([message])
    assert json.loads(saved["tool_calls"][0]) == {"id": "c", "name": "f", "arguments": "{}"}
    assert saved["content"] == ""
    assert type(message["tool_calls"][0]) is vf.ToolCall
    assert serialize_messages_for_output("text") == "text"


def test_a_tool_call_of_any_class_with_model_dump_is_saved_as_text() -> None:
    call = SimpleNamespace(model_dump=lambda **_: CALL)
    [saved] = sanitize_tool_calls([{"role": "assistant", "content": "x", "tool_calls": [call]}])
    assert [json.loads(text) for text in saved["tool_calls"]] == [CALL]


def test_a_model_cannot_drive_the_terminal() -> None:
    shown = format_messages(
        [vf.AssistantMessage(content="\x1b[2Jhello\x07", reasoning_content="\x1b]0;x")]
    )
    assert "\x1b" not in shown.plain
    assert "hello" in shown.plain


@pytest.mark.parametrize(
    ("part", "saved"),
    [
        (
            {"type": "input_audio", "input_audio": {"data": "AA \nBB", "format": " WAV"}},
            {"type": "input_audio", "input_audio": {"data": "AABB", "format": "wav"}},
        ),
        (
            {"type": "audio", "data": "AA", "format": "mp3"},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "mp3"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "A"}},
            {"type": "text", "text": "[audio]"},
        ),
        ({"type": "audio", "data": "", "format": "wav"}, {"type": "text", "text": "[audio]"}),
        ({"type": "input_audio", "input_audio": 3}, {"type": "text", "text": "[audio]"}),
        ({"type": "audio", "data": 3, "format": "wav"}, {"type": "text", "text": "[audio]"}),
    ],
)
def test_saved_audio_has_one_shape(part: Any, saved: Any) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:x"}}
    for message in (
        {"role": "user", "content": [part, image]},
        vf.ToolMessage(tool_call_id="c", content=[part, image]),
    ):
        assert serialize_messages_for_output([message])[0]["content"] == [saved, image]


async def test_an_output_holds_audio_in_its_saved_shape() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "A A", "format": "WAV"}}
    env = vf.SingleTurnEnv(
        dataset=[{"prompt": [{"role": "user", "content": [audio]}]}], rubric=vf.Rubric()
    )
    [output] = await run(env, ScriptedClient(["a"]))
    assert output["prompt"][0]["content"] == [
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    ]
