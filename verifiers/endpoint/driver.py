"""Run an engine inside an event loop: steps between callbacks, results as awaitables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from verifiers.endpoint.engine import (
    Engine,
    FinishListener,
    GeneratedSequence,
    Generation,
    PauseMode,
    TokenListener,
)
from verifiers.endpoint.errors import EndpointError
from verifiers.endpoint.model import ModelWeights

logger = logging.getLogger(__name__)


class EngineFailed(EndpointError, RuntimeError):
    """A step raised an exception; this engine generates nothing more."""


class StreamProgress(NamedTuple):
    """The part of one streamed generation that is new since the previous report."""

    place: int
    """Index of the generation in the requested list."""
    sequence: GeneratedSequence
    text: str
    tokens: int
    """Number of tokens in the sequence at the time of this report."""
    ended: bool


class EngineDriver:
    """Step the engine while it has work. Use it from one event loop only.

    A step takes about a millisecond, and other callbacks run between two steps. The steps therefore stay in the
    loop's thread: passing data to a separate thread would cost more than it gains.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: Exception | None = None
        """The exception that ended the engine, if any."""
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EngineDriver]:
        """Step the engine while the context is open, then cancel all unfinished sequences."""
        # Not a task group: the task cannot fail, and a group would wrap the caller's exceptions.
        task = asyncio.create_task(self._step_forever())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])
            self.engine.cancel_all()

    async def _step_forever(self) -> None:
        while True:
            if not self.engine.has_work:
                self._drained.set()
                self._wake.clear()
                await self._wake.wait()
            try:
                self.engine.step()
            except Exception as error:
                logger.exception("The engine failed and stops generating")
                self.failure = error
                self.engine.cancel_all()
                self._drained.set()
                return
            await asyncio.sleep(0)

    async def generate(self, generations: Sequence[Generation]) -> list[GeneratedSequence]:
        """Generate all sequences to the end. Cancelling the call cancels the unfinished ones."""
        done = asyncio.Event()
        left = len(generations)

        def count_down(_: GeneratedSequence) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done.set()

        async with self._submitted(generations, count_down) as sequences:
            await done.wait()
        self._check_alive()
        return sequences

    async def stream(
        self, generations: Sequence[Generation]
    ) -> AsyncGenerator[list[StreamProgress], None]:
        """Yield new tokens and text until all sequences have ended. Close the generator to cancel them.

        The generations must have `streams_text`. Steps that pass while the consumer is busy are reported together.
        """
        has_progress = asyncio.Event()
        fresh: dict[int, StreamProgress] = {}
        places: dict[int, int] = {}

        def note(sequence: GeneratedSequence, text: str = "", *, ended: bool = False) -> None:
            index = places[id(sequence.generation)]
            before = fresh.get(index)
            text = text if before is None else before.text + text
            fresh[index] = StreamProgress(index, sequence, text, len(sequence.token_ids), ended)
            has_progress.set()

        def end(sequence: GeneratedSequence) -> None:
            note(sequence, ended=True)

        places.update((id(generation), index) for index, generation in enumerate(generations))
        left = len(generations)
        async with self._submitted(generations, end, note):
            while left:
                await has_progress.wait()
                has_progress.clear()
                taken = list(fresh.values())
                fresh.clear()
                left -= sum(progress.ended for progress in taken)
                yield taken
        self._check_alive()

    @asynccontextmanager
    async def _submitted(
        self,
        generations: Sequence[Generation],
        on_finish: FinishListener,
        on_token: TokenListener | None = None,
    ) -> AsyncIterator[list[GeneratedSequence]]:
        self._check_alive()
        sequences: list[GeneratedSequence] = []
        try:
            for generation in generations:
                sequences.append(
                    self.engine.submit(generation, on_finish=on_finish, on_token=on_token)
                )
            self._wake.set()
            yield sequences
        finally:
            for sequence in sequences:
                self.engine.cancel(sequence)

    def _check_alive(self) -> None:
        if self.failure is not None:
            raise EngineFailed(
                f"The engine stopped after {self.failure!r}; restart the server."
            ) from self.failure

    def update_weights(self, weights: ModelWeights, version: int | None) -> int:
        """Replace the weights from the next step on and return their version."""
        return self.engine.update_weights(weights, version=version)

    async def pause(self, mode: PauseMode) -> None:
        """Pause generation. With mode `wait`, return once the running sequences have ended."""
        self.engine.pause(mode)
        if mode is PauseMode.WAIT:
            while self.engine.is_draining and self.failure is None:
                self._drained.clear()
                await self._drained.wait()

    def resume(self) -> None:
        """Continue after a pause."""
        self.engine.resume()
        self._wake.set()
        self._drained.set()
