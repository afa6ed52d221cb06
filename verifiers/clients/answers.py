"""Reading an answer that is not our own JSON: objects of the OpenAI and Anthropic SDKs, of any version, and fakes.

All parsing works on plain dicts. `payload_of` makes one from whatever a client returned, and `native_of` the SDK's
object from one, for hooks that expect it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any

# Fields that a parser reads, by the object that has them. An SDK object says all its fields itself; a stand-in with
# bare attributes (types.SimpleNamespace, a class of a trainer) is read by these names.
_FIELDS = (
    "id",
    "created",
    "created_at",
    "model",
    "status",
    "error",
    "usage",
    "choices",
    "output",
    "content",
    "stop_reason",
    "incomplete_details",
    "prompt_token_ids",
    "index",
    "finish_reason",
    "message",
    "text",
    "logprobs",
    "token_ids",
    "routed_experts",
    "token_logprobs",
    "tokens",
    "logprob",
    "token",
    "role",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "refusal",
    "tool_calls",
    "type",
    "function",
    "name",
    "arguments",
    "input",
    "thinking",
    "signature",
    "data",
    "code",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "completion_tokens_details",
    "reasoning_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "shape",
)


def payload_of(response: Any) -> Any:
    """Plain dicts and lists with the fields of an answer; text, numbers and None as they are."""
    if response is None or isinstance(response, str | bytes | int | float):
        return response
    if isinstance(response, Mapping):
        return response
    if isinstance(response, list | tuple):
        return [payload_of(item) for item in response]
    if hasattr(response, "model_dump"):
        # warnings=False: endpoints send values the SDK's types do not allow, which is for the parser to judge.
        return response.model_dump(mode="python", warnings=False)
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(response, name, None)
        if value is not None and not callable(value):
            found[name] = payload_of(value)
    return found


def native_of(payload: dict[str, Any], module: str, name: str) -> Any:
    """The SDK's object for a payload, made without validation; the payload itself when the SDK is not installed."""
    import importlib

    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError:
        return payload
    return kind.construct(**payload)


def prompt_places(payload: Any) -> list[dict[str, Any]]:
    """Where an answer may have its prompt: beside the choices, or in the first of them."""
    if not isinstance(payload, dict):
        return []
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return [payload, first] if isinstance(first, dict) else [payload]


def with_plain_ids(payload: dict[str, Any]) -> dict[str, Any]:
    """The answer with its prompt as a list, for code that expects what JSON gives."""
    for place in prompt_places(payload):
        if type(ids := place.get("prompt_token_ids")) is array:
            place["prompt_token_ids"] = ids.tolist()
    return payload
