"""`--sandbox-backend` and `VF_SANDBOX_BACKEND`: an environment that names an image of its own needs no change."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs import environment
from verifiers.envs.sandbox_mixin import SandboxMixin
from verifiers.errors import ConfigError
from verifiers.rubrics.sandbox_rubric import SandboxRubric
from verifiers.sandboxes import SandboxImageError, SandboxSpec, open_sandbox
from vf_cli import eval_options

STAND_IN = Path(__file__).parents[1] / "conformance" / "sandbox" / "docker_stand_in.py"
ENVIRONMENT = """
import verifiers as vf


async def says_where(sandbox) -> float:
    assert (sandbox.spec.image, sandbox.info.backend) == ("owner/image:1", "docker")
    return float((await sandbox.exec("echo works")).text == "works\\n")


def load_environment():
    rows = [{"question": "q", "answer": "a"}]
    rubric = vf.Rubric(funcs=[says_where])
    return vf.SandboxEnv(dataset=rows, docker_image="owner/image:1", memory_gb=0.25, rubric=rubric)
"""
ROWS = [{"question": "q", "answer": "a"}]


class Mixed(SandboxMixin, vf.SingleTurnEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dataset=ROWS)
        self.init_sandbox_client(**kwargs)


MAKERS: dict[str, Callable[..., Any]] = {
    "SandboxEnv": lambda **kw: vf.SandboxEnv(dataset=ROWS, **kw).sandbox_client.backends,
    "PythonEnv": lambda **kw: (
        vf.PythonEnv(dataset=ROWS, pip_install_packages="", **kw).sandbox_client.backends
    ),
    "CodeEnv": lambda **kw: vf.CodeEnv(dataset=ROWS, **kw).backends,
    "CliAgentEnv": lambda **kw: vf.CliAgentEnv("true", dataset=ROWS, **kw).sandbox_client.backends,
    "SandboxMixin": lambda **kw: Mixed(**kw).sandbox_client.backends,
    "SandboxRubric": lambda **kw: SandboxRubric(**kw).backends,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_the_variable_names_the_back_end_of_what_names_none(
    monkeypatch: pytest.MonkeyPatch, maker: str
):
    make = MAKERS[maker]
    assert make().name == "local"
    monkeypatch.setenv("VF_SANDBOX_BACKEND", "docker")
    assert make().name == "docker"
    assert make(backend="gvisor").name == "gvisor"
    monkeypatch.setenv("VF_SANDBOX_BACKEND", "nowhere")
    with pytest.raises(ConfigError, match="VF_SANDBOX_BACKEND='nowhere' is not a sandbox back end"):
        make()


@pytest.mark.parametrize("maker", MAKERS)
def test_a_constructor_that_fails_leaves_nothing_that_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, maker: str
):
    monkeypatch.setenv("VF_SANDBOX_BACKEND", "nowhere")
    before = list(environment._open)
    with pytest.raises(ConfigError):
        MAKERS[maker]()
    left = [env for env in environment._open if env not in before]
    for env in left:
        asyncio.run(env.aclose())
    assert not caplog.records


@pytest.mark.parametrize("backend", ["local", "unsafe-local", "gvisor"])
async def test_an_image_that_a_back_end_does_not_have_names_the_ways_to_another_one(backend: Any):
    isolation = "none" if backend == "unsafe-local" else "container"
    spec = SandboxSpec(image="owner/image:1", isolation_min=isolation)
    if backend == "gvisor" and shutil.which("runsc") is None:
        pytest.skip("there is no program `runsc`")
    with pytest.raises(SandboxImageError) as caught:
        async with open_sandbox(spec, backend=backend) as sandbox:
            await sandbox.ready()
    assert "'owner/image:1'" in str(caught.value)
    assert "--sandbox-backend docker" in str(caught.value)
    assert "VF_SANDBOX_BACKEND=docker" in str(caught.value)


def test_the_help_names_every_back_end():
    from typing import get_args

    from verifiers.sandboxes.open import BackendName

    assert eval_options.BACKEND_NAMES.split(", ") == list(get_args(BackendName))


@pytest.mark.parametrize(
    ("by", "workers"),
    [
        ("option", ("--num-workers", "1")),
        ("variable", ()),
        pytest.param("option", (), marks=pytest.mark.long),
        pytest.param("variable", ("--num-workers", "1"), marks=pytest.mark.long),
    ],
)
def test_an_environment_with_an_image_runs_without_a_change(
    tmp_path: Path, endpoint: Any, by: str, workers: tuple[str, ...]
):
    """The program `docker` is a stand-in, which runs the agent in a sandbox of this machine."""
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\nSTAND_IN_FOLDER={tmp_path}/names exec {sys.executable} {STAND_IN} "$@"\n'
    )
    docker.chmod(0o755)
    (tmp_path / "with_image.py").write_text(ENVIRONMENT)
    variables = {
        "PATH": f"{tmp_path}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(tmp_path),
        "OPENAI_API_KEY": "k",
    }
    arguments = [
        "with_image",
        "-m",
        "m",
        "-b",
        endpoint.url,
        "-n",
        "1",
        "-r",
        "1",
        "--json",
        *workers,
    ]
    if by == "option":
        arguments += ["--sandbox-backend", "docker"]
    else:
        variables["VF_SANDBOX_BACKEND"] = "docker"
    script = "import sys; from vf_cli.main import eval_main; sys.exit(eval_main())"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=variables,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "reward 1.000" in done.stderr


def test_a_back_end_that_does_not_exist_is_a_usage_error(run: Any):
    done = run("eval", "x", "--sandbox-backend", "nowhere")
    assert done.code == 2
    assert "'nowhere' is not one of local, unsafe-local, gvisor" in done.err
