"""The back ends that can run here, for every test of this folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio

from verifiers.sandboxes.containers import ContainerBackend, ContainerConfig
from verifiers.sandboxes.contract import Bench
from verifiers.sandboxes.gvisor import GVisorBackend, GVisorConfig
from verifiers.sandboxes.local import LocalBackend, LocalConfig
from verifiers.sandboxes.local.zygote import landlock
from verifiers.sandboxes.spec import SandboxSpec
from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend

sys.path.insert(0, str(Path(__file__).parent))  # for `hostile_endings`

STAND_IN = Path(__file__).with_name("docker_stand_in.py")
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
    if name == "gvisor":
        return Bench(GVisorBackend(), SandboxSpec(isolation_min="gvisor"))
    if name == "gvisor-as-user":
        spec = SandboxSpec(isolation_min="gvisor", python=SYSTEM_PYTHON)
        return Bench(GVisorBackend(GVisorConfig(run_as=NOBODY)), spec)
    if name == "restricted":
        config = LocalConfig(level="restricted")
        python = SYSTEM_PYTHON if os.getuid() == 0 else None
        return Bench(LocalBackend(config), SandboxSpec(isolation_min="restricted", python=python))
    if name == "unsafe-local":
        return Bench(UnsafeLocalBackend(), SandboxSpec(isolation_min="none"))
    raise ValueError(name)


ISOLATED = ["local"]
if os.getuid() == 0 and os.path.exists(SYSTEM_PYTHON):
    ISOLATED.append("local-as-user")
WEAKER = ["unsafe-local"]
if landlock.abi() >= landlock.MIN_ABI and (os.getuid() != 0 or os.path.exists(SYSTEM_PYTHON)):
    WEAKER.insert(0, "restricted")

NOT_KEPT = {
    "restricted": {
        "a_server_in_the_background_answers_later_commands": "sockets are refused",
        "disk_space_is_limited": "files are limited one by one",
        "the_number_of_files_is_limited": "files are limited one by one",
        "a_full_disk_is_an_error_and_the_sandbox_lives_on": "files are limited one by one",
    },
    "unsafe-local": {
        "the_environment_of_the_host_is_invisible": "/proc of the host is visible",
        "sandboxes_have_files_of_their_own": "all see the same machine",
        "links_planted_inside_lead_nowhere_outside": "all see the same machine",
        "what_may_not_be_written_is_refused": "it has all rights of the tests",
        "a_command_that_wants_too_much_memory_dies_alone": "nothing limits it",
        "the_number_of_processes_is_limited": "nothing limits it",
        "disk_space_is_limited": "nothing limits it",
        "a_full_disk_is_an_error_and_the_sandbox_lives_on": "nothing limits it",
        "sandboxes_have_files_and_processes_of_their_own": "all see the same machine",
    },
}
"""Promises that a weaker level does not keep, each for a reason that its documentation gives."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=ISOLATED)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = bench_of(request.param)
    async with bench.backend:
        yield bench


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WEAKER)
async def weaker_bench(
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[Bench, dict[str, str]]]:
    """A back end of a weaker level, and the promises it does not keep."""
    bench = bench_of(request.param)
    async with bench.backend:
        yield bench, NOT_KEPT[request.param]


@pytest.fixture(scope="session")
def bench_by_name() -> Callable[[str], tuple[Bench, dict[str, str]]]:
    """Return a bench, not yet opened, and the promises that its level does not keep. Skip what cannot run here."""

    def make(name: str) -> tuple[Bench, dict[str, str]]:
        if name not in (*ISOLATED, *WEAKER):
            pytest.skip(f"the back end {name!r} cannot run on this machine")
        return bench_of(name), NOT_KEPT.get(name, {})

    return make


@pytest.fixture(scope="module")
def docker_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An executable that runs the stand-in for `docker` with the tests' own interpreter."""
    folder = tmp_path_factory.mktemp("bin")
    path = folder / "docker"
    path.write_text(
        f'#!/bin/sh\nSTAND_IN_FOLDER={folder}/names exec {sys.executable} {STAND_IN} "$@"\n'
    )
    path.chmod(0o755)
    return str(path)


