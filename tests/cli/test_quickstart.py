"""docs/quickstart.md in a virtual environment that has the wheel and not the repository, in an empty folder."""

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from vf_cli.demo import clean_venv, venv_without_the_library

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
WHEEL = f"verifiers-{VERSION}-py3-none-any.whl"
pytestmark = pytest.mark.timeout(400)


class Place(NamedTuple):
    """An empty folder, and the commands of the installed wheel."""

    folder: Path
    variables: dict[str, str]

    def run(self, command: str) -> str:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What somebody has who followed section 0: the wheel is built and installed as the page says."""
    root = tmp_path_factory.mktemp("quickstart")
    # Instead of an index: what the wheel needs, pip, and what builds environments, from those installed here.
    python = venv_without_the_library(root / "venv", also=("pip", "hatchling", "editables"))
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTHON", "VF_", "PRIME_", "VIRTUAL_ENV", "PIP_", "UV_"))
    }
    variables = {
        **kept,
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": str(root / "home"),
        "COLUMNS": "200",
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    folder = root / "empty"
    (root / "home").mkdir()
    folder.mkdir()
    there = Place(folder, variables)
    command = re.search(r"`(pip wheel [^`]*) \.`", PAGE)
    assert command is not None, "the page says how to build the wheel"
    built = command[1].replace("-w dist", f"-w {root / 'dist'}").removeprefix("pip ")
    there.run(f"{python} -m pip {built} --no-build-isolation {ROOT}")
    assert [file.name for file in (root / "dist").iterdir()] == [WHEEL]
    line = re.search(r"^pip install '\./(.*\.whl\[all\])'", PAGE, re.MULTILINE)
    assert line is not None, "the page says how to install the wheel"
    # What the extra brings is not asked of an index here; that the line names a wheel with this extra is.
    there.run(f"{python} -m pip install --no-deps --no-compile '{root / 'dist' / line[1]}'")
    yield there
    assert not (ROOT / "environments" / "first_env").exists()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def endpoint(place):
    """`vf-endpoint` in a terminal of its own."""
    port = free_port()
    log = place.folder.parent / "endpoint.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["vf-endpoint", "--port", str(port)],
            cwd=place.folder,
            env=place.variables,
            stdout=out,
            stderr=out,
            executable=str(Path(place.variables["PATH"].partition(":")[0]) / "vf-endpoint"),
        )
    deadline = time.monotonic() + 120
    while True:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).is_success:
                break
        except httpx.TransportError:
            pass  # not yet listening
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
    yield f"http://127.0.0.1:{port}/v1"
    process.terminate()
    process.wait()


def test_the_library_that_runs_is_the_installed_one(place):
    found = place.run('python -c "import verifiers; print(verifiers.__file__)"').strip()
    assert Path(found).is_relative_to(place.folder.parent / "venv")


def test_every_command_of_the_quickstart_works_in_an_empty_folder(place, endpoint):
    commands = re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    assert commands[0] == "vf-endpoint"
    assert len(commands) >= 5
    shown = ""
    for command in commands[1:]:
        shown += place.run(command.replace("http://127.0.0.1:8000/v1", endpoint))
    assert "first-env: 8 passed, 0 failed, 0 skipped" in shown
    assert "rollouts   80" in shown
    assert "errors     none" in shown
    saved = re.search(r"^saved +(\S+)$", shown, re.MULTILINE)
    assert saved is not None
    assert len((place.folder / saved[1] / "results.jsonl").read_text().splitlines()) == 80


def test_the_python_of_the_quickstart_runs_without_the_repository(place):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    for number, block in enumerate(blocks):
        (place.folder / f"block_{number}.py").write_text(block)
        place.run(f"python block_{number}.py")


def test_every_command_of_the_wheel_shows_its_help(place):
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert "vf-eval" in scripts
    folder = Path(place.variables["PATH"].partition(":")[0])
    assert [name for name in scripts if not os.access(folder / name, os.X_OK)] == []
    # One process for all of them: each would import the same again.
    (place.folder / "helps.py").write_text(
        "import contextlib, io, sys\nfrom importlib.metadata import entry_points\n"
        "for name in sys.argv[1:]:\n"
        "    [script] = entry_points(group='console_scripts', name=name)\n"
        "    sys.argv, shown = [name, '--help'], io.StringIO()\n"
        "    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):\n"
        "        script.load()()\n"
        "    assert 'Usage' in shown.getvalue(), name\n"
    )
    place.run(f"python helps.py {' '.join(scripts)}")


@pytest.mark.skipif(sys.platform == "win32", reason="no hub without a server there")
def test_a_hub_without_its_packages_names_them(place):
    done = subprocess.run(
        "vf-hub serve",
        shell=True,
        cwd=place.folder,
        env=place.variables,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "pip install 'aiosqlite" in done.stderr


def test_the_examples_and_a_single_file_work_without_a_clone(place, endpoint):
    options = f"-m embedded -b {endpoint} -n 2 -r 1 -A"
    for example in ("reverse-text", "addition"):
        assert f"{example} 0.1.0   2 examples x 1 rollout" in place.run(
            f"vf-eval {example} {options}"
        )
    assert "reverse-text: 8 passed" in place.run("vf-validate reverse-text")
    example = place.run(
        'python -c "from verifiers.loading import EXAMPLES; '
        "print((EXAMPLES / 'addition' / 'addition.py').read_text())\""
    )
    (place.folder / "my_sums.py").write_text(example)
    assert "my-sums   2 examples x 1 rollout" in place.run(f"vf-eval ./my_sums.py {options}")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_demonstration_of_training_works_without_a_clone(tmp_path):
    pytest.importorskip("torch")
    python = clean_venv(tmp_path / "venv")
    added = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    # torch is half a gigabyte: it is used where it is, behind what the virtual environment has.
    beside = Path(importlib.util.find_spec("torch").origin).parents[1]
    Path(added.stdout.strip(), "torch_beside.pth").write_text(
        f"import sys; sys.path.append({str(beside)!r})\n"
    )
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [python.with_name("vf-train"), "--demo", "--steps", "2"],
        cwd=tmp_path / "empty",
        env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "next       vf-endpoint --weights outputs/train/reverse_text/checkpoints" in done.stdout
