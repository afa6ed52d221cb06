"""The Anthropic messages API (`POST /v1/messages`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from verifiers.clients.http_client import HttpClient
from verifiers.clients.payloads import Sampling
from verifiers.configs import ClientConfig
from verifiers.errors import BadRequestError, InvalidModelResponseError
from verifiers.messages import from_raw_tool_call
from verifiers.types import Response, ResponseMessage, ToolCall, Usage

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

_DATA_URL = re.compile(r"data:(?P<media_type>[^;,]+);base64,(?P<data>.*)", re.DOTALL)


class AnthropicMessagesClient(HttpClient):
    """Messages API: thinking blocks are returned with their signatures; tool use; images.

    A response without any content is not an error here: these models end a turn that way when a tool's result needs
    no comment.
    """

    path: ClassVar[str] = "v1/messages"
    native_type: ClassVar[tuple[str, str]] = ("anthropic.types", "Message")
    key_header: ClassVar[str] = "x-api-key"
    api_headers: ClassVar[dict[str, str]] = {"anthropic-version": API_VERSION}

    def setup_client(self, config: ClientConfig) -> Any:
        """Return an `AsyncAnthropic` for the configuration. Needs the extra `anthropic`; requests do not."""
        from verifiers.clients.connect import setup_anthropic_client

        return setup_anthropic_client(config)

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
                    system.append(_text(message["content"]))
                case "assistant":
                    content = _assistant_content(message)
                    if content:  # the API refuses empty messages
                        turns.append({"role": "assistant", "content": content})
                case "tool":
                    _append_tool_result(turns, message)
                case _:
                    turns.append({"role": "user", "content": _user_content(message["content"])})
        return turns, {"system": "\n\n".join(system)} if system else {}

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
        sampling: Sampling,
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request, with chat completions' sampling arguments translated."""
        body = {"model": model, "max_tokens": DEFAULT_MAX_TOKENS, "messages": prompt, **extra}
        if tools:
            body["tools"] = tools
        body.update(_translated(sampling.body))
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
        finish_reason = FINISH_REASONS.get(payload.get("stop_reason") or "")
        said: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(texts),
            "finish_reason": finish_reason,
            "is_truncated": finish_reason == "length",
        }
        if thoughts:
            said["reasoning_content"] = "".join(thoughts)
        if thinking_blocks:
            said["thinking_blocks"] = thinking_blocks
        if calls:
            said["tool_calls"] = calls
        return Response.of(
            {
                "id": payload.get("id") or "",
                "created": 0,  # the API does not report it
                "model": payload.get("model") or "",
                "usage": _usage(payload.get("usage")),
                "message": ResponseMessage.of(said),
            }
        )

    def sdk_method(self, client: Any) -> Any:
        """`client.messages.create`."""
        return client.messages.create


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or [] if isinstance(part, Mapping))


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
    text = _text(content)
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
                "input": _arguments(call["arguments"]),
            }
        )
    return blocks


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments as the object that the API requires; malformed arguments become an empty object."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


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
