"""Which code, which data and which endpoint gave the numbers of a run: values and hashes, no secrets.

Two runs with equal `environment`, `dataset` and `prompt` hashes asked the same questions in the same way.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import orjson

from verifiers.runs.encoding import jsonable
from verifiers.runs.versions import (
    editable_folder,
    get_env_commit,
    get_env_version,
    get_package_source_path,
    get_vf_commit,
    get_vf_version,
    installed_package,
)

MAX_TREE_FILES = 5000
"""A source folder with more files is not hashed."""
MAX_FILE_BYTES = 64 << 20
"""Of larger files only name and size are hashed."""

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
    """Everything known of where a run's numbers come from, as JSON values.

    `client`: a ClientConfig, a client or an SDK client. `input_keys`: of the run's rows, in their order. `source`: the
    folder or file of an environment that was loaded from there by its path.
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
    """Number of rows, and one hash over their content hashes in order."""
    digest = hashlib.sha256()
    rows = 0
    for key in input_keys:
        digest.update(key.encode() + b"\n")
        rows += 1
    return {"rows": rows, "sha256": digest.hexdigest()}


# ------------------------------------------------------------------------------------- environment


def environment(env_id: str, source: Path | None = None) -> dict[str, Any]:
    """Version of an environment's package, and a hash of its wheel, of its source folder, or of its one file.

    The hash of an environment that is a single file covers that file, not what the file reads or imports.
    """
    package = installed_package(env_id) if source is None else None
    found: dict[str, Any] = {
        "id": env_id,
        "package": None if package is None else package.metadata["Name"],
        "version": get_env_version(env_id, source),
        "commit": get_env_commit(env_id, source),
        "wheel_sha256": None,
        "source_sha256": None,
    }
    folder = source or (None if package is None else editable_folder(package))
    if folder is None and package is not None:
        found["wheel_sha256"] = record_sha256(package)
    else:
        path = folder or get_package_source_path(env_id)
        found["source_sha256"] = None if path is None else tree_sha256(path)
    return found


def record_sha256(package: importlib.metadata.Distribution) -> str | None:
    """One hash over the file hashes that a wheel recorded; the same whichever installer unpacked it.

    Installers add lines to RECORD (compiled files, their own notes, scripts outside the package); these are left out.
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
    """One hash over names and contents of a file, or of a folder without hidden, built and output files.

    None when there are more than 5,000 files. Of files above 64 MiB only the size counts.
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
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _SKIPPED_FOLDERS
            and not name.endswith(".egg-info")
        )
        for name in sorted(files):
            file = Path(place, name)
            if not name.startswith(".") and not name.endswith(".pyc") and file.is_file():
                yield file


# ------------------------------------------------------------------------------------- endpoint and secrets


def endpoint_url(client: Any) -> str:
    """Where a client's requests go, without credentials; several endpoints are joined with commas; "" if unknown."""
    config = _config(client)
    if endpoints := getattr(config, "endpoint_configs", None):
        return ",".join(without_credentials(str(endpoint.api_base_url)) for endpoint in endpoints)
    url = getattr(config, "api_base_url", None) or getattr(client, "base_url", None)
    if url is None and hasattr(client, "client"):
        url = getattr(client.client, "base_url", None)  # our clients around an SDK client
    return without_credentials(str(url)) if url else ""


def _config(client: Any) -> Any:
    """The ClientConfig of whatever a caller passes as client."""
    if hasattr(client, "api_base_url"):
        return client
    return getattr(client, "config", None) or getattr(client, "_config", None)


def without_credentials(url: str) -> str:
    """A URL without user and password, and with the values of its query removed (`api-version` stays)."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return REMOVED  # what cannot be parsed cannot be cleaned
    if "@" not in parts.netloc and not parts.query:
        return url
    query = [
        (name, value if name in _PUBLIC_QUERY else REMOVED)
        for name, value in parse_qsl(parts.query)
    ]
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, urlencode(query, safe="[]"), ""))


def without_secrets(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as JSON values, with those replaced whose name says that they are a secret, at any depth."""
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
    """Hash of a value's JSON with sorted keys: equal for equal content."""
    return _sha256(orjson.dumps(jsonable(value), option=orjson.OPT_SORT_KEYS))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
