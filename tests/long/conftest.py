"""The published package beside ours; makes `differential` importable under `--import-mode=importlib`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def public_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with the published package."""
    given = os.environ.get("VERIFIERS_0_1_14_PYTHON")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("public") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "verifiers==0.1.14"], check=True)
    return python
