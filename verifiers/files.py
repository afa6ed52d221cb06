"""Files that are replaced as a whole, hashed, or written to the last byte. Blocking."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600
"""Mode of a file that only its owner may read."""


@contextmanager
def replacement(path: Path, *, mode: int = 0o666, is_durable: bool = False) -> Iterator[Path]:
    """Yield an empty file beside `path` that replaces `path` at the end of the block; an exception removes it.

    Readers see the old file or the new one, never a part. With `is_durable` the new file survives a power cut once the
    block has ended. `mode` is reduced by the umask.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        yield temporary
        if is_durable:
            sync(temporary)
        temporary.replace(path)
        if is_durable:
            sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes left beside `path`. The caller must be the only writer of `path`."""
    for temporary in path.parent.glob(f".{path.name}*.tmp"):
        temporary.unlink(missing_ok=True)


def replace_file(
    path: Path, content: bytes | str, *, mode: int = 0o666, is_durable: bool = False
) -> None:
    """Replace the content of a file as a whole; text is written as UTF-8. See `replacement`."""
    data = content.encode() if isinstance(content, str) else content
    with replacement(path, mode=mode, is_durable=is_durable) as temporary:
        temporary.write_bytes(data)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all bytes to a descriptor. One `os.write` may stop halfway on a disk that is nearly full."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left) :]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
