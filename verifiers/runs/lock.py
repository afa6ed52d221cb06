"""One writer a run folder: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import Generator
from pathlib import Path
from typing import Any

from verifiers.errors import Error

try:
    import fcntl
except ImportError:  # Windows: runs work there, but nothing keeps two processes apart
    fcntl = None

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"


class RunLocked(Error, BlockingIOError):
    """Another process, or another store in this one, is writing the run."""


class FolderLock:
    """Holds a folder for one writer.

    The kernel drops the lock when its holder dies, whatever kills it. One case needs help: a child forked by a writer
    that died keeps the lock; the file therefore names the writer, and the lock of a dead writer is taken over.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK_FILE
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises RunLocked naming the holder, OSError when the folder cannot be written."""
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
                logger.warning("Taking over %s: its owner, %s, is gone.", self.path, _named(owner))
                self.path.unlink(missing_ok=True)
                descriptor = self._opened()
                _try_lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(
                descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
            )
            self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with _only_one_acquires(self.path.parent):
                if _is_at(descriptor, self.path):
                    self.path.unlink(missing_ok=True)
                os.close(descriptor)

    def _opened(self) -> int:
        return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


@contextlib.contextmanager
def _only_one_acquires(folder: Path) -> Generator[None]:
    """Nobody else creates or removes the lock file of this folder meanwhile; without it a takeover would race."""
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
    """Whether the owner ran on this machine and runs no more; of other machines nothing is known."""
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
