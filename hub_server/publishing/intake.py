"""Checking files and storing their bytes, independent of versions and callers."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from hub_server.environments.models import Environment
from hub_server.environments.names import canonical
from hub_server.errors import BadRequest, TooLarge
from hub_server.publishing.archives import ArchiveRejected, repack
from hub_server.settings import Settings
from hub_server.storage.service import Staged, stage, staging_path
from hub_server.storage.store import BlobStore
from verifiers.files import sha256_of
from verifiers.packages.wheel import (
    WheelLimits,
    WheelManifest,
    WheelRejected,
    parse_filename,
    read_wheel,
)


class Announced(NamedTuple):
    """One file that a client wants to upload."""

    kind: str
    filename: str
    sha256: str
    size_bytes: int | None = None
    content_hash: str | None = None
    semantic_version: str | None = None
    runtime_hint: str | None = None
    tags: tuple[str, ...] = ()


class Arrived(NamedTuple):
    """A checked file whose bytes are stored, ready to be claimed."""

    kind: str
    filename: str
    uploaded_sha256: str
    sha256: str
    size_bytes: int
    contents: dict[str, Any]
    """The wheel's manifest, or `{"members": …}` of a source archive."""


class Intake:
    """Checks and stores the files of one hub."""

    def __init__(self, settings: Settings, store: BlobStore) -> None:
        self._settings = settings
        self._store = store
        # Checking takes processor time: more checks at once than cores only need more memory.
        self._checks = asyncio.Semaphore(2)

    def max_bytes(self, kind: str) -> int:
        """Return the maximum size of a file of this kind."""
        settings = self._settings
        return settings.max_wheel_bytes if kind == "wheel" else settings.max_source_bytes

    async def accept(
        self, kind: str, filename: str, staged: Staged, expected: dict[str, str]
    ) -> Arrived:
        """Check a file and store its bytes.

        `expected` has digests by algorithm; each must be correct. Raises BadRequest, TooLarge.
        """
        if staged.size_bytes > self.max_bytes(kind):
            raise TooLarge(
                f"{filename} has {staged.size_bytes} bytes; the maximum for a {kind} is"
                f" {self.max_bytes(kind)}."
            )
        for algorithm, digest in expected.items():
            actual = staged.sha256
            if algorithm != "sha256":
                actual = await asyncio.to_thread(_digest, staged.path, algorithm)
            if actual != digest.lower():
                raise BadRequest(f"The {algorithm} digest is {actual}, not {digest[:200]} as sent.")
        if kind == "wheel":
            return await self._accept_wheel(filename, staged)
        return await self._accept_source(filename, staged)

    async def _accept_wheel(self, filename: str, staged: Staged) -> Arrived:
        manifest = await self._read(staged.path, filename)
        await self._store.put(staged.path, staged.sha256)
        contents = manifest.model_dump(mode="json")
        return Arrived("wheel", filename, staged.sha256, staged.sha256, staged.size_bytes, contents)

    async def _accept_source(self, filename: str, staged: Staged) -> Arrived:
        check_source_filename(filename)
        with staging_path(self._settings) as clean:
            async with self._checks:
                members = await asyncio.to_thread(
                    repack, staged.path, clean, self._settings.max_unpacked_bytes
                )
                sha256, size_bytes = await asyncio.to_thread(hash_file, clean)
            await self._store.put(clean, sha256)
        contents = {"members": members}
        return Arrived("source", filename, staged.sha256, sha256, size_bytes, contents)

    async def validate(self, filename: str, body: AsyncIterator[bytes]) -> WheelManifest:
        """Check a wheel without storing it. Raises BadRequest."""
        with staging_path(self._settings) as path:
            staged = await stage(body, path, self.max_bytes("wheel"))
            return await self._read(staged.path, filename)

    async def _read(self, path: Path, filename: str) -> WheelManifest:
        limits = WheelLimits(unpacked_bytes=self._settings.max_unpacked_bytes)
        try:
            async with self._checks:
                return await asyncio.to_thread(read_wheel, path, filename, limits)
        except WheelRejected as error:
            raise BadRequest(str(error)) from error

    def check_announced(self, environment: Environment, announced: Announced) -> None:
        """Raise BadRequest or TooLarge if such a file cannot be published here."""
        limit = self.max_bytes(announced.kind)
        if announced.size_bytes is not None and announced.size_bytes > limit:
            raise TooLarge(
                f"{announced.filename} has {announced.size_bytes} bytes; the maximum is {limit}."
            )
        if announced.semantic_version is not None:
            canonical(announced.semantic_version)
        if announced.kind == "source":
            check_source_filename(announced.filename)
            return
        check_wheel_filename(environment, announced.filename, announced.semantic_version)


def check_wheel_filename(
    environment: Environment, filename: str, semantic_version: str | None = None
) -> str:
    """Return the version in a wheel's file name. Raises BadRequest if the wheel belongs to another environment."""
    try:
        name, version, _tags = parse_filename(filename)
    except WheelRejected as error:
        raise BadRequest(str(error)) from error
    if name != environment.normalized_name:
        raise BadRequest(
            f"{filename} is a wheel of {name!r}; this environment is {environment.name!r}. The"
            " project and the environment must have the same name, or the index cannot offer it."
        )
    if semantic_version is not None and canonical(semantic_version) != canonical(str(version)):
        raise BadRequest(f"{filename} is not version {semantic_version}.")
    return str(version)


def check_source_filename(filename: str) -> None:
    """Raise BadRequest if this is not a plain `….tar.gz` name."""
    plain = filename.translate(str.maketrans("", "", "-_.+"))
    if not filename.endswith(".tar.gz") or not plain.isalnum() or not plain.isascii():
        raise ArchiveRejected(f"{filename[:240]!r} is not the plain name of a .tar.gz file.")


def hash_file(path: Path) -> tuple[str, int]:
    """Return SHA-256 and size of a file. Blocking."""
    return sha256_of(path), path.stat().st_size


def _digest(path: Path, algorithm: str) -> str:
    digest = (
        hashlib.blake2b(digest_size=32)
        if algorithm == "blake2_256"
        else hashlib.md5(usedforsecurity=False)
    )
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
