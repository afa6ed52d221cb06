"""Streaming answers as server-sent events."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from verifiers.endpoint import answers
from verifiers.endpoint.chat_template import parse_turn
from verifiers.endpoint.driver import EngineDriver, EngineFailed, Progress
from verifiers.endpoint.engine import GeneratedSequence
from verifiers.endpoint.requests import GenerationRequest

TOOL_TAG = "<tool_call>"


@dataclasses.dataclass(frozen=True)
class StreamKind:
    """What tells chat from completions."""

    chunk: str
    """The `object` of a chunk."""
    answer: Callable[[GenerationRequest, Sequence[GeneratedSequence]], dict[str, Any]]
    """The body when nothing is streamed."""
    is_chat: bool


CHAT = StreamKind("chat.completion.chunk", answers.chat_answer, is_chat=True)
COMPLETION = StreamKind("text_completion", answers.completion_answer, is_chat=False)


async def write_events(
    request: web.Request, driver: EngineDriver, asked: GenerationRequest, kind: StreamKind
) -> web.StreamResponse:
    """Generates and writes chunks as they come, then `[DONE]`."""
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    )
    writer = ChunkWriter(asked, kind)
    try:
        async with contextlib.aclosing(driver.stream(asked.generations)) as news:
            # Whatever refuses the request must do so before the status line is out.
            async for progress in news:
                if not response.prepared:
                    await response.prepare(request)
                    await response.write(_events(writer.opening()))
                await response.write(_events(writer.chunks(progress)))
    except EngineFailed as error:
        if not response.prepared:
            raise
        # The status line is out, so the error can only be an event.
        await response.write(_events([{"error": {"message": str(error), "code": 500}}]))
    await response.write(_events(writer.closing()) + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _events(chunks: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)


class _ChoiceState:
    """How much of one choice has been sent."""

    def __init__(self) -> None:
        self.sequence: GeneratedSequence | None = None
        self.tokens_sent = 0
        self.held = ""
        """Text that may be, or is, the beginning of a tool call."""
        self.has_calls = False


class ChunkWriter:
    """Builds the chunks of one request. No I/O."""

    def __init__(self, asked: GenerationRequest, kind: StreamKind) -> None:
        self._asked = asked
        self._is_chat = kind.is_chat
        self._head = answers.answer_head(asked, kind.chunk)
        if asked.include_usage:
            self._head["usage"] = None
        self._states = [_ChoiceState() for _ in asked.generations]
        self._has_details = asked.logprobs or asked.return_token_ids

    def opening(self) -> list[dict[str, Any]]:
        """The chunks that name the roles (chat) and give the prompt's ids."""
        chunks = []
        if self._is_chat:
            delta = {"role": "assistant", "content": ""}
            chunks = [self._chunk(index, delta) for index in range(len(self._states))]
        if self._asked.return_token_ids:
            chunks = chunks or [self._chunk(0, {"content": ""})]
            chunks[0]["prompt_token_ids"] = self._asked.generations[0].prompt_ids
        return chunks

    def chunks(self, progress: Sequence[Progress]) -> list[dict[str, Any]]:
        """The chunks for what has been added."""
        chunks: list[dict[str, Any]] = []
        for added in progress:
            state = self._states[added.place]
            state.sequence = added.sequence
            deltas = self._deltas(state, added)
            if not deltas and self._has_details and added.tokens > state.tokens_sent:
                # No text yet (a held-back character, an end token), but its ids and logprobs are due.
                deltas = [{"content": ""}]
            for delta in deltas:
                chunks.append(self._chunk(added.place, delta))
            if deltas:
                self._add_details(chunks[-1]["choices"][0], state, added)
            if added.ended:
                chunks.append(self._last_chunk(added))
        return chunks

    def closing(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        if not self._asked.include_usage:
            return []
        sequences = [state.sequence for state in self._states if state.sequence is not None]
        return [self._head | {"choices": [], "usage": answers.usage(self._asked, sequences)}]

    def _deltas(self, state: _ChoiceState, added: Progress) -> list[dict[str, Any]]:
        if not self._asked.parses_tools:
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
                {"index": place, **answers.tool_call(call)}
                for place, call in enumerate(turn.tool_calls)
            ]
            state.held = ""
            state.has_calls = bool(calls)
        deltas: list[dict[str, Any]] = [{"content": text}] if text else []
        return [*deltas, {"tool_calls": calls}] if calls else deltas

    def _add_details(self, choice: dict[str, Any], state: _ChoiceState, added: Progress) -> None:
        begin, end = state.tokens_sent, added.tokens
        state.tokens_sent = end
        if self._asked.logprobs:
            give = answers.chat_logprobs if self._is_chat else answers.completion_logprobs
            choice["logprobs"] = give(self._asked, added.sequence, begin, end)
        if self._asked.return_token_ids:
            choice["token_ids"] = added.sequence.token_ids[begin:end]
            choice["token_versions"] = added.sequence.token_versions[begin:end]

    def _last_chunk(self, added: Progress) -> dict[str, Any]:
        chunk = self._chunk(added.place, {})
        reason = answers.finish_reason(added.sequence)
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
    """Where a tool call begins in the text, or may begin if more comes; else its length."""
    begin = text.find(TOOL_TAG)
    if begin >= 0:
        return begin
    for length in range(min(len(TOOL_TAG) - 1, len(text)), 0, -1):
        if TOOL_TAG.startswith(text[-length:]):
            return len(text) - length
    return len(text)
