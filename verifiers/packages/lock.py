"""A lock file (`pylock.toml`, PEP 751) of published environments with all their dependencies.

The environments are pinned by address and hash. uv or pip resolves their other dependencies from the user's own
index.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from verifiers.errors import ConfigError
from verifiers.files import replace_file
from verifiers.packages.build import last_lines, uv_command
from verifiers.packages.install import INSTALL_TIMEOUT_S, Installer, InstallError, installer_command
from verifiers.packages.published import PublishedWheel


def write_lock(wheels: Sequence[PublishedWheel], file: Path, installer: Installer) -> None:
    """Write a lock of these wheels for the installer's Python. An earlier lock is replaced only on success.

    `uv pip sync FILE` and `pip install -r FILE` (26 and later) install exactly the lock. Raises ConfigError,
    InstallError.
    """
    if not (
        file.name == "pylock.toml" or (file.name.startswith("pylock.") and file.suffix == ".toml")
    ):
        raise ConfigError(
            f"A lock must be named pylock.toml or pylock.NAME.toml (PEP 751), not {file.name}."
        )
    variables: dict[str, str] = {}
    for wheel in wheels:
        for name, value in wheel.variables.items():
            if variables.setdefault(name, value) != value:
                raise ConfigError(
                    f"{wheel.name} and another environment need different values of {name} to be read; lock them with "
                    "a token for both."
                )
    requirements = [
        line for wheel in wheels for line in (wheel.requirement, *wheel.url_dependencies)
    ]
    with tempfile.TemporaryDirectory(prefix="prime-lock-") as scratch:
        requirements_file = Path(scratch) / "requirements.txt"
        pins = Path(scratch) / "constraints.txt"
        lines = [line for wheel in wheels for line in wheel.dependencies]
        pins.write_text("\n".join(dict.fromkeys(lines)) + "\n")
        requirements_file.write_text("\n".join([f"-c {pins.name}", *requirements]) + "\n")
        made = Path(scratch) / file.name
        if installer.program != "pip" and (uv := uv_command()) is not None:
            command = [
                *uv,
                "pip",
                "compile",
                "--quiet",
                "--python",
                installer.python,
                "--no-header",
            ]
            command += [
                "--format",
                "pylock.toml",
                "--output-file",
                str(made),
                str(requirements_file),
            ]
        else:
            command = [
                *installer_command(installer),
                "lock",
                "-r",
                str(requirements_file),
                "-o",
                str(made),
            ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            env={**os.environ, **installer.variables, **variables},
        )
        if 'unknown command "lock"' in done.stderr:
            raise ConfigError("This pip cannot write locks; install uv, or pip 25.1 or newer.")
        if done.returncode or not made.is_file():
            raise InstallError(f"Locking failed:\n{last_lines(done.stderr or done.stdout)}")
        replace_file(file, made.read_bytes())
