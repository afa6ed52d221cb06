"""The members of a ZIP file, accepted only if every ZIP reader must see the same members.

The rules follow those of the public package index: no data before, between or after members, both headers agree, no
duplicates, no comments, no ZIP64, no data descriptors, no links, no paths that leave the folder, no bombs. No member
is extracted.
"""

import io
import stat
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from pydantic import BaseModel, ConfigDict

from verifiers.errors import AuthorError


class WheelRejected(AuthorError, ValueError):
    """The file is not a wheel that may be published. The text names the broken rule and the member."""


class WheelLimits(BaseModel):
    """Limits above which a wheel is refused unread."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    members: int = 20_000
    """Maximum number of files in one wheel."""
    unpacked_bytes: int = 2 * 1024**3
    """Maximum number of unpacked bytes of all members together."""
    free_unpacked_bytes: int = 64 * 1024**2
    """Below this unpacked size every compression ratio is accepted."""
    ratio: int = 50
    """Maximum number of unpacked bytes per packed byte above `free_unpacked_bytes`."""
    metadata_bytes: int = 4 * 1024**2
    """Maximum size of METADATA, which contains the README, and of RECORD per 1,000 members."""


class Member(NamedTuple):
    """One file of the archive; both of its headers agree."""

    name: str
    method: int
    crc32: int
    packed_bytes: int
    size_bytes: int
    header_offset: int
    data_offset: int
    mode: int

    @property
    def is_folder(self) -> bool:
        """Whether this entry is a folder."""
        return self.name.endswith("/")


_END = struct.Struct("<4s4H2LH")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _DATA_DESCRIPTOR, _UTF8 = 1 << 0, 1 << 3, 1 << 11
_STORED, _DEFLATED = 0, 8
_FORBIDDEN_EXTRAS = {0x0001: "ZIP64", 0x7075: "Unicode path", 0x9901: "encryption"}


def read_members(file: BinaryIO, size_bytes: int, limits: WheelLimits) -> list[Member]:
    """Return the members of a ZIP file that can be read in only one way, in file order.

    Raises WheelRejected for anything that two ZIP readers could read differently: data before, between or after
    members, headers that disagree, duplicates, comments, ZIP64, data descriptors.
    """
    if size_bytes < _END.size:
        raise WheelRejected(f"The file has {size_bytes} bytes: it is not a ZIP archive.")
    file.seek(size_bytes - _END.size)
    end = _END.unpack(file.read(_END.size))
    signature, disk, first_disk, here, total, central_bytes, central_offset, comment_bytes = end
    if signature != b"PK\x05\x06" or comment_bytes:
        raise WheelRejected("The file does not end with a ZIP end record without a comment.")
    if disk or first_disk or here != total or total == 0xFFFF or central_offset == 0xFFFFFFFF:
        raise WheelRejected("Split and ZIP64 archives are refused.")
    if total > limits.members:
        raise WheelRejected(f"The wheel has {total} members; at most {limits.members} are allowed.")
    if central_offset + central_bytes != size_bytes - _END.size:
        raise WheelRejected("There is other data around the central directory of the ZIP file.")
    file.seek(central_offset)
    central = io.BytesIO(file.read(central_bytes))
    members = [_read_member(file, central) for _ in range(total)]
    if central.read(1):
        raise WheelRejected("The central directory has more entries than its end record states.")
    members.sort(key=lambda member: member.header_offset)
    _check_no_gaps(members, central_offset)
    _check_names(members)
    _check_sizes(members, limits)
    return members


def _read_member(file: BinaryIO, central: io.BytesIO) -> Member:
    raw = central.read(_CENTRAL.size)
    if len(raw) < _CENTRAL.size or raw[:4] != b"PK\x01\x02":
        raise WheelRejected("The central directory of the ZIP file is damaged.")
    (_, _made_by, _needed, flags, method, _time, _date, crc32, packed_bytes, size_bytes) = (
        _CENTRAL.unpack(raw)[:10]
    )
    name_bytes, extra_bytes, comment_bytes, disk, _internal, external, offset = _CENTRAL.unpack(
        raw
    )[10:]
    raw_name, extra = central.read(name_bytes), central.read(extra_bytes)
    if not raw_name.isascii() and not flags & _UTF8:
        raise WheelRejected(f"The member name {raw_name!r} is neither ASCII nor marked as UTF-8.")
    try:
        name = raw_name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise WheelRejected(f"The member name {raw_name!r} is not UTF-8.") from error
    if flags & _ENCRYPTED or flags & _DATA_DESCRIPTOR or comment_bytes or disk:
        raise WheelRejected(f"{name!r} is encrypted, split, commented or has a data descriptor.")
    if method not in (_STORED, _DEFLATED):
        raise WheelRejected(
            f"{name!r} is packed by method {method}; only stored and deflated are allowed."
        )
    _check_extra(name, extra)
    file.seek(offset)
    local = file.read(_LOCAL.size)
    if len(local) < _LOCAL.size or local[:4] != b"PK\x03\x04":
        raise WheelRejected(f"{name!r} has no local header at the offset in the directory.")
    fields = _LOCAL.unpack(local)
    same = (fields[2], fields[3], *fields[6:9]) == (flags, method, crc32, packed_bytes, size_bytes)
    if not same or file.read(fields[9]) != raw_name:
        raise WheelRejected(f"The two headers of {name!r} disagree.")
    _check_extra(name, file.read(fields[10]))
    data_offset = offset + _LOCAL.size + fields[9] + fields[10]
    mode = external >> 16
    return Member(name, method, crc32, packed_bytes, size_bytes, offset, data_offset, mode)


def _check_extra(name: str, extra: bytes) -> None:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind in _FORBIDDEN_EXTRAS:
            raise WheelRejected(f"{name!r} has a {_FORBIDDEN_EXTRAS[kind]} field.")
        position += 4 + length
    if position != len(extra):
        raise WheelRejected(f"The extra fields of {name!r} are damaged.")


def _check_no_gaps(members: list[Member], central_offset: int) -> None:
    expected = 0
    for member in members:
        if member.header_offset != expected:
            raise WheelRejected(
                f"There is hidden or shared data before the member {member.name!r}."
            )
        expected = member.data_offset + member.packed_bytes
    if expected != central_offset:
        raise WheelRejected("There is hidden data between the members and the central directory.")


def _check_names(members: list[Member]) -> None:
    seen: dict[str, str] = {}
    for member in members:
        reason = unsafe_path(member.name.removesuffix("/"))
        if reason:
            raise WheelRejected(f"The member name {member.name!r} {reason}.")
        kind = stat.S_IFMT(member.mode)
        if kind not in (0, stat.S_IFREG) and not (kind == stat.S_IFDIR and member.is_folder):
            raise WheelRejected(f"{member.name!r} is a link or device; only files are allowed.")
        if member.is_folder and (member.size_bytes or member.packed_bytes > 2):
            raise WheelRejected(f"The folder {member.name!r} has contents.")
        # Two names that differ only by case overwrite each other on macOS and Windows.
        folded = member.name.removesuffix("/").casefold()
        if folded in seen:
            raise WheelRejected(f"{member.name!r} and {seen[folded]!r} are the same file.")
        seen[folded] = member.name


def unsafe_path(name: str) -> str | None:
    """Return why a member of this name must not be unpacked, as the end of a sentence; None if it may be."""
    if not name or len(name) > 1000:
        return "is empty or too long"
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        return "has control characters"
    if "\\" in name or name.startswith("/") or ":" in name:
        return "is absolute or has a backslash or colon"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "has an empty, '.' or '..' part"
    return None


def _check_sizes(members: list[Member], limits: WheelLimits) -> None:
    unpacked = sum(member.size_bytes for member in members)
    packed = sum(member.packed_bytes for member in members)
    if unpacked > limits.unpacked_bytes:
        raise WheelRejected(
            f"The wheel unpacks to {unpacked} bytes; {limits.unpacked_bytes} are allowed."
        )
    if unpacked > limits.free_unpacked_bytes and unpacked > packed * limits.ratio:
        raise WheelRejected(f"The wheel unpacks from {packed} to {unpacked} bytes: a ZIP bomb.")


def unpacked(file: BinaryIO, member: Member) -> Iterator[bytes]:
    """Yield the bytes of a member in pieces. Raises WheelRejected if they differ from the headers."""
    file.seek(member.data_offset)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS) if member.method == _DEFLATED else None
    left, produced, crc32 = member.packed_bytes, 0, 0
    while left:
        packed = file.read(min(left, 1 << 16))
        if not packed:
            raise WheelRejected(f"{member.name!r} is cut short.")
        left -= len(packed)
        try:
            piece = packed if inflate is None else inflate.decompress(packed, 1 << 20)
            while piece:
                produced += len(piece)
                crc32 = zlib.crc32(piece, crc32)
                if produced > member.size_bytes:
                    raise WheelRejected(f"{member.name!r} unpacks to more than its header states.")
                yield piece
                pending = inflate.unconsumed_tail if inflate is not None else b""
                piece = inflate.decompress(pending, 1 << 20) if inflate and pending else b""
        except zlib.error as error:
            raise WheelRejected(f"{member.name!r} cannot be unpacked: {error}.") from error
        if inflate is not None and inflate.unused_data:
            raise WheelRejected(f"{member.name!r} has data after its end.")
    whole = inflate is None or inflate.eof or not member.packed_bytes
    if not whole or produced != member.size_bytes or crc32 != member.crc32:
        raise WheelRejected(f"{member.name!r} is damaged (size or CRC do not match).")
