import asyncio

import pytest

from verifiers.utils.async_utils import (
    EventLoopLagMonitor,
    NullAsyncContext,
    NullContext,
    maybe_await,
    maybe_call_with_named_args,
    maybe_semaphore,
    with_sem,
)


async def plus(x: int, y: int = 1) -> int:
    return x + y


async def test_functions_sync_and_async_are_called_alike() -> None:
    assert await maybe_await(plus, 1, y=2) == 3
    assert await maybe_await(len, "ab") == 2


async def test_only_the_objects_a_function_names_are_passed() -> None:
    assert await maybe_call_with_named_args(plus, x=1, unknown=5) == 2
    assert await maybe_call_with_named_args(lambda **all: all, x=1, z=5) == {"x": 1, "z": 5}


@pytest.mark.parametrize(
    ("limit", "kind"),
    [
        (3, asyncio.Semaphore),
        (None, NullAsyncContext),
        (0, NullAsyncContext),
        (-1, NullAsyncContext),
    ],
)
async def test_a_semaphore_only_where_there_is_a_limit(limit: int | None, kind: type) -> None:
    made = await maybe_semaphore(limit)
    assert type(made) is kind
    async with made, NullAsyncContext():
        with NullContext():
            pass


async def test_a_coroutine_under_a_semaphore_is_not_left_behind_when_cancelled() -> None:
    limit = asyncio.Semaphore(1)
    assert await with_sem(limit, plus(1)) == 2
    async with limit:
        waiting = asyncio.ensure_future(with_sem(limit, plus(1)))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting  # a coroutine that was never awaited would be a warning, and so an error


async def test_the_lag_of_the_event_loop_is_measured() -> None:
    monitor = EventLoopLagMonitor(measure_interval=0.001, max_measurements=3)
    assert monitor.get_lag_stats().n == 0
    for _ in range(5):
        assert await monitor.measure_lag() >= 0.0
    stats = monitor.get_lag_stats()
    assert (stats.n, stats.min <= stats.median <= stats.p99 <= stats.max) == (3, True)
    task = monitor.run_in_background()
    await asyncio.sleep(0)
    task.cancel()
    monitor.reset()
    assert monitor.get_lag_stats().n == 0
