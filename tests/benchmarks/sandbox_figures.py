"""What the sandbox benchmarks have in common: a figure with its bound and its floor, and clocks."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple


class Figure(NamedTuple):
    """One row of the table. Less is better."""

    name: str
    value: float
    unit: str
    bound: float | None
    """What is promised; None where nothing is."""
    floor: float | None
    """The same with local processes."""

    @property
    def is_missed(self) -> bool:
        """Whether the promise is broken."""
        return self.bound is not None and self.value > self.bound

    @property
    def distance(self) -> float:
        """From the bound, or from zero: two measurements of one figure are compared by it."""
        return self.value / self.bound if self.bound else self.value

    def row(self) -> str:
        """For the table."""
        floor = "" if self.floor is None else f"{self.floor:.2f}"
        bound = "" if self.bound is None else f"<= {self.bound:.4g}"
        verdict = "" if self.bound is None else "MISSED" if self.is_missed else "ok"
        return f"{self.name:44}{self.value:>10.2f}{floor:>10}  {self.unit:6}{bound:>10}  {verdict}"


def quantile(values: list[float], q: float) -> float:
    """The value that a share `q` of them does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * q))]


async def times_ms(action: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """How long each of so many runs took."""
    times = []
    for _ in range(count):
        started_s = time.perf_counter()
        await action()
        times.append((time.perf_counter() - started_s) * 1e3)
    return times


async def local_process(*argv: str) -> None:
    """A command without any sandbox, by default `true`."""
    process = await asyncio.create_subprocess_exec(
        *(argv or ("true",)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    await process.communicate()
