"""Every back end that can run here keeps every promise of the contract."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from verifiers.sandboxes import SandboxBackend
from verifiers.sandboxes.contract import BEHAVIOURS, Behaviour, Bench
from verifiers.sandboxes.local import LocalBackend, LocalConfig
from verifiers.sandboxes.spec import SandboxSpec

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"


def bench_of(name: str) -> Bench:
    if name == "local":
        return Bench(LocalBackend())
    if name == "local-as-user":
        # The same as an ordinary user would have it: no root, no control groups. The interpreter of a user's home
        # may be unreadable for somebody else, hence the system's.
        return Bench(LocalBackend(LocalConfig(run_as=NOBODY)), SandboxSpec(python=SYSTEM_PYTHON))
    raise ValueError(name)


BENCHES = ["local"]
if os.getuid() == 0 and os.path.exists(SYSTEM_PYTHON):
    BENCHES.append("local-as-user")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=BENCHES)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = bench_of(request.param)
    async with bench.backend:
        yield bench


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise(bench: Bench, behaviour: Behaviour):
    if not behaviour.applies_to(bench.backend):
        pytest.skip(f"{bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(bench)


def test_there_are_at_least_sixty_promises_with_names_of_their_own():
    names = {behaviour.name for behaviour in BEHAVIOURS}
    assert len(names) == len(BEHAVIOURS) >= 60


def test_a_backend_is_a_backend():
    assert isinstance(LocalBackend(), SandboxBackend)
