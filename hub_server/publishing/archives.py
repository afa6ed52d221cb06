"""Source archives: read as if written by an enemy, and written anew before anyone gets them.

Old clients unpack what they pull without a check, so the hub serves only archives it made itself: regular
files and nothing else, safe names, no owners, fixed times.
"""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from hub_server.errors import BadRequest, NotFound, Unavailable
from hub_server.private_files import create
from verifiers.packages.wheel import unsafe_path

MAX_MEMBERS = 20_000
MAX_RATIO = 200
"""Most unpacked bytes per packed byte above `FREE_BYTES`; text compresses far, but not that far."""
FREE_BYTES = 64 * 1024**2
_PIECE_BYTES = 1 << 18


class ArchiveRejected(BadRequest):
    """The upload is not a source archive that can be published."""


def repack(source: Path, target: Path, max_unpacked_bytes: int) -> list[dict[str, Any]]:
    """Write a clean copy of the tar.gz in `source` to `target`; what is inside.

    An sdist's single top folder is left out. The copy depends only on names, order and contents.
    Reads the archive twice and never holds more than a piece of it. Blocking; call it from a thread.
    Raises ArchiveRejected.
    """
    limit = min(max_unpacked_bytes, max(FREE_BYTES, source.stat().st_size * MAX_RATIO))
    try:
        names = [name for _, name in _members(source, limit)]
        top = _single_folder(names)
        if f"{top}pyproject.toml" not in names:
            raise ArchiveRejected("The source archive has no pyproject.toml at its top.")
        with (
            create(target) as raw,
            # mtime=0 and no file name: gzip's header must not make equal archives differ.
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            return [
                _copy(tar, member, name.removeprefix(top))
                for member, name in _members(source, limit)
            ]
    except ArchiveRejected:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise Unavailable(f"The archive cannot be stored: {error.strerror}.") from error
        raise ArchiveRejected(f"The source archive is not a readable .tar.gz: {error}.") from error


def _copy(tar: tarfile.TarFile, member: "_Member", name: str) -> dict[str, Any]:
    clean = tarfile.TarInfo(name)
    clean.size = member.info.size
    clean.mode = 0o755 if member.info.mode & 0o100 else 0o644
    hashing = _Hashing(member.file)
    tar.addfile(clean, hashing)
    return {"path": name, "size": clean.size, "sha256": hashing.digest.hexdigest()}


def read_member(archive: Path, path: str, max_bytes: int) -> bytes:
    """The first bytes of one file of an archive that `repack` made. Raises NotFound."""
    with tarfile.open(archive, "r:gz") as tar:
        for info in tar:
            if info.name == path:
                file = tar.extractfile(info)
                return file.read(max_bytes) if file else b""
    raise NotFound(f"There is no file {path[:200]!r} in this version.")


class _Bounded(gzip.GzipFile):
    """A gzip stream that refuses to unpack more than its limit."""

    def __init__(self, raw: BinaryIO, limit_bytes: int) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._left = limit_bytes

    def read(self, size: int | None = -1) -> bytes:
        """At most one piece at a time, counted."""
        wanted = _PIECE_BYTES if size is None or size < 0 else size
        data = super().read(min(wanted, _PIECE_BYTES))
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveRejected("The source archive unpacks to more than is allowed.")
        return data


class _Hashing:
    """A file that is hashed while it is copied."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, length: int = -1, /) -> bytes:
        """The next bytes."""
        data = self._file.read(length)
        self.digest.update(data)
        return data


class _Member(NamedTuple):
    info: tarfile.TarInfo
    file: IO[bytes]


def _members(source: Path, limit_bytes: int) -> Iterator[tuple[_Member, str]]:
    """The regular files of the archive with their clean names; everything else is refused."""
    seen: set[str] = set()
    with (
        source.open("rb") as raw,
        _Bounded(raw, limit_bytes) as unpacked,
        tarfile.open(fileobj=unpacked, mode="r|", encoding="utf-8", errors="strict") as tar,
    ):
        for count, info in enumerate(tar):
            if count >= MAX_MEMBERS:
                raise ArchiveRejected(f"The source archive has more than {MAX_MEMBERS} members.")
            name = info.name.removeprefix("./").rstrip("/")
            if info.isdir() and name in ("", "."):
                continue
            reason = unsafe_path(name)
            if reason:
                raise ArchiveRejected(f"The member {info.name[:200]!r} of the archive {reason}.")
            if info.isdir():
                continue
            if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                raise ArchiveRejected(
                    f"{name!r} is a link or device; only regular files can be published."
                )
            if name.casefold() in seen:
                raise ArchiveRejected(f"{name!r} is twice in the archive.")
            seen.add(name.casefold())
            file = tar.extractfile(info)
            assert file is not None, "regular files have contents"
            yield _Member(info, file), name
    if not seen:
        raise ArchiveRejected("The source archive is empty.")


def _single_folder(names: list[str]) -> str:
    """The folder that all of an sdist is in, with its slash; nothing for other archives."""
    tops = {name.partition("/")[0] for name in names}
    if len(tops) == 1 and all("/" in name for name in names):
        return tops.pop() + "/"
    return ""
