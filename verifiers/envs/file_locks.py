"""Locks between processes and threads, on files of this machine (`flock`).

A lock belongs to the file that was opened for it: the same thread can lock itself out by opening the file twice. The
system releases the lock of a process that dies. Lock files stay, because removing one would let two processes lock two
different files of the same name.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def sibling_lock_path(path: Path, suffix: str = ".lock") -> Path:
    """Return the path of the lock file of a file or folder: `.<name><suffix>` beside it."""
    return path.with_name(f".{path.name}{suffix}")


def open_locked(
    lock_path: Path, *, is_shared: bool = False, nonblocking: bool = False
) -> IO[bytes]:
    """Return the open lock file, locked until it is closed. Creates it and its folder.

    Raises BlockingIOError with `nonblocking` if another holder is in the way.
    """
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    file = lock_path.open("ab")
    try:
        operation = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
        fcntl.flock(file, operation | (fcntl.LOCK_NB if nonblocking else 0))
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def shared_file_lock(lock_path: Path) -> Iterator[None]:
    """Hold a lock that others may share, but that excludes `exclusive_file_lock`. Blocks until it is free."""
    with open_locked(lock_path, is_shared=True):
        yield


@contextmanager
def exclusive_file_lock(lock_path: Path, *, nonblocking: bool = False) -> Iterator[None]:
    """Hold a lock alone. Blocks until it is free; with `nonblocking` raises BlockingIOError instead."""
    with open_locked(lock_path, nonblocking=nonblocking):
        yield


@contextmanager
def shared_path_lock(path: Path, suffix: str = ".lock") -> Iterator[None]:
    """Hold the shared lock of a file or folder, on the lock file beside it."""
    with shared_file_lock(sibling_lock_path(path, suffix)):
        yield


@contextmanager
def exclusive_path_lock(
    path: Path, *, suffix: str = ".lock", nonblocking: bool = False
) -> Iterator[None]:
    """Hold the exclusive lock of a file or folder, on the lock file beside it."""
    with exclusive_file_lock(sibling_lock_path(path, suffix), nonblocking=nonblocking):
        yield


__all__ = [
    "exclusive_file_lock",
    "exclusive_path_lock",
    "open_locked",
    "shared_file_lock",
    "shared_path_lock",
    "sibling_lock_path",
]
