"""Where the tasks of a Harbor dataset come from: a folder, a git repository, or a registry.

| reference | tasks |
|---|---|
| `tasks/` | the folders in a folder |
| `https://host/org/repo`, `…@REF`, `…/tree/REF/FOLDER` | the folders in a git repository, or in one of its folders |
| `name`, `name@VERSION`, `org/name@VERSION` | an entry of the registry |

A registry is a `registry.json`: a file, a URL, or a git repository that has one. Each of its datasets lists tasks with
the git repository, the commit and the folder of each. GitHub, GitLab and Hugging Face (`https://huggingface.co/
datasets/org/name`) are git repositories. Checkouts are stored as `verifiers.envs.git_checkouts` describes.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from verifiers.envs.git_checkouts import DEFAULT_REF, resolve_git_checkout
from verifiers.envs.harbor.task_files import is_task
from verifiers.errors import ConfigError, DatasetError

REGISTRY_VARIABLE = "HARBOR_REGISTRY"
"""Environment variable with the registry for references that do not name one."""
REGISTRY_FILE = "registry.json"
_REGISTRY_TIMEOUT_S = 60.0

_URL = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
_IN_TREE = re.compile(r"(?P<url>.+?)/(?:-/)?tree/(?P<ref>[^/]+)(?:/(?P<folder>.+))?")
_NAME = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<version>[\w.:+-]+))?")


class GitFolder(NamedTuple):
    """A folder of a git repository at a branch, a tag or a commit."""

    url: str
    ref: str
    folder: str


class RegistryTask(BaseModel):
    """One task of a dataset in a registry."""

    model_config = ConfigDict(extra="ignore")

    name: str | None = None
    git_url: str | None = None
    """None: the repository of the registry."""
    git_commit_id: str | None = None
    path: str


class RegistryDataset(BaseModel):
    """One dataset of a registry."""

    model_config = ConfigDict(extra="ignore")

    name: str
    version: str | None = None
    tasks: list[RegistryTask]


def is_git_url(reference: str) -> bool:
    """Return whether a reference is the URL of a git repository."""
    return _URL.fullmatch(reference) is not None


def is_remote(reference: str | Path, registry: str | Path | None) -> bool:
    """Return whether the tasks of a reference may have to be fetched."""
    if isinstance(reference, Path) or Path(reference).exists():
        return False
    has_registry = registry is not None or REGISTRY_VARIABLE in os.environ
    return is_git_url(reference) or (has_registry and _NAME.fullmatch(reference) is not None)


def parse_git_url(url: str) -> GitFolder:
    """Return the repository, the ref and the folder of `URL`, `URL@REF` or `URL/tree/REF/FOLDER`."""
    if match := _IN_TREE.fullmatch(url):
        return GitFolder(match["url"], match["ref"], match["folder"] or "")
    start = url.rfind("/")
    repository, at, ref = url[start + 1 :].partition("@")
    return GitFolder(url[: start + 1] + repository, ref if at else DEFAULT_REF, "")


def dataset_folders(reference: str | Path, registry: str | Path | None = None) -> Path | list[Path]:
    """Return the folder with the tasks of a dataset, or the folders of its tasks. Blocks while it fetches.

    `registry` is the path or the URL of a registry; None stands for the variable HARBOR_REGISTRY. Raises DatasetError
    for an unknown dataset, ConfigError for a reference that cannot be read, and GitCheckoutError.
    """
    text = str(reference)
    if isinstance(reference, Path) or Path(text).exists():
        return Path(reference)
    if is_git_url(text):
        return _tasks_of_repository(text)
    match = _NAME.fullmatch(text)
    registry = registry or os.environ.get(REGISTRY_VARIABLE)
    if match is None or (registry is None and not match["version"]):
        return Path(text)  # the caller reports that there is no such folder
    if registry is None:
        raise ConfigError(
            f"{text!r} is a dataset of a registry, and no registry is known. Pass registry=… (the path or URL of a "
            f"registry.json, or of a git repository that has one), or set {REGISTRY_VARIABLE}."
        )
    checkouts = _Checkouts()
    datasets, base = _read_registry(str(registry), checkouts)
    dataset = _chosen(datasets, match["name"], match["version"], str(registry))
    return [_task_folder(task, base, checkouts) for task in dataset.tasks]


def _tasks_of_repository(url: str) -> Path:
    place = _Checkouts().folder(parse_git_url(url))
    if place.is_dir() and any(map(is_task, place.iterdir())):
        return place
    tasks = place / "tasks"
    if tasks.is_dir():
        return tasks
    hint = ""
    if (place / REGISTRY_FILE).is_file():
        names = ", ".join(dataset.name for dataset in _parsed((place / REGISTRY_FILE), url))
        hint = f" It has a registry: pass registry={url!r} and one of its datasets ({names})."
    raise DatasetError(f"{url} has no Harbor tasks in its top folder or in `tasks`.{hint}")


class _Checkouts:
    """Checkouts of this call: each repository is asked once for a ref, however many tasks it has."""

    def __init__(self) -> None:
        self._roots: dict[tuple[str, str], Path] = {}

    def folder(self, source: GitFolder) -> Path:
        """Return a folder of a repository. Raises DatasetError if it does not exist."""
        key = (source.url, source.ref)
        if key not in self._roots:
            self._roots[key] = resolve_git_checkout(repo_url=source.url, ref=source.ref)
        return _inside(self._roots[key], source.folder, source.url)


def _inside(root: Path, folder: str, source: str) -> Path:
    """Return a folder below a checkout. Raises DatasetError if it does not exist or leads outside."""
    path = root / PurePosixPath(folder)
    if not path.resolve().is_relative_to(root.resolve()):
        raise DatasetError(f"The path {folder!r} leads out of {source}.")
    if not path.is_dir():
        raise DatasetError(f"{source} has no folder {folder!r}.")
    return path


def _read_registry(
    registry: str, checkouts: _Checkouts
) -> tuple[list[RegistryDataset], GitFolder | Path | None]:
    """Return the datasets of a registry, and where tasks without a repository lie."""
    if Path(registry).exists():
        path = Path(registry)
        path = path / REGISTRY_FILE if path.is_dir() else path
        return _parsed(path, registry), path.parent
    if not is_git_url(registry):
        raise ConfigError(
            f"registry={registry!r} is neither an existing file nor a URL. Write the path or URL of a registry.json."
        )
    if registry.endswith(".json"):
        try:
            with urllib.request.urlopen(registry, timeout=_REGISTRY_TIMEOUT_S) as response:
                return _parsed_text(response.read().decode("utf-8"), registry), None
        except (urllib.error.URLError, TimeoutError, ValueError) as error:
            raise DatasetError(f"The registry {registry} cannot be read: {error}") from error
    source = parse_git_url(registry)
    return _parsed(checkouts.folder(source) / REGISTRY_FILE, registry), source


def _parsed(path: Path, registry: str) -> list[RegistryDataset]:
    try:
        return _parsed_text(path.read_text("utf-8"), registry)
    except (OSError, UnicodeError) as error:
        raise DatasetError(f"The registry {registry} cannot be read: {error}") from error


def _parsed_text(text: str, registry: str) -> list[RegistryDataset]:
    try:
        entries: Any = json.loads(text)
        if isinstance(entries, Mapping):
            entries = entries.get("datasets", [])
        return [RegistryDataset.model_validate(entry) for entry in entries]
    except (TypeError, ValueError, ValidationError) as error:
        raise DatasetError(f"The registry {registry} is not valid: {error}") from error


def _chosen(
    datasets: Sequence[RegistryDataset], name: str, version: str | None, registry: str
) -> RegistryDataset:
    """Return the dataset of this name: of the given version, else of version "head", else of the highest version."""
    found = {dataset.version or "": dataset for dataset in datasets if dataset.name == name}
    if not found:
        names = sorted({dataset.name for dataset in datasets})
        raise DatasetError(
            f"The registry {registry} has no dataset {name!r}. It has: {', '.join(names[:20])}."
        )
    if version is None:
        version = "head" if "head" in found else max(found, key=_version_key)
    if version not in found:
        raise DatasetError(
            f"The dataset {name!r} has no version {version!r}. It has: {', '.join(sorted(found))}."
        )
    return found[version]


def _version_key(version: str) -> tuple[bool, list[int], str]:
    """Order versions: those that begin with a number last, by their numbers."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    return bool(re.match(r"v?\d", version)), numbers, version


def _task_folder(task: RegistryTask, base: GitFolder | Path | None, checkouts: _Checkouts) -> Path:
    if task.git_url is not None:
        source = GitFolder(task.git_url, task.git_commit_id or DEFAULT_REF, task.path)
        return checkouts.folder(source)
    if isinstance(base, Path):
        return _inside(base, task.path, str(base))
    if base is None:
        raise DatasetError(
            f"The task {task.path!r} has no git_url, and its registry is not in a repository."
        )
    folder = str(PurePosixPath(base.folder) / task.path)
    return checkouts.folder(GitFolder(base.url, task.git_commit_id or base.ref, folder))
