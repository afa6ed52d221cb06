"""Blobs as files in a folder: `blobs/ab/abcd…`."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from hub_server.errors import Unavailable
from hub_server.private_files import make_folder
from hub_server.storage.store import BlobInfo, BlobMissing, check_sha256
from verifiers.files import sync

PIECE_BYTES = 256 * 1024


class FolderStore:
    """Keeps blobs in a folder. When `put` returns, content and name are on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, staged: Path, sha256: str) -> None:
        """Link the staged file to its place. Both must be on the same file system."""
        await asyncio.to_thread(self._put, staged, self._path(sha256))

    def _put(self, staged: Path, target: Path) -> None:
        try:
            with staged.open("rb") as file:
                os.fsync(file.fileno())
            new_folder = not target.parent.exists()
            make_folder(target.parent)
            try:
                # Unlike a rename, a link never replaces a file: the first writer wins.
                os.link(staged, target)
            except FileExistsError:
                if target.stat().st_size != staged.stat().st_size:
                    # Left by a copy from elsewhere; files that the hub writes are complete once they have a name.
                    os.replace(staged, target)
                else:
                    # Updated, so that a collection under way does not remove it.
                    os.utime(target)
            sync(target.parent)
            if new_folder:
                sync(target.parent.parent)
        except OSError as error:
            raise Unavailable(f"The blob folder cannot be written: {error.strerror}.") from error

    async def size_bytes(self, sha256: str) -> int | None:
        """Return the file's size."""
        try:
            return self._path(sha256).stat().st_size
        except FileNotFoundError:
            return None

    async def read(
        self, sha256: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the file in pieces. Each is read in a thread, so that a slow disk does not block other requests."""
        try:
            file = await asyncio.to_thread(self._path(sha256).open, "rb")
        except FileNotFoundError as error:
            raise BlobMissing(f"There is no blob {sha256}.") from error
        try:
            file.seek(start)
            left = None if end is None else end - start
            while left is None or left > 0:
                count = PIECE_BYTES if left is None else min(PIECE_BYTES, left)
                piece = await asyncio.to_thread(file.read, count)
                if not piece:
                    return
                left = None if left is None else left - len(piece)
                yield piece
        finally:
            file.close()

    async def delete(self, sha256: str) -> None:
        """Remove the file."""
        self._path(sha256).unlink(missing_ok=True)

    async def blobs(self) -> AsyncIterator[BlobInfo]:
        """Yield every file with the name of a blob."""
        if not self._folder.exists():
            return
        for shelf in sorted(self._folder.iterdir()):
            for path in await asyncio.to_thread(lambda s=shelf: sorted(s.iterdir())):
                info = path.stat()
                moment = datetime.fromtimestamp(info.st_mtime, UTC)
                yield BlobInfo(path.name, info.st_size, moment)

    def local_path(self, sha256: str) -> Path | None:
        """Return the file itself."""
        return self._path(sha256)

    async def download_url(self, sha256: str, filename: str) -> str | None:
        """Return None: the hub serves the file."""
        return None

    async def upload_url(self, upload_id: str) -> str | None:
        """Return None: the hub receives the file."""
        return None

    async def take_incoming(self, upload_id: str, into: Path, max_bytes: int) -> bool:
        """Return False: files only arrive through the hub."""
        return False

    async def check(self) -> None:
        """Create the folder and check that it is writable."""
        try:
            make_folder(self._folder)
        except OSError as error:
            raise Unavailable(f"{self._folder} cannot be created: {error.strerror}.") from error
        if not os.access(self._folder, os.W_OK):
            raise Unavailable(f"{self._folder} cannot be written.")

    def _path(self, sha256: str) -> Path:
        check_sha256(sha256)
        return self._folder / sha256[:2] / sha256
