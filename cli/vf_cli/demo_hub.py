"""The part of `make demo` about the hub: serve one, push an environment, install and evaluate it elsewhere, push a run.

All of it happens in a temporary folder and ends with it. The commands are those of docs/publish.md, in processes of
their own, told by variables which hub and which key; the user's configuration is neither read nor changed.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import httpx

from verifiers.child_process import ChildProcess, get_free_port, guarded, log_tail
from vf_cli import output
from vf_cli.demo_venv import clean_venv

START_TIMEOUT_S = 120.0
HUB_STOP_S = 15.0
USER = "alice"
LEFT_OUT = ("__pycache__", "dist", "build", "outputs", ".prime")


class DemoFailed(Exception):
    """A step of the demo did not work; the text says which."""


class Place(NamedTuple):
    """Where commands run, and what they are told."""

    folder: Path
    variables: Mapping[str, str]


def through_a_hub(name: str, endpoint_url: str, model: str) -> None:
    """Take the bundled environment `name` through a hub of its own. Raises DemoFailed."""
    with tempfile.TemporaryDirectory(prefix="vf-demo-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        output.show("\nNow a hub: the registry that you or your team host.")
        with _hub(folder) as place:
            shutil.copytree(
                _source_of(name), folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT)
            )
            output.show(f"\nPublish the environment {name!r} on it, from a copy of its folder:")
            _run(place, "prime", "env", "push", "--path", name)
            output.show(
                "\nInstall it from the hub into a new virtual environment, beside verifiers:"
            )
            python = clean_venv(folder / "venv")
            _run(place, "prime", "env", "install", f"{USER}/{name}", "--python", str(python))
            output.show("\nEvaluate what was installed there, and put the run on the hub:")
            options = ("-m", model, "-b", endpoint_url, "-n", "20", "-r", "4", "-A", "--push")
            evaluator = python.with_name("vf-eval")
            _run(place, evaluator, f"{USER}/{name}", *options, is_fine=(0, 1))
            output.show("\nThe hub knows it:")
            _run(place, "prime", "eval", "list", "--env", f"{USER}/{name}")
        output.show("\nThis hub was for the demo; it is stopped, and its folder is removed.")


def _source_of(name: str) -> Path:
    spec = find_spec(name.replace("-", "_"))
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if folder is None or not (folder / "pyproject.toml").is_file():
        raise DemoFailed(
            f"The environment {name} is not installed from a folder; run `make setup`."
        )
    return folder


def _run(
    place: Place, program: str | Path, *arguments: str, is_fine: tuple[int, ...] = (0,)
) -> None:
    """Show a command as it is typed, and run it."""
    shown = program.relative_to(place.folder) if isinstance(program, Path) else program
    typed = [argument.replace(f"{place.folder}/", "") for argument in arguments]
    output.show(f"\n$ {shlex.join([str(shown), *typed])}")
    if isinstance(program, str):
        program = Path(sys.executable).with_name(program)
    done = subprocess.run([program, *arguments], env=place.variables, cwd=place.folder, check=False)
    if done.returncode not in is_fine:
        raise DemoFailed(f"{shown} {arguments[0]} ended with exit code {done.returncode}.")


@contextmanager
def _hub(folder: Path) -> Iterator[Place]:
    """A served hub with one account, for the block."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("VF_HUB_", "PRIME_")) and key != "VIRTUAL_ENV"
    }
    # A proxy of the machine is not asked for addresses on the machine itself.
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
            output.show(f"It answers at {url}; {USER!r} is its first user.")
            told = {"PRIME_API_BASE_URL": url, "PRIME_API_KEY": token, "HF_HUB_OFFLINE": "1"}
            yield Place(folder, {**inherited, **told})
        finally:
            process.close(HUB_STOP_S + 1)


def _setup_token(process: ChildProcess, log: Path, url: str) -> str:
    """Wait until the hub answers; the one-time token that it printed."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with httpx.Client(trust_env=False) as http:
        while True:
            try:
                if http.get(f"{url}/ready").is_success:
                    break
            except httpx.TransportError:
                pass  # not yet listening
            if not process.is_running or time.monotonic() > deadline:
                raise DemoFailed(f"The hub did not start:\n{log_tail(log)}")
            time.sleep(0.05)
    words = log.read_text().replace('"', " ").split()
    token = next((word for word in words if word.startswith("setup_")), None)
    if token is None:
        raise DemoFailed(f"The hub printed no setup token:\n{log_tail(log)}")
    return token


def _set_up(url: str, setup_token: str, folder: Path) -> str:
    """Make the first account, as the command that the hub prints does; its API token."""
    body = {"token": setup_token, "username": USER, "password": secrets.token_urlsafe(16)}
    with httpx.Client(trust_env=False, timeout=60.0) as http:
        answer = http.post(f"{url}/api/v1/setup", json=body)
    if not answer.is_success:
        raise DemoFailed(f"The hub refused the first account: {answer.text}")
    return str(answer.json()["data"]["token"])
