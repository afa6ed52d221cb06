"""The base class of back ends: each sandbox is cleaned up, and one failure does not keep the others from it."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from verifiers.sandboxes import SandboxCreationError, SandboxDead, SandboxInfo, SandboxSpec
from verifiers.sandboxes.backend import GuestBackend
from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend

pytestmark = pytest.mark.asyncio


class NeverUp:
    """A machine that does not start, and that may fail to end."""

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure
        self.gone_calls = 0

    async def start(self, on_closed: Callable[[Exception], None]) -> None:
        await asyncio.Event().wait()

    def kill_now(self) -> None:
        pass

    async def gone(self) -> None:
        self.gone_calls += 1
        if self._failure is not None:
            raise self._failure

    async def why_dead(self, error: Exception) -> Exception:
        return error


class NeverUpBackend(GuestBackend):
    name = "never-up"

    def __init__(self, *failures: Exception | None) -> None:
        super().__init__()
        self.machines = [NeverUp(failure) for failure in failures]
        self._unused = list(self.machines)
        self.is_released = False

    def _check(self, spec):
        pass

    def _machine(self, spec):
        return self._unused.pop(0)

    def _info(self, spec):
        return SandboxInfo(self.name, "none", "/")

    async def _close(self) -> None:
        self.is_released = True


async def test_a_sandbox_that_cannot_be_ended_does_not_keep_the_rest_from_it():
    backend = NeverUpBackend(None, SandboxDead("cannot be deleted", "terminated"), None)
    for _ in backend.machines:
        await backend.create(SandboxSpec())
    with pytest.raises(SandboxDead, match="cannot be deleted"):
        await backend.aclose()
    assert [machine.gone_calls for machine in backend.machines] == [1, 1, 1]
    assert backend.is_released
    await backend.aclose()
    with pytest.raises(SandboxCreationError, match="closed"):
        await backend.create(SandboxSpec())


async def test_a_sandbox_whose_lifetime_is_over_leaves_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with UnsafeLocalBackend() as backend:
        sandbox = await backend.create(SandboxSpec(isolation_min="none", ttl_s=0.1))
        await sandbox.ready()
        with pytest.raises(SandboxDead, match="ttl_s"):
            await sandbox.exec("sleep 60")
    assert await asyncio.to_thread(os.listdir, tmp_path) == []
