"""Public pages and files, ready in memory.

An entry is served only after the watcher has reported no change of its owner; see `changes`.
"""

from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from hub_server.changes.service import Watcher
from hub_server.index.pages import Page

MAX_ENTRIES = 20_000
MAX_BYTES = 64 * 1024**2


class CachedPage(NamedTuple):
    """A public index page."""

    owner: str
    page: Page


class CachedFile(NamedTuple):
    """A wheel, its metadata, or a source archive of a public environment."""

    owner: str
    environment_id: str
    sha256: str
    size_bytes: int
    content: bytes | None
    """The bytes, for a wheel's metadata."""
    path: Path | None
    """The blob's file, if blobs are files."""
    is_download: bool


Entry = CachedPage | CachedFile


class PageCache:
    """Entries by address. The least recently used entry is removed first."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._by_owner: dict[str, set[str]] = {}
        self._bytes = 0
        self._generation = object()

    def get(self, path: str) -> Entry | None:
        """Return the entry if it is still valid."""
        self.forget_changed()
        entry = self._entries.get(path)
        if entry is not None:
            self._entries.move_to_end(path)
        return entry

    def forget_changed(self) -> None:
        """Drop the entries that changed since the last call."""
        if not self._watcher.is_reliable:
            self._clear()
            return
        changed = self._watcher.changed_owners()
        if changed:
            self._generation = object()
        if "*" in changed:
            self._clear()
        for owner in changed:
            for path in self._by_owner.pop(owner, ()):
                self._remove(path)

    @property
    def generation(self) -> object:
        """An object that is replaced at every change. Read it before the data; see `put`."""
        self.forget_changed()
        return self._generation

    def put(self, path: str, entry: Entry, generation: object) -> None:
        """Keep the entry, unless something changed since `generation` was read.

        Without this check a page of an old snapshot could stay after its change was noticed.
        """
        self.forget_changed()
        if not self._watcher.is_reliable or generation is not self._generation:
            return
        self._remove(path)
        self._entries[path] = entry
        self._by_owner.setdefault(entry.owner, set()).add(path)
        self._bytes += _size_of(entry)
        while len(self._entries) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            oldest = next(iter(self._entries))
            self._by_owner.get(self._entries[oldest].owner, set()).discard(oldest)
            self._remove(oldest)

    def _remove(self, path: str) -> None:
        entry = self._entries.pop(path, None)
        if entry is not None:
            self._bytes -= _size_of(entry)

    def _clear(self) -> None:
        if self._entries:
            self._entries.clear()
            self._by_owner.clear()
            self._bytes = 0
        self._generation = object()


def _size_of(entry: Entry) -> int:
    if isinstance(entry, CachedFile):
        return 500 + len(entry.content or b"")
    forms = (entry.page.json, entry.page.html, entry.page.plain_html)
    return 2_000 + sum(
        len(form.identity) + len(form.gzip or b"") + len(form.zstd or b"") for form in forms
    )
