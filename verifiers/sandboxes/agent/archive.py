"""Copies of directory trees over a byte stream, read with suspicion.

Format: entries of one JSON line `{"path", "kind": "dir"|"file"|"link", "mode", "size", "target"}` followed by
`size` bytes, then the line `{"end": true}`. The root of the tree has the path `""`, so a single file is a tree of one
entry. Simpler than tar where it matters: there is one way to write an entry and nothing to interpret.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator

COPY_BYTES = 64 << 10
MAX_HEADER_BYTES = 16 << 10
MAX_ENTRIES = 200_000


class BadArchive(ValueError):
    """These bytes are no archive, or one that wants to write where it must not."""


class ArchiveTooLarge(ValueError):
    """The tree holds more bytes or entries than the reader allows."""


def _line(**entry: object) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def pack(root: str) -> Iterator[bytes]:
    """The archive of a file or directory. Devices, sockets and fifos are left out.

    Raises OSError if `root` cannot be read; what vanishes or is unreadable below it is left out.
    """
    top = os.stat(root)
    if stat.S_ISREG(top.st_mode):
        yield from _pack_file(root, "")
    elif stat.S_ISDIR(top.st_mode):
        yield _line(path="", kind="dir", mode=stat.S_IMODE(top.st_mode))
        yield from _pack_below(root, "")
    else:
        raise OSError(22, "neither a regular file nor a directory", root)
    yield _line(end=True)


def _pack_below(directory: str, relative: str) -> Iterator[bytes]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except PermissionError:
        return
    for entry in entries:
        try:
            name = os.path.join(relative, entry.name)
            name.encode("utf-8")  # names that are not UTF-8 cannot be in the JSON header
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                yield _line(path=name, kind="link", mode=0, target=os.readlink(entry.path))
            elif stat.S_ISDIR(status.st_mode):
                yield _line(path=name, kind="dir", mode=stat.S_IMODE(status.st_mode))
                yield from _pack_below(entry.path, name)
            elif stat.S_ISREG(status.st_mode):
                yield from _pack_file(entry.path, name)
        except (FileNotFoundError, PermissionError, UnicodeEncodeError):
            continue


def _pack_file(path: str, name: str) -> Iterator[bytes]:
    # O_NONBLOCK: between the look and the open somebody may have put a fifo in its place.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        size = status.st_size
        yield _line(path=name, kind="file", mode=stat.S_IMODE(status.st_mode), size=size)
        while size:
            # A file that shrinks meanwhile is filled up with zeros: the size has been promised.
            data = file.read(min(size, COPY_BYTES)) or bytes(min(size, COPY_BYTES))
            size -= len(data)
            yield data


class Unpacker:
    """Writes an archive below `root`, piece by piece, and nothing anywhere else.

    Every entry is checked before anything is written: relative, no `..`, its parent an entry of this archive (so no
    path can lead through a link), links only to targets inside the tree.
    """

    def __init__(self, root: str, *, max_bytes: int) -> None:
        self._root = root
        self._room_bytes = max_bytes
        self._entries = 0
        self._directories: set[str] = set()
        self._buffer = bytearray()
        self._file: int | None = None
        self._file_left_bytes = 0
        self._links: list[tuple[str, str]] = []
        self._modes: list[tuple[str, int]] = []
        self.done = False

    def feed(self, data: bytes) -> None:
        """Take bytes of the archive. Raises BadArchive, ArchiveTooLarge, OSError."""
        view = memoryview(data)
        while len(view):
            if self._file is not None:
                piece = view[: self._file_left_bytes]
                _write_all(self._file, piece)
                self._file_left_bytes -= len(piece)
                view = view[len(piece) :]
                if not self._file_left_bytes:
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
                self._entry(header)

    def finish(self) -> None:
        """Set what had to wait. Raises BadArchive if the end is missing."""
        if not self.done:
            raise BadArchive("the archive ends too early")
        for target, path in self._links:
            _remove_file(path)
            os.symlink(target, path)
        for path, mode in reversed(self._modes):  # parents last: they may become unwritable
            os.chmod(path, mode)

    def close(self) -> None:
        """Let go of an unfinished file. Idempotent."""
        self._close_file()

    def _entry(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if entry == {"end": True}:
                self.done = True
                return
            path, kind, mode = entry["path"], entry["kind"], entry["mode"]
            size, target = entry.get("size", 0), entry.get("target", "")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadArchive(f"not an entry: {line[:80]!r}") from error
        if not (isinstance(path, str) and isinstance(target, str) and _is_small(mode, 0o7777)):
            raise BadArchive(f"not an entry: {line[:80]!r}")
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise ArchiveTooLarge(f"more than {MAX_ENTRIES} entries")
        place = self._place(path)
        if kind == "dir":
            if os.path.islink(place):
                _remove_file(place)
            os.makedirs(place, exist_ok=True)
            self._directories.add(path)
            self._modes.append((place, mode & 0o777))
        elif kind == "file":
            if not _is_small(size, self._room_bytes):
                raise ArchiveTooLarge(f"more bytes than allowed: {path!r} has {size!r}")
            self._open_file(place, size, mode & 0o777)
        elif kind == "link":
            if _stays_inside(path, target):
                self._links.append((target, place))
        else:
            raise BadArchive(f"an entry of kind {kind!r}")

    def _place(self, path: str) -> str:
        if path == "":
            if self._entries != 1:
                raise BadArchive("a second root")
            return self._root
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts):
            raise BadArchive(f"the path {path!r} leaves the tree or is not plain")
        if "/".join(parts[:-1]) not in self._directories:
            raise BadArchive(f"the parent of {path!r} is no directory of this archive")
        return os.path.join(self._root, path)

    def _open_file(self, place: str, size: int, mode: int) -> None:
        self._room_bytes -= size
        if self._entries > 1:
            _remove_file(place)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(place, flags | (os.O_NOFOLLOW if self._entries > 1 else 0), 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(22, "not a regular file", place)
        os.fchmod(descriptor, mode)
        self._file, self._file_left_bytes = descriptor, size
        if not size:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _is_small(value: object, maximum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def _stays_inside(path: str, target: str) -> bool:
    """Whether a link at `path` leads, by its text alone, to a place inside the tree."""
    if not target or target.startswith("/") or "\0" in target:
        return False
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        if depth < 0:
            return False
    return True


def _remove_file(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _write_all(descriptor: int, data: memoryview) -> None:
    while len(data):
        data = data[os.write(descriptor, data) :]


def pack_files(files: dict[str, bytes]) -> Iterator[bytes]:
    """An archive of files that exist only in memory; paths are relative, with plain parts."""
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


def unpack(root: str, chunks: Callable[[], bytes], *, max_bytes: int) -> None:
    """Read an archive from `chunks` (empty bytes at the end) and write it below `root`."""
    unpacker = Unpacker(root, max_bytes=max_bytes)
    try:
        while data := chunks():
            unpacker.feed(data)
        unpacker.finish()
    finally:
        unpacker.close()
