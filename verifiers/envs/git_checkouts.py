"""Checkouts of git repositories at a commit, stored in a folder that all programs share.

    {cache_root}/{name}-{hash of the URL}/mirror.git              everything that was fetched
    {cache_root}/{name}-{hash of the URL}/worktrees/{commit}      the files of one commit

A checkout is created once, under a lock, and never changes. A commit that is already there needs no network. Each
checkout that this process has used is locked until the process ends (`.{commit}.in-use.lock`). Other checkouts of the
same repository are removed when a new one is asked for, unless another process uses them.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import logging
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import IO
from urllib.parse import quote, urlsplit

from verifiers.envs.file_locks import (
    exclusive_file_lock,
    exclusive_path_lock,
    open_locked,
    sibling_lock_path,
)
from verifiers.errors import ConfigError, Error

logger = logging.getLogger(__name__)

DEFAULT_GIT_CHECKOUT_CACHE_ROOT = Path("~/.cache/verifiers/git-checkouts")
IN_USE_SUFFIX = ".in-use.lock"
"""A checkout is in use while a process holds the shared lock of this suffix beside it."""
DEFAULT_REF = "HEAD"
"""The newest commit of the default branch, as a ref."""
_FULL_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_HOST_AND_PATH = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?/")
_in_use: dict[Path, IO[bytes]] = {}
"""Checkout → its lock file, locked until this process ends."""
_in_use_guard = threading.Lock()


class GitCheckoutError(Error, RuntimeError):
    """A repository could not be fetched, or does not have the branch, tag or commit."""


def resolve_git_checkout(
    *,
    repo_url: str,
    ref: str,
    cache_root: Path = DEFAULT_GIT_CHECKOUT_CACHE_ROOT,
    local_checkout: str | Path | None = None,
    gh_token: str | None = None,
    required_files: tuple[str, ...] = (),
) -> Path:
    """Return the folder with the files of a repository at `ref`: a branch, a tag, or the 40 hex digits of a commit.
    Blocks.

    `repo_url` may lack `https://`. `local_checkout` is an existing checkout that is used as it is. `gh_token` is sent
    to `repo_url` and not stored. The folder stays until this process ends. Raises GitCheckoutError, and ConfigError if
    the checkout lacks one of the `required_files`.
    """
    if local_checkout is not None:
        return validate_git_checkout(
            Path(local_checkout).expanduser(), required_files=required_files
        )
    repo_url = _with_scheme(repo_url)
    repository = Path(cache_root).expanduser() / _folder_name(repo_url)
    repository.mkdir(parents=True, exist_ok=True)
    with exclusive_file_lock(repository / "lock"):
        mirror = _Mirror(repository / "mirror.git", repo_url, gh_token)
        commit = mirror.commit_of(ref)
        checkout = repository / "worktrees" / commit
        whole = checkout.with_name(f"{commit}.whole")
        if not whole.exists() or not checkout.is_dir():
            shutil.rmtree(checkout, ignore_errors=True)  # left by an interrupted run
            mirror.git("worktree", "prune")
            mirror.git("worktree", "add", "--detach", "--force", str(checkout), commit)
            whole.touch()
        validate_git_checkout(checkout, required_files=required_files)
        _keep_in_use(checkout)
        _remove_unused(checkout, mirror)
    return checkout


def validate_git_checkout(path: Path, *, required_files: tuple[str, ...] = ()) -> Path:
    """Return `path` if it is a git checkout with the files. Raises ConfigError otherwise."""
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"The git checkout {path} is not a directory.")
    if not (path / ".git").exists():
        raise ConfigError(f"{path} is not a git checkout: it has no .git.")
    missing = [name for name in required_files if not (path / name).exists()]
    if missing:
        raise ConfigError(f"The git checkout {path} has no {', '.join(missing)}.")
    return path


def _folder_name(repo_url: str) -> str:
    name = Path(urlsplit(repo_url).path or repo_url).name.removesuffix(".git") or "repository"
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    return f"{plain}-{hashlib.sha256(repo_url.encode()).hexdigest()[:12]}"


def _with_scheme(repo_url: str) -> str:
    """Return a URL such as `github.com/owner/name.git` with `https://`; others as they are."""
    if "://" not in repo_url and _HOST_AND_PATH.match(repo_url) and not Path(repo_url).exists():
        return f"https://{repo_url}"
    return repo_url


def _keep_in_use(checkout: Path) -> None:
    with _in_use_guard:
        if not _in_use:
            atexit.register(_release_all_in_use_locks)
        if checkout not in _in_use:
            lock_path = sibling_lock_path(checkout, IN_USE_SUFFIX)
            _in_use[checkout] = open_locked(lock_path, is_shared=True)


def _release_all_in_use_locks() -> None:
    """Allow the removal of all checkouts that this process has used."""
    with _in_use_guard:
        while _in_use:
            _in_use.popitem()[1].close()


def _remove_unused(kept: Path, mirror: _Mirror) -> None:
    """Remove the other checkouts of a repository that no process uses. The caller holds the lock of the repository."""
    for checkout in sorted(kept.parent.iterdir()):
        if checkout == kept or not checkout.is_dir():
            continue
        try:
            with exclusive_path_lock(checkout, suffix=IN_USE_SUFFIX, nonblocking=True):
                checkout.with_name(f"{checkout.name}.whole").unlink(missing_ok=True)
                shutil.rmtree(checkout)
        except BlockingIOError:
            continue
        except OSError as error:
            logger.warning("The unused checkout %s could not be removed: %s", checkout, error)
    mirror.git("worktree", "prune")


class _Mirror:
    """A bare repository that follows the branches and tags of a URL."""

    def __init__(self, path: Path, url: str, gh_token: str | None) -> None:
        self._path = path
        self._url = url
        self._token = gh_token
        if not (path / "HEAD").exists():
            self._run("init", "--quiet", "--bare", str(path))

    def commit_of(self, ref: str) -> str:
        """Return the commit of a ref; fetch it if it is not here."""
        if ref.startswith("-"):
            raise ConfigError(f"{ref!r} is not a valid branch, tag or commit.")
        if ref == DEFAULT_REF:
            commit = self._default_commit()
            if not self._has(f"{commit}^{{commit}}"):
                self._fetch()
            return commit
        if _FULL_COMMIT.fullmatch(ref):
            if not self._has(f"{ref}^{{commit}}"):
                self._fetch()
            if not self._has(f"{ref}^{{commit}}"):
                self._fetch_commit(ref)
            return ref.lower()
        try:
            self._fetch()
        except GitCheckoutError as error:
            if self._named(ref) is None:
                raise
            logger.warning("%s; using %s as of the last fetch.", error, ref)
        commit = self._named(ref)
        if commit is None:
            raise GitCheckoutError(
                f"{self._shown_url()} has no branch or tag {ref!r}. Write a commit with all its 40 hex digits."
            )
        return commit

    def _default_commit(self) -> str:
        """Return the newest commit of the default branch; without a network, of the last fetch."""
        known = self._path / "DEFAULT_COMMIT"
        try:
            found = self._run("ls-remote", self._url, "HEAD").split()
        except GitCheckoutError as error:
            if not known.exists():
                raise
            logger.warning("%s; using the default branch as of the last fetch.", error)
            return known.read_text().strip()
        if not found:
            raise GitCheckoutError(f"{self._shown_url()} has no commits.")
        known.write_text(found[0])
        return found[0]

    def _named(self, ref: str) -> str | None:
        for name in (f"refs/heads/{ref}", f"refs/tags/{ref}"):
            if self._has(f"{name}^{{commit}}"):
                return self.git("rev-parse", f"{name}^{{commit}}").strip()
        return None

    def _has(self, name: str) -> bool:
        return self._result("--git-dir", str(self._path), "cat-file", "-e", name).returncode == 0

    def _fetch(self) -> None:
        refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        self.git("fetch", "--quiet", "--prune", self._url, *refs)

    def _fetch_commit(self, commit: str) -> None:
        # A commit that no branch or tag leads to. Some servers do not send it.
        self.git("fetch", "--quiet", self._url, commit)

    def git(self, *arguments: str) -> str:
        """Return the output of a git command on the mirror. Raises GitCheckoutError with the message of git."""
        return self._run("--git-dir", str(self._path), *arguments)

    def _run(self, *arguments: str) -> str:
        done = self._result(*arguments)
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()
            for secret in filter(None, (self._token, quote(self._token or "", safe=""))):
                said = said.replace(secret, "<redacted>")
            raise GitCheckoutError(f"git could not read {self._shown_url()}: {said}")
        return done.stdout

    def _result(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        if self._token and self._url.startswith("https://"):
            # In the environment, because all users can read a command line, and git stores a URL.
            parts = urlsplit(self._url)
            basic = base64.b64encode(f"x-access-token:{self._token}".encode()).decode()
            environment |= {
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": f"http.{parts.scheme}://{parts.netloc}/.extraHeader",
                "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}",
            }
        try:
            return subprocess.run(
                ["git", *arguments],
                env=environment,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except FileNotFoundError as error:
            raise GitCheckoutError("git is not installed.") from error

    def _shown_url(self) -> str:
        parts = urlsplit(self._url)
        return self._url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1)
