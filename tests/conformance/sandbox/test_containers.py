"""The back ends "docker" and "podman" keep every promise they claim: on a stand-in, and on real engines if there."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from verifiers.sandboxes import (
    IsolationUnavailable,
    SandboxBackend,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxImageError,
    SandboxSpec,
)
from verifiers.sandboxes.containers import ContainerBackend, ContainerConfig, run_arguments
from verifiers.sandboxes.contract import BEHAVIOURS, Behaviour, Bench
from verifiers.sandboxes.local.zygote import cgroups

FAST = {
    "a_command_gives_its_output_and_exit_code",
    "endless_output_ends_the_command",
    "the_time_limit_ends_whatever_the_command_has_started",
    "variables_stay_from_cell_to_cell",
    "terminate_before_readiness_leaves_nothing",
    "impossible_demands_are_refused_in_words",
}


@pytest.mark.parametrize(
    "behaviour",
    [
        pytest.param(each, id=each.name, marks=() if each.name in FAST else pytest.mark.long)
        for each in BEHAVIOURS
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise_on_the_stand_in(docker_bench: Bench, behaviour: Behaviour):
    if not behaviour.applies_to(docker_bench.backend):
        pytest.skip(f"{docker_bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(docker_bench)


@pytest.mark.long
@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_keeps_the_promise_on_a_real_engine(engine_bench: Bench, behaviour: Behaviour):
    if not behaviour.applies_to(engine_bench.backend):
        pytest.skip(f"{engine_bench.backend.name} does not claim {behaviour.needs!r}")
    await behaviour.check(engine_bench)


async def test_what_an_engine_cannot_give_is_refused(docker_program: str):
    async with ContainerBackend(ContainerConfig(program=docker_program)) as backend:
        assert isinstance(backend, SandboxBackend)
        sandbox = await backend.create(SandboxSpec(image="no/such:image"))
        with pytest.raises(SandboxImageError, match="No such image: no/such:image"):
            await sandbox.ready()
        with pytest.raises(IsolationUnavailable, match="gvisor"):
            await backend.create(SandboxSpec(isolation_min="gvisor"))
        with pytest.raises(SandboxImageError, match="packages"):
            await backend.create(SandboxSpec(packages="host"))
        with pytest.raises(SandboxCapabilityMissing, match="domains"):
            await backend.create(SandboxSpec.model_validate({"network": {"allow": ["a.example"]}}))
    async with ContainerBackend(ContainerConfig(program="/no/such/program")) as backend:
        sandbox = await backend.create(SandboxSpec())
        with pytest.raises(SandboxCreationError, match="/no/such/program"):
            await sandbox.ready()


def test_the_runtime_and_the_limits_are_passed_on():
    config = ContainerConfig(runtime="runsc", extra_arguments=("--gpus", "all"))
    spec = SandboxSpec(memory_mb=100, max_processes=9, cpu_cores=1.5, network="full")
    arguments = run_arguments("name", spec, config)
    wanted = {"--runtime=runsc", "--memory=100m", "--memory-swap=100m", "--pids-limit=9"}
    wanted |= {"--cpus=1.5", "--network=bridge", "--read-only", "--cap-drop=ALL", "--gpus"}
    wanted |= {"--ulimit=nofile=1024:1024", f"--ulimit=fsize={256 << 20}:{256 << 20}"}
    wanted |= {"--ulimit=core=0:0", "--shm-size=256m"}
    assert wanted <= set(arguments)
    assert "--network=none" in run_arguments("name", SandboxSpec(), config)
    assert ContainerBackend(config).isolation == "gvisor"
    assert os.environ.get("CONTRACT_SECRET") is None
    assert not any(argument.startswith(("-e", "--env")) for argument in arguments)


def test_each_engine_gives_the_writable_places_to_the_user_in_its_own_words():
    spec = SandboxSpec(folders=("/app",))
    by_engine = {
        engine: run_arguments("name", spec, ContainerConfig.model_validate({"engine": engine}))
        for engine in ("docker", "podman")
    }
    for engine, owner in (("docker", "uid=1000,gid=1000"), ("podman", "U")):
        for folder in ("/box", "/app"):
            [place] = [each for each in by_engine[engine] if each.startswith(f"--tmpfs={folder}:")]
            assert place.endswith(f",mode=0755,{owner}")
    # Podman would add writable places of its own; Docker does not know the option.
    assert "--read-only-tmpfs=false" in by_engine["podman"]
    assert not any(each.startswith("--read-only-tmpfs") for each in by_engine["docker"])


FIRST_PROCESS = """#!/bin/sh
[ "$1" = run ] || exit 0
while [ "$1" != python:3.11-slim ]; do shift; done
shift
exec unshare --user --map-root-user --pid --fork "$@"
"""
"""A program that makes the guest the first process of a pid namespace, as an engine does, and nothing else."""


async def test_signals_from_inside_do_not_end_an_agent_that_is_the_first_process(tmp_path: Path):
    program = tmp_path / "docker"
    program.write_text(FIRST_PROCESS)
    program.chmod(0o755)
    spec = SandboxSpec(workdir=str(tmp_path / "work"))
    async with (
        ContainerBackend(ContainerConfig(program=str(program))) as backend,
        await backend.create(spec) as sandbox,
    ):
        sent = "import os\nfor number in range(1, 65): os.kill(1, number)\nprint(os.getppid())"
        assert (await sandbox.exec(["python3", "-c", sent])).text == "1\n"
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        ended = await sandbox.exec("kill -INT $$")  # for commands it is what it always is
        assert ended.exit_code == 130


@pytest.mark.parametrize(
    "said",
    [
        "docker: Error response from daemon: No such image: no/such:image",
        "Error: localhost/no:1: image not known",
        'Error: short-name "no:1" did not resolve to an alias and no unqualified-search registries are defined',
        "Error: initializing source docker://localhost/no:1: pinging container registry localhost: Get …",
    ],
)
async def test_what_engines_say_of_an_image_that_they_lack_is_an_error_of_the_image(
    said: str, tmp_path: Path
):
    program = tmp_path / "engine"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 125\n")
    program.chmod(0o755)
    async with ContainerBackend(ContainerConfig(program=str(program))) as backend:
        sandbox = await backend.create(SandboxSpec(image="no:1"))
        with pytest.raises(SandboxImageError, match="The image cannot be used"):
            await sandbox.ready()


LITTERER = """#!/bin/sh
: > oom
[ "$1" = run ] && exit 125
"""
"""What Podman does when a container has run out of memory: a file where it was started."""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere Podman runs in a virtual machine")
async def test_what_podman_leaves_where_it_runs_is_removed(tmp_path: Path):
    program = tmp_path / "podman"
    program.write_text(LITTERER)
    program.chmod(0o755)
    config = ContainerConfig(engine="podman", program=str(program))
    before = set(os.listdir(tempfile.gettempdir()))
    async with ContainerBackend(config) as backend:
        sandbox = await backend.create(SandboxSpec())
        with pytest.raises(SandboxCreationError):
            await sandbox.ready()
    assert "oom" not in os.listdir()
    own = cgroups.owner_name(os.getpid())
    left = set(os.listdir(tempfile.gettempdir())) - before
    assert [name for name in left if name.startswith(own)] == []
