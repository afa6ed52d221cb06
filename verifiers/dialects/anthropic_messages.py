"""The Anthropic messages API (`POST /v1/messages`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from verifiers.dialects.chat_completions import tool_calls_of
from verifiers.dialects.dialect import (
    Dialect,
    RawMessage,
    UnusableRequest,
    an_object,
    chat_call,
    content_to_text,
    error_status,
    event,
    finish_reason,
    items,
    plain_content,
    response_from,
    text_of_error,
)
from verifiers.errors import BadRequestError, InvalidModelResponseError
from verifiers.messages import content_text, from_raw_tool_call
from verifiers.types import Response, ToolCall, Usage

API_VERSION = "2023-06-01"
DEFAULT_MAX_TOKENS = 4096
"""Sent when the sampling arguments have no limit: the API requires one with every request."""

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

_DATA_URL = re.compile(r"data:(?P<media_type>[^;,]+);base64,(?P<data>.*)", re.DOTALL)


class AnthropicMessages(Dialect):
    """Messages API: thinking blocks are returned with their signatures; tool use; images.

    A response without any content is not an error here: these models end a turn that way when a tool's result needs
    no comment.
    """

    name = "anthropic_messages"
    path = "v1/messages"
    key_header = "x-api-key"
    headers = {"anthropic-version": API_VERSION}
    sdk_method = "messages.create"
    sdk_type = ("anthropic.types", "Message")

    def native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return user and assistant turns; the system messages become one `system` text."""
        if isinstance(messages, str):
            return [{"role": "user", "content": messages}], {}
        system: list[str] = []
        turns: list[dict[str, Any]] = []
        for message in messages:
            if not isinstance(message, Mapping):
                message = message.model_dump(exclude_none=True)
            match message["role"]:
                case "system":
                    system.append(content_to_text(message["content"]))
                case "assistant":
                    content = _assistant_content(message)
                    if content:  # the API refuses empty messages
                        turns.append({"role": "assistant", "content": content})
                case "tool":
                    _append_tool_result(turns, message)
                case _:
                    turns.append({"role": "user", "content": _user_content(message["content"])})
        return turns, {"system": "\n\n".join(system)}

    def native_tool(self, tool: Any) -> dict[str, Any]:
        """Return a tool definition."""
        return {
            "name": tool["name"],
            "description": tool["description"],
            "input_schema": tool["parameters"],
        }

    def request_body(
        self,
        prompt: Any,
        model: str,
        sampling: dict[str, Any],
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request, with chat completions' sampling arguments translated."""
        body = {"model": model, "max_tokens": DEFAULT_MAX_TOKENS, "messages": prompt, **extra}
        if tools:
            body["tools"] = tools
        body.update(_translated(sampling))
        return body

    def check_payload(self, payload: Any) -> None:
        """Raise InvalidModelResponseError for a response that is not a message."""
        if not isinstance(payload, Mapping) or not isinstance(payload.get("content"), list):
            raise InvalidModelResponseError(f"The response has no content: {payload!r:.200}")

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format."""
        texts: list[str] = []
        thoughts: list[str] = []
        thinking_blocks: list[Any] = []
        calls: list[ToolCall] = []
        for block in payload.get("content") or []:
            match block.get("type"):
                case "text":
                    texts.append(block.get("text") or "")
                case "thinking":
                    thoughts.append(block.get("thinking") or "")
                    thinking_blocks.append(dict(block))
                case "redacted_thinking":
                    thinking_blocks.append(dict(block))
                case "tool_use":
                    arguments = json.dumps(block.get("input") or {})
                    calls.append(
                        ToolCall.of(
                            {"id": block["id"], "name": block["name"], "arguments": arguments}
                        )
                    )
                case _:
                    pass  # results of tools that ran on the provider's side
        reason = FINISH_REASONS.get(payload.get("stop_reason") or "")
        fields: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(texts),
            "finish_reason": reason,
            "is_truncated": reason == "length",
        }
        if thoughts:
            fields["reasoning_content"] = "".join(thoughts)
        if thinking_blocks:
            fields["thinking_blocks"] = thinking_blocks
        if calls:
            fields["tool_calls"] = calls
        created = 0  # the API does not report it
        return response_from(payload, fields, _usage(payload.get("usage")), created)

    def chat_messages(self, body: Mapping[str, Any]) -> list[RawMessage]:
        """Return the system text and the turns as messages."""
        messages: list[RawMessage] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _blocks_content(body["system"])})
        for raw in items(body["messages"], "messages"):
            message = an_object(raw, "a message")
            content = message["content"]
            match message["role"]:
                case "assistant":
                    messages.append(_assistant_message(content))
                case "user":
                    messages.extend(_user_messages(content))
                case "system":
                    messages.append({"role": "system", "content": _blocks_content(content)})
                case role:
                    raise UnusableRequest(f"{role!r:.50} is not a valid role.")
        return messages

    def response_body(self, response: Response) -> dict[str, Any]:
        """Return the body of `/v1/messages`."""
        message = response.message
        content: list[dict[str, Any]] = [dict(block) for block in message.thinking_blocks or []]
        if text := content_text(message.content):
            content.append({"type": "text", "text": text})
        for call in tool_calls_of(response):
            function = call["function"]
            arguments = _arguments(function["arguments"])
            if arguments is None:
                # The program's tool refuses this argument, and its error message reaches the model.
                arguments = {"invalid_arguments": function["arguments"]}
            content.append(
                {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
            )
        counts = response.usage
        return {
            "id": response.id,
            "type": "message",
            "role": "assistant",
            "model": response.model,
            "content": content,
            "stop_reason": _STOP_REASONS.get(finish_reason(response), "end_turn"),
            "stop_sequence": None,
            "usage": {
                "input_tokens": 0 if counts is None else counts.prompt_tokens,
                "output_tokens": 0 if counts is None else counts.completion_tokens,
            },
        }

    def events(self, response: Response, wants_usage: bool = False) -> list[bytes]:
        """Return the events of each block, between those of the whole message."""
        return [event(each, each["type"]) for each in _events(self.response_body(response))]

    def error_body(self, error: BaseException) -> dict[str, Any]:
        """Return the body that reports an error to a program."""
        kind = "api_error" if error_status(error) >= 500 else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": text_of_error(error)}}

    def error_event(self, error: BaseException) -> bytes:
        """Return an `error` event."""
        return event(self.error_body(error), "error")


# ---------------------------------------------------------------------------------------- our requests to a model


def _user_content(content: Any) -> Any:
    if isinstance(content, str) or content is None:
        return content or ""
    return [_block(part) for part in content]


def _block(part: Mapping[str, Any]) -> Mapping[str, Any]:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": part["text"]}
        case "image_url":
            url = part["image_url"]["url"]
            inline = _DATA_URL.fullmatch(url)
            source = (
                {"type": "base64", **inline.groupdict()} if inline else {"type": "url", "url": url}
            )
            return {"type": "image", "source": source}
        case "input_audio":
            raise BadRequestError(
                "The messages API does not support audio. Use client_type='openai_chat_completions'."
            )
        case _:
            return part


def _assistant_content(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    text = content_to_text(content)
    calls = message.get("tool_calls") or []
    thinking_blocks = message.get("thinking_blocks") or []
    if not calls and not thinking_blocks:
        return text
    blocks: list[Any] = [dict(block) for block in thinking_blocks]
    if text:
        blocks.append({"type": "text", "text": text})
    for raw in calls:
        call = from_raw_tool_call(raw)
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": call["name"],
                "input": _arguments(call["arguments"]) or {},
            }
        )
    return blocks


def _arguments(text: str) -> dict[str, Any] | None:
    """Return a call's arguments as the object that the API requires; None for malformed arguments."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def _append_tool_result(turns: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    result = {
        "type": "tool_result",
        "tool_use_id": message["tool_call_id"],
        "content": _user_content(message["content"]),
    }
    last = turns[-1] if turns else None
    # The results of parallel calls belong in one message.
    if last is not None and last["role"] == "user" and _is_tool_results(last["content"]):
        last["content"].append(result)
    else:
        turns.append({"role": "user", "content": [result]})


