"""The host's side of file copies: what is sent, and what a hostile answer may do (very little)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator, Iterator

from verifiers.sandboxes.errors import SandboxFileError, SandboxFileNotFound, SandboxFileTooLarge
from verifiers.sandboxes.guest import archive, frames
from verifiers.sandboxes.results import ExecResult


async def archive_chunks(local: str) -> AsyncIterator[bytes]:
    """The archive of a local file or directory, read in a thread, in pieces of a good size to send."""

    def joined() -> Iterator[bytes]:
        chunk = bytearray()
        for piece in archive.pack(local):
            chunk += piece
            if len(chunk) >= frames.STDIN_CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
        yield bytes(chunk)

    async for chunk in in_thread(joined()):
        yield chunk


async def in_thread(chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same chunks, each made in a thread."""
    while chunk := await asyncio.to_thread(next, chunks, b""):
        yield chunk


def unpack_download(packed: bytes, local: str, remote: str, max_bytes: int) -> None:
    """Write a downloaded archive to `local`. Raises SandboxFileError if it is not what it should be."""
    parent = os.path.dirname(os.path.abspath(local))
    os.makedirs(parent, exist_ok=True)
    pieces = iter([packed])
    try:
        archive.unpack(local, lambda: next(pieces, b""), max_bytes=max_bytes)
    except archive.ArchiveTooLarge as error:
        raise SandboxFileTooLarge(errno.EFBIG, str(error), remote) from error
    except archive.BadArchive as error:
        raise SandboxFileError(
            errno.EINVAL, f"the sandbox sent nonsense: {error}", remote
        ) from error


def raise_trouble(path: str, result: ExecResult) -> None:
    """Raise what a file copy reported, if it failed."""
    if result.ok:
        return
    try:
        trouble = json.loads(result.stderr.splitlines()[-1])
        number, reason = int(trouble["errno"]), str(trouble["reason"])
    except (ValueError, KeyError, TypeError, IndexError):
        number = errno.ETIMEDOUT if result.timed_out else errno.EIO
        reason = "the copy took too long" if result.timed_out else result.error_text[-500:]
    if number == errno.ENOENT:
        raise SandboxFileNotFound(number, reason, path)
    if number == errno.EFBIG:
        raise SandboxFileTooLarge(number, reason, path)
    raise SandboxFileError(number, reason or "the copy failed", path)
