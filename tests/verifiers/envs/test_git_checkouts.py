"""Checkouts of real repositories, by the git program."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import verifiers as vf
from verifiers.envs.file_locks import (
    exclusive_path_lock,
    shared_file_lock,
    shared_path_lock,
    sibling_lock_path,
)
from verifiers.envs.git_checkouts import (
    IN_USE_SUFFIX,
    GitCheckoutError,
    _release_all_in_use_locks,
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


def test_unused_checkouts_are_removed_and_used_ones_stay(repository, checkout):
    repository.commit("one")
    used = checkout("main")
    repository.commit("two")
    assert checkout("main") != used
    assert used.is_dir(), "this process still uses it"
    _release_all_in_use_locks()
    with shared_path_lock(used, IN_USE_SUFFIX):
        repository.commit("three")
        last = checkout("main")
        assert sorted(path for path in used.parent.iterdir() if path.is_dir()) == sorted(
            [used, last]
        )
    checkout("main")
    assert [path for path in used.parent.iterdir() if path.is_dir()] == [last]
    assert (last / "a.txt").read_text() == "three"
    with (
        pytest.raises(BlockingIOError),
        exclusive_path_lock(last, suffix=IN_USE_SUFFIX, nonblocking=True),
    ):
        pass


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
    with pytest.raises(vf.ConfigError, match="not a directory"):
        validate_git_checkout(tmp_path / "nope")
    with pytest.raises(vf.ConfigError, match=r"it has no \.git"):
        validate_git_checkout(tmp_path)


def test_the_token_is_stored_and_shown_nowhere(tmp_path):
    token = "ghp_secret/47+11"
    with pytest.raises(GitCheckoutError) as caught:
        resolve_git_checkout(
            repo_url="https://user:pw@127.0.0.1:1/a/b",
            ref="main",
            cache_root=tmp_path,
            gh_token=token,
        )
    assert token not in str(caught.value)
    assert all(
        "secret" not in path.read_text(errors="ignore")
        for path in tmp_path.rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize("shown", ["ghp_secret/47+11", "ghp_secret%2F47%2B11"])
def test_a_token_in_the_message_of_git_is_hidden(tmp_path, monkeypatch, shown):
    """git prints the URL of a redirection, in which a server may repeat the token."""
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\necho 'fatal: {shown}' >&2; exit 1\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitCheckoutError, match="fatal: <redacted>"):
        resolve_git_checkout(
            repo_url="github.com/acme/x.git",
            ref="main",
            cache_root=tmp_path / "cache",
            gh_token="ghp_secret/47+11",
        )


def test_a_url_without_scheme_means_https(tmp_path, monkeypatch):
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexit 1\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitCheckoutError, match=r"could not read https://github\.com/acme/x\.git"):
        resolve_git_checkout(
            repo_url="github.com/acme/x.git", ref="main", cache_root=tmp_path / "cache"
        )


def test_shared_locks_exclude_the_exclusive_one(tmp_path):
    path = tmp_path / "folder"
    assert sibling_lock_path(path, ".x.lock") == tmp_path / ".folder.x.lock"
    with shared_path_lock(path), shared_file_lock(tmp_path / ".folder.lock"):
        lock = exclusive_path_lock(path, nonblocking=True)
        with pytest.raises(BlockingIOError):
            lock.__enter__()
    with exclusive_path_lock(path, nonblocking=True):
        pass
