"""Images and services of Harbor tasks, on the stand-in for Docker and, in long tests, on real engines."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

import verifiers as vf
from verifiers.envs.harbor.images import ImageBuilder, check_context, is_plain_python
from verifiers.errors import ConfigError, DatasetError
from verifiers.sandboxes import SandboxImageError, SandboxSpec
from verifiers.sandboxes.containers import (
    ContainerBackend,
    ContainerConfig,
    compose_layers,
    run_arguments,
)
from verifiers.sandboxes.local import LocalBackend
from verifiers.sandboxes.spec import ComposeProject
from verifiers.testing import ScriptedClient

STAND_IN = Path(__file__).parents[3] / "conformance" / "sandbox" / "docker_stand_in.py"
SMALL: dict[str, Any] = {"memory_gb": 0.125, "disk_size_gb": 0.05}
DOCKERFILE = "FROM python:3.11-slim\nWORKDIR /work\nENV WORD=42\nCOPY data.txt /work/data.txt\n"
GRADES = (
    "grep -qx 42 answer && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
)
AGENT = 'cat data.txt > answer; [ "$WORD" = 42 ] && [ "$PWD" = "$AGENT_WORKDIR" ]'


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "docker"
    path.write_text(
        f'#!/bin/sh\nSTAND_IN_FOLDER={tmp_path}/names exec {sys.executable} {STAND_IN} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest_asyncio.fixture
async def docker(program: Path) -> AsyncIterator[ContainerBackend]:
    async with ContainerBackend(ContainerConfig(program=str(program))) as backend:
        yield backend


def calls(tmp_path: Path, command: str) -> list[list[str]]:
    lines = (tmp_path / "calls.jsonl").read_text().splitlines()
    return [call for line in lines if (call := json.loads(line))[0] == command]


def write_task(tmp_path: Path, *, dockerfile: str | None = DOCKERFILE, config: str = "") -> Path:
    folder = tmp_path / "tasks" / "Built Task"
    for name in ("tests", "solution", "environment"):
        (folder / name).mkdir(parents=True)
    (folder / "task.toml").write_text(config or '[environment]\nworkdir = "/work"\n')
    (folder / "instruction.md").write_text("Copy the data.\n")
    (folder / "tests" / "test.sh").write_text(GRADES)
    (folder / "solution" / "solve.sh").write_text("cp data.txt answer\n")
    (folder / "environment" / "data.txt").write_text("42\n")
    if dockerfile is not None:
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    return folder


async def scored(backend: Any, folder: Path, command: str = AGENT, **options: Any) -> Any:
    options = {**SMALL, "backend": backend, **options}
    async with vf.HarborEnv(command, folder.parent, **options) as env:
        results = await env.evaluate(
            ScriptedClient(), "m", rollouts_per_example=options.get("r", 1)
        )
    return results["outputs"][0]


# --------------------------------------------------------------------------------------------------------- images


async def test_a_task_runs_in_the_image_of_its_dockerfile_which_is_built_once(
    docker: ContainerBackend, program: Path, tmp_path: Path
):
    folder = write_task(tmp_path)
    output = await scored(docker, folder)
    assert (output["error"], output["reward"]) == (None, 1.0)
    [build] = calls(tmp_path, "build")
    assert build[2].startswith("vf-harbor/built-task:")
    [run] = (call for call in calls(tmp_path, "run") if "--interactive" in call)
    assert {build[2], "--network=bridge"} <= set(run)

    async def built() -> str:
        context = folder / "environment"
        return (await ImageBuilder("docker", str(program)).build("Built Task", context, 60)).tag

    assert await built() == build[2]
    assert len(calls(tmp_path, "build")) == 1
    (folder / "environment" / "data.txt").write_text("41\n")
    assert await built() != build[2]


async def test_a_separate_verifier_has_the_image_of_its_own_dockerfile(
    docker: ContainerBackend, tmp_path: Path
):
    config = (
        'artifacts = ["/work/answer"]\n[environment]\nnetwork_mode = "no-network"\nmemory_mb = 256\n'
        '[verifier.environment]\nworkdir = "/work"\nnetwork_mode = "public"\n'
    )
    folder = write_task(tmp_path, config=config)
    (folder / "tests" / "Dockerfile").write_text(
        "FROM python:3.11-slim\nCOPY test.sh /tests/test.sh\nENV BUILT=here\n"
    )
    (folder / "tests" / "test.sh").write_text(f'[ "$BUILT$WORD" = here ] && {{ {GRADES}; }}')
    output = await scored(docker, folder, memory_gb=2)
    assert (output["error"], output["reward"]) == (None, 1.0)
    agents, verifiers = (call for call in calls(tmp_path, "run") if "--interactive" in call)
    assert ("--network=none" in agents, "--network=bridge" in verifiers) == (True, True)
    assert "--memory=256m" in agents
    assert [call[-1].rsplit("/", 1)[1] for call in calls(tmp_path, "build")] == [
        "environment",
        "tests",
    ]


async def test_a_build_that_fails_or_takes_too_long_is_an_error_with_its_output(
    docker: ContainerBackend, tmp_path: Path
):
    output = await scored(
        docker, write_task(tmp_path, dockerfile="FROM python:3.11-slim\nRUN false")
    )
    assert output["error"]["error"] == "SandboxImageError"
    assert "'Built Task' (exit code 1): The command" in output["error"]["error_chain_repr"]
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\n[ "$1" = build ] && exec sleep 1000\nexit 1\n')
    slow.chmod(0o755)
    with pytest.raises(SandboxImageError, match=r"within 0\.2 s\. Raise build_timeout_sec"):
        await ImageBuilder("docker", str(slow)).build("a", tmp_path / "tasks", 0.2)


async def test_an_image_that_cannot_be_pulled_is_an_error_of_the_image(
    docker: ContainerBackend, tmp_path: Path
):
    config = '[environment]\ndocker_image = "no/such:1"\n'
    output = await scored(docker, write_task(tmp_path, config=config))
    assert output["error"]["error"] == "SandboxImageError"
    assert "pull no/such:1 (exit code 1)" in output["error"]["error_chain_repr"]
    assert not calls(tmp_path, "build")  # a named image is not built


async def test_python_is_added_to_an_image_without_it(program: Path, tmp_path: Path):
    (tmp_path / "images.json").write_text('{"bare:1": {"WorkingDir": "/work"}}')
    folder = write_task(tmp_path, dockerfile="FROM bare:1\nWORKDIR /work\n")
    image = await ImageBuilder("docker", str(program)).build("a", folder / "environment", 60)
    _, second = calls(tmp_path, "build")
    assert image == (second[2], "/work")
    assert second[2].startswith("vf-python/")


@pytest.mark.parametrize(
    ("dockerfile", "plain"),
    [
        ("FROM python:3.11-slim", True),
        ("# one\nfrom docker.io/library/python:3\n\nWORKDIR /app\nCMD sleep infinity\n", True),
        ("FROM python:3.11-slim\nRUN pip install x", False),
        ("FROM python:3.11-slim\nENV A=1", False),
        ("FROM python:3.11 AS one\nFROM python:3.11", False),
        ("FROM ubuntu:24.04\nWORKDIR /app", False),
        ("", False),
    ],
)
def test_which_dockerfiles_need_no_build(tmp_path: Path, dockerfile: str, plain: bool):
    (tmp_path / "Dockerfile").write_text(dockerfile)
    assert is_plain_python(tmp_path / "Dockerfile") is plain


async def test_a_back_end_that_builds_no_images_refuses_and_says_what_to_do(tmp_path: Path):
    folder = write_task(tmp_path)
    async with LocalBackend() as local:
        with pytest.raises(ConfigError, match=r"environment/Dockerfile.*--sandbox-backend docker"):
            await scored(local, folder)
        (folder / "environment" / "docker-compose.yaml").write_text("services: {main: {}}")
        with pytest.raises(ConfigError, match=r"environment/docker-compose\.yaml.*Podman"):
            await scored(local, folder)
        output = await scored(local, folder, "echo 42 > /work/answer", docker_image="python:3.12")
        assert output["reward"] == 1.0  # the author's image replaces builds
        for spec in (
            SandboxSpec(writable_image=True),
            SandboxSpec(compose=ComposeProject(file="c.yaml")),
        ):
            with pytest.raises(SandboxImageError, match="Use Docker or Podman"):
                await local.create(spec)


# -------------------------------------------------------------------------------- tests and solutions in images


async def test_an_image_with_tests_or_a_solution_is_refused(
    docker: ContainerBackend, tmp_path: Path
):
    folder = write_task(tmp_path, dockerfile=DOCKERFILE + "COPY data.txt /tests/hidden.txt\n")
    output = await scored(docker, folder)
    assert output["error"]["error"] == "DatasetError"
    assert (
        "contains /tests/hidden.txt, which the agent could" in output["error"]["error_chain_repr"]
    )


def test_a_build_context_with_the_solution_is_refused(tmp_path: Path):
    folder = write_task(tmp_path)
    secrets = [folder / "tests", folder / "solution"]
    check_context("t", folder / "environment", secrets)
    (folder / "environment" / "deep").mkdir()
    shutil.copy(folder / "solution" / "solve.sh", folder / "environment" / "deep" / "other-name")
    with pytest.raises(DatasetError, match=r"would contain solution/solve\.sh: deep/other-name"):
        check_context("t", folder / "environment", secrets)


# ------------------------------------------------------------------------------------------------------- services

COMPOSE = """
services:
  main:
    build: .
    environment: {SIZE: "${MEMORY}", TESTS: "${TEST_DIR}"}
  database:
    image: postgres:16
