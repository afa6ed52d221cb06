"""The interface between the hub and its storage.

A blob's key is the SHA-256 of its bytes, so a put never changes existing content. `tests/conformance/storage` checks
every implementation.
"""

import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from hub_server.errors import NotFound


class BlobMissing(NotFound):
    """The storage has no blob with this sha256."""


class BlobInfo(NamedTuple):
    """One blob in a listing."""

    sha256: str
    size_bytes: int
    modified_at: datetime


class BlobStore(Protocol):
    """Keeps blobs. Each method may raise Unavailable if the storage does not answer."""

    async def put(self, staged: Path, sha256: str) -> None:
        """Store the file's bytes durably before returning. `staged` may be moved or left.

        The caller has checked the hash. An existing blob stays as it is.
        """
        ...

    async def size_bytes(self, sha256: str) -> int | None:
        """Return the blob's size, or None if it is missing."""
        ...

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield the bytes from `start` up to `end` (exclusive). Raises BlobMissing on the first step."""
        ...

    async def delete(self, sha256: str) -> None:
        """Remove the blob. A missing blob is not an error."""
        ...

    def blobs(self) -> AsyncIterator[BlobInfo]:
        """Yield all blobs, in no particular order."""
        ...

    def local_path(self, sha256: str) -> Path | None:
        """Return the blob's file if blobs are files on this machine, else None."""
        ...

    async def download_url(self, sha256: str, filename: str) -> str | None:
        """Return a short-lived address from which a client can read the blob, or None."""
        ...

    async def upload_url(self, upload_id: str) -> str | None:
        """Return a short-lived address to which a client can put an incoming file, or None."""
        ...

    async def take_incoming(self, upload_id: str, into: Path, max_bytes: int) -> bool:
        """Fetch the file that was put at `upload_url` and delete it there. Returns False if there is none."""
        ...

    async def check(self) -> None:
        """Raise Unavailable if the storage cannot be used."""
        ...


def check_sha256(sha256: str) -> str:
    """Return the argument if it is a SHA-256 in hex. Raises BlobMissing otherwise, because no blob has such a key."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise BlobMissing(f"{sha256[:80]!r} is not a sha256.")
    return sha256
