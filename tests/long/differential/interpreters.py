"""Interpreters that have a published release of verifiers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def python_with(version: str, folder: Path) -> Path:
    """Return the interpreter of a virtual environment with a published release, made in `folder` unless one is given.

    `VERIFIERS_0_1_14_PYTHON` (or another version) names an interpreter that has the release.
    """
    if given := os.environ.get(f"VERIFIERS_{version.replace('.', '_')}_PYTHON"):
        return Path(given)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"verifiers=={version}"], check=True)
    return python
