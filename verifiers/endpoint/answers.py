"""Response bodies in OpenAI's format with vLLM's token fields, whole or streamed as server-sent events.

`verifiers.dialects` does not serve here: a dialect writes one finished `Response`, and this server writes several
choices token by token, with ids, log-probabilities and policy versions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from verifiers.dialects.dialect import DONE, chat_call, framed
from verifiers.endpoint.chat_template import parse_turn
from verifiers.endpoint.driver import EngineDriver, EngineFailed, StreamProgress
from verifiers.endpoint.engine import FinishReason, GeneratedSequence
from verifiers.endpoint.requests import GenerationRequest
from verifiers.endpoint.sampling import finite
from verifiers.endpoint.tokenizer import VOCAB_SIZE, decode, token_bytes, token_text

_TEXTS = [token_text(index) for index in range(VOCAB_SIZE)]
_BYTES = [list(token_bytes(index)) for index in range(VOCAB_SIZE)]


def answer_head(request: GenerationRequest, kind: str) -> dict[str, Any]:
    """Return the first fields of every response and chunk of a request."""
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
    """Return the body of `/v1/chat/completions`."""
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
    """Return a parsed call in the format of a message."""
    return chat_call(f"call_{secrets.token_hex(8)}", call["name"], call["arguments"])


def finish_reason(sequence: GeneratedSequence) -> str | None:
    """Return the finish reason as the API names it; None while the sequence is running."""
    return None if sequence.finish_reason is None else str(sequence.finish_reason)


def shown_token(request: GenerationRequest, token_id: int) -> str:
    """Return a token as named in logprobs."""
    return f"token_id:{token_id}" if request.tokens_as_ids else _TEXTS[token_id]


def chat_logprobs(
    request: GenerationRequest, sequence: GeneratedSequence, begin: int, end: int | None = None
) -> dict[str, Any]:
    """Return the chat logprobs object for the tokens from `begin` to `end`."""
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
    """Return the body of `/v1/completions`."""
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
    """Return the completions logprobs object: parallel lists, beginning with the prompt if it is echoed.

    `text_offset` counts characters from the beginning of the text; control tokens have length 0.
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
    # Bytes 10xxxxxx continue a character. Control tokens have a name instead of one byte.
    raw = _BYTES[token_id]
    return len(raw) == 1 and raw[0] & 0xC0 != 0x80


def usage(request: GenerationRequest, sequences: Sequence[GeneratedSequence]) -> dict[str, Any]:
    """Return token counts. A prompt counts once, regardless of its number of choices."""
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
    """Whether the weights failed for a sequence."""
    return any(sequence.finish_reason is FinishReason.ERROR for sequence in sequences)


TOOL_TAG = "<tool_call>"


@dataclasses.dataclass(frozen=True)
class StreamKind:
    """The differences between chat and text completions."""

    chunk: str
    """The `object` field of a chunk."""
    answer: Callable[[GenerationRequest, Sequence[GeneratedSequence]], dict[str, Any]]
    """Builds the body when the request does not stream."""
    is_chat: bool


CHAT = StreamKind("chat.completion.chunk", chat_answer, is_chat=True)
COMPLETION = StreamKind("text_completion", completion_answer, is_chat=False)


