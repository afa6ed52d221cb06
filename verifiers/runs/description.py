"""The metadata of a run: the description made before the run, and the versions and hashes of code and data.

`RunDescription` with a summary becomes `metadata.json`. Provenance contains values and hashes, no secrets: two runs
with equal `environment`, `dataset` and `prompt` hashes had the same questions and the same prompts.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlencode, urlparse, urlsplit, urlunsplit
from urllib.request import url2pathname

import orjson

from verifiers.runs.output import jsonable
from verifiers.runs.store import FORMAT_VERSION
from verifiers.runs.summary import Summary, summarize
from verifiers.types import GenerateMetadata, VersionInfo

LIBRARY = "verifiers"
GIT_TIMEOUT_S = 5.0


def module_name(env_id: str) -> str:
    """Return `my_env` for `my-env`, `owner/my-env` and `owner/my-env@1.0`."""
    return env_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")


@functools.cache
def get_vf_version() -> str:
    """Return the version of this library."""
    return get_env_version(LIBRARY) or "unknown"


@functools.cache
def get_vf_commit() -> str | None:
    """Return the commit of this library if it was installed from git or runs from a checkout."""
    return get_env_commit(LIBRARY)


def get_env_version(env_id: str, source: Path | None = None) -> str | None:
    """Return the version of an environment's package, or of its project folder if loaded from the path `source`; or
    None.
    """
    if source is not None:
        return project_version(source)
    package = installed_package(env_id)
    return None if package is None else package.version


def project_version(source: Path) -> str | None:
    """Return the version in the pyproject.toml of a folder; None for a single file and for a folder without one."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    version = project.get("version") if isinstance(project, dict) else None
    return version if isinstance(version, str) else None


def get_env_commit(env_id: str, source: Path | None = None) -> str | None:
    """Return the commit that an environment was installed from, or that its folder is checked out at; else None."""
    if source is not None:
        return get_commit_for_path(source)
    package = installed_package(env_id)
    if package is not None:
        vcs = direct_url(package).get("vcs_info")
        if isinstance(vcs, dict) and vcs.get("commit_id"):
            return vcs["commit_id"]
    path = get_package_source_path(env_id)
    return None if path is None else get_commit_for_path(path)


def get_version_info(env_id: str, source: Path | None = None) -> VersionInfo:
    """Return versions and commits of the library and of an environment; None if unknown.

    `source` is the path that the environment was loaded from, unless it was loaded by its id.
    """
    return {
        "vf_version": get_vf_version(),
        "vf_commit": get_vf_commit(),
        "env_version": get_env_version(env_id, source),
        "env_commit": get_env_commit(env_id, source),
    }


