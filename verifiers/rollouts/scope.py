"""What one rollout holds open: a stack that unwinds when it ends, however it ends."""

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
    """Resources of one rollout: what is entered here is left when the rollout ends, last in, first out."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def enter(self, resource: AbstractAsyncContextManager[Value]) -> Value:
        """Enter a context manager and leave it at the end of the rollout."""
        return await self._stack.enter_async_context(resource)

    def on_exit(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call `callback(*args)` at the end of the rollout; it may be a coroutine function."""

        async def run() -> None:
            result = callback(*args)
            if asyncio.iscoroutine(result) or isinstance(result, Awaitable):
                await result

        self._stack.push_async_callback(run)

    async def aclose(self) -> None:
        """Leave everything."""
        await self._stack.aclose()


def scope_of(state: State) -> RolloutScope:
    """The scope of the rollout this state belongs to, made on first use."""
    scope = dict.get(state, "scope")
    if scope is None:
        scope = RolloutScope()
        dict.__setitem__(state, "scope", scope)
    return scope


async def close_scope(state: State) -> None:
    """Leave everything the rollout holds open; nothing to do when it opened nothing."""
    scope = dict.pop(state, "scope", None)
    if scope is not None:
        await scope.aclose()


async def shielded(work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` to its end even if this task is cancelled meanwhile; the cancellation follows afterwards."""
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
