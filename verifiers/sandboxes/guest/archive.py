"""Copies of directory trees over a byte stream. The reader treats the stream as hostile.

Format: each entry is one JSON line `{"path", "kind": "dir"|"file"|"link", "mode", "size", "target"}` followed by
`size` bytes. The line `{"end": true}` ends the archive. The root of the tree has the path `""`, so a single file is
a
tree of one entry. The format replaces tar, because here every entry has exactly one representation.

A file with `"sparse": true` is followed by pieces instead. Each piece is one JSON line `{"at", "n"}` and `n` bytes.
The pieces come in order, and `n` = 0 marks the end. Zeros between the pieces are neither sent nor stored. An exact
archive (a snapshot) also has `"mtime"` in nanoseconds and keeps all links, wherever they lead.
"""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Callable, Iterator

COPY_BYTES = 64 << 10
MAX_HEADER_BYTES = 16 << 10
MAX_ENTRIES = 200_000
MAX_PATH_BYTES = 3000
"""Maximum length of an entry's path. It stays below the system's 4,096 wherever the tree is unpacked."""
SPARSE_FROM_BYTES = 1 << 20
"""Larger files are sent in pieces."""
MAX_FILE_BYTES = (1 << 63) - 1
_ZEROS = bytes(COPY_BYTES)


class BadArchive(ValueError):
    """The bytes are not a valid archive, or the archive names a forbidden path."""


class ArchiveTooLarge(ValueError):
    """The tree holds more bytes or entries than the reader allows."""


def _line(**entry: object) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def pack(root: str, *, exact: bool = False) -> Iterator[bytes]:
    """Yield the archive of a file or directory. Devices, sockets, fifos and paths over 3,000 bytes are left out.

    Raises OSError if `root` cannot be read. Entries below `root` that vanish or cannot be read are left out.
    """
    top = os.stat(root)
    if stat.S_ISREG(top.st_mode):
        yield from _pack_file(root, "", exact)
    elif stat.S_ISDIR(top.st_mode):
        yield _line(path="", kind="dir", mode=stat.S_IMODE(top.st_mode), **_times(top, exact))
        yield from _pack_below(root, exact)
    else:
        raise OSError(22, "neither a regular file nor a directory", root)
    yield _line(end=True)


def _times(status: os.stat_result, exact: bool) -> dict[str, int]:
    return {"mtime": status.st_mtime_ns} if exact else {}


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return iter(sorted(entries, key=lambda entry: entry.name))
    except OSError:
        return iter(())


def _pack_below(root: str, exact: bool) -> Iterator[bytes]:
    # A list of directories instead of recursion: a program may nest thousands of them.
    open_directories = [("", _entries(root))]
    while open_directories:
        relative, entries = open_directories[-1]
        entry = next(entries, None)
        if entry is None:
            open_directories.pop()
            continue
        name = os.path.join(relative, entry.name)
        try:
            if len(name.encode("utf-8")) > MAX_PATH_BYTES:
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(entry.path)
                target.encode("utf-8")  # the JSON header can only hold UTF-8
                yield _line(path=name, kind="link", mode=0, target=target)
            elif stat.S_ISDIR(status.st_mode):
                mode = stat.S_IMODE(status.st_mode)
                yield _line(path=name, kind="dir", mode=mode, **_times(status, exact))
                open_directories.append((name, _entries(entry.path)))
            elif stat.S_ISREG(status.st_mode):
                yield from _pack_file(entry.path, name, exact)
        except (OSError, UnicodeEncodeError):
            continue


def _pack_file(path: str, name: str, exact: bool) -> Iterator[bytes]:
    # O_NONBLOCK: a program may have put a fifo in the file's place since the directory was listed.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        header: dict[str, object] = {
            "path": name,
            "kind": "file",
            "mode": stat.S_IMODE(status.st_mode),
            "size": status.st_size,
            **_times(status, exact),
        }
        size = status.st_size
        if size > SPARSE_FROM_BYTES:
            yield _line(**header, sparse=True)
            yield from _pieces(descriptor, size)
            return
        yield _line(**header)
        while size:
            # If the file shrinks meanwhile, zeros replace the rest: the header has announced the size.
            data = _read(file, min(size, COPY_BYTES)) or bytes(min(size, COPY_BYTES))
            size -= len(data)
            yield data


