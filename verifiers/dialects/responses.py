"""The OpenAI responses API (`POST /responses`): a list of items in, a list of items out."""

from __future__ import annotations

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
    event,
    finish_reason,
    items,
    plain_content,
    response_from,
    text_of_error,
)
from verifiers.errors import BadRequestError, EmptyModelResponseError, InvalidModelResponseError
from verifiers.messages import content_text, from_raw_tool_call
from verifiers.types import Response, ToolCall, Usage

OPENAI_RESPONSES_OUTPUT_FIELD = "openai_responses_output"
"""Field of an assistant message with the items of the response. They are sent back unchanged in the next turn,
because reasoning items can only be continued whole.
"""


class Responses(Dialect):
    """Responses API: reasoning that is kept between turns, tool calls, images."""

    name = "openai_responses"
    path = "responses"
    length_key = "max_output_tokens"
    sdk_method = "responses.create"
    sdk_type = ("openai.types.responses", "Response")

    def native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return input items. Raise BadRequestError for audio, which the API does not support."""
        if isinstance(messages, str):
            return [{"type": "message", "role": "user", "content": messages}], {}
        return [item for message in messages for item in input_items(message)], {}

    def native_tool(self, tool: Any) -> dict[str, Any]:
        """Return a function definition."""
        definition = {"type": "function"}
        for name in ("name", "description", "parameters", "strict"):
            if tool.get(name) is not None:
                definition[name] = tool[name]
        return definition

    def request_body(
        self,
        prompt: Any,
        model: str,
        sampling: dict[str, Any],
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request, with chat completions' sampling arguments translated."""
        body = {"model": model, "input": prompt, **extra, **_translated(sampling)}
        if tools:
            body["tools"] = tools
        return body

    def check_payload(self, payload: Any) -> None:
        """Raise when the response failed or has no content."""
        if not isinstance(payload, Mapping):
            raise InvalidModelResponseError(
                f"The response does not have the expected format: {payload!r:.200}"
            )
        if payload.get("status") == "failed":
            error = payload.get("error") or {}
            raise InvalidModelResponseError(
                f"The model's response failed: {error.get('message') or error!r}"
            )
        if payload.get("output") is None:
            raise EmptyModelResponseError("The model's response has no output.")
        message = self.response_of(payload).message
        if not (message.content or message.reasoning_content or message.tool_calls):
            raise EmptyModelResponseError(
                f"The model returned no content, no reasoning and no tool calls "
                f"(status {payload.get('status')!r})."
            )

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format. The message keeps its items in `OPENAI_RESPONSES_OUTPUT_FIELD`."""
        output = [item for item in payload.get("output") or [] if isinstance(item, Mapping)]
        fields: dict[str, Any] = {"role": "assistant", "content": _texts(output) or None}
        calls = [
            ToolCall.of(
                {
                    "id": item.get("call_id") or item.get("id") or f"call_{index}",
                    "name": item.get("name") or "",
                    "arguments": item.get("arguments") or "",
                }
            )
            for index, item in enumerate(output)
            if item.get("type") == "function_call"
        ]
        reasoning = _reasoning(output)
        if reasoning:
            fields["reasoning_content"] = reasoning
        if calls:
            fields["tool_calls"] = calls
        is_truncated = payload.get("status") == "incomplete"
        fields["finish_reason"] = "length" if is_truncated else "tool_calls" if calls else "stop"
        fields["is_truncated"] = is_truncated
        fields[OPENAI_RESPONSES_OUTPUT_FIELD] = [_without_none(item) for item in output]
        usage = _usage(payload.get("usage"))
        return response_from(payload, fields, usage, int(payload.get("created_at") or 0))

    def chat_messages(self, body: Mapping[str, Any]) -> list[RawMessage]:
        """Return the instructions and input items as messages."""
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
        for raw in items(given, "input"):
            _add_item(messages, an_object(raw, "an input item"))
        return messages

    def response_body(self, response: Response) -> dict[str, Any]:
        """Return the body of `/v1/responses`."""
        message = response.message
        output: list[dict[str, Any]] = []
        if message.reasoning_content:
            summary = [{"type": "summary_text", "text": message.reasoning_content}]
            output.append({"id": f"rs_{response.id}", "type": "reasoning", "summary": summary})
        if text := content_text(message.content):
            output.append(
                {
                    "id": f"msg_{response.id}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}],
                }
            )
        for call in tool_calls_of(response):
            item = {"id": call["id"], "type": "function_call", "call_id": call["id"]}
            output.append({**item, **call["function"], "status": "completed"})
        is_cut = finish_reason(response) == "length"
        return {
            "id": response.id,
            "object": "response",
            "created_at": float(response.created),
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "error": None,
            "model": response.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": _usage_of(response),
        }

    def events(self, response: Response, wants_usage: bool = False) -> list[bytes]:
        """Return the events of each item, between those of the whole response."""
        return [event(each, each["type"]) for each in _events(self.response_body(response))]

    def error_event(self, error: BaseException) -> bytes:
        """Return an `error` event."""
        failed = {"type": "error", "code": "server_error", "message": text_of_error(error)}
        return event(failed, "error")


# ---------------------------------------------------------------------------------------- our requests to a model


def input_items(message: Any) -> list[Any]:
    """Return the items of one message."""
    if not isinstance(message, Mapping):
        message = message.model_dump(exclude_none=True)
    content = message.get("content")
    match message["role"]:
        case "assistant":
            return _assistant_items(message)
        case "tool":
            return [
                {
                    "type": "function_call_output",
                    "call_id": message["tool_call_id"],
                    "output": content if isinstance(content, str) else _input_parts(content),
                }
            ]
        case role:
            shown = content if isinstance(content, str) else _input_parts(content)
            kind = "user" if role == "text" else role
            return [{"type": "message", "role": kind, "content": shown}]


def _assistant_items(message: Mapping[str, Any]) -> list[Any]:
    if output := message.get(OPENAI_RESPONSES_OUTPUT_FIELD):
        return list(output)
    native: list[Any] = []
    if text := content_to_text(message.get("content")):
        native.append({"type": "message", "role": "assistant", "content": text})
    for raw in message.get("tool_calls") or []:
        call = from_raw_tool_call(raw)
        native.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": call["arguments"],
            }
        )
    return native


def _input_parts(content: Any) -> list[Any]:
    parts: list[Any] = []
    for part in content or []:
        match part.get("type"):
            case "text":
                parts.append({"type": "input_text", "text": part["text"]})
            case "image_url":
                image = part["image_url"]
                parts.append(
                    {
                        "type": "input_image",
                        "image_url": image["url"],
                        "detail": image.get("detail") or "auto",
                    }
                )
            case "input_audio":
                raise BadRequestError(
                    "The responses API does not support audio. Use client_type='openai_chat_completions'."
                )
            case _:
                parts.append(dict(part))
    return parts


def _translated(sampling: dict[str, Any]) -> dict[str, Any]:
    """Translate sampling arguments to this API. Raise BadRequestError for unsupported arguments."""
    body = dict(sampling)
    if body.pop("n", 1) != 1:
        raise BadRequestError("The responses API returns one response per request: n must be 1.")
    if body.pop("stop", None):
        raise BadRequestError("The responses API does not support stop sequences.")
    if (effort := body.pop("reasoning_effort", None)) is not None:
        body["reasoning"] = {"effort": effort, **(body.get("reasoning") or {})}
    if (shape := body.pop("response_format", None)) is not None:
        inner = shape.get("json_schema") or {}
        body["text"] = {**(body.get("text") or {}), "format": {"type": shape["type"], **inner}}
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping):
        body["tool_choice"] = {"type": "function", "name": choice["function"]["name"]}
    if body.pop("logprobs", None):
        wanted = "message.output_text.logprobs"
        body["include"] = sorted({*(body.get("include") or []), wanted})
    return body


# ------------------------------------------------------------------------------------------ responses of the model


def _texts(output: list[Any]) -> str:
    return "".join(
        part.get("text") or part.get("refusal") or ""
        for item in output
        if item.get("type") == "message"
        for part in item.get("content") or []
    )


def _reasoning(output: list[Any]) -> str:
    texts: list[str] = []
    for item in output:
        if item.get("type") == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            texts += [part.get("text") or "" for part in parts]
    return "\n".join(text for text in texts if text)


def _without_none(item: Any) -> Any:
    if isinstance(item, Mapping):
        return {key: _without_none(value) for key, value in item.items() if value is not None}
    return [_without_none(part) for part in item] if isinstance(item, list) else item


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, Mapping) or not isinstance(usage.get("input_tokens"), int):
        return None
    prompt_tokens, completion_tokens = usage["input_tokens"], usage.get("output_tokens") or 0
    details = usage.get("output_tokens_details") or {}
    return Usage.of(
        {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "reasoning_tokens": details.get("reasoning_tokens") or 0,
            "total_tokens": usage.get("total_tokens") or prompt_tokens + completion_tokens,
        }
    )


# --------------------------------------------------------------------------------------------- a program's requests


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
            call = chat_call(item["call_id"], item["name"], item["arguments"])
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
    for raw in items(content, "content"):
        part = an_object(raw, "a part of a message")
        match part.get("type"):
            case "input_text" | "output_text" | "text":
                parts.append({"type": "text", "text": part["text"]})
            case "refusal":
                parts.append({"type": "text", "text": part["refusal"]})
            case "input_image":
                parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
            case kind:
                raise UnusableRequest(f"Parts of type {kind!r:.50} are not supported.")
    return plain_content(parts)


# ----------------------------------------------------------------------------------------- our responses to a program


def _usage_of(response: Response) -> dict[str, Any] | None:
    counts = response.usage
    if counts is None:
        return None
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens or 0},
        "total_tokens": counts.total_tokens,
    }


def _events(whole: dict[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {
        **whole,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
    }
    inner = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        inner += _item_events(index, item)
    inner.append({"type": f"response.{whole['status']}", "response": whole})
    for number, each in enumerate(inner):
        yield {**each, "sequence_number": number}


def _item_events(index: int, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    match item["type"]:
        case "message":
            part = item["content"][0]
            here = {**place, "content_index": 0}
            begun = {**item, "status": "in_progress", "content": []}
            text = {"text": part["text"]}
            kind = "response.output_text"
            yield _added(index, begun)
            yield {"type": "response.content_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": f"{kind}.delta", **here, "delta": part["text"], "logprobs": []}
            yield {"type": f"{kind}.done", **here, **text, "logprobs": []}
            yield {"type": "response.content_part.done", **here, "part": part}
        case "function_call":
            kind = "response.function_call_arguments"
            yield _added(index, {**item, "status": "in_progress", "arguments": ""})
            yield {"type": f"{kind}.delta", **place, "delta": item["arguments"]}
            yield {"type": f"{kind}.done", **place, "arguments": item["arguments"]}
        case _:  # reasoning
            part = item["summary"][0]
            here = {**place, "summary_index": 0}
            kind = "response.reasoning_summary"
            yield _added(index, {**item, "summary": []})
            yield {"type": f"{kind}_part.added", **here, "part": {**part, "text": ""}}
            yield {"type": f"{kind}_text.delta", **here, "delta": part["text"]}
            yield {"type": f"{kind}_text.done", **here, "text": part["text"]}
            yield {"type": f"{kind}_part.done", **here, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}
