"""The sandbox in which a rollout is scored: no process of the model runs there, and no file of the model is loaded.

| `score_in` | `post_rollout` and the reward functions use |
|---|---|
| "snapshot" | a new sandbox with the files of the model's sandbox |
| "own" | the model's sandbox, after all processes in it have been killed |
| "live" | the model's sandbox as it is, for tasks that need a server which the model has started. Processes that the |
| | model left running can forge the verdict |

With "snapshot" and "own", commands have an empty HOME with links to the visible files of the old HOME. Python finds
the standard library before any file of the model, and loads neither packages of the user nor byte code from beside
the sources. Programs and libraries in places that the model can write are not used.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from verifiers.errors import ConfigError, SandboxError
from verifiers.sandboxes import Sandbox, SandboxBackend, SandboxFileError

ScoreIn = Literal["snapshot", "own", "live"]
ROOM_MB = 64
"""Additional disk space and memory of the second sandbox. The verdict can be written even if the model has filled
its own sandbox.
"""
ROOM_FILES = 2000
_SAFE_PATH = "/usr/local/bin:/usr/bin:/bin"
_WRITABLE = ("/tmp", "/var/tmp", "/dev/shm", "/proc")
_SEARCH_PATHS = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "LD_AUDIT",
    "PERL5LIB",
    "RUBYLIB",
    "NODE_PATH",
    "CLASSPATH",
)
"""Variables with lists of files or directories to load from, besides PATH and PYTHONPATH."""
_FILES = (
    "BASH_ENV",
    "ENV",
    "PYTHONSTARTUP",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_TEMPLATE_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)
"""Variables with one file or directory to load from."""
_GIT = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.pager": "cat",
}
_GUARD = Path(__file__).with_name(
    "scoring_path.py"
)  # uploaded, never imported here: it changes how modules are found
_PATH_VARIABLE = "SANDBOX_SCORING_PYTHONPATH"
_LAYOUT = r"""
umask 077
old=$HOME
d=$(mktemp -d "${TMPDIR:-/tmp}/scoring-XXXXXXXXXX") && mkdir "$d/home" "$d/python" || exit 1
cat > "$d/python/sitecustomize.py" || exit 1
find "$old" -mindepth 1 -maxdepth 1 ! -name '.*' -exec sh -c 'ln -s "$@" "$0/"' "$d/home" {} + 2>/dev/null
printf %s "$d"
"""
_logger = logging.getLogger(__name__)


def check_score_in(score_in: str | None) -> ScoreIn | None:
    """Return the value, or None for the default. Raises ConfigError for another value."""
    if score_in is None or score_in in get_args(ScoreIn):
        return score_in  # pyright: ignore[reportReturnType] # it has just been checked
    raise ConfigError(
        f"score_in={score_in!r} is not a valid value. Choose 'snapshot', 'own' or 'live'."
    )


def default_score_in(sandbox: Sandbox, backend: SandboxBackend) -> ScoreIn:
    """Return the first mode that a sandbox supports. A snapshot lacks the changed files of a writable image."""
    is_copied = "snapshot" in backend.capabilities and not sandbox.spec.writable_image
    return "snapshot" if is_copied else "own"


async def scoring_sandbox(
    sandbox: Sandbox,
    backend: SandboxBackend,
    score_in: ScoreIn | None,
    variables: Mapping[str, str] | None,
) -> Sandbox:
    """Return the sandbox to score in: `sandbox` itself, cleaned, or a new one with its files.

    Nothing that the model has left makes this function fail. Raises SandboxError if the sandbox is gone or the new one
    did not start.
    """
    if score_in == "live":
        return sandbox
    await sandbox.end_processes()
    if score_in is None:
        score_in = default_score_in(sandbox, backend)
    scoring = await copied_sandbox(sandbox, backend) if score_in == "snapshot" else None
    if scoring is None:
        scoring = sandbox
    try:
        await prepare_scoring(scoring, variables)
    except BaseException:
        if scoring is not sandbox:
            await scoring.terminate()
        raise
    return scoring


async def prepare_scoring(sandbox: Sandbox, variables: Mapping[str, str] | None) -> None:
    """Give later commands a clean HOME and clean variables."""
    folder = await _lay_out(sandbox)
    sandbox.set_variables({**clean_variables(sandbox, folder), **(variables or {})})


async def copied_sandbox(sandbox: Sandbox, backend: SandboxBackend) -> Sandbox | None:
    """Return a new sandbox with the files of another one, or None if the files cannot be copied."""
    spec = sandbox.spec
    roomy = spec.model_copy(
        update={
            "memory_mb": spec.memory_mb + 2 * ROOM_MB,
            "disk_mb": spec.disk_mb + ROOM_MB,
            "max_files": spec.max_files + ROOM_FILES,
            "files": {},  # the model may have deleted them
        }
    )
    try:
        snapshot = await sandbox.snapshot()
    except SandboxFileError as error:
        return _not_copied(sandbox, error)
    scoring = await backend.create(roomy, snapshot=snapshot)
    try:
        await scoring.ready()
    except SandboxError as error:
        await scoring.terminate()
        return _not_copied(sandbox, error)
    except BaseException:
        await scoring.terminate()
        raise
    return scoring


def _not_copied(sandbox: Sandbox, error: Exception) -> None:
    _logger.warning(
        "Sandbox %s cannot be copied (%s). The rollout is scored in its own sandbox, which is cleaned first.",
        sandbox.id,
        error,
    )


async def _lay_out(sandbox: Sandbox) -> str | None:
    """Create a new directory for HOME and for Python, with a name that the model cannot guess. Return None if there is
    no space for it.
    """
    quiet = dict.fromkeys((*_SEARCH_PATHS, *_FILES), "")
    result = await sandbox.exec(
        ["/bin/sh", "-c", _LAYOUT],
        stdin=await asyncio.to_thread(_GUARD.read_bytes),
        env={**quiet, "PATH": _SAFE_PATH},
        cwd="/",
        timeout_s=30,
    )
    return result.text if result.ok and result.text.startswith("/") else None


def clean_variables(sandbox: Sandbox, folder: str | None) -> dict[str, str]:
    """Return the environment variables of scoring commands. They take precedence over those of the sandbox."""
    spec = sandbox.spec
    writable = (*_WRITABLE, sandbox.info.workdir, posixpath.dirname(sandbox.info.workdir))
    writable = tuple(path for path in (*writable, *spec.folders) if path != "/")
    cleaned = {
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "SANDBOX_SCORING": "1",
        "GIT_PAGER": "cat",
        "GIT_CONFIG_COUNT": str(len(_GIT)),
        "HOME": f"{folder}/home" if folder else "/nonexistent",
        "PYTHONPATH": f"{folder}/python" if folder else "",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode" if folder else "/nonexistent",
        _PATH_VARIABLE: "",
    }
    for number, (name, value) in enumerate(_GIT.items()):
        cleaned |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    for name in (*_SEARCH_PATHS, *_FILES, "PATH"):
        value = spec.env.get(name)
        if value is None:
            continue
        parts = value.replace(" ", ":").split(":") if name == "LD_PRELOAD" else value.split(":")
        kept = ":".join(part for part in parts if not _is_reachable(part, writable))
        if kept != value:
            _logger.warning(
                "%s=%r contains paths that the model can write; scoring has %s=%r. Set score_env={%r: …} to change it.",
                name,
                value,
                name,
                kept,
                name,
            )
            cleaned[name] = kept or (_SAFE_PATH if name == "PATH" else "")
    python_path = spec.env.get("PYTHONPATH", "")
    if folder:
        safe = [part for part in python_path.split(":") if not _is_reachable(part, writable)]
        cleaned["PYTHONPATH"] = ":".join([cleaned["PYTHONPATH"], *safe])
        late = [part for part in python_path.split(":") if part and part not in safe]
        cleaned[_PATH_VARIABLE] = ":".join(late)
    else:
        cleaned["PYTHONPATH"] = python_path
    return cleaned


def _is_reachable(path: str, writable: tuple[str, ...]) -> bool:
    """Return whether the model can write to this path."""
    if not path.startswith("/"):
        return True
    path = posixpath.normpath(path)
    return any(path == folder or path.startswith(folder + "/") for folder in writable)
