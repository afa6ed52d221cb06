"""The time limit of one rollout, which also ends code that never gives way to the event loop.

Author code (`env_response`, tools, `setup_state`, stop conditions) runs on the event loop, as in v0: a thread would
break what belongs to one thread (sqlite connections, signal handlers, most simulators). So a synchronous tool that
never returns holds up every rollout of the process. Under a time limit each step of the rollout is watched
(`verifiers.rubrics.watchdog`), and the one that holds the loop is interrupted when its rollout is due. What the others
lost meanwhile is added to their limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any
from weakref import WeakKeyDictionary

from verifiers.errors import RolloutTimeout
from verifiers.rubrics.watchdog import watchdog

SHORTEST_STEP_S = 1.0
"""A step may always take this long, so that a rollout that is cancelled can still put things away."""
HELD_UP_S = 0.1
"""A step longer than this is made good to the other rollouts."""

_open_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Timeout]] = (
    WeakKeyDictionary()
)
"""The limits of the rollouts that are being played, by event loop."""


async def ends_in_time(work: Coroutine[Any, Any, None], limit_s: float, name: str) -> bool:
    """Await `work`, for `limit_s` seconds at most; whether it ended by itself."""
    limits = _open_limits.setdefault(asyncio.get_running_loop(), set())
    limit = asyncio.timeout(limit_s)
    try:
        async with limit:
            limits.add(limit)
            await _Steps(work, limit, limits, name)
    except RolloutTimeout:
        return False
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    finally:
        limits.discard(limit)
        work.close()  # it was never begun when the limit was over at once
    return True


class _Steps:
    """A coroutine, awaited with every step watched until the limit of its rollout."""

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        limit: asyncio.Timeout,
        limits: set[asyncio.Timeout],
        name: str,
    ) -> None:
        self._work = work
        self._limit = limit
        self._limits = limits
        self._name = name

    def __await__(self) -> Generator[Any, Any, None]:
        clock = asyncio.get_running_loop().time
        step: Any = self._work.send
        given: Any = None
        while True:
            began_s = clock()
            left_s = (self._limit.when() or began_s) - began_s
            try:
                awaited = watchdog.call(
                    step,
                    {},
                    self._name,
                    max(left_s, SHORTEST_STEP_S),
                    given,
                    kind="The rollout of example",
                    error=RolloutTimeout,
                )
            except StopIteration:
                return
            finally:
                if (held_s := clock() - began_s) > HELD_UP_S:
                    self._make_good(held_s)
            try:
                given = yield awaited
                step = self._work.send
            except BaseException as error:  # noqa: BLE001 - handed to the coroutine it was meant for
                given = error
                step = self._work.throw

    def _make_good(self, held_s: float) -> None:
        for other in self._limits:
            if other is not self._limit and not other.expired() and other.when() is not None:
                other.reschedule((other.when() or 0.0) + held_s)