async def write_events(
    http_request: web.Request, driver: EngineDriver, request: GenerationRequest, kind: StreamKind
) -> web.StreamResponse:
    """Generate and write chunks as they arrive, then `[DONE]`."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    writer = ChunkWriter(request, kind)
    try:
        async with contextlib.aclosing(driver.stream(request.generations)) as reports:
            # A refusal must be raised before the status line is sent.
            async for progress in reports:
                if not response.prepared:
                    await response.prepare(http_request)
                    await response.write(_events(writer.opening()))
                await response.write(_events(writer.chunks(progress)))
    except EngineFailed as error:
        if not response.prepared:
            raise
        # The status line is sent already, so the error can only be an event.
        await response.write(_events([{"error": {"message": str(error), "code": 500}}]))
    await response.write(_events(writer.closing()) + DONE)
    await response.write_eof()
    return response


def _events(chunks: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(framed(orjson.dumps(chunk)) for chunk in chunks)


class _ChoiceState:
    """The part of one choice that has been sent."""

    def __init__(self) -> None:
        self.sequence: GeneratedSequence | None = None
        self.tokens_sent = 0
        self.held = ""
        """Text that is, or may be, the beginning of a tool call."""
        self.has_calls = False


class ChunkWriter:
    """Builds the chunks of one request, without I/O."""

    def __init__(self, request: GenerationRequest, kind: StreamKind) -> None:
        self._request = request
        self._is_chat = kind.is_chat
        self._head = answer_head(request, kind.chunk)
        if request.include_usage:
            self._head["usage"] = None
        self._states = [_ChoiceState() for _ in request.generations]
        self._has_details = request.logprobs or request.return_token_ids

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks that name the roles (chat) and carry the ids of the prompt."""
        chunks = []
        if self._is_chat:
            delta = {"role": "assistant", "content": ""}
            chunks = [self._chunk(index, delta) for index in range(len(self._states))]
        if self._request.return_token_ids:
            chunks = chunks or [self._chunk(0, {"content": ""})]
            chunks[0]["prompt_token_ids"] = self._request.generations[0].prompt_ids
        return chunks

    def chunks(self, progress: Sequence[StreamProgress]) -> list[dict[str, Any]]:
        """Return the chunks for newly generated tokens."""
        chunks: list[dict[str, Any]] = []
        for added in progress:
            state = self._states[added.place]
            state.sequence = added.sequence
            deltas = self._deltas(state, added)
            if not deltas and self._has_details and added.tokens > state.tokens_sent:
                # There is no text yet (a held-back character, an end token), but ids and logprobs are due.
                deltas = [{"content": ""}]
            for delta in deltas:
                chunks.append(self._chunk(added.place, delta))
            if deltas:
                self._add_details(chunks[-1]["choices"][0], state, added)
            if added.ended:
                chunks.append(self._last_chunk(added))
        return chunks

    def closing(self) -> list[dict[str, Any]]:
        """Return the usage chunk if the request asked for it."""
        if not self._request.include_usage:
            return []
        sequences = [state.sequence for state in self._states if state.sequence is not None]
        return [self._head | {"choices": [], "usage": usage(self._request, sequences)}]

    def _deltas(self, state: _ChoiceState, added: StreamProgress) -> list[dict[str, Any]]:
        if not self._request.parses_tools:
            return [{"content": added.text}] if added.text else []
        text = state.held + added.text
        begin = _tag_begin(text)
        state.held = text[begin:]
        text = text[:begin]
        calls: list[dict[str, Any]] = []
        if added.ended:
            turn = parse_turn(state.held)
            text += turn.content or ""
            calls = [
                {"index": place, **tool_call(call)} for place, call in enumerate(turn.tool_calls)
            ]
            state.held = ""
            state.has_calls = bool(calls)
        deltas: list[dict[str, Any]] = [{"content": text}] if text else []
        return [*deltas, {"tool_calls": calls}] if calls else deltas

    def _add_details(
        self, choice: dict[str, Any], state: _ChoiceState, added: StreamProgress
    ) -> None:
        begin, end = state.tokens_sent, added.tokens
        state.tokens_sent = end
        if self._request.logprobs:
            render = chat_logprobs if self._is_chat else completion_logprobs
            choice["logprobs"] = render(self._request, added.sequence, begin, end)
        if self._request.return_token_ids:
            choice["token_ids"] = added.sequence.token_ids[begin:end]
            choice["token_versions"] = added.sequence.token_versions[begin:end]

    def _last_chunk(self, added: StreamProgress) -> dict[str, Any]:
        chunk = self._chunk(added.place, {})
        reason = finish_reason(added.sequence)
        if self._states[added.place].has_calls and reason == "stop":
            reason = "tool_calls"
        chunk["choices"][0]["finish_reason"] = reason
        chunk["choices"][0]["stop_reason"] = added.sequence.stop_match
        return chunk

    def _chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "logprobs": None, "finish_reason": None}
        if self._is_chat:
            choice["delta"] = delta
        else:
            choice["text"] = delta.get("content", "")
        return self._head | {"choices": [choice]}


def _tag_begin(text: str) -> int:
    """Return where a tool call begins in the text, or may begin once more text arrives; else the length of the text."""
    begin = text.find(TOOL_TAG)
    if begin >= 0:
        return begin
    for length in range(min(len(TOOL_TAG) - 1, len(text)), 0, -1):
        if TOOL_TAG.startswith(text[-length:]):
            return len(text) - length
    return len(text)
