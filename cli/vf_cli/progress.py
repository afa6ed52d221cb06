"""The display during an evaluation: progress, results so far, and speed.

`Progress` keeps the numbers; `LiveProgress` draws them on a terminal, `PlainProgress` writes a line from time to time.
`displayed` chooses between the two and keeps the display up to date while a command runs. `output` prints both.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from vf_cli import output

if TYPE_CHECKING:
    from rich.console import RenderableType

    from verifiers.runs.statistics import Estimate

OnUpdate: TypeAlias = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], None]
"""Receives all finished rollouts, and those among them that are new, like `Progress.update`."""

REFRESH_S = 0.25
"""Time between two drawings of the live display, in seconds."""
PLAIN_INTERVAL_S = 10.0
"""Minimum time between two plain lines, in seconds; the last line is always written."""
SILENCE_S = 20.0
"""The display reports a run in which no rollout has finished for this time, in seconds."""
SPEED_WINDOW_S = 15.0
"""Tokens per second are measured over about this time, in seconds, so that they follow changes of speed."""


class Progress:
    """The numbers of one evaluation so far. Each finished rollout is added once, so a callback costs little."""

    def __init__(
        self,
        title: str,
        total: int,
        *,
        most_running: int = -1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from verifiers.runs.summary import RunningSummary

        self.title = title
        self.total = total
        self.most_running = most_running
        """Maximum number of rollouts at the same time; below 1 means no limit."""
        self.done = 0
        self.saved_before = 0
        """Number of rollouts that a resumed run already had."""
        self.errors: Counter[str] = Counter()
        self.retries = 0
        """Number of rollouts that were played again after an infrastructure failure."""
        self._reward, self._next_reward_s = "", float("-inf")
        self.summary = RunningSummary()
        self._clock = clock
        self.started_s = clock()
        self._marks: list[tuple[float, float]] = [(self.started_s, 0.0)]

    def start(self, total: int, missing: int) -> None:
        """Start a run of `total` rollouts, of which `missing` are still to be played."""
        self.total = total
        self.done = self.saved_before = total - missing
        self.started_s = self._clock()
        self._marks = [(self.started_s, 0.0)]

    def update(
        self, outputs: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add the `new` rollouts to the `outputs` that have finished so far."""
        if self.summary.rollouts == 0 and len(outputs) > len(new):
            just_now = {id(output) for output in new}
            self._count([output for output in outputs if id(output) not in just_now])
            self._marks = [(self.started_s, self.output_tokens)]
        self._count(new)
        self.done = self.summary.rollouts
        now = self._clock()
        self._marks.append((now, self.output_tokens))
        while len(self._marks) > 2 and self._marks[1][0] < now - SPEED_WINDOW_S:
            self._marks.pop(0)

    def retried(self) -> None:
        """Count one more rollout that is played again."""
        self.retries += 1

    def _count(self, finished: Sequence[Mapping[str, Any]]) -> None:
        self.summary.add(finished)
        for rollout in finished:
            if rollout.get("error"):
                self.errors[error_name(rollout["error"])] += 1

    @property
    def output_tokens(self) -> float:
        """Number of tokens that the model has generated so far."""
        return self.summary.output_tokens

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second, measured recently."""
        (first_s, first), (last_s, last) = self._marks[0], self._marks[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self.started_s

    @property
    def silent_s(self) -> float:
        """Seconds since the last rollout finished."""
        return self._clock() - self._marks[-1][0]

    @property
    def left_s(self) -> float | None:
        """Estimated seconds until the end; None before the first rollout has finished."""
        ran = self.done - self.saved_before
        return None if ran <= 0 else self.elapsed_s * (self.total - self.done) / ran

    @property
    def running(self) -> int:
        """Number of rollouts in progress: all that are left, up to the limit."""
        left = self.total - self.done
        return left if self.most_running < 1 else min(left, self.most_running)

    def facts(self) -> list[tuple[str, str]]:
        """Return labels and values for the display, without the bar."""
        facts = [("reward", self.reward_text())]
        if self.running:
            facts.append(("running", f"{self.running:,}"))
        if self.output_tokens:
            facts.append(("tokens/s", f"{self.tokens_per_s:,.0f}"))
        if self.silent_s > SILENCE_S and self.done < self.total:
            facts.append(("no rollout finished for", duration(self.silent_s)))
        if self.retries:
            facts.append(("retries", f"{self.retries:,}"))
        if self.errors:
            facts.append(("errors", errors_text(self.errors)))
        return facts

    def reward_text(self) -> str:
        """Mean reward ± standard error so far; its computation takes at most 2 % of the time."""
        if not self.done:
            return "–"
        now = self._clock()
        if now >= self._next_reward_s or self.done >= self.total:
            summary = self.summary.summary()
            self._reward = estimate_text(summary.reward)
            if summary.failed and summary.reward_error_free.observations:
                self._reward += f" ({summary.reward_error_free.mean:.3f} error-free)"
            self._next_reward_s = now + max(1.0, 50 * (self._clock() - now))
        return self._reward


class LiveProgress:
    """`Progress` as a block of three lines on a terminal; Rich renders it at every refresh."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = self.progress
        share = progress.done / progress.total if progress.total else 0.0
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=max(progress.total, 1), completed=progress.done, width=40),
            f"{progress.done:,}/{progress.total:,}",
            f"{share:.0%}",
            duration(progress.elapsed_s),
            f"{duration(progress.left_s)} left" if progress.left_s is not None else "",
        )
        facts = Text()
        for label, value in progress.facts():
            facts.append(f"{label} ", style="dim")
            facts.append(output.safe(value), style="red" if label == "errors" else "bold")
            facts.append("   ")
        return Group(Text(output.safe(progress.title)), bar, facts)


