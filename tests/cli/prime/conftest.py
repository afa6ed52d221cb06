"""`prime` is run as its entry point runs it, against a hub that is a process of its own."""

import io
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from importlib import util
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import httpx
import pytest
from typer.testing import CliRunner

from hub_server import cli as hub_cli
from verifiers.hub.client import RetryPolicy

ROOT = Path(__file__).parents[3]
_numbers = count()


def _load(name: str, path: Path) -> ModuleType:
    spec = util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


hub_processes = _load("hub_processes", ROOT / "tests" / "hub_server" / "processes.py")
relay_module = _load("prime_relay", Path(__file__).with_name("relay.py"))


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as the one JSON document it is."""
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow at once, without the pauses of real life."""
    monkeypatch.setattr(RetryPolicy, "pause_s", lambda *_: 0.0)


@pytest.fixture
def prime(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Run the command in this process: `prime("env", "list", "--json")`; `typed` is its stdin."""
    from vf_cli.prime import main

    monkeypatch.delenv("COLUMNS", raising=False)  # what is piped has no width

    def call(*arguments: Any, typed: str = "") -> Done:
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        code = main.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A served hub (SQLite and a folder) with the administrator `alice`."""
    data_dir = tmp_path_factory.mktemp("prime") / "hub-data"
    with hub_processes.served_hub(data_dir, login_limit_per_minute=600) as running:
        yield running


@pytest.fixture(scope="session")
def token_of(hub: Any) -> Callable[[str], str]:
    """An API token of a person, who is made if need be."""
    known = {"alice": hub.token}

    def get(name: str) -> str:
        if name not in known:
            options = ("--password", f"password of {name}", "--data-dir", str(hub.data_dir))
            made = CliRunner().invoke(hub_cli.app, ["user", "add", name, *options])
            assert made.exit_code == 0, made.output
            login = {"username": name, "password": f"password of {name}"}
            answer = httpx.post(f"{hub.url}/api/v1/login", json=login)
            known[name] = answer.raise_for_status().json()["data"]["token"]
        return known[name]

    return get


@pytest.fixture
def as_person(
    hub: Any, token_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Be somebody on the hub (or behind a relay) from now on, by variables."""

    def become(name: str | None, url: str | None = None) -> None:
        monkeypatch.setenv("PRIME_API_BASE_URL", url or hub.url)
        if name is None:
            monkeypatch.delenv("PRIME_API_KEY", raising=False)
        else:
            monkeypatch.setenv("PRIME_API_KEY", token_of(name))

    return become


@pytest.fixture
def alice(as_person: Callable[..., None]) -> None:
    """Be alice."""
    as_person("alice")


@pytest.fixture
def relay(hub: Any) -> Iterator[Any]:
    """A relay before the hub, which can be made faulty."""
    with relay_module.Relay(hub.url) as running:
        yield running


@pytest.fixture
def make_project() -> Callable[..., Path]:
    """Write an environment's project with a name of its own, which needs nothing to be installed."""

    def make(
        name: str | None = None,
        *,
        version: str = "0.1.0",
        code: str = "def load_environment():\n    return 1\n",
        included: str = "",
        files: dict[str, str] | None = None,
        project: str = "",
    ) -> Path:
        name = name or f"cli-env-{next(_numbers)}-{os.getpid()}"
        module = name.replace("-", "_")
        folder = Path("projects") / module
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
            f'[project]\nname = "{name}"\nversion = "{version}"\ndescription = "A sum"\n{project}\n'
            f'[tool.hatch.build.targets.wheel]\ninclude = ["{module}.py"{included}]\n'
        )
        (folder / f"{module}.py").write_text(code)
        for path, text in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


class Target(NamedTuple):
    """A virtual environment to install into."""

    python: str
    site: Path

    def has(self, module: str) -> bool:
        """Whether a module lies in it."""
        return (self.site / f"{module}.py").exists()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    """An empty virtual environment that can import this package, and in which nothing else is installed."""
    folder = tmp_path / "target"
    venv.create(folder, with_pip=False)
    site = next((folder / "lib").glob("python*")) / "site-packages"
    here = [str(ROOT), str(ROOT / "cli"), *(p for p in sys.path if p.endswith("site-packages"))]
    (site / "here.pth").write_text("\n".join(here) + "\n")
    return Target(str(folder / "bin" / "python"), site)


@pytest.fixture
def start_in() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command's entry point (`vf_cli.main:eval_main`) in a process of a given Python."""
    started: list[subprocess.Popen[str]] = []

    def start(python: str, entry: str, *arguments: Any) -> subprocess.Popen[str]:
        module, _, function = entry.partition(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        process = subprocess.Popen(
            [python, "-c", code, *map(str, arguments)],
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
