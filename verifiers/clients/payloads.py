"""Request and response bodies: encode requests as JSON bytes, read responses of any client, sort sampling arguments.

All parsing works on plain dicts. `payload_of` makes one from the result of a client (JSON, or an object of the OpenAI
or Anthropic SDK of any version, or a stand-in), and `native_of` makes the SDK's object from one, for hooks that
expect it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from verifiers.errors import BadRequestError, ModelError


def encoded(payload: Mapping[str, Any]) -> bytes:
    """Return a request body as bytes. Raise ModelError naming the value that cannot be written as JSON."""
    try:
        body = orjson.dumps(
            payload, default=_plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
        )
        # orjson allocates 4 KiB even for a short text, and every request in flight would keep them. A copy is smaller.
        return bytes(memoryview(body))
    except TypeError as error:
        # Use orjson's message; a payload that contains itself, for example, must not be searched.
        if "surrogates" in str(error) and (broken := lone_surrogate(payload)) is not None:
            raise ModelError(f"The request is not valid Unicode: {broken}") from error
        raise ModelError(
            f"The request cannot be written as JSON: {error}. Keys: {sorted(payload)}"
        ) from error


def lone_surrogate(payload: Mapping[str, Any]) -> str | None:
    """Return the place of half a surrogate pair, which UTF-8 cannot represent; None if there is none."""
    for place, text in _texts(payload, ""):
        for position, character in enumerate(text):
            if "\ud800" <= character <= "\udfff":
                return (
                    f"lone surrogate U+{ord(character):04X} at character {position} of {place}. Decode its source with "
                    "errors='replace', or make text of it with text.encode('utf-16', 'surrogatepass').decode('utf-16', "
                    "'replace')."
                )
    return None


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON-like value, keys included, with its place: `messages[0].content`."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            name = str(key)
            yield f"a key of {place or 'the request'}", name
            yield from _texts(item, f"{place}.{name}" if place else name)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{place}[{index}]")
    elif hasattr(value, "model_dump"):
        yield from _texts(value.model_dump(exclude_none=True), place)


def _plain(value: Any) -> Any:
    """Return JSON values for pydantic objects, tuples and sets."""
    if hasattr(value, "model_dump"):
        return value.model_dump(exclude_none=True)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable: {value!r:.100}")


# Fields that a parser reads, by the object that has them. An SDK object lists its own fields; a stand-in with bare
# attributes (types.SimpleNamespace, a class of a trainer) is read by these names.
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
    """Return plain dicts and lists with the fields of a response; text, numbers and None pass unchanged."""
    if response is None or isinstance(response, str | bytes | int | float):
        return response
    if isinstance(response, Mapping):
        return response
    if isinstance(response, list | tuple):
        return [payload_of(item) for item in response]
    if (values := _set_values_of_mock(response)) is not None:
        return {name: payload_of(values[name]) for name in _FIELDS if name in values}
    if hasattr(response, "model_dump"):
        # warnings=False: endpoints send values that the SDK's types do not allow. The parser judges them.
        return response.model_dump(mode="python", warnings=False)
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(response, name, None)
        if value is not None and not callable(value):
            found[name] = payload_of(value)
    return found


def _set_values_of_mock(response: Any) -> dict[str, Any] | None:
    """Return the attributes that a test has set on a `unittest.mock` object, which answers to every name; else None."""
    values = getattr(response, "__dict__", {})
    children = values.get("_mock_children")
    return None if not isinstance(children, dict) else {**children, **values}


def native_of(payload: dict[str, Any], module: str, name: str) -> Any:
    """Return the SDK's object for a payload, made without validation; the payload itself without the SDK."""
    import importlib

    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError:
        return payload
    return kind.construct(**payload)


def prompt_places(payload: Any) -> list[dict[str, Any]]:
    """Places where a response may hold its prompt: beside the choices, or in the first choice."""
    if not isinstance(payload, dict):
        return []
    choices = payload.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return [payload, first] if isinstance(first, dict) else [payload]


def with_plain_ids(payload: dict[str, Any]) -> dict[str, Any]:
    """Return the response with its prompt as a list, for code that expects decoded JSON."""
    for place in prompt_places(payload):
        if type(ids := place.get("prompt_token_ids")) is array:
            place["prompt_token_ids"] = ids.tolist()
    return payload


class RequestOptions(NamedTuple):
    """Arguments of one request beside prompt, model and tools."""

    body: dict[str, Any]
    """Keys of the JSON body; `extra_body` is merged in and wins."""
    headers: dict[str, str] | None
    timeout_s: float | None


def split(sampling_args: Mapping[str, Any] | None, *, length_key: str) -> RequestOptions:
    """Drop None values, rename the length limit for the API, and separate arguments that are not part of the body.

    `length_key`: the API's name for the limit of the completion, which authors write as `max_tokens` or
    `max_completion_tokens`. Unknown keys pass: endpoints support more options than any list here.
    """
    body: dict[str, Any] = {}
    headers: dict[str, str] | None = None
    timeout_s: float | None = None
    extra_body: Mapping[str, Any] | None = None
    for key, value in (sampling_args or {}).items():
        if value is None:
            continue
        if key == "extra_body":
            extra_body = value
        elif key == "extra_headers":
            headers = dict(value)
        elif key == "timeout":
            timeout_s = float(value)
        elif key == "max_tokens" or key == "max_completion_tokens":
            if key == length_key or length_key not in body:
                body[length_key] = value
        elif key == "stream" or key == "stream_options":
            if value is True:
                raise BadRequestError(
                    "stream=True is not supported: a rollout waits for the whole response."
                )
        else:
            body[key] = value
    if extra_body:
        body.update(extra_body)
    return RequestOptions(body, headers, timeout_s)
