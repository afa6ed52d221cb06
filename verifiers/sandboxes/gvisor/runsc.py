"""Options of the gVisor back end, and the state on this machine that all its sandboxes share."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from verifiers.sandboxes.errors import SandboxCreationError, SandboxImageError
from verifiers.sandboxes.gvisor import statx_workaround
from verifiers.sandboxes.gvisor.root import Root, host_root, image_root
from verifiers.sandboxes.local.zygote import cgroups
from verifiers.sandboxes.owned_folders import make_folder, remove_folder
from verifiers.sandboxes.spec import SandboxSpec


class GVisorConfig(BaseModel):
    """Options of the gVisor back end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    program: str | None = None
    """Path of the program. None: `runsc` in PATH."""
    platform: Literal["ptrace", "systrap", "kvm"] | None = None
    """How gVisor intercepts system calls. None: the default of this build of runsc ("systrap" since 2023, "ptrace"
    before). "ptrace" works everywhere, "kvm" needs /dev/kvm and is the fastest on bare metal.
    """
    python: str = "python3"
    """Interpreter in images other than "host"."""
    use_cgroups: bool = True
    """Also limit memory, processes and CPU from outside, by control groups, where this is possible."""
    run_as: int | None = Field(default=None, ge=1)
    """As root only: run gVisor as this user (`--rootless`). This user must be able to read the interpreter."""
    start_timeout_s: float = Field(default=60.0, gt=0)
    """Time limit until the guest is ready."""
    max_starting: int | None = Field(default=None, ge=1)
    """Number of sandboxes that start at the same time. None: twice the number of cores, because a start needs CPU
    time.
    """


VERSION_TIMEOUT_S = 30.0
_TIDY_ATTEMPTS, _TIDY_INTERVAL_S = 50, 0.02
_HOW_TO_INSTALL = (
    "Install it (Debian and Ubuntu: `apt-get install runsc`; others: https://gvisor.dev/docs/user_guide/install), or "
    "name it in GVisorConfig(program=…)."
)


class RunscHost:
    """The shared directory, root file systems and control groups of one back end, and its runsc command.

    The constructor blocks, so it runs in a thread. Several threads use the object.
    """

    def __init__(self, config: GVisorConfig) -> None:
        program = config.program or shutil.which("runsc")
        if program is None:
            raise SandboxCreationError(f"The program 'runsc' is not in PATH. {_HOW_TO_INSTALL}")
        self._config = config
        self._lock = threading.Lock()
        self._roots: dict[tuple[str, ...], Root] = {}
        self.build_date = build_date(program)
        self.groups = cgroups.ControlGroups()
        self.run_as = config.run_as if os.getuid() == 0 else None
        if config.use_cgroups and self.run_as is None:
            self.groups.open()
        self.folder = make_folder()
        # gVisor's user must be able to enter this folder; the names in it cannot be guessed.
        os.chmod(self.folder, 0o711)
        state = os.path.join(self.folder, "state")
        os.mkdir(state, 0o700)
        if self.run_as is not None:
            os.chown(state, self.run_as, self.run_as)
        self.runsc = [program, f"--root={state}", "--network=none", "--ignore-cgroups"]
        self.runsc += [
            "--log=/dev/null"
        ]  # otherwise runsc would print warnings on stdout, into the stream
        if config.platform is not None:
            self.runsc.append(f"--platform={config.platform}")
        if os.getuid() != 0 or self.run_as is not None:
            self.runsc.append("--rootless")

    def root_for(self, spec: SandboxSpec) -> Root:
        """Return the root file system for a specification; made at the first call."""
        interpreter = _interpreter(spec)
        kind = (spec.image, *interpreter, *spec.host_names)
        with self._lock:
            if kind not in self._roots:
                path = os.path.join(self.folder, f"root-{len(self._roots)}")
                with_shim = self._needs_shim
                if spec.image == "host":
                    self._roots[kind] = host_root(
                        path, interpreter, spec.host_names, with_shim=with_shim
                    )
                else:
                    python = spec.python or self._config.python
                    self._roots[kind] = image_root(path, spec.image, python, with_shim=with_shim)
            return self._roots[kind]

    @property
    def _needs_shim(self) -> bool:
        is_old = (
            self.build_date is not None and self.build_date < statx_workaround.FIRST_WITHOUT_FAULT
        )
        return is_old and os.uname().machine == "x86_64"

    def release_group(self, name: str) -> None:
        """Release the control group of an ended container."""
        with self._lock:
            self.groups.release(name)

    def close(self) -> None:
        """Remove everything. All containers have ended before."""
        for _ in range(_TIDY_ATTEMPTS):
            if not self.groups.tidy():
                break
            time.sleep(_TIDY_INTERVAL_S)
        self.groups.close()
        remove_folder(self.folder)


def build_date(program: str) -> int | None:
    """Return the date of a build of runsc as a number such as 20221219; None if its version has no date.

    Raises SandboxCreationError if the program is not runsc.
    """
    try:
        completed = subprocess.run(
            [program, "--version"], capture_output=True, timeout=VERSION_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxCreationError(
            f"{program} cannot be executed: {error}. {_HOW_TO_INSTALL}"
        ) from error
    text = (completed.stdout + completed.stderr).decode("utf-8", "replace")
    if completed.returncode != 0 or "runsc" not in text:
        raise SandboxCreationError(
            f"{program} is not runsc: `--version` printed {text.strip()[-200:]!r}."
        )
    match = re.search(r"(?<!\d)(20\d{6})(?!\d)", text)
    return None if match is None else int(match.group(1))


def _interpreter(spec: SandboxSpec) -> tuple[str, ...]:
    """Return the interpreter and its flags; -S limits it to the standard library."""
    if spec.image != "host":
        return (spec.python or "",)
    if spec.packages == "host":
        return spec.python or sys.executable, "-I", "-B"
    if spec.packages is not None:
        python = Path(spec.packages) / "bin" / "python"
        if not python.exists():
            raise SandboxImageError(f"packages={spec.packages!r} is not a virtual environment.")
        return str(python), "-I", "-B"
    base: str = getattr(sys, "_base_executable", sys.executable)
    return spec.python or os.path.realpath(base), "-I", "-B", "-S"
