"""The index of a run: one short line per rollout, so that no reader has to load a whole run.

`results.index` begins with a header line. Every further line describes one line of `results.jsonl`, in the same order:
its place, `[offset, length]` in bytes, and the output without messages and data of the environment. Such an output has
the keys of a `RolloutOutput`, so `RunningSummary.add` and other code that counts rollouts takes both.

The writer of a run appends to the index after each write of results, without waiting for the disk. An index is only a
copy: `store.iterate_index` compares it with `results.jsonl`, reads the rest itself, and replaces an index that does not
fit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from verifiers.files import write_all
from verifiers.runs.output import decode_line, encode_value

logger = logging.getLogger(__name__)

INDEX_FILE = "results.index"
HEADER = orjson.dumps({"index_version": 1}) + b"\n"
MAX_TEXT = 300
"""Maximum length of a text in the index, in characters."""
CHECKED_LINES = 24
"""Number of lines of an index that are compared with the results before the index is trusted."""

_COPIED = (
    "example_id",
    "rollout_index",
    "input_key",
    "task",
    "reward",
    "is_completed",
    "is_truncated",
    "stop_condition",
    "token_usage",
)
_ERROR_FIELDS = (
    "error",
    "error_chain_repr",
    "error_chain_str",
    "where",
    "voids_reward",
    "function",
    "message",
)


class Place(NamedTuple):
    """Where a line of `results.jsonl` is, in bytes."""

    offset: int
    length: int


class IndexedRollout(NamedTuple):
    """One rollout in the index."""

    place: Place
    output: dict[str, Any]
    """The short output: identity, reward, metrics, errors, stop condition, tokens and durations."""


def short_output(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an output that the index keeps."""
    short: dict[str, Any] = {key: output[key] for key in _COPIED if key in output}
    short["metrics"] = output.get("metrics") or {}
    if isinstance(task := short.get("task"), str):
        short["task"] = task[:MAX_TEXT]
    if (error := output.get("error")) is not None:
        short["error"] = _short_error(error)
    if errors := output.get("errors"):
        short["errors"] = [_short_error(entry) for entry in errors]
    timing = output.get("timing")
    if isinstance(timing, Mapping):
        short["timing"] = _short_timing(timing)
    return short


def _short_error(error: Any) -> Any:
    if not isinstance(error, Mapping):
        return str(error)[:MAX_TEXT]
    return {
        key: value[:MAX_TEXT] if isinstance(value, str) else value
        for key in _ERROR_FIELDS
        if (value := error.get(key)) is not None
    }


def _short_timing(timing: Mapping[str, Any]) -> dict[str, Any]:
    """Return every span as its duration in seconds, beside the times that are numbers already."""
    return {
        key: value.get("duration", 0.0) if isinstance(value, dict) else value
        for key, value in timing.items()
        if not isinstance(value, list | str)
    }


def encode_entry(place: Place, short: dict[str, Any]) -> bytes:
    """Return one line of the index."""
    return encode_value({"at": place, **short})


def decode_entry(line: bytes) -> IndexedRollout:
    """Return the rollout of one line of an index. Raises ValueError, KeyError or TypeError for any other line."""
    short = decode_line(line)
    return IndexedRollout(Place(*short.pop("at")), short)


class IndexWriter:
    """Appends to the index of a run that this process writes. Failures to write it are logged once and end it."""

    def __init__(self, folder: Path) -> None:
        """Continue the index of `folder`, which must be complete; a run without results begins a new one."""
        self._path = folder / INDEX_FILE
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            if os.fstat(self._descriptor).st_size == 0:
                write_all(self._descriptor, HEADER)
        except OSError as error:
            self._give_up(error)

    def append(self, offset: int, lines: Iterable[bytes], shorts: Iterable[dict[str, Any]]) -> None:
        """Add rollouts whose lines were written to the results from `offset` on."""
        if self._descriptor is None:
            return
        entries = []
        for line, short in zip(lines, shorts, strict=True):
            entries.append(encode_entry(Place(offset, len(line)), short))
            offset += len(line)
        try:
            write_all(self._descriptor, b"".join(entries))
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _give_up(self, error: OSError) -> None:
        logger.warning(
            "The index %s is not written: %s. Readers make a new one.", self._path, error
        )
        self.close()


def fits(index: Path, results: Path) -> bool:
    """Whether an index describes these results: its header, its last line and a sample of other lines agree."""
    if not (results.is_file() and index.is_file()):
        return False
    size = index.stat().st_size
    with index.open("rb") as entries, results.open("rb") as lines:
        if entries.readline() != HEADER:
            return False
        first = entries.tell()
        checked: set[bytes] = set()
        for number in range(CHECKED_LINES + 1):
            entries.seek(first + (size - first) * number // CHECKED_LINES)
            if number:
                entries.seek(max(first, entries.tell() - 1))
                entries.readline()  # the rest of a line
            line = entries.readline()
            if line in checked or not line.endswith(b"\n"):
                continue
            if not _agrees(line, lines):
                return False
            checked.add(line)
    return True


def _agrees(line: bytes, results: BinaryIO) -> bool:
    try:
        place, short = decode_entry(line)
        results.seek(place.offset)
        content = results.read(place.length)
        return content.endswith(b"\n") and short == decode_line(
            encode_value(short_output(decode_line(content)))
        )
    except (ValueError, KeyError, TypeError):
        return False
