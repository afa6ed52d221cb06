"""An agent's request in any supported API, converted to messages and tools of OpenAI's chat completions.

All functions are pure. The input was written by a program that a model may have written: every defect of it is an
`UnusableRequest`, whose text is returned to the agent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from verifiers.errors import Error
from verifiers.messages import normalize_messages

ApiFormat = Literal[
    "openai_chat_completions", "openai_completions", "openai_responses", "anthropic_messages"
]
_ENDINGS: dict[str, ApiFormat] = {
    "/chat/completions": "openai_chat_completions",
    "/completions": "openai_completions",
    "/responses": "openai_responses",
    "/messages": "anthropic_messages",
}
PATHS = {f"/v1{ending}": api_format for ending, api_format in _ENDINGS.items()}
"""Path below a rollout's own path → the API format of that path."""

RawMessage = dict[str, Any]


class UnusableRequest(Error, ValueError):
    """An agent's request that cannot become a turn; its text gives the reason to the agent."""


class AgentRequest(NamedTuple):
    """One model call of an agent."""

    messages: Any
    """Messages in OpenAI's chat format, or the bare text of a text completion."""
    tools: list[dict[str, Any]]
    """Functions in OpenAI's chat format."""
    is_streamed: bool
    wants_usage: bool
    """Whether a stream of chat completions ends with the token counts."""


def protocol_from_path(path: str) -> ApiFormat:
    """Return the API format of a path. An unspecific path counts as chat completions."""
    for ending, api_format in _ENDINGS.items():
        if path.rstrip("/").endswith(ending):
            return api_format
    return "openai_chat_completions"


def read_request(body: Any, api_format: ApiFormat) -> AgentRequest:
    """Parse a request's JSON. Raise UnusableRequest."""
    if not isinstance(body, Mapping):
        raise UnusableRequest(f"The body must be a JSON object, not {type(body).__name__}.")
    if body.get("n") not in (None, 1):
        raise UnusableRequest(f"Only one response per request: n must be 1, not {body['n']!r:.50}.")
    try:
        messages = _MESSAGES[api_format](body)
        if not messages:
            raise UnusableRequest("There are no messages in the request.")
        normalize_messages(messages, field_name="messages")
        tools = [tool for raw in _items(body.get("tools"), "tools") for tool in _tool(raw)]
    except UnusableRequest:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise UnusableRequest(
            f"The request is not valid for {api_format}: {type(error).__name__}: {error}"
        ) from error
    options = body.get("stream_options")
    wants_usage = isinstance(options, Mapping) and bool(options.get("include_usage"))
    return AgentRequest(messages, tools, bool(body.get("stream")), wants_usage)


