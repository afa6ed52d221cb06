"""Continuous batching: sequences join and leave the running batch between two steps.

The engine is synchronous and single-threaded: `submit`, `step` until nothing is left, `cancel`,
`update_weights` between any two steps. `driver.py` runs it inside an event loop.
"""

from __future__ import annotations

import dataclasses
import enum
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verifiers.endpoint import sampling
from verifiers.endpoint.cache_rows import CacheRows
from verifiers.endpoint.errors import RequestError
from verifiers.endpoint.model import Model, ModelWeights, Segment, one_blas_thread
from verifiers.endpoint.sampling import Sampling
from verifiers.endpoint.tokenizer import STOP_TOKENS, TextStream, decode

DEFAULT_MAX_RUNNING = 128
PREFILL_TOKENS_PER_STEP = 1024
"""Maximum number of new prompt tokens per step. Whole prompts are prefilled up to this limit to keep steps short."""


class FinishReason(enum.StrEnum):
    """Reason why a sequence ended."""

    STOP = "stop"
    """An end token, a stop token or a stop string."""
    LENGTH = "length"
    """The token limit of the request, or the end of the context."""
    ABORT = "abort"
    """Cancelled: the client disconnected, or generation was paused with mode `abort`."""
    ERROR = "error"
    """The weights produced logits that are NaN or infinite."""


class PauseMode(enum.StrEnum):
    """Effect of a pause on running requests."""

    KEEP = "keep"
    """They wait, and continue after the resume."""
    ABORT = "abort"
    """They end immediately with the tokens they have."""
    WAIT = "wait"
    """They run to their end; waiting requests are not started."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """One generation: prompt, limits, sampling and what to report."""

    prompt_ids: Sequence[int]
    max_tokens: int
    """Maximum number of tokens to generate. The context length ends the generation as well."""
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    seed: int | None = None
    """Seed of the random stream; None uses the system's randomness."""
    choice: int = 0
    """Index among the choices of one request. Each choice has a separate random stream derived from the seed."""
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    """Minimum number of tokens before an end token or stop token may be sampled."""
    top_logprobs: int = 0
    """Number of alternatives to report per token."""
    prompt_logprobs: bool = False
    """Also report the log-probability of each prompt token. This computes the whole prompt."""
    cache_salt: str = ""
    """Requests reuse a common prompt prefix only if their salts are equal."""
    streams_text: bool = False
    """Decode token by token, for a listener."""
    skip_special: bool = True
    """Omit control tokens from the text."""


TokenListener = Callable[["GeneratedSequence", str], None]
FinishListener = Callable[["GeneratedSequence"], None]


class GeneratedSequence:
    """One generation in progress. The lists grow with every step and have the same length."""

    __slots__ = (
        "cached_tokens",
        "finish_reason",
        "generation",
        "on_finish",
        "on_token",
        "prompt_logprobs",
        "prompt_top_logprobs",
        "row",
        "stop_match",
        "stream_key",
        "text_parts",
        "text_stream",
        "token_ids",
        "token_logprobs",
        "token_versions",
        "top_logprobs",
    )

    def __init__(
        self,
        generation: Generation,
        on_finish: FinishListener | None,
        on_token: TokenListener | None,
    ) -> None:
        self.generation = generation
        self.on_finish = on_finish
        self.on_token = on_token
        seed = secrets.randbits(64) if generation.seed is None else generation.seed
        self.stream_key = sampling.stream_key(seed, generation.choice)
        self.row: int | None = None
        self.finish_reason: FinishReason | None = None
        self.stop_match: str | int | None = None
        """The stop string or stop token that ended the sequence, if any."""
        self.cached_tokens = 0
        """Number of prompt tokens copied from the cache instead of computed."""
        self.token_ids: list[int] = []
        self.token_logprobs: list[float] = []
        self.token_versions: list[int] = []
        """Version of the weights that produced each token."""
        self.top_logprobs: list[list[tuple[int, float]]] = []
        self.prompt_logprobs: list[float | None] = []
        self.prompt_top_logprobs: list[list[tuple[int, float]] | None] = []
        self.text_parts: list[str] = []
        self.text_stream: TextStream | None = None
        if generation.stop or generation.streams_text:
            self.text_stream = TextStream(
                generation.stop,
                include_stop=generation.include_stop,
                skip_special=generation.skip_special,
            )

    @property
    def text(self) -> str:
        """The text so far, cut at a stop string."""
        if self.text_stream is not None:
            return "".join(self.text_parts)
        return decode(self.token_ids, skip_special=self.generation.skip_special)


