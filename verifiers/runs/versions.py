"""Which version and which commit of this library and of an environment is installed."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import subprocess
import tomllib
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from verifiers.types import VersionInfo

LIBRARY = "verifiers"
GIT_TIMEOUT_S = 5.0


def module_name(env_id: str) -> str:
    """`my_env` for `my-env`, `owner/my-env` and `owner/my-env@1.0`."""
    return env_id.rsplit("/", 1)[-1].split("@", 1)[0].replace("-", "_")


@functools.cache
def get_vf_version() -> str:
    """The version of this library."""
    return get_env_version(LIBRARY) or "unknown"


@functools.cache
def get_vf_commit() -> str | None:
    """The commit of this library, when it was installed from git or runs from a checkout."""
    return get_env_commit(LIBRARY)


def get_env_version(env_id: str, source: Path | None = None) -> str | None:
    """Version of an environment's package; of its project folder when it was loaded from the path `source`; or None."""
    if source is not None:
        return project_version(source)
    found = installed_package(env_id)
    return None if found is None else found.version


def project_version(source: Path) -> str | None:
    """Version in the pyproject.toml of a folder; None for a single file and for a folder without one."""
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text("utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    version = project.get("version") if isinstance(project, dict) else None
    return version if isinstance(version, str) else None


def get_env_commit(env_id: str, source: Path | None = None) -> str | None:
    """Commit that an environment was installed from, or that its folder is checked out at; else None."""
    if source is not None:
        return get_commit_for_path(source)
    found = installed_package(env_id)
    if found is not None:
        vcs = direct_url(found).get("vcs_info")
        if isinstance(vcs, dict) and vcs.get("commit_id"):
            return vcs["commit_id"]
    path = get_package_source_path(env_id)
    return None if path is None else get_commit_for_path(path)


def get_version_info(env_id: str, source: Path | None = None) -> VersionInfo:
    """Versions and commits of the library and of an environment; None where not known.

    `source` is the path that the environment was loaded from, when it was not loaded by its id.
    """
    return {
        "vf_version": get_vf_version(),
        "vf_commit": get_vf_commit(),
        "env_version": get_env_version(env_id, source),
        "env_commit": get_env_commit(env_id, source),
    }


def installed_package(env_id: str) -> importlib.metadata.Distribution | None:
    """The installed package of an environment; package and module have the same name but for `-` and `_`."""
    try:
        return importlib.metadata.distribution(module_name(env_id))
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def direct_url(package: importlib.metadata.Distribution) -> dict[str, object]:
    """Where a package was installed from (PEP 610); empty for one from an index."""
    try:
        found = json.loads(package.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def editable_folder(package: importlib.metadata.Distribution) -> Path | None:
    """The project folder of a package that is installed as editable; else None."""
    found = direct_url(package)
    info, url = found.get("dir_info"), found.get("url")
    if not (isinstance(info, dict) and info.get("editable") and isinstance(url, str)):
        return None
    folder = Path(url2pathname(urlparse(url).path))
    return folder if folder.is_dir() else None


def get_package_source_path(package_name: str) -> Path | None:
    """The folder of an installed package's module, or the file of a module that is one file; nothing is imported."""
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
    """The commit that is checked out where `path` lies, if git tracks it there.

    A package inside a virtual environment that lies in somebody's repository is not part of that repository.
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
