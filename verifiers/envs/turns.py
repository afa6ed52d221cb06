"""One model response → the messages and tokens of a step. Pure functions."""

from __future__ import annotations

from typing import Any

from verifiers.clients.answers import payload_of
from verifiers.clients.chat_completions import only_choice, response_of
from verifiers.types import (
    AssistantMessage,
    Messages,
    Response,
    TextMessage,
    TrajectoryStepTokens,
)

_KEPT = ("content", "reasoning_content", "thinking_blocks", "tool_calls")


def completion_messages(response: Response, message_type: str = "chat") -> Messages:
    """What the model said as one message, without the fields that belong to the response."""
    message = response["message"]
    if message_type == "completion" and not message.get("tool_calls"):
        return [TextMessage.of({"role": "text", "content": message.get("content") or ""})]
    fields: dict[str, Any] = {"role": "assistant"}
    for name in _KEPT:
        value = message.get(name)
        if value is not None and value != []:
            fields[name] = value
    extra = [name for name in message if name not in message.model_fields]
    for name in extra:
        fields[name] = message[name]
    return [AssistantMessage.of(fields)]


def step_tokens(response: Response, max_seq_len: int | None = None) -> TrajectoryStepTokens | None:
    """The token ids of a step, cut to `max_seq_len`; None when the endpoint gave none.

    A prompt that alone is too long leaves no completion and is marked `overlong_prompt`.
    """
    tokens = response["message"].get("tokens")
    if tokens is None:
        return None
    prompt_ids, completion_ids = tokens["prompt_ids"], tokens["completion_ids"]
    prompt_count, completion_count = len(prompt_ids), len(completion_ids)
    room = completion_count
    overlong = truncated = False
    if max_seq_len is not None and prompt_count + completion_count > max_seq_len:
        truncated = True
        overlong = prompt_count > max_seq_len
        prompt_count = min(prompt_count, max_seq_len)
        room = max_seq_len - prompt_count
    return {
        "prompt_ids": prompt_ids[:prompt_count] if truncated else prompt_ids,
        "prompt_mask": tokens["prompt_mask"][:prompt_count] if truncated else tokens["prompt_mask"],
        "completion_ids": completion_ids[:room] if truncated else completion_ids,
        "completion_mask": tokens["completion_mask"][:room]
        if truncated
        else tokens["completion_mask"],
        "completion_logprobs": tokens["completion_logprobs"][:room]
        if truncated
        else tokens["completion_logprobs"],
        "overlong_prompt": overlong,
        "is_truncated": truncated,
        "routed_experts": tokens.get("routed_experts"),
    }


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
) -> TrajectoryStepTokens | None:
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