def _is_tool_results(content: Any) -> bool:
    return isinstance(content, list) and bool(content) and content[0].get("type") == "tool_result"


def _translated(sampling: dict[str, Any]) -> dict[str, Any]:
    """Translate sampling arguments to this API. Raise BadRequestError for unsupported arguments."""
    body = dict(sampling)
    if body.pop("n", 1) != 1:
        raise BadRequestError("The messages API returns one response per request: n must be 1.")
    if (stop := body.pop("stop", None)) is not None:
        body["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    choice = body.get("tool_choice")
    if isinstance(choice, str):
        choice = {"type": {"required": "any"}.get(choice, choice)}
    elif isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
        choice = {"type": "tool", "name": choice["function"]["name"]}
    if body.pop("parallel_tool_calls", None) is False:
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    if choice is not None:
        body["tool_choice"] = choice
    return body


# ------------------------------------------------------------------------------------------ responses of the model


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, Mapping) or not isinstance(usage.get("input_tokens"), int):
        return None
    # `input_tokens` excludes tokens read from or written to the prompt cache.
    cached = (usage.get("cache_read_input_tokens") or 0) + (
        usage.get("cache_creation_input_tokens") or 0
    )
    prompt_tokens = usage["input_tokens"] + cached
    completion_tokens = usage.get("output_tokens") or 0
    return Usage.of(
        {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
    )


# --------------------------------------------------------------------------------------------- a program's requests


def _user_messages(content: Any) -> list[RawMessage]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[RawMessage] = []
    others: list[Any] = []
    for raw in items(content, "content"):
        block = an_object(raw, "a block")
        if block.get("type") != "tool_result":
            others.append(block)
            continue
        result = _blocks_content(block.get("content") or "")
        message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": result}
        messages.append(message)
    if others:
        messages.append({"role": "user", "content": _blocks_content(others)})
    return messages


def _assistant_message(content: Any) -> RawMessage:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[Mapping[str, Any]] = []
    calls: list[RawMessage] = []
    for raw in items(content, "content"):
        block = an_object(raw, "a block")
        match block.get("type"):
            case "text":
                texts.append(block["text"])
            case "thinking" | "redacted_thinking":
                thoughts.append(block)
            case "tool_use":
                arguments = json.dumps(block.get("input") or {})
                calls.append(chat_call(block["id"], block["name"], arguments))
            case kind:
                raise UnusableRequest(f"Blocks of type {kind!r:.50} are not supported.")
    message: RawMessage = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts:
        message["thinking_blocks"] = [dict(block) for block in thoughts]
        message["reasoning_content"] = "".join(block.get("thinking") or "" for block in thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _blocks_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts: list[RawMessage] = []
    for raw in items(content, "content"):
        block = an_object(raw, "a block")
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": block["text"]})
            case "image":
                source = block["source"]
                url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
                parts.append({"type": "image_url", "image_url": {"url": url}})
            case kind:
                raise UnusableRequest(f"Blocks of type {kind!r:.50} are not supported.")
    return plain_content(parts)


# ----------------------------------------------------------------------------------------- our responses to a program


def _events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    counts = whole["usage"]
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**counts, "output_tokens": 0}}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        empty, deltas = _block_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": counts}
    yield {"type": "message_stop"}


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a block's start event and its deltas."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "tool_use":
            text = json.dumps(block["input"])
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block.get("thinking") or ""}]
            if block.get("signature"):
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, deltas
        case _:
            return block, []
