"""The seam between the hub and the place where bytes are kept.

A blob's key is the sha256 of its bytes, so a put can never change anything: putting what exists is
done already. `tests/conformance/storage` holds every implementation to the same behaviour.
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
    """What a listing says about a blob."""

    sha256: str
    size_bytes: int
    modified_at: datetime


class BlobStore(Protocol):
    """Keeps blobs; each method may raise Unavailable when the storage does not answer."""

    async def put(self, staged: Path, sha256: str) -> None:
        """Keep the file's bytes, durably, before returning; `staged` may be moved or left.

        The caller has checked the hash. A blob that is there already is left as it is.
        """
        ...

    async def size_bytes(self, sha256: str) -> int | None:
        """The blob's size, or None when there is none."""
        ...

    def read(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The bytes from `start` up to `end` (exclusive). Raises BlobMissing on the first step."""
        ...

    async def delete(self, sha256: str) -> None:
        """Remove the blob; nothing happens when there is none."""
        ...

    def blobs(self) -> AsyncIterator[BlobInfo]:
        """All blobs, in no particular order."""
        ...

    def local_path(self, sha256: str) -> Path | None:
        """The blob's file when blobs are files on this machine, else None."""
        ...

    async def download_url(self, sha256: str, filename: str) -> str | None:
        """A short-lived address from which a client can read the blob, or None."""
        ...

    async def upload_url(self, upload_id: str) -> str | None:
        """A short-lived address to which a client can put an incoming file, or None."""
        ...

    async def take_incoming(self, upload_id: str, into: Path, max_bytes: int) -> bool:
        """Fetch what was put at `upload_url` and forget it there; False when nothing came."""
        ...

    async def check(self) -> None:
        """Raise Unavailable when the storage cannot be used."""
        ...


def check_sha256(sha256: str) -> str:
    """The argument, when it is a sha256 in hex; BlobMissing otherwise, since no blob has it."""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise BlobMissing(f"{sha256[:80]!r} is not a sha256.")
    return sha256
