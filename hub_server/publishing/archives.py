"""Source archives: read as hostile input, and written again before any client receives them.

Old clients unpack downloads without a check, so the hub serves only archives that it wrote: regular files only, safe
names, no owners, fixed times.
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
"""Maximum number of unpacked bytes per packed byte above `FREE_BYTES`. Text compresses well, but not that well."""
FREE_BYTES = 64 * 1024**2
_PIECE_BYTES = 1 << 18


class ArchiveRejected(BadRequest):
    """The upload is not a source archive that can be published."""


def repack(source: Path, target: Path, max_unpacked_bytes: int) -> list[dict[str, Any]]:
    """Write a clean copy of the tar.gz in `source` to `target` and return its members.

    The single top folder of an sdist is left out. The copy depends only on names, order and contents. The archive is
    read twice, piece by piece. Blocking; call it from a thread. Raises ArchiveRejected.
    """
    limit = min(max_unpacked_bytes, max(FREE_BYTES, source.stat().st_size * MAX_RATIO))
    try:
        names = [name for _, name in _members(source, limit)]
        top = _single_folder(names)
        if f"{top}pyproject.toml" not in names:
            raise ArchiveRejected("The source archive has no pyproject.toml at its top.")
        with (
            create(target) as raw,
            # mtime=0 and no file name: the gzip header must not make equal archives differ.
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
    """Return the first bytes of one file of an archive that `repack` made. Raises NotFound."""
    with tarfile.open(archive, "r:gz") as tar:
        for info in tar:
            if info.name == path:
                file = tar.extractfile(info)
                return file.read(max_bytes) if file else b""
    raise NotFound(f"There is no file {path[:200]!r} in this version.")


class _Bounded(gzip.GzipFile):
    """A gzip stream that raises an error when it unpacks more than its limit."""

    def __init__(self, raw: BinaryIO, limit_bytes: int) -> None:
        super().__init__(fileobj=raw, mode="rb")
        self._left = limit_bytes

    def read(self, size: int | None = -1) -> bytes:
        """Return at most one piece and count it."""
        requested = _PIECE_BYTES if size is None or size < 0 else size
        data = super().read(min(requested, _PIECE_BYTES))
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveRejected(
                "The source archive unpacks to more than the maximum of this hub."
            )
        return data


class _Hashing:
    """A file that is hashed while it is copied."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, length: int = -1, /) -> bytes:
        """Return the next bytes."""
        data = self._file.read(length)
        self.digest.update(data)
        return data


class _Member(NamedTuple):
    info: tarfile.TarInfo
    file: IO[bytes]


def _members(source: Path, limit_bytes: int) -> Iterator[tuple[_Member, str]]:
    """Yield the regular files of the archive with their clean names. All other members are refused."""
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
    """Return the folder that contains all of an sdist, with its slash, or an empty text for other archives."""
    tops = {name.partition("/")[0] for name in names}
    if len(tops) == 1 and all("/" in name for name in names):
        return tops.pop() + "/"
    return ""
