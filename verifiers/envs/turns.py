"""One model response → the messages and tokens of a step. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verifiers.clients.payloads import payload_of
from verifiers.dialects.chat_completions import only_choice, response_of
from verifiers.tokens import StepTokens, graph_of
from verifiers.types import (
    AssistantMessage,
    Messages,
    Response,
    TrajectoryStep,
)

_KEPT = ("content", "reasoning_content", "thinking_blocks", "tool_calls")


def completion_messages(response: Response) -> Messages:
    """What the model said as one message, without the fields that belong to the response."""
    message = response["message"]
    fields: dict[str, Any] = {"role": "assistant"}
    for name in _KEPT:
        value = message.get(name)
        if value is not None and value != []:
            fields[name] = value
    extra = [name for name in message if name not in message.model_fields]
    for name in extra:
        fields[name] = message[name]
    return [AssistantMessage.of(fields)]


def step_tokens(
    response: Response,
    max_seq_len: int | None = None,
    trajectory: Sequence[TrajectoryStep] = (),
) -> StepTokens | None:
    """The token ids of a step, cut to `max_seq_len`; None when the endpoint gave none.

    They are added to the token graph of `trajectory`, the steps before it, so that each token is kept once; the
    response shows them from there too. A prompt that alone is too long leaves no completion and is marked
    `overlong_prompt`. Raises TokensInvalid when ids, masks and log-probabilities differ in length.
    """
    message = response["message"]
    tokens = message.get("tokens")
    if tokens is None:
        return None
    stored = graph_of(trajectory).commit(tokens, max_length=max_seq_len)
    if not stored["is_truncated"]:
        message["tokens"] = stored
    return stored


# --------------------------------------------------------------------- v0's names for the same, asynchronous there


async def parse_response_message(response: Response) -> Messages:
    """What the model said, as one message."""
    return completion_messages(response)


async def parse_response_messages(response: Any, message_type: str = "chat") -> Any:
    """What the model said in a `Response` or an OpenAI response object: messages, or text for completions."""
    if message_type == "completion":
        return _as_response(response).message.content or ""
    return completion_messages(_as_response(response))


async def parse_response_tokens(
    response: Any, message_type: str | int | None = "chat", max_seq_len: int | None = None
) -> StepTokens | None:
    """Token ids of a response, cut to `max_seq_len`; None when the endpoint gave none.

    Called as `(response, max_seq_len)` by generation (b), `(response, message_type, max_seq_len)` by (a).
    """
    if not isinstance(message_type, str):
        max_seq_len = message_type if max_seq_len is None else max_seq_len
    return step_tokens(_as_response(response), max_seq_len)


def _as_response(response: Any) -> Response:
    if isinstance(response, Response):
        return response
    payload = payload_of(response)
    choice = only_choice(payload)
    if "message" in choice or "text" not in choice:
        return response_of(payload)
    # A text completion: the same answer with its text where chat has it.
    chat = {**choice, "message": {"role": "assistant", "content": choice["text"]}}
    return response_of({**payload, "choices": [chat]})
