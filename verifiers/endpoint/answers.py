"""Response bodies in OpenAI's shape, with the token fields of vLLM."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from verifiers.endpoint.chat_template import parse_turn
from verifiers.endpoint.engine import FinishReason, GeneratedSequence
from verifiers.endpoint.requests import GenerationRequest
from verifiers.endpoint.sampling import finite
from verifiers.endpoint.tokenizer import VOCAB_SIZE, decode, token_bytes, token_text

_TEXTS = [token_text(index) for index in range(VOCAB_SIZE)]
_BYTES = [list(token_bytes(index)) for index in range(VOCAB_SIZE)]


def answer_head(request: GenerationRequest, kind: str) -> dict[str, Any]:
    """The fields every answer and chunk of a request begins with."""
    prefix = "chatcmpl-" if kind.startswith("chat") else "cmpl-"
    return {
        "id": prefix + secrets.token_hex(12),
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def chat_answer(
    request: GenerationRequest, sequences: Sequence[GeneratedSequence]
) -> dict[str, Any]:
    """The body of `/v1/chat/completions`."""
    answer = answer_head(request, "chat.completion")
    answer["choices"] = [
        _chat_choice(request, index, sequence) for index, sequence in enumerate(sequences)
    ]
    answer["usage"] = usage(request, sequences)
    if request.return_token_ids:
        answer["prompt_token_ids"] = sequences[0].generation.prompt_ids
    return answer


def _chat_choice(
    request: GenerationRequest, index: int, sequence: GeneratedSequence
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": sequence.text}
    finish = finish_reason(sequence)
    if request.parses_tools:
        turn = parse_turn(sequence.text)
        if turn.tool_calls:
            message["content"] = turn.content
            message["tool_calls"] = [tool_call(call) for call in turn.tool_calls]
            finish = "tool_calls" if finish == "stop" else finish
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(request, sequence, 0) if request.logprobs else None,
        "finish_reason": finish,
        "stop_reason": sequence.stop_match,
    }
    if request.return_token_ids:
        choice["token_ids"] = sequence.token_ids
        choice["token_versions"] = sequence.token_versions
    return choice


def tool_call(call: dict[str, str]) -> dict[str, Any]:
    """A parsed call as the message carries it."""
    return {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": call}


def finish_reason(sequence: GeneratedSequence) -> str | None:
    """The reason in the words of the API; None while it is under way."""
    return None if sequence.finish_reason is None else str(sequence.finish_reason)


def shown_token(request: GenerationRequest, token_id: int) -> str:
    """A token as logprobs name it."""
    return f"token_id:{token_id}" if request.tokens_as_ids else _TEXTS[token_id]


def chat_logprobs(
    request: GenerationRequest, sequence: GeneratedSequence, begin: int, end: int | None = None
) -> dict[str, Any]:
    """The logprobs object of chat for the tokens from `begin` to `end`."""
    has_top = sequence.generation.top_logprobs > 0
    content = []
    for place in range(begin, len(sequence.token_ids) if end is None else end):
        token_id = sequence.token_ids[place]
        alternatives = sequence.top_logprobs[place] if has_top else ()
        content.append(
            {
                "token": shown_token(request, token_id),
                "logprob": finite(sequence.token_logprobs[place]),
                "bytes": _BYTES[token_id],
                "top_logprobs": [
                    {
                        "token": shown_token(request, other),
                        "logprob": logprob,
                        "bytes": _BYTES[other],
                    }
                    for other, logprob in alternatives
                ],
            }
        )
    return {"content": content, "refusal": None}


def completion_answer(
    request: GenerationRequest, sequences: Sequence[GeneratedSequence]
) -> dict[str, Any]:
    """The body of `/v1/completions`."""
    answer = answer_head(request, "text_completion")
    answer["choices"] = [
        _completion_choice(request, index, sequence) for index, sequence in enumerate(sequences)
    ]
    answer["usage"] = usage(request, sequences)
    if request.return_token_ids:
        answer["prompt_token_ids"] = sequences[0].generation.prompt_ids
    return answer


def _completion_choice(
    request: GenerationRequest, index: int, sequence: GeneratedSequence
) -> dict[str, Any]:
    text = "" if request.discards_completion else sequence.text
    if request.echo:
        text = decode(sequence.generation.prompt_ids, skip_special=request.skip_special) + text
    choice: dict[str, Any] = {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(request, sequence) if request.logprobs else None,
        "finish_reason": "length" if request.discards_completion else finish_reason(sequence),
        "stop_reason": sequence.stop_match,
    }
    if request.return_token_ids:
        written = 0 if request.discards_completion else None
        choice["token_ids"] = sequence.token_ids[:written]
        choice["token_versions"] = sequence.token_versions[:written]
        choice["prompt_token_ids"] = sequence.generation.prompt_ids
    return choice


def completion_logprobs(
    request: GenerationRequest, sequence: GeneratedSequence, begin: int = 0, end: int | None = None
) -> dict[str, Any]:
    """The logprobs object of completions: parallel lists, the prompt first if it is echoed.

    `text_offset` counts characters from the beginning of the text; control tokens take no room in it.
    """
    ids: list[int] = []
    logprobs: list[float | None] = []
    top: list[list[tuple[int, float]] | None] = []
    if request.echo:
        ids += sequence.generation.prompt_ids
        logprobs += sequence.prompt_logprobs
        top += sequence.prompt_top_logprobs
    if not request.discards_completion:
        ids += sequence.token_ids[begin:end]
        logprobs += map(finite, sequence.token_logprobs[begin:end])
        top += sequence.top_logprobs[begin:end]
    has_top = sequence.generation.top_logprobs > 0
    offset = sum(map(_begins_character, sequence.token_ids[:begin]))
    return {
        "tokens": [shown_token(request, token_id) for token_id in ids],
        "token_logprobs": logprobs,
        "top_logprobs": [_top_by_text(request, entry) for entry in top] if has_top else None,
        "text_offset": _text_offsets(ids, offset),
    }


def _top_by_text(
    request: GenerationRequest, entry: list[tuple[int, float]] | None
) -> dict[str, float] | None:
    if entry is None:
        return None
    return {shown_token(request, token_id): logprob for token_id, logprob in entry}


def _text_offsets(ids: Sequence[int], offset: int) -> list[int]:
    offsets = []
    for token_id in ids:
        offsets.append(offset)
        offset += _begins_character(token_id)
    return offsets


def _begins_character(token_id: int) -> bool:
    # Bytes 10xxxxxx continue a character; control tokens have a name, not one byte.
    raw = _BYTES[token_id]
    return len(raw) == 1 and raw[0] & 0xC0 != 0x80


def usage(request: GenerationRequest, sequences: Sequence[GeneratedSequence]) -> dict[str, Any]:
    """Token counts; a prompt counts once, however many choices it has."""
    prompts = sequences[:: request.choices]
    prompt = sum(len(sequence.generation.prompt_ids) for sequence in prompts)
    written = 0 if request.discards_completion else sum(len(s.token_ids) for s in sequences)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": sum(s.cached_tokens for s in prompts)},
    }


def has_error(sequences: Sequence[GeneratedSequence]) -> bool:
    """Whether the weights failed for some sequence."""
    return any(sequence.finish_reason is FinishReason.ERROR for sequence in sequences)
