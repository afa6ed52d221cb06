"""The adapters with the trainers' own packages, each in a virtual environment of its own. See check_real_trainer.py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
TRAINERS = {
    "tinker": ("python3.11", ["tinker==0.38.0", "tinker-cookbook==0.5.8"]),
    "art": ("python3.11", ["openpipe-art==0.5.18"]),
    # verl and skyrl do not say all that they import.
    "verl": (
        "python3.11",
        ["torch==2.13.0", "verl==0.9.1", "setuptools<80", "cachetools", "uvicorn", "fastapi"],
    ),
    "skyrl": (
        "python3.12",
        [
            "torch",
            "skyrl==0.4.0",
            "skyrl-gym==0.4.0",
            "ray",
            "pybase64",
            "jaxtyping",
            "torchdata",
            "loguru",
            "hydra-core",
        ],
    ),
    "nemo_gym": ("python3.12", ["nemo-gym==0.4.0"]),
}
"""A Python that the trainer runs on, and packages. Without a GPU none of them trains; their classes and their code for
training data run."""


def interpreter(name: str) -> str | None:
    """A Python of that version that runs: pyenv's commands on the path only say that another version is in use."""
    if f"python{sys.version_info.major}.{sys.version_info.minor}" == name:
        return sys.executable
    versions = (Path.home() / ".pyenv" / "versions").glob(f"*/bin/{name}")
    for one in filter(None, (shutil.which(name), *map(str, versions))):
        if subprocess.run([one, "-c", ""], capture_output=True, check=False).returncode == 0:
            return one
    return None


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", TRAINERS)
def test_an_adapter_works_with_the_trainers_own_classes(name, tmp_path):
    """`VF_TINKER_PYTHON` (and so on) names a Python that has the trainer and this library already."""
    python = os.environ.get(f"VF_{name.upper()}_PYTHON")
    if python is None:
        wanted, packages = TRAINERS[name]
        base = interpreter(wanted)
        if base is None:
            pytest.skip(f"There is no {wanted} here, which {packages[-1]} needs.")
        subprocess.run([base, "-m", "venv", str(tmp_path / "venv")], check=True)
        python = str(tmp_path / "venv" / "bin" / "python")
        command = [python, "-m", "pip", "install", "--quiet", *packages, "--editable", str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            pytest.skip(f"{' '.join(packages)} cannot be installed here: {' '.join(reason[-2:])}")
    done = subprocess.run(
        [python, str(HERE / "check_real_trainer.py"), name],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("ok\n")
