"""Run many groups of rollouts at once, within limits: every rollout that starts ends exactly once.

One task plays one rollout. The task that finishes a group's last rollout also scores and delivers the group. The
scheduler does not depend on environments or rubrics: the caller supplies the functions that play, score and deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

Input = TypeVar("Input")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Limits:
    """Limits of concurrency; None and numbers below 1 mean no limit."""

    max_concurrent: int | None = None
    """Rollouts being generated."""
    max_concurrent_scoring: int | None = None
    """Groups being scored."""


@dataclass(slots=True)
class Tally:
    """Counts of the started rollouts."""

    started: int = 0
    finished: int = 0
    cancelled: int = 0

    @property
    def running(self) -> int:
        """Rollouts that are still being played."""
        return self.started - self.finished - self.cancelled


@dataclass(slots=True, eq=False)
class _Group(Generic[Input, Result]):
    index: int
    inputs: Sequence[Input]
    results: list[Result | None] = field(default_factory=list)
    left: int = 0
    cancelled: bool = False


class Schedule(Generic[Input, Result]):
    """One run over groups of inputs.

    `play(input)` returns the result of one rollout, `score(results)` scores a group, `deliver(index, results)` takes
    the group over. An exception from any of them ends the run: rollouts in flight are cancelled and the exception is
    raised (failures of single rollouts are results, not exceptions). After `stop()` nothing new starts, and rollouts
    being played are cancelled. Complete groups are still scored and delivered if their scoring ends within
    `scoring_grace_s`: a reward function that waits must not keep a stopped program alive.
    """

    scoring_grace_s = 10.0
    """Seconds that scoring may continue after `stop()`."""

    def __init__(
        self,
        play: Callable[[Input], Awaitable[Result]],
        score: Callable[[list[Result]], Awaitable[None]],
        deliver: Callable[[int, list[Result]], Awaitable[None]],
        limits: Limits | None = None,
    ) -> None:
        limits = limits or Limits()
        self._play = play
        self._score = score
        self._deliver = deliver
        self._generating = _semaphore(limits.max_concurrent)
        self._scoring = _semaphore(limits.max_concurrent_scoring)
        self._playing: set[asyncio.Task[None]] = set()
        self._being_scored: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self.tally = Tally()

    @property
    def stopped(self) -> bool:
        """Whether `stop()` was called."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Start nothing more and cancel the rollouts being played."""
        self._stopping.set()
        for task in self._playing:
            task.cancel()
        asyncio.get_running_loop().call_later(self.scoring_grace_s, self._stop_scoring)

    def _stop_scoring(self) -> None:
        for task in self._being_scored:
            task.cancel()

    async def run(self, groups: Iterable[Sequence[Input]]) -> Tally:
        """Play all groups. Raise the first exception of `play`, `score` or `deliver`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, inputs in enumerate(groups):
                    group = _Group[Input, Result](index, inputs, [None] * len(inputs), len(inputs))
                    for position in range(len(inputs)):
                        if not await self._may_start():
                            return self.tally
                        task = tasks.create_task(self._rollout(group, position))
                        self.tally.started += 1
                        self._playing.add(task)
                        # A task that is cancelled before its first step runs none of its code.
                        task.add_done_callback(self._played)
        except BaseExceptionGroup as failures:
            raise first_failure(failures) from None
        finally:
            self.tally.cancelled = self.tally.started - self.tally.finished
        return self.tally

    async def _may_start(self) -> bool:
        if self._stopping.is_set():
            return False
        if self._generating is None:
            return True
        # A stop cancels the rollouts being played; their permits then wake this coroutine.
        await self._generating.acquire()
        return not self._stopping.is_set()

    async def _rollout(self, group: _Group[Input, Result], position: int) -> None:
        try:
            group.results[position] = await self._play(group.inputs[position])
        except asyncio.CancelledError:
            group.cancelled = True
            if not self._stopping.is_set():
                raise
        else:
            self.tally.finished += 1
        finally:
            self._played(asyncio.current_task())
        group.left -= 1
        if group.left == 0 and not group.cancelled:
            await self._complete(group)

    def _played(self, task: asyncio.Task[None] | None) -> None:
        """Let the next rollout start, once per task."""
        if task in self._playing:
            self._playing.discard(task)
            if self._generating is not None:
                self._generating.release()

    async def _complete(self, group: _Group[Input, Result]) -> None:
        results = cast(
            "list[Result]", group.results
        )  # all slots are in use when no rollout is left
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._being_scored.add(task)
        try:
            async with AsyncExitStack() as stack:
                if self._scoring is not None:
                    await stack.enter_async_context(self._scoring)
                await self._score(results)
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            self.tally.finished -= len(
                results
            )  # not scored and therefore not delivered: resuming runs it again
            return
        finally:
            self._being_scored.discard(task)
        await self._deliver(group.index, results)


def _semaphore(limit: int | None) -> asyncio.Semaphore | None:
    return asyncio.Semaphore(limit) if limit is not None and limit >= 1 else None


def first_failure(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception that is not an exception group."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
