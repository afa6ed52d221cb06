"""Notes and labels of people, written beside the results: `notes.jsonl` in the run folder.

Every line is one change: `{"time", "author", "rollout", "labels", "note"}`. `rollout` is `EXAMPLE-ROLLOUT`, or null for
the run as a whole. The last line of a rollout is valid, so several people can write at the same time, and the history
stays.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from verifiers.errors import Error
from verifiers.files import write_all
from verifiers.runs.output import encode_value

NOTES_FILE = "notes.jsonl"
MAX_NOTE = 20_000
"""Maximum length of a note, in characters."""
MAX_LABELS = 20
MAX_LABEL = 60
"""Maximum length of a label, in characters."""


class NoteRefused(Error, ValueError):
    """A note that is too long, or a folder that cannot be written."""


class Note(NamedTuple):
    """The labels and the note of a rollout or of a run."""

    labels: tuple[str, ...] = ()
    text: str = ""
    author: str = ""
    time: str = ""
    """ISO 8601 with time zone."""

    @property
    def is_empty(self) -> bool:
        """Whether there are neither labels nor text."""
        return not (self.labels or self.text)


def note_key(output: Mapping[str, Any]) -> str:
    """Return the key of a rollout in the file of notes."""
    return f"{output.get('example_id')}-{output.get('rollout_index') or 0}"


def labels_of(text: str) -> tuple[str, ...]:
    """Return the labels of a text with commas between them, without repetitions. Raises NoteRefused."""
    labels = tuple(
        dict.fromkeys(filter(None, (" ".join(part.split()) for part in text.split(","))))
    )
    too_long = next((label for label in labels if len(label) > MAX_LABEL), None)
    if too_long is not None:
        raise NoteRefused(f"A label has at most {MAX_LABEL} characters; shorten {too_long[:20]!r}…")
    if len(labels) > MAX_LABELS:
        raise NoteRefused(f"At most {MAX_LABELS} labels are possible; there are {len(labels)}.")
    return labels


class Notes:
    """The notes of a run folder. Reading follows changes of the file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NOTES_FILE
        self._stamp: tuple[int, int] | None = None
        self._notes: dict[str | None, Note] = {}

    def all(self) -> dict[str | None, Note]:
        """Return key → note, without empty notes; the key None is the run."""
        try:
            status = self._path.stat()
        except OSError:
            return {}
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._notes = _valid(self._path.read_bytes().splitlines())
            self._stamp = stamp
        return self._notes

    def of(self, key: str | None) -> Note:
        """Return the note of a rollout, or of the run."""
        return self.all().get(key, Note())

    def write(self, key: str | None, labels: Iterable[str], text: str) -> None:
        """Replace the labels and the note of a rollout. Raises NoteRefused."""
        text = text.replace("\r\n", "\n").strip()
        if len(text) > MAX_NOTE:
            raise NoteRefused(
                f"A note has at most {MAX_NOTE} characters; this note has {len(text)}."
            )
        line = encode_value(
            {
                "time": datetime.now(UTC).isoformat(timespec="seconds"),
                "author": _author(),
                "rollout": key,
                "labels": list(labels),
                "note": text,
            }
        )
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            try:
                write_all(descriptor, line)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise NoteRefused(
                f"The note could not be written to {self._path}: {error.strerror or error}."
            ) from error


def _author() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _valid(lines: Iterable[bytes]) -> dict[str | None, Note]:
    """Return the last note of each key. Lines that are not notes are skipped: people may edit the file."""
    notes: dict[str | None, Note] = {}
    for line in lines:
        try:
            entry = orjson.loads(line)
            key, labels = entry["rollout"], entry.get("labels") or []
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            continue
        if not (isinstance(labels, list) and (key is None or isinstance(key, str))):
            continue
        texts = (str(entry.get(name) or "") for name in ("note", "author", "time"))
        note = Note(tuple(map(str, labels)), *texts)
        notes.pop(key, None)
        if not note.is_empty:
            notes[key] = note
    return notes
