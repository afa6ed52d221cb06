"""`make demo`: evaluate, host, publish and install, without an account, a key or a network.

Starts the embedded model behind its OpenAI-compatible endpoint in a separate process, runs `vf-eval` on two bundled
environments against that endpoint, then takes one environment through a hub: serve a hub, push the environment, install
it into a new virtual environment, evaluate it there, push the run. Every command is shown as a user types it.

Everything happens in a temporary folder and ends with it. The processes receive the hub and its key through variables;
the user's configuration is neither read nor changed. The virtual environment links the files that are installed here,
as uv does from its cache, and installs the library as the wheel that a user gets.
"""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import httpx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from verifiers.child_process import ChildProcess, get_free_port, guarded, log_tail
from verifiers.endpoint import EndpointProcess, endpoint_process
from verifiers.packages.install import Installer, run_installer
from verifiers.packages.library import installed_library, write_library
from vf_cli import output


def clean_venv(folder: Path) -> Path:
    """Make a new virtual environment with verifiers in `folder`. Return its interpreter.

    Raises InstallError, CalledProcessError.
    """
    python = venv_without_the_library(folder)
    with tempfile.TemporaryDirectory(prefix="vf-demo-wheel-") as scratch:
        wheel = write_library(installed_library(), Path(scratch))
        run_installer(["--no-deps", str(wheel)], Installer(python=str(python)))
    return python


def venv_without_the_library(folder: Path, also: Iterable[str] = ()) -> Path:
    """Make a virtual environment with the dependencies of verifiers and the packages in `also`. Return its
    interpreter.
    """
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = folder / scripts / Path(sys.executable).name
    command = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    for distribution in _needed_by("verifiers"):
        _link_files(distribution, site)
    for name in also:
        for distribution in (importlib.metadata.distribution(name), *_needed_by(name)):
            _link_files(distribution, site)
    return python


def _needed_by(name: str) -> Iterator[Distribution]:
    """Yield the installed distributions that this one depends on, directly or indirectly."""
    seen = {(canonicalize_name(name), "")}
    waiting = [(name, "")]
    given: set[str] = {canonicalize_name(name)}
    while waiting:
        project, extra = waiting.pop()
        for line in importlib.metadata.distribution(project).requires or []:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            for extra_name in ("", *requirement.extras):
                key = (canonicalize_name(requirement.name), extra_name)
                if key not in seen:
                    seen.add(key)
                    waiting.append((requirement.name, extra_name))
            if canonicalize_name(requirement.name) not in given:
                given.add(canonicalize_name(requirement.name))
                yield importlib.metadata.distribution(requirement.name)