@asynccontextmanager
async def opened_bench(name: str, docker_program: str) -> AsyncIterator[Bench]:
    """A bench of another back end, or a skipped test that says why it is not there."""
    if name == "docker-stand-in":
        async with ContainerBackend(ContainerConfig(program=docker_program)) as backend:
            yield Bench(backend)
    elif name in ("docker", "podman"):
        async with ContainerBackend(engine_config(name)) as backend:
            yield Bench(backend)
    elif name == "prime":
        async with opened_prime() as bench:
            yield bench
    else:
        if shutil.which("runsc") is None:
            pytest.skip("there is no program `runsc` (Debian, Ubuntu: apt-get install runsc)")
        if name == "gvisor-as-user" and "local-as-user" not in ISOLATED:
            pytest.skip(f"needs root, to become an ordinary user, and {SYSTEM_PYTHON} for it")
        bench = bench_of(name)
        async with bench.backend:
            yield bench


def engine_config(engine: Literal["docker", "podman"]) -> ContainerConfig:
    """The real engine, if it has the image; the tests pull none.

    ENGINE_ARGUMENTS holds what this machine's engine needs besides, separated by spaces.
    """
    arguments = tuple(os.environ.get("ENGINE_ARGUMENTS", "").split())
    config = ContainerConfig(engine=engine, pull="never", extra_arguments=arguments)
    program = shutil.which(engine)
    if program is None:
        pytest.skip(f"there is no program {engine!r}")
    asked = subprocess.run([program, "image", "inspect", config.image], capture_output=True)
    if asked.returncode != 0:
        pytest.skip(f"no {engine} that has the image ({engine} pull {config.image})")
    return config


@asynccontextmanager
async def opened_prime() -> AsyncIterator[Bench]:
    """The back end "prime", through the published package, on our own server."""
    pytest.importorskip("prime_sandboxes", reason="needs prime-sandboxes (the extra `prime`)")
    from verifiers.sandbox_server import SandboxServer, ServerConfig, TokenConfig
    from verifiers.sandboxes.prime import PrimeBackend, PrimeConfig

    token = "a-token-for-the-tests"
    config = ServerConfig(tokens=(TokenConfig.of("tests", token),), port=0)
    async with SandboxServer(config) as server:
        PRIME_URLS.append(server.base_url)
        async with PrimeBackend(PrimeConfig(api_key=token, gb_step=1 / 1024)) as backend:
            yield Bench(backend)


PRIME_URLS: list[str] = []


@pytest.fixture(autouse=True)
def prime_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the published package looks for its service, which it reads when the back end is first used."""
    if PRIME_URLS:
        monkeypatch.setenv("PRIME_API_BASE_URL", PRIME_URLS[-1])


OTHERS = [
    "gvisor",
    *(
        pytest.param(name, marks=pytest.mark.long)
        for name in ("gvisor-as-user", "docker-stand-in", "docker", "podman", "prime")
    ),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=OTHERS)
async def other_bench(
    request: pytest.FixtureRequest, docker_program: str
) -> AsyncIterator[tuple[str, Bench]]:
    """The back ends that are not this machine's own kernel, by the names that tests are shown under."""
    async with opened_bench(request.param, docker_program) as bench:
        yield request.param, bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def docker_bench(docker_program: str) -> AsyncIterator[Bench]:
    """The back end "docker" on the stand-in."""
    async with opened_bench("docker-stand-in", docker_program) as bench:
        yield bench


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["docker", "podman"])
async def engine_bench(request: pytest.FixtureRequest, docker_program: str) -> AsyncIterator[Bench]:
    """The back ends "docker" and "podman" on engines that really run here."""
    async with opened_bench(request.param, docker_program) as bench:
        yield bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prime_bench(docker_program: str) -> AsyncIterator[Bench]:
    """The back end "prime" on our own server."""
    async with opened_bench("prime", docker_program) as bench:
        yield bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gvisor_bench(docker_program: str) -> AsyncIterator[Bench]:
    """gVisor as whoever runs the tests."""
    async with opened_bench("gvisor", docker_program) as bench:
        yield bench


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gvisor_bench_as_user(docker_program: str) -> AsyncIterator[Bench]:
    """gVisor run as an ordinary user: no root, no control groups."""
    async with opened_bench("gvisor-as-user", docker_program) as bench:
        yield bench


@pytest.fixture
def restricted_bench() -> Bench:
    """The level "restricted", not yet opened."""
    if "restricted" not in WEAKER:
        pytest.skip("needs Landlock and an interpreter that other users can read")
    return bench_of("restricted")
