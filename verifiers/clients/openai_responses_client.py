"""The OpenAI responses API (`POST /responses`): a list of items in, a list of items out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from verifiers.clients.http_client import HttpClient
from verifiers.clients.payloads import Sampling
from verifiers.configs import ClientConfig
from verifiers.errors import BadRequestError, EmptyModelResponseError, InvalidModelResponseError
from verifiers.messages import from_raw_tool_call
from verifiers.types import Response, ResponseMessage, ToolCall, Usage

OPENAI_RESPONSES_OUTPUT_FIELD = "openai_responses_output"
"""Field of an assistant message with the items of the response. They are sent back unchanged in the next turn,
because reasoning items can only be continued whole.
"""


class OpenAIResponsesClient(HttpClient):
    """Responses API: reasoning that is kept between turns, tool calls, images."""

    path: ClassVar[str] = "responses"
    length_key: ClassVar[str] = "max_output_tokens"
    native_type: ClassVar[tuple[str, str]] = ("openai.types.responses", "Response")

    def setup_client(self, config: ClientConfig) -> Any:
        """Return an `AsyncOpenAI` for the configuration."""
        from verifiers.clients.connect import setup_openai_client

        return setup_openai_client(config)

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
        sampling: Sampling,
        tools: list[Any] | None,
        extra: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the JSON body of a request, with chat completions' sampling arguments translated."""
        body = {"model": model, "input": prompt, **extra, **_translated(sampling.body)}
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
        said = self.response_of(payload).message
        if not (said.content or said.reasoning_content or said.tool_calls):
            raise EmptyModelResponseError(
                f"The model returned no content, no reasoning and no tool calls "
                f"(status {payload.get('status')!r})."
            )

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format. The message keeps its items in `OPENAI_RESPONSES_OUTPUT_FIELD`."""
        items = [item for item in payload.get("output") or [] if isinstance(item, Mapping)]
        said: dict[str, Any] = {"role": "assistant", "content": _texts(items) or None}
        calls = [
            ToolCall.of(
                {
                    "id": item.get("call_id") or item.get("id") or f"call_{index}",
                    "name": item.get("name") or "",
                    "arguments": item.get("arguments") or "",
                }
            )
            for index, item in enumerate(items)
            if item.get("type") == "function_call"
        ]
        reasoning = _reasoning(items)
        if reasoning:
            said["reasoning_content"] = reasoning
        if calls:
            said["tool_calls"] = calls
        is_truncated = payload.get("status") == "incomplete"
        said["finish_reason"] = "length" if is_truncated else "tool_calls" if calls else "stop"
        said["is_truncated"] = is_truncated
        said[OPENAI_RESPONSES_OUTPUT_FIELD] = [_without_none(item) for item in items]
        return Response.of(
            {
                "id": payload.get("id") or "",
                "created": int(payload.get("created_at") or 0),
                "model": payload.get("model") or "",
                "usage": _usage(payload.get("usage")),
                "message": ResponseMessage.of(said),
            }
        )

    def sdk_method(self, client: Any) -> Any:
        """`client.responses.create`."""
        return client.responses.create


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
    output = message.get(OPENAI_RESPONSES_OUTPUT_FIELD)
    if output:
        return list(output)
    items: list[Any] = []
    content = message.get("content")
    text = (
        content if isinstance(content, str) else "".join(p.get("text") or "" for p in content or [])
    )
    if text:
        items.append({"type": "message", "role": "assistant", "content": text})
    for raw in message.get("tool_calls") or []:
        call = from_raw_tool_call(raw)
        items.append(
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": call["arguments"],
            }
        )
    return items


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


def _texts(items: list[Any]) -> str:
    return "".join(
        part.get("text") or part.get("refusal") or ""
        for item in items
        if item.get("type") == "message"
        for part in item.get("content") or []
    )


def _reasoning(items: list[Any]) -> str:
    texts: list[str] = []
    for item in items:
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