def _items(value: Any, name: str) -> Sequence[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnusableRequest(f"{name} must be a list, not {type(value).__name__}.")
    return value


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnusableRequest(f"{name} must be an object, not {value!r:.100}.")
    return value


# ------------------------------------------------------------------------------------------------- OpenAI's formats


def _chat_messages(body: Mapping[str, Any]) -> list[RawMessage]:
    return [dict(_object(raw, "a message")) for raw in _items(body["messages"], "messages")]


def _completion_prompt(body: Mapping[str, Any]) -> str:
    prompt = body["prompt"]
    if not isinstance(prompt, str):
        raise UnusableRequest(f"prompt must be one text, not {type(prompt).__name__}.")
    return prompt


def _responses_messages(body: Mapping[str, Any]) -> list[RawMessage]:
    if body.get("previous_response_id") is not None or body.get("conversation") is not None:
        raise UnusableRequest(
            "Earlier requests are not stored: send the whole conversation as `input`, not previous_response_id."
        )
    messages: list[RawMessage] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body["input"]
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for raw in _items(given, "input"):
        _add_item(messages, _object(raw, "an input item"))
    return messages


def _add_item(messages: list[RawMessage], item: Mapping[str, Any]) -> None:
    match item.get("type", "message"):
        case "message":
            role = {"developer": "system"}.get(item["role"], item["role"])
            content = _response_content(item["content"])
            if role == "assistant":
                _own_turn(messages, "content")["content"] = content
            else:
                messages.append({"role": role, "content": content})
        case "function_call":
            call = {
                "id": item["call_id"],
                "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            }
            _own_turn(messages, None).setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = item["output"]
            content = output if isinstance(output, str) else _response_content(output)
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        case "reasoning":
            parts = item.get("content") or item.get("summary") or []
            text = "\n".join(part.get("text") or "" for part in parts)
            if text:
                _own_turn(messages, "reasoning_content")["reasoning_content"] = text
        case kind:
            raise UnusableRequest(f"Input items of type {kind!r:.50} are not supported.")


def _own_turn(messages: list[RawMessage], key: str | None) -> RawMessage:
    """Return the assistant message that an item belongs to: the last one, unless it already has that part or calls."""
    last = messages[-1] if messages else None
    is_open = last is not None and last["role"] == "assistant"
    if (
        is_open
        and last is not None
        and (key is None or not (last.get(key) or "tool_calls" in last))
    ):
        return last
    messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _response_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts: list[RawMessage] = []
    for raw in _items(content, "content"):
        part = _object(raw, "a part of a message")
        match part.get("type"):
            case "input_text" | "output_text" | "text":
                parts.append({"type": "text", "text": part["text"]})
            case "refusal":
                parts.append({"type": "text", "text": part["refusal"]})
            case "input_image":
                parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
            case kind:
                raise UnusableRequest(f"Parts of type {kind!r:.50} are not supported.")
    return _plain(parts)


def _plain(parts: list[RawMessage]) -> Any:
    """Return a single text part as plain text, so that prompts are equal however the agent wrote them."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


# ---------------------------------------------------------------------------------------------- Anthropic's messages


def _anthropic_messages(body: Mapping[str, Any]) -> list[RawMessage]:
    messages: list[RawMessage] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _blocks_content(body["system"])})
    for raw in _items(body["messages"], "messages"):
        message = _object(raw, "a message")
        content = message["content"]
        match message["role"]:
            case "assistant":
                messages.append(_anthropic_assistant(content))
            case "user":
                messages.extend(_anthropic_user(content))
            case "system":
                messages.append({"role": "system", "content": _blocks_content(content)})
            case role:
                raise UnusableRequest(f"{role!r:.50} is not a valid role.")
    return messages


def _anthropic_user(content: Any) -> list[RawMessage]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[RawMessage] = []
    said: list[Any] = []
    for raw in _items(content, "content"):
        block = _object(raw, "a block")
        if block.get("type") != "tool_result":
            said.append(block)
            continue
        result = _blocks_content(block.get("content") or "")
        message = {"role": "tool", "tool_call_id": block["tool_use_id"], "content": result}
        messages.append(message)
    if said:
        messages.append({"role": "user", "content": _blocks_content(said)})
    return messages


def _anthropic_assistant(content: Any) -> RawMessage:
    if isinstance(content, str):
        return {"role": "assistant", "content": content}
    texts: list[str] = []
    thoughts: list[Mapping[str, Any]] = []
    calls: list[RawMessage] = []
    for raw in _items(content, "content"):
        block = _object(raw, "a block")
        match block.get("type"):
            case "text":
                texts.append(block["text"])
            case "thinking" | "redacted_thinking":
                thoughts.append(block)
            case "tool_use":
                arguments = json.dumps(block.get("input") or {})
                function = {"name": block["name"], "arguments": arguments}
                calls.append({"id": block["id"], "type": "function", "function": function})
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
    for raw in _items(content, "content"):
        block = _object(raw, "a block")
        match block.get("type"):
            case "text":
                parts.append({"type": "text", "text": block["text"]})
            case "image":
                source = block["source"]
                url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
                parts.append({"type": "image_url", "image_url": {"url": url}})
            case kind:
                raise UnusableRequest(f"Blocks of type {kind!r:.50} are not supported.")
    return _plain(parts)


# -------------------------------------------------------------------------------------------------------------- tools


def _tool(raw: Any) -> list[dict[str, Any]]:
    """Return a tool in OpenAI's chat format from any of the three formats; None for tools that a provider runs."""
    tool = _object(raw, "a tool")
    inner = tool.get("function")
    if isinstance(inner, Mapping):
        tool = inner
    elif tool.get("type", "custom") not in ("function", "custom") or (
        "parameters" not in tool and "input_schema" not in tool
    ):
        return []
    if not isinstance(tool["name"], str) or not tool["name"]:
        raise UnusableRequest(f"A tool needs a name, not {tool['name']!r:.50}.")
    function: dict[str, Any] = {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "parameters": tool.get("parameters") or tool.get("input_schema") or {},
    }
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return [{"type": "function", "function": function}]


_MESSAGES = {
    "openai_chat_completions": _chat_messages,
    "openai_completions": _completion_prompt,
    "openai_responses": _responses_messages,
    "anthropic_messages": _anthropic_messages,
}
