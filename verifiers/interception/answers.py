"""Responses to an agent: a rollout's `Response`, or an error, as the body of the API that the agent uses."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from verifiers.errors import (
    AuthenticationError,
    BadRequestError,
    OverlongPromptError,
    RateLimitError,
)
from verifiers.interception.requests import ApiFormat, UnusableRequest
from verifiers.messages import content_text, from_raw_tool_call
from verifiers.types import Response, ResponseMessage

_ANTHROPIC_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def serialize_intercept_response(
    response: Any, protocol: str = "openai_chat_completions"
) -> dict[str, Any]:
    """Return the body that answers a request. An object that is not a `Response` (a client library's own, a dict)
    passes unchanged.
    """
    if not isinstance(response, Response):
        return jsonable(response)
    match protocol:
        case "openai_completions":
            return serialize_openai_completion_response(response)
        case "openai_responses":
            return serialize_openai_responses_response(response)
        case "anthropic_messages":
            return serialize_anthropic_message_response(response)
        case _:
            return chat_completion(response)


def jsonable(value: Any) -> Any:
    """Return plain lists, dicts and texts for a value that may hold pydantic objects."""
    if hasattr(value, "model_dump"):
        return jsonable(value.model_dump())
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def empty_response(model: str) -> Response:
    """Return the response of a turn that did not take place because the agent had ended."""
    said = ResponseMessage(content="", finish_reason="stop", is_truncated=False)
    return Response(
        id="agent-completed", created=int(time.time()), model=model, usage=None, message=said
    )


def finish_reason(response: Response) -> str:
    """Return the finish reason in OpenAI's terms."""
    message = response.message
    return message.finish_reason or ("tool_calls" if message.tool_calls else "stop")


def tool_calls(response: Response) -> list[dict[str, Any]]:
    """Return the calls in OpenAI's chat format."""
    calls = map(from_raw_tool_call, response.message.tool_calls or [])
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]


def chat_completion(response: Response) -> dict[str, Any]:
    """Return the body of `/v1/chat/completions`."""
    said = response.message
    content = said.content
    if isinstance(content, list | tuple):  # agents expect text
        content = "".join(_text_of(part) for part in content)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls := tool_calls(response):
        message["tool_calls"] = calls
    if said.reasoning_content:
        message["reasoning_content"] = said.reasoning_content
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(response)}
    return {
        "id": response.id,
        "object": "chat.completion",
        "created": response.created,
        "model": response.model,
        "choices": [choice],
        "usage": usage(response),
    }


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
    return text if isinstance(text, str) else ""


def usage(response: Response) -> dict[str, Any] | None:
    """Return token counts under OpenAI's chat names."""
    return None if response.usage is None else dict(response.usage)


def serialize_openai_completion_response(response: Response) -> dict[str, Any]:
    """Return the body of `/v1/completions`."""
    choice = {
        "text": content_text(response.message.content),
        "index": 0,
        "logprobs": None,
        "finish_reason": finish_reason(response),
    }
    return {
        "id": response.id,
        "object": "text_completion",
        "created": response.created,
        "model": response.model,
        "choices": [choice],
        "usage": usage(response),
    }


def serialize_openai_responses_response(response: Response) -> dict[str, Any]:
    """Return the body of `/v1/responses`."""
    said = response.message
    output: list[dict[str, Any]] = []
    if said.reasoning_content:
        summary = [{"type": "summary_text", "text": said.reasoning_content}]
        output.append({"id": f"rs_{response.id}", "type": "reasoning", "summary": summary})
    if text := content_text(said.content):
        output.append(
            {
                "id": f"msg_{response.id}",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": text, "annotations": []}],
            }
        )
    for call in tool_calls(response):
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
        "usage": _responses_usage(response),
    }


def _responses_usage(response: Response) -> dict[str, Any] | None:
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


def serialize_anthropic_message_response(response: Response) -> dict[str, Any]:
    """Return the body of `/v1/messages`."""
    said = response.message
    content: list[dict[str, Any]] = [dict(block) for block in said.thinking_blocks or []]
    if text := content_text(said.content):
        content.append({"type": "text", "text": text})
    for call in tool_calls(response):
        function = call["function"]
        arguments = _arguments(function["arguments"])
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
        "stop_reason": _ANTHROPIC_STOPS.get(finish_reason(response), "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0 if counts is None else counts.prompt_tokens,
            "output_tokens": 0 if counts is None else counts.completion_tokens,
        },
    }


def _arguments(text: str) -> dict[str, Any]:
    """This API needs an object. Malformed arguments are passed to the agent's tool, whose error message reaches the
    model.
    """
    try:
        arguments = json.loads(text)
    except ValueError:
        return {"invalid_arguments": text}
    return arguments if isinstance(arguments, dict) else {"invalid_arguments": text}


def serialize_tool_defs(tools: Any, protocol: str | None = None) -> list[dict[str, Any]]:
    """Return tool definitions in an API's format (None or "vf": the library's own). Raise ValueError for others."""
    plain = [
        {key: value for key, value in dict(tool).items() if value is not None}
        for tool in tools or []
    ]
    match protocol:
        case None | "vf":
            return plain
        case "openai_chat_completions":
            return [{"type": "function", "function": tool} for tool in plain]
        case "openai_responses":
            return [{"type": "function", **tool} for tool in plain]
        case "anthropic_messages":
            names = ("name", "description")
            return [
                {**{name: tool[name] for name in names}, "input_schema": tool["parameters"]}
                for tool in plain
            ]
        case _:
            raise ValueError(f"{protocol!r} is not a format for tool definitions.")


def error_status(error: BaseException) -> int:
    """Return the HTTP status that client libraries map to this error, and whether a retry could help."""
    match error:
        case UnusableRequest() | OverlongPromptError() | BadRequestError():
            return 400
        case AuthenticationError():
            return 401
        case RateLimitError():
            return 429
        case _:
            return 500


def error_body(error: BaseException, api_format: ApiFormat) -> dict[str, Any]:
    """Return the body that reports an error to an agent."""
    message = str(error) or type(error).__name__
    if api_format == "anthropic_messages":
        is_ours = error_status(error) >= 500
        kind = "api_error" if is_ours else "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": message}}
    code = "context_length_exceeded" if isinstance(error, OverlongPromptError) else None
    return {
        "error": {"message": message, "type": type(error).__name__, "param": None, "code": code}
    }
