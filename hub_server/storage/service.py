"""Selection of the storage, and files in transit to it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hub_server.database import new_id
from hub_server.errors import TooLarge, Unavailable
from hub_server.private_files import create, make_folder
from hub_server.settings import Settings
from hub_server.storage.folder import FolderStore
from hub_server.storage.store import BlobStore
from verifiers.files import write_all

INLINE_BYTES = 256 * 1024
"""Smaller pieces are written without a thread: the page cache accepts them in microseconds."""


def open_store(settings: Settings) -> BlobStore:
    """Return the storage that the settings name."""
    if settings.storage_url.startswith("s3://"):
        from hub_server.storage.s3 import ObjectStore  # its library is not needed for a folder

        return ObjectStore(settings)
    return FolderStore(settings.data_dir / "blobs")


class Staged(NamedTuple):
    """A file that arrived completely."""

    path: Path
    sha256: str
    size_bytes: int


@contextmanager
def staging_path(settings: Settings) -> Iterator[Path]:
    """Yield a new path in the staging folder. The file is removed at the end of the block."""
    make_folder(settings.staging_dir)
    path = settings.staging_dir / new_id()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


async def stage(pieces: AsyncIterator[bytes], path: Path, max_bytes: int) -> Staged:
    """Write the pieces to `path` and hash them.

    Raises TooLarge at the first byte beyond the limit, Unavailable if the disk is full.
    """
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with create(path) as file:
            async for piece in pieces:
                size_bytes += len(piece)
                if size_bytes > max_bytes:
                    raise TooLarge(f"The file is larger than the maximum of {max_bytes} bytes.")
                if len(piece) <= INLINE_BYTES:
                    digest.update(piece)
                    write_all(file.fileno(), piece)
                else:
                    await asyncio.to_thread(digest.update, piece)
                    await asyncio.to_thread(write_all, file.fileno(), piece)
    except OSError as error:
        raise Unavailable(f"The file cannot be stored: {error.strerror}.") from error
    return Staged(path, digest.hexdigest(), size_bytes)