class EngineStatus(NamedTuple):
    """Current load and state of the engine."""

    running: int
    waiting: int
    paused: bool
    version: int


class Engine:
    """A model and the sequences it generates."""

    def __init__(self, model: Model, *, max_running: int = DEFAULT_MAX_RUNNING) -> None:
        self.model = model
        self.max_running = max_running
        self.context_length = model.config.max_position_embeddings
        self.version = 0
        """Number of weight updates, unless updates bring their own version numbers."""
        self.counts: Counter[str] = Counter()
        """Totals since the start, by metric name."""
        self.busy_s = 0.0
        """CPU time spent in steps, in seconds."""
        self._paused: PauseMode | None = None
        self._cache = model.new_cache(max_running)
        self._rows = CacheRows(self._cache)
        self._running: list[GeneratedSequence] = []
        self._waiting: deque[GeneratedSequence] = deque()
        self._scopes: dict[str, int] = {}
        self._last_token: NDArray[np.int64] = np.zeros(max_running, np.int64)
        self._temperatures: NDArray[np.float32] = np.ones(max_running, np.float32)
        self._keys: NDArray[np.uint64] = np.zeros(max_running, np.uint64)
        self._written: NDArray[np.int64] = np.zeros(max_running, np.int64)

    # --- called from outside ---

    def submit(
        self,
        generation: Generation,
        *,
        on_finish: FinishListener | None = None,
        on_token: TokenListener | None = None,
    ) -> GeneratedSequence:
        """Queue a generation. Listeners are called inside `step`, `cancel` or `pause` and must not call the engine.

        Raise RequestError if the prompt is empty or leaves no room in the context.
        """
        length = len(generation.prompt_ids)
        if length == 0:
            raise RequestError("The prompt is empty; it needs at least one token.", param="prompt")
        if length >= self.context_length:
            raise RequestError(
                f"This model's maximum context length is {self.context_length} tokens. However, "
                f"your prompt has {length} tokens and leaves no room for a completion.",
                code="context_length_exceeded",
            )
        sequence = GeneratedSequence(generation, on_finish, on_token)
        self._waiting.append(sequence)
        self.counts["requests"] += 1
        return sequence

    def cancel(self, sequence: GeneratedSequence) -> None:
        """End a sequence with reason `abort` and free its row. Do nothing if it has ended."""
        if sequence.finish_reason is None:
            self._finish(sequence, FinishReason.ABORT)

    def pause(self, mode: PauseMode) -> None:
        """Stop generating: immediately, or with mode `wait` once the running sequences have ended."""
        self._paused = mode
        if mode is PauseMode.ABORT:
            self.cancel_all()

    def resume(self) -> None:
        """Continue after a pause."""
        self._paused = None

    def cancel_all(self) -> int:
        """Cancel all running and waiting sequences and return their number."""
        unfinished = [*self._running, *self._waiting]
        for sequence in unfinished:
            self.cancel(sequence)
        self._waiting.clear()
        return len(unfinished)

    def update_weights(self, weights: ModelWeights, *, version: int | None = None) -> int:
        """Use new weights from the next step on and return their version.

        Running sequences keep their keys and values and continue. Cached prefixes computed with the old weights are
        not reused for later prompts.
        """
        self.model.weights = weights
        self.version = self.version + 1 if version is None else version
        self._rows.forget_all()
        self._scopes.clear()
        self.counts["weight_updates"] += 1
        return self.version

    @property
    def status(self) -> EngineStatus:
        """Number of running and waiting sequences, pause state and weight version."""
        return EngineStatus(
            len(self._running), len(self._waiting), self._paused is not None, self.version
        )

    @property
    def has_work(self) -> bool:
        """Whether `step` would compute anything."""
        if self._paused in (PauseMode.KEEP, PauseMode.ABORT):
            return False
        return bool(self._running or (self._waiting and self._paused is None))

    @property
    def is_draining(self) -> bool:
        """Whether a pause with mode `wait` is still waiting for running sequences."""
        return self._paused is PauseMode.WAIT and bool(self._running)

    def step(self) -> None:
        """Admit waiting sequences, then generate one token for every running sequence."""
        if not self.has_work:
            return
        started = time.thread_time()
        # Invalid weights overflow; `_take_tokens` detects and ends the affected sequences.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            if self._paused is None:
                self._admit()
            if self._running:
                self._decode()
        self.counts["steps"] += 1
        self.busy_s += time.thread_time() - started

    def run(self, *generations: Generation) -> list[GeneratedSequence]:
        """Generate all sequences to the end, without a server."""
        sequences = [self.submit(generation) for generation in generations]
        while any(sequence.finish_reason is None for sequence in sequences):
            if not self.has_work:
                raise RuntimeError("The engine is paused; resume it before running generations.")
            self.step()
        return sequences

    # --- one step ---

    def _admit(self) -> None:
        budget = PREFILL_TOKENS_PER_STEP
        while budget > 0 and self._waiting and len(self._running) < self.max_running:
            admitted: list[tuple[GeneratedSequence, Segment]] = []
            while self._waiting and len(self._running) < self.max_running:
                segment = self._place(self._waiting[0], budget, first=not admitted)
                if segment is None:
                    break
                sequence = self._waiting.popleft()
                self._running.append(sequence)
                admitted.append((sequence, segment))
                budget -= len(segment.token_ids)
            if not admitted:
                break
            self._prefill(admitted)

    def _place(self, sequence: GeneratedSequence, budget: int, *, first: bool) -> Segment | None:
        # Returns a row for the sequence, or None if the sequence should wait for the next round.
        generation = sequence.generation
        prompt = np.asarray(generation.prompt_ids, np.int32)
        scope = self._scope(generation.cache_salt)
        match = self._rows.find(prompt, scope)
        if match.pending:
            return None
        if generation.prompt_logprobs:
            match = match._replace(length=0)
        new_tokens = len(prompt) - match.length
        if new_tokens > budget and not (first and budget == PREFILL_TOKENS_PER_STEP):
            return None
        row = self._rows.admit(prompt, scope, match)
        sequence.row = row
        sequence.cached_tokens = match.length
        self._temperatures[row] = generation.sampling.temperature
        self._keys[row] = sequence.stream_key
        self._written[row] = 0
        self.counts["prompt_tokens"] += len(prompt)
        self.counts["cached_prompt_tokens"] += match.length
        return Segment(row, match.length, generation.prompt_ids[match.length :])

    def _scope(self, salt: str) -> int:
        # Scope numbers are never reused, so cache contents of earlier weights stay unreachable.
        scope = self._scopes.get(salt)
        if scope is None:
            scope = self._scopes[salt] = self.counts["cache_scopes"]
            self.counts["cache_scopes"] += 1
        return scope

    def _prefill(self, admitted: list[tuple[GeneratedSequence, Segment]]) -> None:
        # Fill all rows before taking any token: a sequence that ends immediately moves the rows of others.
        scored = [pair for pair in admitted if pair[0].generation.prompt_logprobs]
        plain = [pair for pair in admitted if not pair[0].generation.prompt_logprobs]
        last_logits = []
        for sequence, segment in scored:
            logits = self.model.prefill([segment], self._cache, all_positions=True)
            self._record_prompt(sequence, logits)
            last_logits.append(logits[-1:])
        if plain:
            last_logits.append(self.model.prefill([segment for _, segment in plain], self._cache))
        self._rows.settle()
        self._take_tokens([sequence for sequence, _ in scored + plain], np.concatenate(last_logits))

    def _decode(self) -> None:
        batch = len(self._running)
        tokens = self._last_token[:batch]
        logits = self.model.decode(tokens, self._rows.filled(batch), self._cache)
        self._rows.append(batch, tokens)
        self._take_tokens(list(self._running), logits)

    def _record_prompt(self, sequence: GeneratedSequence, logits: NDArray[np.float32]) -> None:
        # The first token has no predecessor that could predict it.
        prompt, top = sequence.generation.prompt_ids, sequence.generation.top_logprobs
        shifted = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
        logprobs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        chosen = logprobs[np.arange(len(logprobs)), np.asarray(prompt[1:], np.int64)]
        sequence.prompt_logprobs = [None, *map(sampling.finite, chosen.tolist())]
        sequence.prompt_top_logprobs = [None, *(sampling.top_tokens(row, top) for row in logprobs)]

    def _take_tokens(self, sequences: list[GeneratedSequence], logits: NDArray[np.float32]) -> None:
        rows = np.array([sequence.row for sequence in sequences])
        broken = np.logical_not(np.isfinite(logits).all(axis=1))
        if broken.any():
            logits[broken] = 0.0
        self._adjust(sequences, logits)
        draw = sampling.draw_tokens(
            logits,
            [sequence.generation.sampling for sequence in sequences],
            self._temperatures[rows],
            sampling.uniforms(self._keys[rows], self._written[rows]),
        )
        self._last_token[rows] = draw.token_ids
        self._written[rows] += 1
        chosen = draw.logprobs[np.arange(len(rows)), draw.token_ids].tolist()
        version = self.version
        ended: list[tuple[GeneratedSequence, FinishReason]] = []
        for index, token_id in enumerate(draw.token_ids.tolist()):
            sequence = sequences[index]
            if broken[index]:
                ended.append((sequence, FinishReason.ERROR))
                continue
            sequence.token_ids.append(token_id)
            sequence.token_logprobs.append(chosen[index])
            sequence.token_versions.append(version)
            top = sequence.generation.top_logprobs
            if top:
                sequence.top_logprobs.append(sampling.top_tokens(draw.logprobs[index], top))
            reason = self._end_of(sequence, token_id)
            if reason is not None:
                ended.append((sequence, reason))
        self.counts["generation_tokens"] += len(rows) - int(broken.sum())
        for sequence, reason in ended:
            self._finish(sequence, reason)

    def _adjust(self, sequences: list[GeneratedSequence], logits: NDArray[np.float32]) -> None:
        for index, sequence in enumerate(sequences):
            generation = sequence.generation
            if generation.sampling.adjusts:
                sampling.adjust(
                    logits[index], generation.sampling, generation.prompt_ids, sequence.token_ids
                )
            if len(sequence.token_ids) < generation.min_tokens:
                logits[index, [*STOP_TOKENS, *generation.stop_token_ids]] = -np.inf

    def _end_of(self, sequence: GeneratedSequence, token_id: int) -> FinishReason | None:
        generation = sequence.generation
        ends_here = token_id in generation.stop_token_ids or (
            token_id in STOP_TOKENS and not generation.ignore_eos
        )
        stream = sequence.text_stream
        if stream is not None:
            piece = stream.feed(token_id)
            sequence.text_parts.append(piece)
            if sequence.on_token is not None:
                sequence.on_token(sequence, piece)
            if stream.stopped_by is not None and not ends_here:
                sequence.stop_match = stream.stopped_by
                return FinishReason.STOP
        if ends_here:
            if token_id in generation.stop_token_ids:
                sequence.stop_match = token_id
            return FinishReason.STOP
        written = len(sequence.token_ids)
        room = self.context_length - len(generation.prompt_ids)
        if written >= generation.max_tokens or written >= room:
            return FinishReason.LENGTH
        return None

    def _finish(self, sequence: GeneratedSequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self.counts[f"finished_{reason}"] += 1
        if sequence.text_stream is not None:
            rest = sequence.text_stream.finish()
            sequence.text_parts.append(rest)
            if rest and sequence.on_token is not None:
                sequence.on_token(sequence, rest)
        if sequence.row is None:
            self._waiting.remove(sequence)
        else:
            self._free(sequence.row)
        if sequence.on_finish is not None:
            sequence.on_finish(sequence)

    def _free(self, row: int) -> None:
        self._running[row].row = None
        moved = self._rows.release(row)
        last = self._running.pop()
        if moved is not None:
            self._running[row] = last
            last.row = row
            for column in (self._last_token, self._temperatures, self._keys, self._written):
                column[row] = column[moved]