def installed_package(env_id: str) -> importlib.metadata.Distribution | None:
    """Return the installed package of an environment; package and module have the same name except for `-` and `_`."""
    try:
        return importlib.metadata.distribution(module_name(env_id))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def direct_url(package: importlib.metadata.Distribution) -> dict[str, object]:
    """Return the origin of a package (PEP 610); empty for a package from an index."""
    try:
        record = json.loads(package.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def editable_folder(package: importlib.metadata.Distribution) -> Path | None:
    """Return the project folder of a package that is installed as editable; else None."""
    record = direct_url(package)
    info, url = record.get("dir_info"), record.get("url")
    if not (isinstance(info, dict) and info.get("editable") and isinstance(url, str)):
        return None
    folder = Path(url2pathname(urlparse(url).path))
    return folder if folder.is_dir() else None


def get_package_source_path(package_name: str) -> Path | None:
    """Return the folder of an installed package's module, or the file of a one-file module. Imports nothing."""
    try:
        spec = importlib.util.find_spec(module_name(package_name))
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.origin not in ("built-in", "frozen") else None


def get_commit_for_path(path: Path) -> str | None:
    """Return the commit of the checkout that contains `path`, if git tracks `path` there.

    A package inside a virtual environment that lies in a repository is not part of that repository.
    """
    folder = path if path.is_dir() else path.parent
    if not _git(folder, "ls-files", "--", str(path)):
        return None
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # a short, read-only question; without git the answer is None
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


MAX_TREE_FILES = 5000
"""Maximum number of files of a source folder that is hashed."""
MAX_FILE_BYTES = 64 << 20
"""Maximum size of a file whose content is hashed; of larger files only name and size count."""

_SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules", "outputs", "venv"})
_SECRET_NAMES = frozenset({"authorization", "api_key", "apikey", "token", "password", "secret"})
_PUBLIC_QUERY = frozenset({"api-version"})
REMOVED = "[removed]"


def provenance(
    *,
    env_id: str,
    client: Any = None,
    sampling_args: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    tools: Sequence[Any] | None = None,
    input_keys: Iterable[str] = (),
    source: Path | None = None,
) -> dict[str, Any]:
    """Return the origin of a run's numbers as JSON values.

    `client`: a ClientConfig, a client or an SDK client. `input_keys`: of the run's rows, in order. `source`: the
    folder or file of an environment that was loaded by its path.
    """
    return {
        "library": {"version": get_vf_version(), "commit": get_vf_commit()},
        "environment": environment(env_id, source),
        "dataset": dataset(input_keys),
        "sampling": without_secrets(sampling_args or {}),
        "prompt": {
            "system_prompt_sha256": None
            if system_prompt is None
            else _sha256(system_prompt.encode()),
            "tools_sha256": None if not tools else canonical_sha256(tools),
        },
        "endpoint": endpoint_url(client),
        "client_type": getattr(_config(client), "client_type", None),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def dataset(input_keys: Iterable[str]) -> dict[str, Any]:
    """Return the number of rows, and one hash over their content hashes in order."""
    digest = hashlib.sha256()
    rows = 0
    for key in input_keys:
        digest.update(key.encode() + b"\n")
        rows += 1
    return {"rows": rows, "sha256": digest.hexdigest()}


# --- environment


def environment(env_id: str, source: Path | None = None) -> dict[str, Any]:
    """Return the version of an environment's package, and a hash of its wheel, its source folder, or its one file.

    The hash of an environment that is a single file covers that file, not the files that it reads or imports.
    """
    package = installed_package(env_id) if source is None else None
    values: dict[str, Any] = {
        "id": env_id,
        "package": None if package is None else package.metadata["Name"],
        "version": get_env_version(env_id, source),
        "commit": get_env_commit(env_id, source),
        "wheel_sha256": None,
        "source_sha256": None,
    }
    folder = source or (None if package is None else editable_folder(package))
    if folder is None and package is not None:
        values["wheel_sha256"] = record_sha256(package)
    else:
        path = folder or get_package_source_path(env_id)
        values["source_sha256"] = None if path is None else tree_sha256(path)
    return values


def record_sha256(package: importlib.metadata.Distribution) -> str | None:
    """Return one hash over the file hashes that a wheel recorded; it does not depend on the installer.

    Installers add lines to RECORD (compiled files, their own notes, scripts outside the package); these are skipped.
    """
    lines = []
    for line in (package.read_text("RECORD") or "").splitlines():
        path, _, rest = line.rpartition(",")[0].rpartition(",")
        name = path.rpartition("/")[2]
        if (
            rest
            and not path.startswith("..")
            and not path.endswith(".pyc")
            and name not in _INSTALLER_FILES
        ):
            lines.append(f"{path},{rest}")
    return _sha256("\n".join(sorted(lines)).encode()) if lines else None


_INSTALLER_FILES = frozenset(
    {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json", "uv_build.json"}
)


def tree_sha256(path: Path) -> str | None:
    """Return one hash over names and contents of a file, or of a folder without hidden, built and output files.

    Returns None for more than 5,000 files. Of files above 64 MiB only the size counts.
    """
    if path.is_file():
        return _sha256(path.read_bytes())
    digest = hashlib.sha256()
    for number, file in enumerate(_source_files(path)):
        if number >= MAX_TREE_FILES:
            return None
        digest.update(f"{file.relative_to(path).as_posix()}\0".encode())
        size = file.stat().st_size
        content = file.read_bytes() if size <= MAX_FILE_BYTES else str(size).encode()
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()


def _source_files(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
        )
        for name in sorted(files):
            file = Path(parent, name)
            if not name.startswith(".") and not name.endswith(".pyc") and file.is_file():
                yield file


# --- endpoint and secrets


def endpoint_url(client: Any) -> str:
    """Return the URL that a client's requests go to, without credentials; several are joined with commas; "" if
    unknown.
    """
    config = _config(client)
    if endpoints := getattr(config, "endpoint_configs", None):
        return ",".join(without_credentials(str(endpoint.api_base_url)) for endpoint in endpoints)
    url = getattr(config, "api_base_url", None) or getattr(client, "base_url", None)
    if url is None and hasattr(client, "client"):
        url = getattr(client.client, "base_url", None)  # the library's clients around an SDK client
    return without_credentials(str(url)) if url else ""


def _config(client: Any) -> Any:
    """Return the ClientConfig of any value that callers pass as client."""
    if hasattr(client, "api_base_url"):
        return client
    return getattr(client, "config", None) or getattr(client, "_config", None)


def without_credentials(url: str) -> str:
    """Return a URL without user and password, and without the values of its query (`api-version` stays)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REMOVED  # a URL that cannot be parsed cannot be cleaned
    if "@" not in parts.netloc and not parts.query:
        return url
    query = [
        (name, value if name in _PUBLIC_QUERY else REMOVED)
        for name, value in parse_qsl(parts.query)
    ]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, urlencode(query, safe="[]"), ""))


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON values; values with a secret's name are replaced, at any depth."""
    return _without_secrets(jsonable(settings))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: REMOVED if _is_secret(k) else _without_secrets(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value


def _is_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_").removeprefix("x_")
    return plain in _SECRET_NAMES or plain.endswith(("_api_key", "_secret", "_password"))


def canonical_sha256(value: Any) -> str:
    """Return the hash of a value's JSON with sorted keys, which is equal for equal content."""
    return _sha256(orjson.dumps(jsonable(value), option=orjson.OPT_SORT_KEYS))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _now() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class RunDescription:
    """The request of a run: environment, model, size and settings."""

    env_id: str
    model: str
    num_examples: int
    rollouts_per_example: int
    env_args: Mapping[str, Any] = field(default_factory=dict)
    base_url: str = ""
    """Endpoint without credentials; see `provenance.endpoint_url`."""
    sampling_args: Mapping[str, Any] = field(default_factory=dict)
    state_columns: Sequence[str] = ()
    path_to_save: Path | None = None
    pass_threshold: float = 0.5
    version_info: VersionInfo | None = None
    provenance: Mapping[str, Any] | None = None
    """See `provenance.provenance`."""
    date: str = field(default_factory=_now)
    """Start of the run, ISO 8601 with time zone."""

    def metadata(
        self,
        summary: Summary | None = None,
        *,
        time_s: float | None = None,
        tools: list[Any] | None = None,
    ) -> GenerateMetadata:
        """Return the metadata of 0.1.14 under its names, with further keys.

        Further keys: `format_version`, `avg_reward_error_free`, `reward_stderr`, `reward_ci95`, `num_errors`,
        `num_failed`, `num_reward_errors`, `num_truncated`, `cost` (if a price is known), `provenance`. A value that
        cannot be computed, e.g. the standard error of one example, is None. `tools`: the tools that every rollout had.
        """
        summary = summarize([], self.pass_threshold) if summary is None else summary
        reward, clean = summary.reward, summary.reward_error_free
        metadata: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "env_id": self.env_id,
            "env_args": dict(self.env_args),
            "model": self.model,
            "base_url": self.base_url,
            "num_examples": self.num_examples,
            "rollouts_per_example": self.rollouts_per_example,
            "sampling_args": dict(self.sampling_args),
            "date": self.date,
            "time": summary.wall_time_s if time_s is None else time_s,
            "avg_reward": reward.mean if summary.rollouts else 0.0,
            "avg_reward_error_free": _number(clean.mean),
            "reward_stderr": _number(reward.stderr),
            "reward_ci95": None if math.isnan(reward.low) else [reward.low, reward.high],
            "avg_metrics": {name: metric.estimate.mean for name, metric in summary.metrics.items()},
            "avg_error": summary.error_rate,
            "num_errors": summary.error_count,
            "num_failed": summary.failed,
            "num_reward_errors": summary.reward_error_rollouts,
            "num_truncated": summary.truncated,
            "pass_at_k": {str(k): estimate.mean for k, estimate in summary.pass_at_k.items()},
            "pass_all_k": {str(k): estimate.mean for k, estimate in summary.pass_all_k.items()},
            "pass_threshold": self.pass_threshold,
            "usage": summary.tokens.per_rollout,
            "version_info": self.version_info,
            "state_columns": list(self.state_columns),
            "path_to_save": self.path_to_save,
            "tools": tools,
            "provenance": None if self.provenance is None else dict(self.provenance),
        }
        if summary.cost is not None:
            metadata["cost"] = summary.cost
        return cast(GenerateMetadata, metadata)  # with further keys


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
