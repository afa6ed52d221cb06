import asyncio
import time

import pytest

from verifiers.sandboxes import IsolationUnavailable, SandboxDead, SandboxPool, SandboxSpec
from verifiers.sandboxes.admission import Admission
from verifiers.sandboxes.local import LocalBackend


async def filled(pool: SandboxPool, count: int) -> None:
    async with asyncio.timeout(20):
        while pool.ready_count < count:  # noqa: ASYNC110 - the pool has no event to wait for
            await asyncio.sleep(0.005)


async def test_a_pool_hands_out_ready_sandboxes_once_and_refills():
    async with LocalBackend() as backend:
        async with SandboxPool(backend, SandboxSpec(), size=3) as pool:
            await filled(pool, 3)
            started_s = time.perf_counter()
            first = await pool.acquire()
            assert time.perf_counter() - started_s < 0.05
            second = await pool.acquire()
            assert first.id != second.id
            assert (await first.exec("echo up")).ok
            await filled(pool, 3)
            leftover = pool._ready[0].sandbox
        with pytest.raises(SandboxDead):
            await leftover.exec("true")
        # Those that were handed out are the caller's.
        assert (await second.exec("echo still up")).ok


async def test_an_empty_pool_still_gives_a_sandbox():
    async with LocalBackend() as backend, SandboxPool(backend, SandboxSpec(), size=1) as pool:
        sandboxes = [await pool.acquire() for _ in range(5)]
        results = await asyncio.gather(*(sandbox.exec("echo up") for sandbox in sandboxes))
        assert all(result.ok for result in results)
        assert len({sandbox.id for sandbox in sandboxes}) == 5


async def test_a_dead_sandbox_is_not_handed_out():
    async with LocalBackend() as backend, SandboxPool(backend, SandboxSpec(), size=2) as pool:
        await filled(pool, 2)
        await pool._ready[0].sandbox.terminate()
        sandbox = await pool.acquire()
        assert (await sandbox.exec("echo up")).ok


async def test_a_pool_must_be_open_and_of_some_size():
    backend = LocalBackend()
    with pytest.raises(ValueError, match="at least 1"):
        SandboxPool(backend, SandboxSpec(), size=0)
    with pytest.raises(RuntimeError, match="not open"):
        await SandboxPool(backend, SandboxSpec(), size=1).acquire()


async def test_starts_are_admitted_in_order_and_cancelled_waiters_lose_nothing():
    admission = Admission(slots=1)
    first = await admission.enter()
    order = []

    async def wait(name: str) -> None:
        slot = await admission.enter()
        order.append(name)
        slot.release()

    waiters = [asyncio.create_task(wait(name)) for name in "abc"]
    await asyncio.sleep(0)
    waiters[1].cancel()
    first.release()
    first.release()
    await asyncio.gather(*waiters, return_exceptions=True)
    assert order == ["a", "c"]
    (await admission.enter()).release()


async def test_a_long_command_gives_its_place_up():
    admission = Admission(slots=1)
    await admission.enter()
    started_s = time.perf_counter()
    await admission.enter()
    assert 0.1 < time.perf_counter() - started_s < 5


async def test_a_sandbox_that_waited_too_long_of_its_life_is_replaced():
    spec = SandboxSpec(ttl_s=600)
    async with LocalBackend() as backend, SandboxPool(backend, spec, size=1) as pool:
        await filled(pool, 1)
        waiting = pool._ready[0]
        pool._ready[0] = waiting._replace(since_s=waiting.since_s - 61)
        fresh = await pool.acquire()
        assert fresh.id != waiting.sandbox.id
        assert (await fresh.exec("echo up")).ok
        with pytest.raises(SandboxDead):
            await waiting.sandbox.exec("true")


async def test_what_can_never_come_up_stops_the_filling_and_is_told_to_whoever_acquires(
    caplog: pytest.LogCaptureFixture,
):
    spec = SandboxSpec(isolation_min="vm")
    async with LocalBackend() as backend, SandboxPool(backend, spec, size=1) as pool:
        with pytest.raises(IsolationUnavailable):
            await pool.acquire()
        filler = pool._filler
        assert filler is not None
        await asyncio.wait([filler])
    assert [record.message for record in caplog.records if "stays empty" in record.message]
