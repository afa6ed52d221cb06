"""The OpenAI chat completions API (`POST /chat/completions`), which nearly every endpoint supports.

Training adapters and environments use the functions; `ChatCompletions` is the API as a dialect.

Token ids, log-probabilities and expert routing in a response, as vLLM and compatible servers send them (P prompt
tokens, C completion tokens, T = P + C):

prompt_token_ids                 [P]   of the response, or of the choice
choices[0].token_ids             [C]
choices[0].logprobs.content[i].logprob, or choices[0].logprobs.token_logprobs[i]
choices[0].routed_experts        {"data": base85, "shape": [T, layers, experts]}, optional
choices[0].token_versions        [C]   policy version that sampled each token, optional (the embedded endpoint)
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from math import prod
from operator import itemgetter
from typing import Any, Literal

from verifiers.dialects.dialect import (
    DONE,
    Dialect,
    RawMessage,
    an_object,
    chat_call,
    completion_body,
    content_to_text,
    event,
    finish_reason,
    items,
    response_from,
)
from verifiers.errors import EmptyModelResponseError, InvalidModelResponseError
from verifiers.messages import from_raw_tool_call
from verifiers.tokens.packed import PackedTokens, packed_ids
from verifiers.types import Response, ToolCall, Usage

REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_details")
"""Fields that hold the model's reasoning, in order of preference (OpenRouter and vLLM; DeepSeek and SGLang)."""

FINISH_REASONS = frozenset({"stop", "length", "tool_calls"})

# Fields of a saved assistant message that the API does not accept.
_NOT_SENT = frozenset(
    {"tokens", "finish_reason", "is_truncated", "thinking_blocks", "openai_responses_output"}
)


# ---------------------------------------------------------------------------------------- our requests to a model


def native_messages(messages: Any) -> list[Any]:
    """Return messages in the API's format. Messages that already are in it are not copied."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [native_message(message) for message in messages]


def native_message(message: Any) -> Mapping[str, Any]:
    """Return one message in the API's format."""
    if not isinstance(message, Mapping):
        message = message.model_dump(exclude_none=True)
    role = message["role"]
    if role == "assistant":
        return _native_assistant_message(message)
    if role == "text":
        return {"role": "user", "content": message["content"]}
    if None in message.values():
        return {key: value for key, value in message.items() if value is not None}
    return message


def _native_assistant_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(message) == 2 and "content" in message:
        return message
    native: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    for key, value in message.items():
        if value is None or key in _NOT_SENT:
            continue
        native[key] = [_native_tool_call(call) for call in value] if key == "tool_calls" else value
    if not native.get("tool_calls"):
        native.pop("tool_calls", None)
        if native["content"] is None:
            native["content"] = ""  # only a message with tool calls may have no content
    return native


def _native_tool_call(call: Any) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        call = call.model_dump(exclude_none=True)
    if call.get("function") is not None:
        return call
    return chat_call(call["id"], call["name"], call["arguments"])


def native_tool(tool: Any) -> dict[str, Any]:
    """Return a tool definition in the API's format; one in that format passes unchanged."""
    if isinstance(tool, Mapping) and tool.get("function") is not None:
        return dict(tool)
    definition = tool if isinstance(tool, Mapping) else tool.model_dump(exclude_none=True)
    function = {name: definition[name] for name in ("name", "description", "parameters")}
    if definition.get("strict") is not None:
        function["strict"] = definition["strict"]
    return {"type": "function", "function": function}


def has_audio(messages: Iterable[Any]) -> bool:
    """Whether a message contains audio. The API then needs to know that a text response is expected."""
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list) and any(
            isinstance(part, Mapping) and part.get("type") == "input_audio" for part in content
        ):
            return True
    return False


# ------------------------------------------------------------------------------------------ responses of the model


def only_choice(payload: Any) -> dict[str, Any]:
    """Return the single choice of a response.

    Raise EmptyModelResponseError for no choices, InvalidModelResponseError for any other number than one.
    """
    if not isinstance(payload, Mapping):
        raise InvalidModelResponseError(
            f"The response is not a completion but {type(payload).__name__}: {payload!r:.200}"
        )
    choices = payload.get("choices")
    if choices is None:
        reason = f": {payload['error']!r:.200}" if payload.get("error") else ""
        raise EmptyModelResponseError(f"The model's response has no choices{reason}")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        count = len(choices) if isinstance(choices, list) else repr(choices)
        raise InvalidModelResponseError(
            f"The model's response has {count} choices where 1 is expected (n must be 1)."
        )
    return choices[0]


