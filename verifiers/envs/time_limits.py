"""Time limits of author code: of one rollout (`ends_in_time`) and of one tool call (`ToolCalls`).

Author code (`env_response`, tools, `setup_state`, stop conditions) runs on the event loop, as in v0, because a thread
would break objects that belong to one thread (sqlite connections, signal handlers, most simulators). A synchronous
tool that does not return therefore blocks every rollout of the process. If a rollout has a time limit, each of its
steps is watched (`verifiers.rubrics.watchdog`), and a step that blocks the loop is interrupted at the limit. The
limits of the other rollouts are extended by the time that they lost.

A tool that blocks is reported by name. `tools_in_threads` runs plain functions in separate threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import math
import threading
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any
from weakref import WeakKeyDictionary

from verifiers.errors import RolloutTimeout, ToolTimeout
from verifiers.rubrics.watchdog import WatchedSteps, watchdog

SHORTEST_STEP_S = 1.0
"""Minimum limit of a step, so that a cancelled rollout can still clean up."""
HELD_UP_S = 0.1
"""The time of a step longer than this is added to the limits of the other rollouts."""

_open_limits: WeakKeyDictionary[asyncio.AbstractEventLoop, set[asyncio.Timeout]] = (
    WeakKeyDictionary()
)
"""Limits of the rollouts that are being played, by event loop."""


async def ends_in_time(work: Coroutine[Any, Any, None], limit_s: float, name: str) -> bool:
    """Await `work` for at most `limit_s` seconds. Return whether it ended by itself."""
    loop = asyncio.get_running_loop()
    limits = _open_limits.setdefault(loop, set())
    limit = asyncio.timeout(limit_s)

    def left_s() -> float:
        now_s = loop.time()
        return max((limit.when() or now_s) - now_s, SHORTEST_STEP_S)

    def make_good(held_s: float) -> None:
        if held_s <= HELD_UP_S:
            return
        for other in limits:
            if other is not limit and not other.expired() and other.when() is not None:
                other.reschedule((other.when() or 0.0) + held_s)

    steps = WatchedSteps(
        work,
        name,
        left_s,
        on_step=make_good,
        kind="The rollout of example",
        error=RolloutTimeout,
    )
    try:
        async with limit:
            limits.add(limit)
            await steps
    except RolloutTimeout:
        return False
    except TimeoutError:
        if not limit.expired():
            raise
        return False
    finally:
        limits.discard(limit)
        work.close()  # it has not started if the limit had already passed
    return True


class ToolCalls:
    """Calls the tools of one environment."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._reported: set[str] = set()

    async def call(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: dict[str, Any],
        *,
        timeout_s: float | None,
        in_thread: bool,
    ) -> Any:
        """Return the awaited result of the function. Raises ToolTimeout after `timeout_s` seconds."""
        limit_s = math.inf if timeout_s is None else timeout_s
        how = {"kind": "Tool", "error": ToolTimeout}
        try:
            if in_thread and not _is_async(function):
                value = await _in_own_thread(
                    lambda: watchdog.call(function, arguments, name, limit_s, **how)
                )
            else:
                how["on_slow"] = lambda held_s: self._report(name, held_s)
                value = watchdog.call(function, arguments, name, limit_s, **how)
            if not inspect.isawaitable(value):
                return value
            steps = (
                WatchedSteps(value, name, limit_s, **how) if type(value) is CoroutineType else value
            )
            return await (steps if timeout_s is None else _within(steps, timeout_s))
        except ToolTimeout:
            raise ToolTimeout(
                f"Tool {name!r} ran longer than {limit_s:g} s and was stopped."
            ) from None

    def _report(self, name: str, held_s: float) -> None:
        if name in self._reported:
            return
        self._reported.add(name)
        self._logger.warning(
            "Tool %r blocked the event loop for %.1f s; every other rollout of this process waited. Make the tool "
            "async and await its slow calls, or pass tools_in_threads=True if the tool may run in any thread.",
            name,
            held_s,
        )


def _is_async(function: Callable[..., Any]) -> bool:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004 - an object that is called
    return inspect.iscoroutinefunction(inspect.unwrap(function)) or inspect.iscoroutinefunction(
        called
    )


async def _within(steps: Any, timeout_s: float) -> Any:
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await steps
    except TimeoutError as error:
        if not limit.expired():
            raise  # the tool's own
        raise ToolTimeout from error


async def _in_own_thread(work: Callable[[], Any]) -> Any:
    """Return the result of `work`, run in a new daemon thread with the caller's context variables.

    A thread pool would have a size, and its threads would keep the process alive if a tool never returned.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return  # the rollout was cancelled meanwhile
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def run() -> None:
        value, raised = None, None
        try:
            value = context.run(work)
        except BaseException as error:  # noqa: BLE001 - raised in the rollout
            raised = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, raised)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return await done
