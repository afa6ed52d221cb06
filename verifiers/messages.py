"""Pure functions on messages: read raw messages, join them, extract text, prepare them for files and for display."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from verifiers.records import Record
from verifiers.types import (
    AssistantMessage,
    ContentPart,
    GenericContentPart,
    ImageUrlContentPart,
    InputAudioContentPart,
    Message,
    Messages,
    SystemMessage,
    TextContentPart,
    TextMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

MESSAGE_TYPES: dict[str, type[Record]] = {
    "system": SystemMessage,
    "user": UserMessage,
    "assistant": AssistantMessage,
    "tool": ToolMessage,
    "text": TextMessage,
}
_TYPES = frozenset(MESSAGE_TYPES.values())
_PART_TYPES: dict[str, type[Record]] = {
    "text": TextContentPart,
    "image_url": ImageUrlContentPart,
    "input_audio": InputAudioContentPart,
}
_NEEDS_CONTENT = frozenset({"system", "user", "tool", "text"})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def from_raw_content_part(part: Any) -> ContentPart:
    """Return one part of a message as a record; parts of unknown types pass unchanged."""
    if isinstance(part, Record) or not isinstance(part, Mapping):
        return part
    fields = {key: value for key, value in part.items() if value is not None}
    kind = _PART_TYPES.get(fields.get("type", ""), GenericContentPart)
    return kind(**fields)  # type: ignore[return-value]  # the table maps to members of ContentPart


def from_raw_tool_call(call: Any) -> ToolCall:
    """Return a tool call from the library's format, OpenAI's (`{"function": {"name", "arguments"}}`), or JSON text of
    either.
    """
    if type(call) is ToolCall:
        return call
    if isinstance(call, str):
        call = json.loads(call)
    if not isinstance(call, Mapping):
        call = call.model_dump()
    function = call.get("function")
    source = call if function is None else function
    if not isinstance(source, Mapping):
        source = source.model_dump()
    arguments = source.get("arguments", "")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return ToolCall.of(
        {"id": call.get("id") or "", "name": source.get("name") or "", "arguments": arguments}
    )


def from_raw_message(message: Any) -> Message:
    """Return a message record from a dict, a pydantic object or a record; keys whose value is None are dropped.

    Raise ValueError for an unknown role or a missing field, TypeError for a value that is not a message.
    """
    if type(message) in _TYPES:
        return message
    if not isinstance(message, Mapping):
        if not hasattr(message, "model_dump"):
            raise TypeError(
                f"A message is a dict with 'role' and 'content' or a vf.Message; got "
                f"{type(message).__name__}: {message!r:.200}"
            )
        message = message.model_dump(exclude_none=True)
    role = message.get("role")
    kind = MESSAGE_TYPES.get("system" if role == "developer" else role)  # type: ignore[arg-type]  # None is a miss
    if kind is None:
        raise ValueError(
            f"Unknown role {role!r} in message {dict(message)!r:.200}; known: {sorted(MESSAGE_TYPES)}"
        )
    fields = {key: value for key, value in message.items() if value is not None}
    fields["role"] = "system" if role == "developer" else role
    content = fields.get("content")
    if content is None and role in _NEEDS_CONTENT:
        raise ValueError(f"A {role} message needs a 'content': {dict(message)!r:.200}")
    if isinstance(content, list):
        fields["content"] = [from_raw_content_part(part) for part in content]
    if fields.get("tool_calls"):
        fields["tool_calls"] = [from_raw_tool_call(call) for call in fields["tool_calls"]]
    else:
        fields.pop("tool_calls", None)
    return kind(**fields)  # type: ignore[return-value]  # the table maps to members of Message


def normalize_messages(value: Any, *, field_name: str = "messages") -> Messages:
    """Return messages from any form that authors use: text becomes one `TextMessage`, dicts become records.

    A list that holds only records is returned itself, not copied.
    """
    if isinstance(value, str):
        return [TextMessage.of({"role": "text", "content": value})]
    if isinstance(value, Mapping) and "role" in value:
        return [from_raw_message(value)]
    if not isinstance(value, Iterable) or isinstance(value, Mapping):
        raise TypeError(
            f"{field_name} must be text or a list of messages; got {type(value).__name__}: {value!r:.200}"
        )
    if type(value) is list and all(type(message) in _TYPES for message in value):
        return value
    return [from_raw_message(message) for message in value]


maybe_normalize_messages = normalize_messages


def get_messages(
    messages: Any, role: Literal["system", "user", "assistant", "tool", "text"] | None = None
) -> Messages:
    """Return the messages as records; with `role`, only the messages of that role."""
    found = normalize_messages(messages)
    return found if role is None else [message for message in found if message["role"] == role]


def content_text(content: Any) -> str:
    """Return the text of a message's content; the texts of several parts are joined with a space."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        texts = [
            part if isinstance(part, str) else part.get("text") or part.get("content") or ""
            for part in content
            if isinstance(part, str | Mapping)
        ]
        return " ".join(text for text in texts if isinstance(text, str) and text)
    return str(content)


