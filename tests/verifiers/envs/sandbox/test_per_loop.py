"""One back end for each event loop, closed with it."""

import asyncio
import gc

import pytest

from verifiers.sandboxes import SandboxSpec
from verifiers.sandboxes.local import LocalBackend
from verifiers.sandboxes.open import LoopBackends

SPEC = SandboxSpec(memory_mb=64)


def test_each_loop_has_its_own_and_its_end_closes_it():
    backends = LoopBackends("local")

    async def use() -> LocalBackend:
        backend = backends.here()
        assert backends.here() is backend
        sandbox = await backend.create(SPEC)
        assert (await sandbox.exec("true")).ok
        assert isinstance(backend, LocalBackend)
        return backend

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first is not second
    assert first._is_closed
    assert second._is_closed
    assert not first._sandboxes


async def test_aclose_closes_it_and_the_next_use_opens_another():
    backends = LoopBackends("local")
    first = backends.here()
    await backends.aclose()
    second = backends.here()
    assert first is not second
    await backends.aclose()
    assert second._is_closed  # type: ignore[attr-defined]


def test_dropping_the_holder_closes_its_back_end_while_the_loop_goes_on():
    async def drop() -> LocalBackend:
        backend = LoopBackends("local").here()
        assert isinstance(backend, LocalBackend)
        is_closed, aclose = asyncio.Event(), backend.aclose

        async def noted() -> None:
            await aclose()
            is_closed.set()

        backend.aclose = noted  # type: ignore[method-assign]
        await backend.create(SPEC)
        gc.collect()
        await is_closed.wait()
        return backend

    assert not asyncio.run(drop())._sandboxes


async def test_aclose_closes_those_of_other_running_loops_too():
    backends = LoopBackends("local")
    opened: asyncio.Future[LocalBackend] = asyncio.get_running_loop().create_future()
    here = asyncio.get_running_loop()
    ends = asyncio.Event()
    theirs: list[asyncio.AbstractEventLoop] = []

    async def elsewhere() -> None:
        theirs.append(asyncio.get_running_loop())
        done = asyncio.Event()
        theirs_done.append(done)
        here.call_soon_threadsafe(opened.set_result, backends.here())
        await done.wait()

    theirs_done: list[asyncio.Event] = []
    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(elsewhere())))
    backend = await opened
    await backends.aclose()
    assert backend._is_closed
    theirs[0].call_soon_threadsafe(theirs_done[0].set)
    await thread
    ends.set()


async def test_a_back_end_that_was_passed_is_the_callers_to_close():
    async with LocalBackend() as backend:
        backends = LoopBackends(backend)
        assert backends.here() is backend
        assert backends.name == "local"
        await backends.aclose()
        assert (await (await backend.create(SPEC)).exec("true")).ok


def test_an_unknown_name_is_refused_at_once():
    with pytest.raises(ValueError, match="'moon' is not a sandbox back end"):
        LoopBackends("moon")  # type: ignore[arg-type]
