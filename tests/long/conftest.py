"""The published package beside ours; makes `differential` importable under `--import-mode=importlib`."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def public_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a virtual environment with 0.1.14."""
    from differential.interpreters import python_with

    return python_with("0.1.14", tmp_path_factory.mktemp("public") / "venv")
