"""Checkouts of real repositories, by the git program."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import verifiers as vf
from verifiers.envs.git_checkouts import (
    GitCheckoutError,
    resolve_git_checkout,
    validate_git_checkout,
)


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")
        self.url = folder.as_uri()

    def git(self, *arguments: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", *names, *arguments], cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, text: str) -> str:
        (self.folder / "a.txt").write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", text)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


@pytest.fixture
def checkout(repository: Repository, tmp_path: Path):
    def at(ref: str, **options) -> Path:
        return resolve_git_checkout(
            repo_url=repository.url, ref=ref, cache_root=tmp_path / "cache", **options
        )

    return at


def test_branches_tags_and_commits_give_their_files(repository, checkout):
    first = repository.commit("one")
    repository.git("tag", "v1")
    second = repository.commit("two")

    assert (checkout("main") / "a.txt").read_text() == "two"
    assert (checkout("v1") / "a.txt").read_text() == "one"
    assert checkout(first) == checkout("v1")
    assert checkout(second.upper()) == checkout("main")


def test_a_branch_is_followed_and_old_checkouts_stay(repository, checkout):
    repository.commit("one")
    before = checkout("main")
    repository.commit("two")
    after = checkout("main")
    assert [(path / "a.txt").read_text() for path in (before, after)] == ["one", "two"]


def test_what_is_here_needs_no_network(repository, checkout, caplog):
    commit = repository.commit("one")
    known = checkout("main")
    repository.folder.rename(repository.folder.with_name("away"))

    assert checkout(commit) == known
    assert not caplog.records
    assert checkout("main") == known
    assert "as of the last fetch" in caplog.text
    with pytest.raises(GitCheckoutError, match="could not read"):
        checkout("v1")


def test_an_interrupted_checkout_is_made_again(repository, checkout):
    repository.commit("one")
    path = checkout("main")
    path.with_name(f"{path.name}.whole").unlink()
    (path / "a.txt").unlink()
    assert (checkout("main") / "a.txt").read_text() == "one"


def test_programs_that_start_together_share_one_checkout(repository, checkout):
    repository.commit("one")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(checkout, ["main"] * 8))) == 1


def test_what_is_wrong_is_named(repository, checkout, tmp_path):
    commit = repository.commit("one")
    with pytest.raises(GitCheckoutError, match=r"no branch or tag .*with all its 40"):
        checkout(commit[:8])
    with pytest.raises(vf.ConfigError, match="--upload-pack=x' is not a valid branch"):
        checkout("--upload-pack=x")
    with pytest.raises(vf.ConfigError, match=r"has no b\.txt, c\.txt"):
        checkout("main", required_files=("a.txt", "b.txt", "c.txt"))
    assert issubclass(GitCheckoutError, RuntimeError)  # as in v0
    assert issubclass(vf.ConfigError, ValueError)


def test_a_checkout_of_ones_own_is_used_as_it_is(repository, checkout, tmp_path):
    repository.commit("one")
    own = repository.folder
    assert checkout("anything", local_checkout=own, required_files=("a.txt",)) == own
    with pytest.raises(vf.ConfigError, match="not a folder"):
        validate_git_checkout(tmp_path / "nope")
    with pytest.raises(vf.ConfigError, match=r"it has no \.git"):
        validate_git_checkout(tmp_path)


def test_the_token_is_stored_and_shown_nowhere(tmp_path):
    token = "ghp_secret4711"
    with pytest.raises(GitCheckoutError) as caught:
        resolve_git_checkout(
            repo_url="https://user:pw@127.0.0.1:1/a/b",
            ref="main",
            cache_root=tmp_path,
            gh_token=token,
        )
    assert token not in str(caught.value)
    assert all(
        token not in path.read_text(errors="ignore")
        for path in tmp_path.rglob("*")
        if path.is_file()
    )