def _link_files(distribution: Distribution, site: Path) -> None:
    """Put the distribution's files into `site`, with the compiled files; its commands are skipped."""
    for file in distribution.files or []:
        if ".." in file.parts:
            continue  # a command, which would start the interpreter of this environment
        source = Path(str(distribution.locate_file(file)))
        compiled = (
            source.with_name("__pycache__") / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        )
        for path in (source, compiled) if source.suffix == ".py" else (source,):
            if not path.is_file():
                continue
            target = site / path.relative_to(str(distribution.locate_file("")))
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                _link(path, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


START_TIMEOUT_S = 120.0
HUB_STOP_S = 15.0
USER = "alice"
LEFT_OUT = ("__pycache__", "dist", "build", "outputs", ".prime")


class DemoFailed(Exception):
    """A step of the demo failed; the text names the step."""


class Workspace(NamedTuple):
    """Working folder and environment variables of the commands."""

    folder: Path
    variables: Mapping[str, str]


def through_a_hub(name: str, endpoint_url: str, model: str) -> None:
    """Take the bundled environment `name` through a hub. Raises DemoFailed."""
    with tempfile.TemporaryDirectory(prefix="vf-demo-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        output.show("\nNext, a hub: the registry that you or your team host.")
        with _hub(folder) as workspace:
            shutil.copytree(
                _source_of(name), folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT)
            )
            output.show(f"\nPublish the environment {name!r} on it, from a copy of its folder:")
            _run(workspace, "prime", "env", "push", "--path", name)
            output.show(
                "\nInstall it from the hub into a new virtual environment, beside verifiers:"
            )
            python = clean_venv(folder / "venv")
            _run(workspace, "prime", "env", "install", f"{USER}/{name}", "--python", str(python))
            output.show("\nEvaluate the installed environment there, and push the run to the hub:")
            options = ("-m", model, "-b", endpoint_url, "-n", "20", "-r", "4", "-A", "--push")
            evaluator = python.with_name("vf-eval")
            _run(workspace, evaluator, f"{USER}/{name}", *options, is_fine=(0, 1))
            output.show("\nThe hub lists the run:")
            _run(workspace, "prime", "eval", "list", "--env", f"{USER}/{name}")
        output.show("\nThis hub was for the demo only. It is stopped, and its folder is removed.")


def _source_of(name: str) -> Path:
    spec = find_spec(name.replace("-", "_"))
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if folder is None or not (folder / "pyproject.toml").is_file():
        raise DemoFailed(
            f"The environment {name} is not installed from a folder; run `make setup`."
        )
    return folder


def _run(
    workspace: Workspace, program: str | Path, *arguments: str, is_fine: tuple[int, ...] = (0,)
) -> None:
    """Show a command as a user types it, and run it."""
    shown = program.relative_to(workspace.folder) if isinstance(program, Path) else program
    typed = [argument.replace(f"{workspace.folder}/", "") for argument in arguments]
    output.show(f"\n$ {shlex.join([str(shown), *typed])}")
    if isinstance(program, str):
        program = Path(sys.executable).with_name(program)
    done = subprocess.run(
        [program, *arguments], env=workspace.variables, cwd=workspace.folder, check=False
    )
    if done.returncode not in is_fine:
        raise DemoFailed(f"{shown} {arguments[0]} ended with exit code {done.returncode}.")


@contextmanager
def _hub(folder: Path) -> Iterator[Workspace]:
    """Yield a running hub with one account."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("VF_HUB_", "PRIME_")) and key != "VIRTUAL_ENV"
    }
    # Addresses of this machine must not go through a proxy.
    for key in ("NO_PROXY", "no_proxy"):
        inherited[key] = ",".join(filter(None, ["127.0.0.1", "localhost", inherited.get(key)]))
    port = get_free_port()
    url = f"http://127.0.0.1:{port}"
    output.show(f"\n$ vf-hub serve --data-dir hub --port {port}")
    with (folder / "hub.log").open("w") as log:
        hub = Path(sys.executable).with_name("vf-hub")
        serve = [hub, "serve", "--data-dir", folder / "hub", "--port", str(port)]
        process = ChildProcess(
            guarded(serve, HUB_STOP_S), env=inherited, stdout=log, stderr=log, own_group=True
        )
        try:
            token = _set_up(url, _setup_token(process, folder / "hub.log", url), folder)
            output.show(f"The hub runs at {url}; {USER!r} is its first user.")
            variables = {"PRIME_API_BASE_URL": url, "PRIME_API_KEY": token, "HF_HUB_OFFLINE": "1"}
            yield Workspace(folder, {**inherited, **variables})
        finally:
            process.close(HUB_STOP_S + 1)


def _setup_token(process: ChildProcess, log: Path, url: str) -> str:
    """Wait until the hub is ready. Return the one-time token that it printed."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(trust_env=False) as http:
        while True:
            try:
                if http.get(f"{url}/ready").is_success:
                    break
            except httpx.TransportError:
                pass  # not listening yet
            if not process.is_running or time.monotonic() > deadline:
                raise DemoFailed(f"The hub did not start:\n{log_tail(log)}")
            time.sleep(0.05)
    words = log.read_text().replace('"', " ").split()
    token = next((word for word in words if word.startswith("setup_")), None)
    if token is None:
        raise DemoFailed(f"The hub printed no setup token:\n{log_tail(log)}")
    return token


def _set_up(url: str, setup_token: str, folder: Path) -> str:
    """Create the first account, like the command that the hub prints. Return the account's API token."""
    body = {"token": setup_token, "username": USER, "password": secrets.token_urlsafe(16)}
    with httpx.Client(trust_env=False, timeout=60.0) as http:
        answer = http.post(f"{url}/api/v1/setup", json=body)
    if not answer.is_success:
        raise DemoFailed(f"The hub refused the first account: {answer.text}")
    return str(answer.json()["data"]["token"])


ENVIRONMENTS = ("reverse-text", "addition")
OPTIONS = ("-n", "60", "-r", "4", "--save-results", "--abbreviated-summary")


def main() -> int:
    """Run the demo. Return 0 if every command ran."""
    began = time.monotonic()
    output.show("Starting the embedded model …")
    with endpoint_process() as endpoint:
        output.show(f"The model runs at {endpoint.base_url} as {endpoint.model!r}.")
        try:
            for environment in ENVIRONMENTS:
                _evaluate(environment, endpoint)
            through_a_hub(ENVIRONMENTS[-1], endpoint.base_url, endpoint.model)
        except DemoFailed as error:
            output.error(str(error))
            return 1
    output.show(f"\nThe demo took {time.monotonic() - began:.0f} s.")
    output.show(
        "Next: create an environment with `vf-init my-env` (docs/quickstart.md), start a permanent hub with "
        "`vf-hub serve` and publish on it (docs/publish.md)."
    )
    return 0


def _evaluate(environment: str, endpoint: EndpointProcess) -> None:
    arguments = [environment, "-m", endpoint.model, "-b", endpoint.base_url, *OPTIONS]
    output.show(f"\n$ vf-eval {shlex.join(arguments)}")
    done = subprocess.run(
        [Path(sys.executable).with_name("vf-eval"), *arguments],
        env={"HF_HUB_OFFLINE": "1", **os.environ},
        check=False,
    )
    if done.returncode not in (0, 1):
        raise DemoFailed(f"vf-eval ended with exit code {done.returncode}.")


if __name__ == "__main__":
    sys.exit(main())
