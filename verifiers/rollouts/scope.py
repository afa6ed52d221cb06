"""Resources of one rollout: a stack that unwinds when the rollout ends, however it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

from verifiers.state import State

logger = logging.getLogger(__name__)

Value = TypeVar("Value")


class RolloutScope:
    """Resources of one rollout. Entered context managers are left when the rollout ends, last in, first out."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def enter(self, resource: AbstractAsyncContextManager[Value]) -> Value:
        """Enter a context manager and leave it at the end of the rollout."""
        return await self._stack.enter_async_context(resource)

    def on_exit(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call `callback(*args)` at the end of the rollout; a coroutine function is awaited."""

        async def run() -> None:
            result = callback(*args)
            if asyncio.iscoroutine(result) or isinstance(result, Awaitable):
                await result

        self._stack.push_async_callback(run)

    async def aclose(self) -> None:
        """Leave all context managers."""
        await self._stack.aclose()


def scope_of(state: State) -> RolloutScope:
    """Return the scope of the rollout that this state belongs to; create it on first use."""
    scope = dict.get(state, "scope")
    if scope is None:
        scope = RolloutScope()
        dict.__setitem__(state, "scope", scope)
    return scope


async def close_scope(state: State) -> None:
    """Leave everything that the rollout holds open. Do nothing for a rollout without a scope."""
    scope = dict.pop(state, "scope", None)
    if scope is not None:
        await scope.aclose()


async def shielded(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` to its end even if this task is cancelled meanwhile, then raise the cancellation."""
    task = asyncio.ensure_future(work())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.done():
                break
            cancelled = error
        except Exception:  # noqa: BLE001 - re-raised below from the task itself
            break
    if cancelled is not None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Cleaning up a cancelled rollout failed: %r", error)
        raise cancelled
    task.result()
