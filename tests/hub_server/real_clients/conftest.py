"""The programs that people have, each in an environment of its own, and a served hub with something on it."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import httpx
import pytest


@pytest.fixture(scope="module")
def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("uv is not installed")
    return found


@pytest.fixture(scope="module")
def old_pip(tmp_path_factory) -> list[str]:
    """The pip that Python brings along, which needs no network to get."""
    folder = tmp_path_factory.mktemp("pip") / "venv"
    venv.create(folder, with_pip=True)
    return [str(folder / "bin" / "python"), "-m", "pip", "--isolated"]


@pytest.fixture
def call(tmp_path):
    """Runs a program without this machine's proxies, settings and caches."""

    def run(*command, check=True, cwd=None, **variables):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "PRIME_"))}
        environment = {
            **kept,
            "HOME": str(tmp_path),
            "NO_PROXY": "127.0.0.1,localhost",
            "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "TERM": "dumb",
            "COLUMNS": "200",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            **variables,
        }
        result = subprocess.run(
            [str(part) for part in command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            cwd=cwd or tmp_path,
        )
        if check:
            assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        return result

    return run


def publish_wheel(hub, wheel, *, visibility="public"):
    body = wheel.bytes()
    answer = httpx.post(
        f"{hub.url}/legacy/?visibility={visibility}",
        headers={"Authorization": f"Bearer {hub.token}"},
        data={":action": "file_upload", "name": wheel.name, "version": wheel.version},
        files={"content": (wheel.filename, body)},
    )
    assert answer.status_code == 200, answer.text


@pytest.fixture
def publish():
    """Publishes a wheel by the form."""
    return publish_wheel


@pytest.fixture
def with_credentials():
    """The address of a path with the administrator's token in it."""

    def address(hub, path):
        return f"http://__token__:{hub.token}@127.0.0.1:{hub.port}{path}"

    return address


@pytest.fixture(scope="module")
def stocked_hub(live_hub_on_each_ground, wheel):
    """A hub with a public and a private environment."""
    hub = live_hub_on_each_ground
    publish_wheel(hub, wheel())
    publish_wheel(hub, wheel(version="0.2.0"))
    hidden = wheel(name="hidden-env", files={"hidden_env.py": b"X = 1\n"})
    publish_wheel(hub, hidden, visibility="private")
    return hub


@pytest.fixture(scope="module")
def installed(uv, tmp_path_factory):
    """Makes an environment with a package from the machine's index; its `bin` folder."""
    made: dict[str, Path] = {}

    def get(*requirements: str) -> Path:
        key = " ".join(requirements)
        if key not in made:
            folder = tmp_path_factory.mktemp("client") / "venv"
            subprocess.run([uv, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
            python = str(folder / "bin" / "python")
            subprocess.run([uv, "pip", "install", "-q", "-p", python, *requirements], check=True)
            made[key] = folder / "bin"
        return made[key]

    return get
