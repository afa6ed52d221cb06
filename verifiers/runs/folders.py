"""Run folders: `{base}/evals/{env_id}--{model}/{8 hex digits}` (the layout of 0.1.14), and the lock of a folder.

The base is the output folder that the user names; else `environments/{env}/outputs` if that environment's folder
exists; else `outputs`. One process at a time writes a run folder: the lock ends with the process that holds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.errors import Error

if TYPE_CHECKING:
    from verifiers.configs import EvalConfig

RESULTS_FILE = "results.jsonl"
METADATA_FILE = "metadata.json"
V1_RESULTS_FILE = "traces.jsonl"
"""File of a run of verifiers 0.4 and later."""


def base_folder(
    env_id: str, env_dir_path: str | Path = "./environments", output_dir: str | Path | None = None
) -> Path:
    """Return the folder for all outputs of an environment."""
    if output_dir is not None:
        return Path(output_dir)
    local = Path(env_dir_path) / env_id.replace("-", "_")
    return local / "outputs" if local.is_dir() else Path("outputs")


def named_folder(
    env_id: str, model: str, base_path: Path = Path("outputs"), subdir: str = "evals"
) -> Path:
    """Return a new name for one run. Creates nothing."""
    return base_path / subdir / f"{env_id}--{model.replace('/', '--')}" / secrets.token_hex(4)


def runs_folder(
    env_id: str,
    model: str,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """Return the folder that holds all runs of one environment with one model."""
    return named_folder(env_id, model, base_folder(env_id, env_dir_path, output_dir)).parent


def new_run_folder(
    env_id: str,
    model: str,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """Return a name that no run has yet. Creates nothing."""
    while True:
        folder = named_folder(env_id, model, base_folder(env_id, env_dir_path, output_dir))
        if not folder.exists():
            return folder


SCRATCH_RUNS = 20
"""Number of runs that stay in the scratch folder."""


def scratch_base() -> Path:
    """Return the folder of runs without `-s`: `verifiers` in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "verifiers"


def new_scratch_folder(env_id: str, model: str) -> Path | None:
    """Create an empty folder for a run without `-s`, and remove all but the newest of these runs.

    Runs that another process is writing stay. Returns None if the folder cannot be created.
    """
    base = scratch_base()
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = new_run_folder(env_id, model, output_dir=base)
        folder.mkdir(parents=True)
        runs = sorted(scratch_runs(), key=lambda run: (run / RESULTS_FILE).stat().st_mtime_ns)
        for old in runs[: max(0, len(runs) - SCRATCH_RUNS + 1)]:
            if not (old / LOCK_FILE).exists():
                shutil.rmtree(old, ignore_errors=True)
                with contextlib.suppress(OSError):
                    old.parent.rmdir()  # the last run of this environment and model
    except OSError as error:
        logger.info("Runs without -s are not kept: %s", error)
        return None
    return folder


def scratch_runs() -> list[Path]:
    """Return the run folders in the scratch folder, in no particular order."""
    folders = (scratch_base() / "evals").glob("*/*")
    return [folder for folder in folders if is_run_folder(folder)]


def folder_for(config: EvalConfig) -> Path:
    """Return a new name for the run that `config` describes."""
    return new_run_folder(config.env_id, config.model, config.env_dir_path, config.output_dir)


def is_run_folder(path: Path) -> bool:
    """Whether `path` is a folder with both files of a run."""
    return (path / RESULTS_FILE).is_file() and (path / METADATA_FILE).is_file()


def not_a_run(path: Path) -> str:
    """Return why a folder is not a run; a folder of verifiers 0.4 is named as such."""
    if (path / V1_RESULTS_FILE).is_file():
        return (
            f"{path} is a run of verifiers 0.4 or later: it has {V1_RESULTS_FILE}. Only that version can continue or "
            "upload it. Start a new run here."
        )
    return f"{path} is not a saved run: it needs {RESULTS_FILE} and {METADATA_FILE}."


def saved_runs(folder: Path) -> list[Path]:
    """Return the run folders directly inside `folder`, the most recently written first."""
    if not folder.is_dir():
        return []
    runs = [path for path in folder.iterdir() if is_run_folder(path)]
    return sorted(
        runs, key=lambda path: ((path / RESULTS_FILE).stat().st_mtime_ns, path.name), reverse=True
    )


def write_temp_file(content: str, suffix: str = ".txt") -> str:
    """Return the path of a new temporary file with this text. The caller deletes the file."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix, delete=False, encoding="utf-8") as file:
        file.write(content)
    return file.name


def prompt_search_folder(
    env_id: str,
    model: str,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """Return a new name for a search for a better system prompt: `{base}/gepa/{env_id}--{model}/{8 hex digits}`."""
    return named_folder(env_id, model, base_folder(env_id, env_dir_path, output_dir), "gepa")


try:
    import fcntl
except ImportError:  # Windows: runs work there, but no lock keeps two processes apart
    fcntl = None

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"


class RunLocked(Error, BlockingIOError):
    """Another process, or another store in this process, is writing the run."""


class FolderLock:
    """The lock of a folder for one writer.

    The kernel drops the lock when its holder dies, for any reason. One case needs help: a child that a dead writer has
    forked keeps the lock. The file therefore names the writer, and the lock of a dead writer is taken over.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Acquire the lock. Raises RunLocked with the holder, OSError if the folder cannot be written."""
        with _only_one_acquires(self.path.parent):
            descriptor = self._opened()
            if not _try_lock(descriptor):
                owner = _owner(descriptor)
                os.close(descriptor)
                if not _is_dead(owner):
                    raise RunLocked(
                        f"{self.path.parent} is being written by {_named(owner)}. Wait for it or stop it; "
                        "two writers would damage the run."
                    )
                logger.warning(
                    "Taking over %s: its owner, %s, has ended.", self.path, _named(owner)
                )
                self.path.unlink(missing_ok=True)
                descriptor = self._opened()
                _try_lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(
                descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            )
            self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with _only_one_acquires(self.path.parent):
                if _is_at(descriptor, self.path):
                    self.path.unlink(missing_ok=True)
                os.close(descriptor)

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def is_being_written(folder: Path) -> bool:
    """Whether a live process holds the lock of a run folder. A process on another machine counts as alive."""
    try:
        owner = json.loads((folder / LOCK_FILE).read_bytes() or b"{}")
    except (OSError, ValueError):
        return False
    return not _is_dead(owner if isinstance(owner, dict) else {})


@contextlib.contextmanager
def _only_one_acquires(folder: Path) -> Generator[None]:
    """Keep other processes from creating or removing the lock file of this folder; a takeover would race otherwise."""
    if fcntl is None or not folder.is_dir():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _owner(descriptor: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _is_dead(owner: dict[str, Any]) -> bool:
    """Whether the owner ran on this machine and has ended. Owners on other machines count as alive."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid <= 0 or owner.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _named(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process"
    if owner.get("pid") == os.getpid():
        return f"this process (pid {os.getpid()})"
    return f"process {owner.get('pid')} on {owner.get('host')}"
