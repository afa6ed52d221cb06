"""Blobs as objects in S3 or a compatible storage: `blobs/ab/abcd…`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from hub_server.database import utc_now
from hub_server.errors import TooLarge, Unavailable
from hub_server.private_files import create
from hub_server.settings import Settings
from hub_server.storage.store import BlobInfo, BlobMissing, check_sha256

SIGNATURE_LIFETIME = timedelta(minutes=15)
SMALL_BYTES = 8 * 1024**2
"""A blob up to this size is put in one request, which S3 can refuse if the key exists. It is then held in memory."""
PART_BYTES, PIECE_BYTES = 5 * 1024**2, 256 * 1024
"""For larger blobs: the minimum size of a part in S3, and the size of one read. The part is then in memory once;
given a path, obstore holds a part being read, a copied part and two parts under way.
"""

YOUNG = timedelta(hours=1)

T = TypeVar("T")


class ObjectStore:
    """Keeps blobs in a bucket."""

    def __init__(self, settings: Settings) -> None:
        address = urlsplit(settings.storage_url)
        self._prefix = address.path.strip("/")
        self._presign = settings.s3_presign
        self._has_keys = bool(settings.s3_access_key_id)
        options: dict[str, object] = {"region": settings.s3_region}
        if settings.s3_endpoint:
            options["endpoint"] = settings.s3_endpoint
            options["virtual_hosted_style_request"] = False
        if settings.s3_access_key_id:
            options["access_key_id"] = settings.s3_access_key_id
            options["secret_access_key"] = settings.s3_secret_access_key
        self._store = S3Store(
            address.netloc,
            prefix=self._prefix or None,
            config=options,  # type: ignore[arg-type]  # the stub wants a literal dict
            client_options={"allow_http": True, "timeout": "60s", "connect_timeout": "5s"},
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=20)},
        )

    async def put(self, staged: Path, sha256: str) -> None:
        """Put the object, unless a recent one exists."""
        size_bytes = (await asyncio.to_thread(staged.stat)).st_size
        try:
            there = await _answered(obstore.head_async(self._store, self._key(sha256)))
        except FileNotFoundError:
            there = None
        # An old object is written again with the same bytes. Its new age keeps it from a collection under way, which
        # removes old unused blobs.
        age = utc_now() - there["last_modified"] if there else None
        if there and there["size"] == size_bytes and age and age < YOUNG:
            return
        if size_bytes > SMALL_BYTES:
            return await self._put_parts(staged, sha256, size_bytes)
        try:
            await _answered(
                obstore.put_async(
                    self._store,
                    self._key(sha256),
                    staged,
                    mode="overwrite" if there else "create",
                    use_multipart=False,
                )
            )
        except AlreadyExistsError:
            return
        except FileNotFoundError as error:
            raise _failure(error) from error

    async def _put_parts(self, staged: Path, sha256: str, size_bytes: int) -> None:
        # Not as a context manager: closing creates the object, which must not happen with half of the content.
        writer = obstore.open_writer_async(
            self._store, self._key(sha256), buffer_size=PART_BYTES, max_concurrency=1
        )
        written = 0
        try:
            with await asyncio.to_thread(staged.open, "rb", buffering=0) as file:
                while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
                    written += await writer.write(piece)
            if written != size_bytes:
                raise Unavailable(f"{written} of {size_bytes} bytes could be read back.")
            await writer.close()
        except (BaseError, OSError) as error:  # the writer raises either type
            raise _failure(error) from error

    async def size_bytes(self, sha256: str) -> int | None:
        """Return the object's size."""
        try:
            return (await _answered(obstore.head_async(self._store, self._key(sha256))))["size"]
        except FileNotFoundError:
            return None

    async def read(
        self, sha256: str, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the object in pieces, as they arrive."""
        options: dict[str, object] = {}
        if end is not None:
            if end <= start:
                return
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        try:
            result = await _answered(
                obstore.get_async(
                    self._store,
                    self._key(sha256),
                    options=options,  # type: ignore[arg-type]
                )
            )
            async for piece in result.stream(min_chunk_size=256 * 1024):
                yield bytes(piece)
        except FileNotFoundError as error:
            raise BlobMissing(f"There is no blob {sha256}.") from error
        except BaseError as error:
            raise _failure(error) from error

    async def delete(self, sha256: str) -> None:
        """Remove the object."""
        try:
            await _answered(obstore.delete_async(self._store, self._key(sha256)))
        except FileNotFoundError:
            return

    async def blobs(self) -> AsyncIterator[BlobInfo]:
        """Yield every object under `blobs/`."""
        try:
            async for page in obstore.list(self._store, prefix="blobs"):
                for item in page:
                    name = item["path"].rpartition("/")[2]
                    yield BlobInfo(name, item["size"], item["last_modified"])
        except BaseError as error:
            raise _failure(error) from error

    def local_path(self, sha256: str) -> Path | None:
        """Return None: objects are not files on this machine."""
        return None

    async def download_url(self, sha256: str, filename: str) -> str | None:
        """Return a signed address, unless the hub relays downloads."""
        if not self._presign:
            return None
        return await _answered(
            obstore.sign_async(self._store, "GET", self._key(sha256), SIGNATURE_LIFETIME)
        )

    async def upload_url(self, upload_id: str) -> str | None:
        """Return a signed address for one incoming file, unless the hub relays uploads."""
        if not self._presign:
            return None
        return await _answered(
            obstore.sign_async(self._store, "PUT", f"incoming/{upload_id}", SIGNATURE_LIFETIME)
        )

    async def take_incoming(self, upload_id: str, into: Path, max_bytes: int) -> bool:
        """Download the incoming object to `into` and delete it."""
        key = f"incoming/{upload_id}"
        try:
            result = await _answered(obstore.get_async(self._store, key))
        except FileNotFoundError:
            return False
        if result.meta["size"] > max_bytes:
            await _answered(obstore.delete_async(self._store, key))
            raise TooLarge(
                f"{result.meta['size']} bytes arrived; at most {max_bytes} were announced."
            )
        with create(into) as file:
            async for piece in result.stream(min_chunk_size=1024**2):
                await asyncio.to_thread(file.write, bytes(piece))
        await _answered(obstore.delete_async(self._store, key))
        return True

    async def check(self) -> None:
        """List objects that do not exist: a request for one object does not distinguish a missing bucket from a
        missing object.
        """
        try:
            await _answered(obstore.list(self._store, prefix="check").collect_async())
        except Unavailable as error:
            if self._has_keys:
                raise
            # Without a key obstore asks the machine's cloud for one, and its error names that address.
            hint = "VF_HUB_S3_ACCESS_KEY_ID is not set, and this machine's cloud provides no key for the storage"
            raise Unavailable(f"{hint}: {error.detail}") from error

    def _key(self, sha256: str) -> str:
        check_sha256(sha256)
        return f"blobs/{sha256[:2]}/{sha256}"


async def _answered(request: Awaitable[T]) -> T:
    try:
        return await request
    except (FileNotFoundError, AlreadyExistsError):
        raise
    except BaseError as error:
        raise _failure(error) from error


def _failure(error: Exception) -> Unavailable:
    """Return the failure in one line."""
    text = str(error)
    if "NoSuchBucket" in text:
        return Unavailable("The object storage has no bucket of the name in VF_HUB_STORAGE_URL.")
    return Unavailable(
        f"The object storage failed: {(text.splitlines() or ['no message'])[0][:200]}"
    )
