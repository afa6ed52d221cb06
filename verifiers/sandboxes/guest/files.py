"""File copies in a fork of the guest: with a command's rights, and unable to block or deceive the guest.

The content uses stdin or stdout. A failure is one line of JSON on stderr, `{"errno", "reason"}`, and exit code 1.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from typing import Any

from . import archive, interpreter

TOO_LARGE = errno.EFBIG


def run(operation: dict[str, Any]) -> int:
    """Run one copy and return its exit code."""
    try:
        _OPERATIONS[operation["name"]](operation)
    except archive.ArchiveTooLarge as error:
        return _report_failure(TOO_LARGE, str(error))
    except archive.BadArchive as error:
        return _report_failure(errno.EINVAL, str(error))
    except OSError as error:
        return _report_failure(error.errno or errno.EIO, error.strerror or str(error))
    return 0


def _report_failure(number: int, reason: str) -> int:
    sys.stderr.write(json.dumps({"errno": number, "reason": reason}) + "\n")
    return 1


def _read(operation: dict[str, Any]) -> None:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(operation["path"], flags)
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    left_bytes = operation["max_bytes"]
    if status.st_size > left_bytes:
        raise archive.ArchiveTooLarge(f"{status.st_size} bytes, maximum {left_bytes}")
    while data := os.read(descriptor, archive.COPY_BYTES):
        left_bytes -= len(data)
        if left_bytes < 0:
            raise archive.ArchiveTooLarge(f"more than {operation['max_bytes']} bytes")
        archive.write_all(1, data)


def _write(operation: dict[str, Any]) -> None:
    path = operation["path"]
    parent = os.path.dirname(path)
    if parent:
        os.makedirs(parent, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = _open_regular(path, flags)
    except OSError:
        if not (os.environ.get(interpreter.SCORING_VARIABLE) and os.path.lexists(path)):
            raise
        # A fifo, a directory, a circular link or a file without rights is moved aside.
        os.rename(path, f"{path}.replaced-{os.getpid()}")
        descriptor = _open_regular(path, flags | os.O_EXCL)
    os.ftruncate(descriptor, 0)
    while data := os.read(0, archive.COPY_BYTES):
        archive.write_all(descriptor, data)
    os.fchmod(descriptor, operation["mode"])


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _pack(operation: dict[str, Any]) -> None:
    left_bytes = operation["max_bytes"]
    for piece in archive.pack(operation["path"], exact=operation.get("exact", False)):
        left_bytes -= len(piece)
        if left_bytes < 0:
            raise archive.ArchiveTooLarge(f"more than {operation['max_bytes']} bytes")
        archive.write_all(1, piece)


def _unpack(operation: dict[str, Any]) -> None:
    path = operation["path"].rstrip("/")
    parent = os.path.dirname(path)
    if parent:
        os.makedirs(parent, exist_ok=True)
    archive.unpack(
        path or "/",
        lambda: os.read(0, archive.COPY_BYTES),
        max_bytes=operation["max_bytes"],
        exact=operation.get("exact", False),
    )


_OPERATIONS = {"read": _read, "write": _write, "pack": _pack, "unpack": _unpack}