def check_payload(payload: Any) -> None:
    """Raise EmptyModelResponseError for a response without content, reasoning and tool calls."""
    choice = only_choice(payload)
    message = choice.get("message") or {}
    if not (
        message.get("content")
        or message.get("tool_calls")
        or message.get("refusal")
        or parse_reasoning(message)
    ):
        raise EmptyModelResponseError(
            "The model returned no content, no reasoning and no tool calls "
            f"(finish_reason {choice.get('finish_reason')!r})."
        )


def response_of(payload: dict[str, Any]) -> Response:
    """Return the response in the library's format, without checking whether it is empty."""
    choice = only_choice(payload)
    message = choice.get("message") or {}
    reason = choice.get("finish_reason")
    fields: dict[str, Any] = {
        "role": "assistant",
        "content": _content(message),
        "finish_reason": reason if reason in FINISH_REASONS else None,
        "is_truncated": reason == "length",
    }
    reasoning = parse_reasoning(message)
    if reasoning is not None:
        fields["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls:
        fields["tool_calls"] = [parse_tool_call(call, index) for index, call in enumerate(calls)]
    tokens = parse_tokens(payload, choice)
    if tokens is not None:
        fields["tokens"] = tokens
    usage = parse_usage(payload.get("usage"))
    return response_from(payload, fields, usage, payload.get("created") or 0)


def _content(message: Mapping[str, Any]) -> str | None:
    content = message.get("content")
    if isinstance(content, list):  # Mistral sends content in parts
        content = content_to_text(content)
    return content or message.get("refusal") or content


def parse_reasoning(message: Mapping[str, Any]) -> str | None:
    """Return the model's reasoning from the first field that has any."""
    for name in REASONING_FIELDS:
        value = message.get(name)
        if isinstance(value, list):
            value = "\n".join(
                part.get("text") or part.get("summary") or ""
                for part in value
                if isinstance(part, Mapping)
            )
        if value and isinstance(value, str):
            return value
    return None


def parse_tool_call(call: Mapping[str, Any], index: int) -> ToolCall:
    """Return one tool call. A missing id becomes `call_<index>`; arguments sent as an object become JSON text."""
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    return ToolCall.of(
        {
            "id": call.get("id") or f"call_{index}",
            "name": function.get("name") or "",
            "arguments": arguments,
        }
    )


def parse_usage(usage: Any) -> Usage | None:
    """Return token counts; None unless the endpoint sent both."""
    if not isinstance(usage, Mapping):
        return None
    prompt_tokens = usage.get("prompt_tokens")
    completion_tokens = usage.get("completion_tokens")
    if not isinstance(prompt_tokens, int) or not isinstance(completion_tokens, int):
        return None
    details = usage.get("completion_tokens_details")
    reasoning_tokens = (
        details.get("reasoning_tokens") if isinstance(details, Mapping) else None
    ) or 0
    return Usage.of(
        {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "reasoning_tokens": reasoning_tokens,
            "total_tokens": usage.get("total_tokens") or prompt_tokens + completion_tokens,
        }
    )


_LOGPROB = itemgetter("logprob")


def parse_tokens(payload: dict[str, Any], choice: dict[str, Any]) -> PackedTokens | None:
    """Return the tokens of one choice; None when the response lacks any of the three lists.

    Raise InvalidModelResponseError when the lists contradict each other: such a sample must not be trained on.
    """
    completion_ids = choice.get("token_ids")
    if not completion_ids:
        return None
    prompt_ids = payload.get("prompt_token_ids") or choice.get("prompt_token_ids")
    logprobs = _logprobs(choice.get("logprobs"))
    if not prompt_ids or logprobs is None:
        return None
    if len(logprobs) != len(completion_ids):
        raise InvalidModelResponseError(
            f"The response has {len(completion_ids)} token ids but {len(logprobs)} log-probabilities."
        )
    try:
        sum(logprobs)  # the fastest check that all of them are numbers
    except TypeError as error:
        raise InvalidModelResponseError(
            f"The response has a token whose log-probability is not a number: {error}"
        ) from error
    others: dict[str, Any] = {}
    if (routed_experts := choice.get("routed_experts")) is not None:
        others["routed_experts"] = parse_routed_experts(routed_experts)
    if (versions := choice.get("token_versions")) is not None:
        others["versions"] = versions
    try:
        return PackedTokens.make(packed_ids(prompt_ids), completion_ids, logprobs, **others)
    except ValueError as error:
        raise InvalidModelResponseError(
            f"The response's prompt does not consist of token ids. {error}"
        ) from error


def _logprobs(logprobs: Any) -> list[float] | None:
    if not isinstance(logprobs, dict):
        return None
    content = logprobs.get("content")
    if content is not None:
        return list(map(_LOGPROB, content))
    return logprobs.get("token_logprobs")


def parse_routed_experts(value: Any) -> list[list[list[int]]]:
    """Return expert indices `[T, layers, experts per token]` from base85 of little-endian integers, or unchanged.

    The width (1, 2 or 4 bytes) follows from the size and the shape.
    """
    if not isinstance(value, dict):
        return value
    try:
        data = base64.b85decode(value["data"])
        shape = [int(size) for size in value["shape"]]
        width = len(data) // max(1, prod(shape))
        kinds: dict[int, Literal["B", "H", "i"]] = {1: "B", 2: "H", 4: "i"}
        nested: Any = (
            memoryview(data).cast(kinds[width], shape).tolist()
        )  # typed as if it had one dimension
        return nested
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModelResponseError(
            f"routed_experts is not base85 data of the shape it states: {type(error).__name__}: {error}"
        ) from error


# ----------------------------------------------------------------------------------------- our responses to a program


def tool_calls_of(response: Response) -> list[dict[str, Any]]:
    """Return a response's calls in the API's format."""
    calls = map(from_raw_tool_call, response.message.tool_calls or [])
    return [chat_call(call.id, call.name, call.arguments) for call in calls]


def chat_chunks(response: Response, wants_usage: bool = False) -> list[dict[str, Any]]:
    """Return `chat.completion.chunk` objects: content, then the finish reason, then token counts if requested."""
    head = {
        "id": response.id,
        "object": "chat.completion.chunk",
        "created": response.created,
        "model": response.model,
    }
    message = response.message
    delta: dict[str, Any] = {"role": "assistant", "content": message.content}
    if message.reasoning_content:
        delta["reasoning_content"] = message.reasoning_content
    if calls := tool_calls_of(response):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    end = {"index": 0, "delta": {}, "finish_reason": finish_reason(response)}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [end]},
    ]
    if wants_usage:
        usage = None if response.usage is None else dict(response.usage)
        chunks.append({**head, "choices": [], "usage": usage})
    return chunks


