"""The back ends "docker" and "podman" keep every promise they claim: on a stand-in, and on real engines if there."""

import os
import shutil
import subprocess

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


def _runs(engine: str) -> bool:
    found = shutil.which(engine)
    return (
        found is not None and subprocess.run([found, "info"], capture_output=True).returncode == 0
    )


@pytest.mark.long
@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.timeout(1200)
async def test_keeps_its_promises_on_a_real_engine(engine: str):
    if not _runs(engine):
        pytest.skip(f"no {engine} that answers `{engine} info`")
    async with ContainerBackend(ContainerConfig(engine=engine)) as backend:  # pyright: ignore[reportArgumentType]
        bench = Bench(backend)
        for behaviour in BEHAVIOURS:
            if behaviour.applies_to(backend):
                await behaviour.check(bench)


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
    assert wanted <= set(arguments)
    assert "--network=none" in run_arguments("name", SandboxSpec(), config)
    assert ContainerBackend(config).isolation == "gvisor"
    assert os.environ.get("CONTRACT_SECRET") is None
    assert not any(argument.startswith(("-e", "--env")) for argument in arguments)
