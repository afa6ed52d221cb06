"""Responses to an agent: a rollout's `Response` as the body of the API that the agent uses."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from verifiers.dialects import DIALECTS, dialect_of_path
from verifiers.types import Response, ResponseMessage

serialize_openai_completion_response = DIALECTS["openai_completions"].response_body
serialize_openai_responses_response = DIALECTS["openai_responses"].response_body
serialize_anthropic_message_response = DIALECTS["anthropic_messages"].response_body


def protocol_from_path(path: str) -> str:
    """Return the name of the API of a path. An unspecific path counts as chat completions."""
    return dialect_of_path(path).name


def serialize_intercept_response(
    response: Any, protocol: str = "openai_chat_completions"
) -> dict[str, Any]:
    """Return the body that answers a request; chat completions for an unknown protocol. An object that is not a
    `Response` (a client library's own, a dict) passes unchanged.
    """
    if not isinstance(response, Response):
        return jsonable(response)
    return DIALECTS.get(protocol, DIALECTS["openai_chat_completions"]).response_body(response)


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
    message = ResponseMessage(content="", finish_reason="stop", is_truncated=False)
    return Response(
        id="agent-completed", created=int(time.time()), model=model, usage=None, message=message
    )


def serialize_tool_defs(tools: Any, protocol: str | None = None) -> list[dict[str, Any]]:
    """Return tool definitions in an API's format (None or "vf": the library's own). Raise ValueError for others."""
    plain = [
        {key: value for key, value in dict(tool).items() if value is not None}
        for tool in tools or []
    ]
    if protocol in (None, "vf"):
        return plain
    if protocol not in DIALECTS or not DIALECTS[protocol].has_tools:
        raise ValueError(f"{protocol!r} is not a format for tool definitions.")
    return [DIALECTS[protocol].native_tool(tool) for tool in plain]