"""


async def test_the_agent_is_the_service_main_of_a_compose_file(
    docker: ContainerBackend, tmp_path: Path
):
    folder = write_task(tmp_path, config='[environment]\nworkdir = "/app"\nmemory_mb = 300\n')
    (folder / "environment" / "docker-compose.yaml").write_text(COMPOSE)
    command = 'echo 42 > answer; [ "$PWD" = /app ]'
    output = await scored(docker, folder, command, memory_gb=2)
    assert (output["error"], output["reward"]) == (None, 1.0)
    steps = [
        next(each for each in call[1:] if not each.startswith("--"))
        for call in calls(tmp_path, "compose")
    ]
    assert steps[:4] == ["config", "build", "up", "run"]
    assert "down" in steps
    [up] = (call for call in calls(tmp_path, "compose") if "up" in call)
    assert up[-1] == "database"
    assert "--wait" in up


@pytest.mark.parametrize(
    ("compose", "says"),
    [
        ("services: {main: {}, broken: {}}", "container broken exited"),
        ("services: {main: [}", "compose config` failed with exit code 1"),
    ],
)
async def test_services_that_do_not_start_are_an_error(
    docker: ContainerBackend, tmp_path: Path, compose: str, says: str
):
    file = tmp_path / "docker-compose.yaml"
    file.write_text(compose)
    spec = SandboxSpec(writable_image=True, compose=ComposeProject(file=str(file)))
    sandbox = await docker.create(spec)
    with pytest.raises(SandboxImageError, match=says):
        await sandbox.ready()
    await sandbox.terminate()


def test_limits_of_the_service_main_come_last_and_defaults_first():
    project = ComposeProject(file="/t/c.yaml", build_main="/t", volumes=("logs-verifier",))
    spec = SandboxSpec(compose=project, memory_mb=99, cpu_cores=1.5, env={"A": "1"})
    before, after = compose_layers(spec)
    assert before == {
        "services": {"main": {"build": {"context": "/t"}}},
        "volumes": {"logs-verifier": {}},
    }
    main = after["services"]["main"]
    limits = {"memory": "99M", "pids": 128, "cpus": "1.5"}
    assert main["deploy"] == {"resources": {"limits": limits}}
    assert main["cap_drop"] == ["ALL"]
    assert main["environment"] == {"A": "1"}
    assert after["networks"] == {"default": {"internal": True}}
    open_spec = spec.model_copy(update={"network": "full", "image": "img:1"})
    before, after = compose_layers(open_spec)
    assert before["services"]["main"]["image"] == "img:1"
    assert "networks" not in after


def test_a_writable_image_keeps_its_user_and_its_files_and_loses_rights_over_the_machine():
    spec = SandboxSpec(writable_image=True, image="img:1", host_names=("notes",))
    arguments = run_arguments("name", spec, ContainerConfig())
    assert not any(each.startswith(("--tmpfs", "--user", "--workdir")) for each in arguments)
    assert "--read-only" not in arguments
    assert {"--cap-drop=ALL", "--cap-add=CHOWN", "--security-opt=no-new-privileges"} <= set(
        arguments
    )
    assert "--add-host=notes:127.0.0.1" in arguments
    assert arguments[arguments.index("img:1") - 1] == "--entrypoint=python3"


# -------------------------------------------------------------------------------------------------- real engines


@pytest.mark.long
@pytest.mark.parametrize("engine", ["docker", "podman"])
async def test_a_real_engine_builds_and_scores_a_task(engine: Any, tmp_path: Path):
    program = shutil.which(engine)
    if program is None:
        pytest.skip(f"there is no program {engine!r}")
    inspect = [program, "image", "inspect", "python:3.11-slim"]
    found = await asyncio.to_thread(subprocess.run, inspect, capture_output=True)
    if found.returncode != 0:
        pytest.skip(f"no {engine} that has the image ({engine} pull python:3.11-slim)")
    folder = write_task(tmp_path, dockerfile=DOCKERFILE + "RUN touch /work/built\n")
    arguments = tuple(os.environ.get("ENGINE_ARGUMENTS", "").split())
    config = ContainerConfig(engine=engine, extra_arguments=arguments)
    async with ContainerBackend(config) as backend:
        command = f"{AGENT} && [ -e built ] && touch /usr/bin/changed"
        output = await scored(backend, folder, command, sandbox_spec={"network": "none"})
        assert (output["error"], output["reward"]) == (None, 1.0)
        (folder / "task.toml").write_text(
            'artifacts = ["/work/answer"]\n[environment]\nworkdir = "/work"\n'
            '[verifier]\nenvironment_mode = "separate"\n'
        )
        output = await scored(backend, folder, command, sandbox_spec={"network": "none"})
        assert (output["error"], output["reward"]) == (None, 1.0)