def _read(file: io.RawIOBase, count: int) -> bytes:
    try:
        return file.read(count) or b""
    except OSError:
        return b""


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the pieces of a file that are not zeros."""
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
            end = min(size, os.lseek(descriptor, at, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # only a hole is left
            end = size  # the file system does not report holes
        while at < end:
            try:
                data = os.pread(descriptor, min(end - at, COPY_BYTES), at)
            except OSError:
                data = b""
            if not data:
                at = size  # the file has shrunk
                break
            if data != _ZEROS[: len(data)]:
                yield _line(at=at, n=len(data))
                yield data
            at += len(data)
    yield _line(at=size, n=0)


class Unpacker:
    """Writes an archive piece by piece below `root`, and nowhere else.

    Every entry is checked before anything is written. Its path is relative, without `..`, and its parent is an
    entry of this archive, so no path can lead through a link. A link may only lead to a target inside the tree.

    With `exact`, for unpacking inside a sandbox, links may lead anywhere, modification times are kept, and holes do
    not count as bytes.
    """

    def __init__(self, root: str, *, max_bytes: int, exact: bool = False) -> None:
        self._root = root
        self._exact = exact
        self._room_bytes = max_bytes
        self._entries = 0
        self._directories: set[str] = set()
        self._buffer = bytearray()
        self._file: int | None = None
        self._file_left_bytes = 0
        self._sparse_size: int | None = None
        """Size of the file whose pieces are being read."""
        self._sparse_end = 0
        """End of the file's last piece."""
        self._file_mtime: int | None = None
        self._links: list[tuple[str, str]] = []
        self._modes: list[tuple[str, int, int | None]] = []
        self.done = False

    def feed(self, data: bytes) -> None:
        """Unpack further bytes of the archive. Raises BadArchive, ArchiveTooLarge, OSError."""
        view = memoryview(data)
        while len(view):
            if self._file is not None and self._file_left_bytes:
                piece = view[: self._file_left_bytes]
                write_all(self._file, piece)
                self._file_left_bytes -= len(piece)
                view = view[len(piece) :]
                if not self._file_left_bytes and self._sparse_size is None:
                    self._close_file()
                continue
            if self.done:
                raise BadArchive("bytes after the end")
            newline = data.find(b"\n", len(data) - len(view))
            end = len(view) if newline < 0 else newline + 1 - (len(data) - len(view))
            self._buffer += view[:end]
            view = view[end:]
            if len(self._buffer) > MAX_HEADER_BYTES:
                raise BadArchive(f"a header of more than {MAX_HEADER_BYTES} bytes")
            if newline >= 0:
                header, self._buffer = bytes(self._buffer), bytearray()
                if self._sparse_size is None:
                    self._entry(header)
                else:
                    self._piece(header, self._sparse_size)

    def finish(self) -> None:
        """Make links, and set modes and times of directories. Raises BadArchive if the archive is incomplete."""
        if not self.done:
            raise BadArchive("the archive ends too early")
        for target, path in self._links:
            _remove_file(path)
            os.symlink(target, path)
        for path, mode, mtime in reversed(self._modes):  # parents last: they may become read-only
            try:
                if mtime is not None:
                    os.utime(path, ns=(mtime, mtime))
                os.chmod(path, mode)
            except PermissionError:
                if not (
                    self._exact and path == self._root
                ):  # a folder such as /tmp that belongs to root
                    raise

    def close(self) -> None:
        """Close an unfinished file. Idempotent."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _entry(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if entry == {"end": True}:
                self.done = True
                return
            path, kind, mode = entry["path"], entry["kind"], entry["mode"]
            size, target = entry.get("size", 0), entry.get("target", "")
            is_sparse, mtime = entry.get("sparse") is True, entry.get("mtime")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadArchive(f"not an entry: {line[:80]!r}") from error
        if not (isinstance(path, str) and isinstance(target, str) and _is_small(mode, 0o7777)):
            raise BadArchive(f"not an entry: {line[:80]!r}")
        if not self._exact or not _is_small(mtime, MAX_FILE_BYTES):
            mtime = None
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise ArchiveTooLarge(f"more than {MAX_ENTRIES} entries")
        target_path = self._target_path(path)
        if kind == "dir":
            if os.path.islink(target_path):
                _remove_file(target_path)
            os.makedirs(target_path, exist_ok=True)
            self._directories.add(path)
            self._modes.append((target_path, mode & 0o777, mtime))
        elif path in self._directories:
            raise BadArchive(f"the directory {path!r} appears a second time, as a {kind!r}")
        elif kind == "file":
            room_bytes = MAX_FILE_BYTES if self._exact and is_sparse else self._room_bytes
            if not _is_small(size, room_bytes):
                raise ArchiveTooLarge(f"more bytes than allowed: {path!r} has {size!r}")
            self._open_file(target_path, size, mode & 0o777, is_sparse)
            self._file_mtime = mtime
            if not size and not is_sparse:
                self._close_file()
        elif kind == "link":
            if "\0" in target or not target:
                raise BadArchive(f"a link to {target!r}")
            if self._exact or stays_inside(path, target):
                self._links.append((target, target_path))
        else:
            raise BadArchive(f"an entry of kind {kind!r}")

    def _target_path(self, path: str) -> str:
        if path == "":
            if self._entries != 1:
                raise BadArchive("a second root")
            return self._root
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise BadArchive(f"the path {path!r} leaves the tree or is not plain")
        if "/".join(parts[:-1]) not in self._directories:
            raise BadArchive(f"the parent of {path!r} is not a directory of this archive")
        return os.path.join(self._root, path)

    def _piece(self, line: bytes, size: int) -> None:
        """Read the header of a piece of the current file."""
        assert self._file is not None
        try:
            piece = json.loads(line)
            at, count = piece["at"], piece["n"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadArchive(f"not a piece: {line[:80]!r}") from error
        if not (_is_small(at, size) and at >= self._sparse_end and _is_small(count, size - at)):
            raise BadArchive(f"a piece at {at!r} of {count!r} bytes in a file of {size}")
        if not count:
            os.ftruncate(self._file, size)
            self._sparse_size = None
            self._close_file()
            return
        if self._exact:
            self._room_bytes -= count
            if self._room_bytes < 0:
                raise ArchiveTooLarge("more bytes than allowed")
        os.lseek(self._file, at, os.SEEK_SET)
        self._file_left_bytes = count
        self._sparse_end = at + count

    def _open_file(self, target_path: str, size: int, mode: int, is_sparse: bool) -> None:
        if not (is_sparse and self._exact):
            self._room_bytes -= size
        if self._entries > 1:
            _remove_file(target_path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(
            target_path, flags | (os.O_NOFOLLOW if self._entries > 1 else 0), 0o600
        )
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(22, "not a regular file", target_path)
        os.fchmod(descriptor, mode)
        self._file = descriptor
        self._file_left_bytes = 0 if is_sparse else size
        self._sparse_size, self._sparse_end = (size if is_sparse else None), 0

    def _close_file(self) -> None:
        """Finish the current file."""
        if self._file is not None:
            if self._file_mtime is not None:
                os.utime(self._file, ns=(self._file_mtime, self._file_mtime))
            self.close()


def _is_small(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at `path` leads to a target inside the tree, through all other links of the tree.

    `..` is allowed only at the beginning, where it counts from the link's own directory, which is a real one. After
    the name of another link, `..` would count from that link's target.
    """
    if target.startswith("/"):
        return False
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    return climbs <= path.count("/") and ".." not in parts[climbs:]


def _remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all bytes to a blocking descriptor."""
    rest = memoryview(data)
    while len(rest):
        rest = rest[os.write(descriptor, rest) :]


def pack_files(files: dict[str, bytes]) -> Iterator[bytes]:
    """Yield an archive of files in memory. Paths are relative, without `.` and `..`."""
    yield _line(path="", kind="dir", mode=0o755)
    directories: set[str] = set()
    for path, content in sorted(files.items()):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            if parent not in directories:
                directories.add(parent)
                yield _line(path=parent, kind="dir", mode=0o755)
        yield _line(path=path, kind="file", mode=0o644, size=len(content))
        yield content
    yield _line(end=True)


def unpack(root: str, chunks: Callable[[], bytes], *, max_bytes: int, exact: bool = False) -> None:
    """Read an archive from `chunks`, which returns empty bytes at the end, and write it below `root`."""
    unpacker = Unpacker(root, max_bytes=max_bytes, exact=exact)
    try:
        while data := chunks():
            unpacker.feed(data)
        unpacker.finish()
    finally:
        unpacker.close()