def concat_messages(messages_list: Iterable[Any]) -> Messages:
    """Join several lists of messages, or single messages, into one list."""
    joined: Messages = []
    for messages in messages_list:
        if isinstance(messages, str | Mapping):
            joined.append(messages)  # type: ignore[arg-type]  # v0 passes raw values through
        else:
            joined.extend(messages)
    return joined


def message_to_printable(message: Any) -> Any:
    """Return a message for display: images and audio become `[image]` and `[audio]`."""
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    words: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            words.append(str(part.get("text", "")))
        elif kind == "image_url":
            words.append("[image]")
        elif kind == "input_audio":
            words.append("[audio]")
        else:
            words.append(part if isinstance(part, str) else f"[{kind}]")
    fields = {**message, "content": " ".join(words).strip()}
    return type(message).of(fields) if isinstance(message, Record) else fields


def messages_to_printable(messages: Any) -> Any:
    """Return `message_to_printable` of every message; text stays text."""
    if isinstance(messages, str):
        return messages
    return [message_to_printable(message) for message in messages]


def sanitize_tool_calls(messages: Any) -> Any:
    """Return messages whose tool calls are JSON text, the format that 0.1.x saved: one column type for every row."""
    if isinstance(messages, str):
        return messages
    return [_with_text_tool_calls(message) for message in messages]


def _with_text_tool_calls(message: Any) -> Any:
    if not isinstance(message, Mapping) or not message.get("tool_calls"):
        return message
    calls = [
        call
        if isinstance(call, str)
        else json.dumps(call.model_dump() if hasattr(call, "model_dump") else dict(call))
        for call in message["tool_calls"]
    ]
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


def serialize_message_for_output(message: Any) -> Any:
    """Return a message with plain content parts, ready for JSON; audio in OpenAI's format, images unchanged."""
    if not isinstance(message, Mapping) and hasattr(message, "model_dump"):
        message = message.model_dump(exclude_none=True)
    if isinstance(message, Mapping) and isinstance(message.get("content"), list):
        return {**message, "content": [_saved_part(part) for part in message["content"]]}
    return message


def _saved_part(part: Any) -> Any:
    if not isinstance(part, Mapping):
        return part.model_dump() if hasattr(part, "model_dump") else part
    if part.get("type") not in ("input_audio", "audio"):
        return dict(part)
    source = part if part["type"] == "audio" else part.get("input_audio")
    data, kind = (
        (source.get("data"), source.get("format")) if isinstance(source, Mapping) else (None, None)
    )
    data = "".join(data.split()) if isinstance(data, str) else ""
    kind = kind.strip().lower() if isinstance(kind, str) else ""
    if not data or not kind:
        return {"type": "text", "text": "[audio]"}
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def serialize_messages_for_output(messages: Any) -> Any:
    """Return `serialize_message_for_output` of every message; text stays text."""
    if isinstance(messages, str):
        return messages
    return [serialize_message_for_output(message) for message in messages]


def printable_text(text: str) -> str:
    """Return text without control characters, so that a model cannot control the terminal that shows it."""
    return _CONTROL.sub("�", text)


def format_messages(messages: Any) -> Any:
    """Return messages as Rich text for the terminal, one block per message."""
    from rich.text import Text

    styles = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
    shown = Text()
    if isinstance(messages, str):
        return shown.append(printable_text(messages))
    for index, message in enumerate(messages_to_printable(messages)):
        if index:
            shown.append("\n\n")
        role = str(message.get("role", ""))
        shown.append(f"{role}: ", style=f"bold {styles.get(role, '')}".strip())
        if message.get("reasoning_content"):
            shown.append(printable_text(str(message["reasoning_content"])) + "\n", style="dim")
        shown.append(printable_text(content_text(message.get("content"))))
        for call in message.get("tool_calls") or []:
            call = from_raw_tool_call(call)
            shown.append(
                f"\n[tool call] {call.name}({printable_text(call.arguments)})", style="yellow"
            )
    return shown