class PlainProgress:
    """`Progress` as lines of text, at most one per `PLAIN_INTERVAL_S`."""

    def __init__(
        self,
        progress: Progress,
        write: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.progress = progress
        self._write = write
        self._clock = clock
        self._written_s = clock()

    def changed(self) -> None:
        """Write a line if the interval has passed or all rollouts are done."""
        now = self._clock()
        if now - self._written_s >= PLAIN_INTERVAL_S or self.progress.done >= self.progress.total:
            self._written_s = now
            self._write(self.line())

    def line(self) -> str:
        """Return the progress in one line."""
        facts = "  ".join(f"{label} {value}" for label, value in self.progress.facts())
        return f"{self.progress.done}/{self.progress.total}  {duration(self.progress.elapsed_s)}  {facts}"


@asynccontextmanager
async def displayed(
    progress: Progress, *, is_plain: bool = False, fullscreen: bool = False
) -> AsyncIterator[OnUpdate]:
    """Display the progress while the block runs: live on a terminal, as plain lines elsewhere or if `is_plain`.

    Yield the function that updates the progress and its display.
    """
    if is_plain or not output.stderr().is_terminal:
        plain = PlainProgress(progress, output.note)

        def update(outputs: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> None:
            progress.update(outputs, new)
            plain.changed()

        output.note(progress.title)
        yield update
        return
    with output.live(LiveProgress(progress), fullscreen=fullscreen) as shown:
        async with beside(_refresh(shown.refresh)):
            yield progress.update


async def _refresh(draw: Callable[[], None]) -> None:
    # In the event loop, not in Rich's thread: the numbers change only between steps of the loop.
    while True:
        draw()
        await asyncio.sleep(REFRESH_S)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine as a task while the block runs, and cancel the task at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def estimate_text(estimate: Estimate) -> str:
    """`0.713 ± 0.041`, without the error if there is none (one example)."""
    error = "" if math.isnan(estimate.stderr) else f" ± {estimate.stderr:.3f}"
    return f"{estimate.mean:.3f}{error}"


def error_name(error: Any) -> str:
    """Return the type name of a rollout's saved error."""
    return str(error.get("error", "error")) if isinstance(error, Mapping) else type(error).__name__


def errors_text(errors: Mapping[str, int]) -> str:
    """`3 (ModelError 2, SandboxError 1)`."""
    by_type = ", ".join(f"{name} {count}" for name, count in Counter(errors).most_common())
    return f"{sum(errors.values())} ({by_type})"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `2 m 14 s`, `1 h 02 m`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} m"
