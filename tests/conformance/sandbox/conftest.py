"""The back ends that can run here, for every test of this folder."""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from verifiers.sandboxes.contract import Bench
from verifiers.sandboxes.local import LocalBackend, LocalConfig
from verifiers.sandboxes.spec import SandboxSpec

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"


def bench_of(name: str) -> Bench:
    """A bench by the name that tests are shown under."""
    if name == "local":
        return Bench(LocalBackend())
    if name == "local-as-user":
        # As an ordinary user has it: no root, no control groups. The interpreter in somebody's home directory
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