class ChatCompletions(Dialect):
    """Chat completions: tool calls, reasoning, token ids and log-probabilities where the endpoint sends them."""

    name = "openai_chat_completions"
    path = "chat/completions"
    length_key = "max_completion_tokens"
    sdk_method = "chat.completions.create"
    sdk_type = ("openai.types.chat", "ChatCompletion")

    def native_prompt(self, messages: Any) -> tuple[list[Any], dict[str, Any]]:
        """Return messages in the API's format; with audio in them, `modalities` requests a text response."""
        native = native_messages(messages)
        return native, {"modalities": ["text"]} if has_audio(native) else {}

    def native_tool(self, tool: Any) -> dict[str, Any]:
        """Return a function definition."""
        return native_tool(tool)

    def check_payload(self, payload: Any) -> None:
        """Raise for any number of choices but one, and for an empty choice."""
        check_payload(payload)

    def response_of(self, payload: Any) -> Response:
        """Return a response in the library's format."""
        return response_of(payload)

    def chat_messages(self, body: Mapping[str, Any]) -> list[RawMessage]:
        """Return copies of the messages."""
        return [dict(an_object(raw, "a message")) for raw in items(body["messages"], "messages")]

    def response_body(self, response: Response) -> dict[str, Any]:
        """Return the body of `/v1/chat/completions`."""
        source = response.message
        content = source.content
        if isinstance(content, list | tuple):  # agents expect text
            content = "".join(_text_of(part) for part in content)
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls := tool_calls_of(response):
            message["tool_calls"] = calls
        if source.reasoning_content:
            message["reasoning_content"] = source.reasoning_content
        return completion_body(response, "chat.completion", {"index": 0, "message": message})

    def events(self, response: Response, wants_usage: bool = False) -> list[bytes]:
        """Return the chunks, then the end."""
        return [*map(event, chat_chunks(response, wants_usage)), DONE]


def _text_of(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else getattr(part, "text", None)
    return text if isinstance(text, str) else ""
