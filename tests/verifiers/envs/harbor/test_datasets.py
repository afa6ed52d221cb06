"""Datasets of Harbor tasks: folders, git repositories and registries."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs import git_checkouts
from verifiers.envs.harbor.datasets import GitFolder, dataset_folders, parse_git_url
from verifiers.errors import ConfigError, DatasetError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    monkeypatch.delenv("HARBOR_REGISTRY", raising=False)
    defaults = dict(git_checkouts.resolve_git_checkout.__kwdefaults__)
    monkeypatch.setattr(
        git_checkouts.resolve_git_checkout, "__kwdefaults__", {**defaults, "cache_root": root}
    )


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_task(folder: Path, instruction: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text("")
    (folder / "instruction.md").write_text(instruction)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose tag `old` has one task, and whose default branch has another content and a second task."""
    folder = tmp_path / "repository"
    write_task(folder / "bench" / "a", "old a")
    git(tmp_path, "init", "--quiet", "--initial-branch=trunk", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "one")
    git(folder, "tag", "old")
    write_task(folder / "bench" / "a", "new a")
    write_task(folder / "bench" / "b", "new b")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "two")
    return folder


def instructions(reference: Any, **options: Any) -> list[str]:
    env = vf.HarborEnv("true", reference, **options)
    return [row["prompt"][0]["content"] for row in env.load_harbor_dataset()]


def test_a_remote_dataset_is_fetched_on_first_use(registry: Path):
    env = vf.HarborEnv("true", "file:///no/such/repository@main")
    with pytest.raises(git_checkouts.GitCheckoutError, match="/no/such/repository"):
        env.get_dataset()
    env = vf.HarborEnv("true", "bench@1.9", registry=registry)
    assert [row["prompt"][0]["content"] for row in env.get_dataset()] == ["old a"]


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://h/o/r", ("https://h/o/r", "HEAD", "")),
        ("https://h/o/r@v1.0", ("https://h/o/r", "v1.0", "")),
        ("https://h/o/r/tree/main/a/b", ("https://h/o/r", "main", "a/b")),
        ("https://gitlab.h/o/r/-/tree/main", ("https://gitlab.h/o/r", "main", "")),
        (
            "https://huggingface.co/datasets/o/r/tree/main/x",
            ("https://huggingface.co/datasets/o/r", "main", "x"),
        ),
        ("git@h:o/r.git", ("git@h:o/r.git", "HEAD", "")),
        ("git@h:o/r.git@old", ("git@h:o/r.git", "old", "")),
    ],
)
def test_a_url_names_a_repository_a_ref_and_a_folder(url: str, parts: tuple[str, str, str]):
    assert parse_git_url(url) == GitFolder(*parts)


def test_tasks_of_a_repository_at_a_branch_a_tag_and_a_commit(repository: Path):
    url = f"file://{repository}"
    assert instructions(f"{url}/tree/trunk/bench") == ["new a", "new b"]
    assert instructions(f"{url}/tree/old/bench") == ["old a"]
    commit = git(repository, "rev-parse", "trunk~1")
    assert instructions(f"{url}/tree/{commit}/bench", tasks=["a"]) == ["old a"]
    git(repository, "mv", "bench", "tasks")
    git(repository, "commit", "-qm", "three")
    assert instructions(url) == ["new a", "new b"]


def test_a_folder_that_a_repository_lacks_is_an_error(repository: Path):
    for folder, says in (
        ("none", "has no folder 'none'"),
        ("../../x", "leads out of"),
        ("bench/a", "has no Harbor tasks"),
    ):
        with pytest.raises(DatasetError, match=says):
            dataset_folders(f"file://{repository}/tree/trunk/{folder}")


@pytest.fixture
def registry(repository: Path, tmp_path: Path) -> Path:
    url = f"file://{repository}"
    old = {"name": "a", "git_url": url, "git_commit_id": "old", "path": "bench/a"}
    new = {"name": "b", "git_url": url, "path": "bench/b"}
    datasets = [
        {"name": "bench", "version": "1.9", "tasks": [old]},
        {"name": "bench", "version": "1.10", "tasks": [old, new]},
        {"name": "org/rolling", "version": "head", "tasks": [new]},
        {"name": "org/rolling", "version": "2.0", "tasks": [old]},
    ]
    path = tmp_path / "registry.json"
    path.write_text(json.dumps(datasets))
    return path


def test_datasets_of_a_registry_by_name_and_version(
    registry: Path, monkeypatch: pytest.MonkeyPatch
):
    assert instructions("bench@1.9", registry=registry) == ["old a"]
    assert instructions("bench", registry=str(registry)) == ["old a", "new b"]
    assert instructions("org/rolling@2.0", registry=registry.parent) == ["old a"]
    monkeypatch.setenv("HARBOR_REGISTRY", f"file://{registry}")
    assert instructions("org/rolling") == ["new b"]


def test_a_registry_in_a_repository_lists_tasks_of_that_repository(repository: Path):
    tasks = [{"path": "bench/a"}, {"path": "bench/a", "git_commit_id": "old"}]
    (repository / "registry.json").write_text(
        json.dumps({"datasets": [{"name": "own", "tasks": tasks}]})
    )
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "registry")
    url = f"file://{repository}"
    assert sorted(instructions("own", registry=url)) == ["new a", "old a"]
    with pytest.raises(DatasetError, match=r"It has a registry: pass registry=.*\(own\)"):
        dataset_folders(url)


def test_unknown_datasets_versions_and_registries_are_named(registry: Path, tmp_path: Path):
    with pytest.raises(DatasetError, match=r"no dataset 'other'\. It has: bench, org/rolling"):
        dataset_folders("other", registry)
    with pytest.raises(DatasetError, match=r"no version '3'\. It has: 1\.10, 1\.9"):
        dataset_folders("bench@3", registry)
    with pytest.raises(ConfigError, match="no registry is known"):
        dataset_folders("org/name@1.0")
    with pytest.raises(ConfigError, match="neither an existing file nor a URL"):
        dataset_folders("bench", tmp_path / "none.json")
    registry.write_text('[{"name": "bench"}]')
    with pytest.raises(DatasetError, match="is not valid"):
        dataset_folders("bench", registry)
    with pytest.raises(FileNotFoundError, match="Dataset path not found"):
        vf.HarborEnv("true", "no-such-folder")
