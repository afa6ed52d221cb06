"""The published package beside which ours is measured, in a virtual environment of its own."""

import subprocess
import sys
from pathlib import Path

VERSION = "0.1.14"
VENV = Path(__file__).parents[2] / ".bench" / "public"


def public_python() -> Path | None:
    """Its interpreter; the package is installed on first use. None when that fails."""
    python = VENV / "bin" / "python"
    if not python.exists():
        print(f"installing verifiers=={VERSION} into {VENV} …", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", f"verifiers=={VERSION}"]
        if subprocess.run(install, check=False).returncode:
            python.unlink()  # so that the next run tries again
            return None
    return python
