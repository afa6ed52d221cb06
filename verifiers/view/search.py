"""Rollouts that match a filter or contain a text, found in portions.

The text search reads the saved lines in blocks of bytes and looks for the text in its JSON forms, without decoding
lines that do not contain it: about 1 GB per second. Each hit is confirmed in the decoded rollout, because the bytes may
be part of a key. A `Scan` stops when a page is full or its time is over, and continues there for the next page.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verifiers.runs.output import decode_line
from verifiers.view.columns import RunColumns
from verifiers.view.filters import Filter, as_text
from verifiers.view.sources import Run

BLOCK_BYTES = 4 << 20
LEVELS = 3
"""Maximum number of times that a text is escaped: the arguments of a tool call are JSON in JSON in JSON."""
SNIPPET = 90
"""Characters before and after a hit that a page shows."""
MAX_TEXT = 500
"""Maximum length of a searched text, in characters."""
SEARCHED = (
    "prompt",
    "completion",
    "answer",
    "info",
    "error",
    "errors",
    "score_details",
    "judge_response",
)
"""Keys of an output whose texts are searched, in this order."""
CONFIRMED_BYTES = 64 << 20
"""Maximum size of a line that is decoded to confirm a hit."""


class Snippet(NamedTuple):
    """The first place of a searched text in a rollout."""

    where: str
    before: str
    hit: str
    after: str


def json_forms(text: str) -> list[bytes]:
    """Return the forms that a text can have in a saved line, with ASCII letters in lower case.

    Letters beyond ASCII are UTF-8 or escapes, in the case of the query, in lower, upper and title case.
    """
    forms: dict[bytes, None] = {}
    for variant in (text, text.lower(), text.upper(), text.title()):
        for is_ascii in (False, True):
            form = json.dumps(variant, ensure_ascii=is_ascii)[1:-1]
            for _ in range(LEVELS):
                forms[form.encode("utf-8", "surrogatepass").lower()] = None
                form = json.dumps(form, ensure_ascii=False)[1:-1]
    return list(forms)


class TextSearch:
    """A text to search for, without regard to case."""

    def __init__(self, text: str) -> None:
        self.text = text[:MAX_TEXT]
        self._folded = self.text.casefold()
        self._forms = json_forms(self.text)
        self._overlap = max(map(len, self._forms)) - 1

    def candidates(self, run: Run, columns: RunColumns, row: int) -> Iterator[tuple[int, bool]]:
        """Yield (row, whether its line has the bytes) from `row` on: every hit, and the last row of each block."""
        if row >= columns.count:
            return
        position, end = int(columns.offsets[row]), columns.end
        while position < end:
            block = run.read_at(position, min(BLOCK_BYTES, end - position))
            if not block:
                return  # the file was cut
            lowered = block.lower()
            for hit_row in self._rows(lowered, position, columns):
                if hit_row >= row:
                    yield hit_row, True
                    row = hit_row + 1
            reached = position + len(block)
            if reached >= end:
                return
            position = max(position + 1, reached - self._overlap)
            if row < columns.count and position < columns.offsets[row]:
                position = int(columns.offsets[row])  # the rest of the line has been found already
            last = int(np.searchsorted(columns.offsets, position, side="right")) - 1
            yield max(last - 1, row - 1), False

    def _rows(self, block: bytes, start: int, columns: RunColumns) -> list[int]:
        """Return the rows whose lines contain the text in this block, ascending."""
        rows: set[int] = set()
        for form in self._forms:
            at = block.find(form)
            while at >= 0:
                row = int(np.searchsorted(columns.offsets, start + at, side="right")) - 1
                rows.add(row)
                line_end = int(columns.offsets[row] + columns.lengths[row]) - start
                at = block.find(form, max(at + 1, line_end))
        return sorted(rows)

    def snippet(self, output: Mapping[str, Any]) -> Snippet | None:
        """Return the first place of the text in the searched keys, or None."""
        for key in SEARCHED:
            for where, text in _texts(output.get(key), key):
                folded = text.casefold()
                at = folded.find(self._folded)
                if at < 0:
                    continue
                if len(folded) != len(text):  # case folding changed lengths: find the place again
                    at = max(0, text.lower().find(self.text.lower()))
                end = at + len(self.text)
                before, after = text[max(0, at - SNIPPET) : at], text[end : end + SNIPPET]
                return Snippet(
                    where,
                    ("…" if at > SNIPPET else "") + before,
                    text[at:end],
                    after + ("…" if end + SNIPPET < len(text) else ""),
                )
        return None


def _texts(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of every text inside a value. Texts that are JSON are also yielded decoded."""
    stack: list[tuple[str, Any]] = [(where, value)]
    while stack:
        place, item = stack.pop()
        if isinstance(item, str):
            yield place, item
            if item[:1] in ("{", "["):
                try:
                    inner = json.loads(item)
                except (ValueError, RecursionError):
                    continue
                stack.extend(_children(place, inner))
        elif isinstance(item, Mapping | list):
            stack.extend(_children(place, item))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield place, as_text(item)


def _children(place: str, value: Any) -> list[tuple[str, Any]]:
    """Return the items of a container, last first, as a stack needs them."""
    if isinstance(value, Mapping):
        return [(f"{place}.{key}", item) for key, item in value.items()][::-1]
    if isinstance(value, list):
        return [(f"{place}[{number}]", item) for number, item in enumerate(value)][::-1]
    return []


class Scan:
    """The matches of a filter and a text in a run, as far as they are known."""

    def __init__(
        self, run: Run, columns: RunColumns, condition: Filter | None, text: TextSearch | None
    ) -> None:
        self._run = run
        self._columns = columns
        self._condition = condition
        self._text = text
        self._mask = (
            np.ones(columns.count, dtype=bool) if condition is None else condition.mask(columns)
        )
        self._needs_lines = condition is not None and condition.needs_lines(columns)
        self._found: list[int] = []
        self._guard = threading.Lock()
        self.next_row = 0
        """The first row that is not decided."""
        if text is None and not self._needs_lines:
            self._rows = np.flatnonzero(self._mask)
            self.next_row = columns.count
        else:
            self._rows = None

    @property
    def is_done(self) -> bool:
        """Whether every rollout is decided."""
        return self.next_row >= self._columns.count

    @property
    def rows(self) -> NDArray[np.int64]:
        """Matching rows so far, ascending."""
        return self._rows if self._rows is not None else np.array(self._found, dtype=np.int64)

    def advance(self, wanted: int | None, budget_s: float) -> None:
        """Search until `wanted` matches are known (None: all), for at most `budget_s` seconds."""
        with self._guard:
            deadline = time.monotonic() + budget_s
            candidates = self._by_text() if self._text is not None else self._by_line()
            if self.is_done:
                return
            for row, is_candidate in candidates:
                if is_candidate and self._mask[row] and self._is_match(row):
                    self._found.append(row)
                self.next_row = row + 1
                if wanted is not None and len(self._found) >= wanted:
                    return
                if time.monotonic() > deadline:
                    return
            self.next_row = self._columns.count

    def _by_text(self) -> Iterator[tuple[int, bool]]:
        assert self._text is not None
        return self._text.candidates(self._run, self._columns, self.next_row)

    def _by_line(self) -> Iterator[tuple[int, bool]]:
        return (
            (row, True)
            for row in (np.flatnonzero(self._mask[self.next_row :]) + self.next_row).tolist()
        )

    def _is_match(self, row: int) -> bool:
        columns = self._columns
        length = int(columns.lengths[row])
        if length > CONFIRMED_BYTES and not self._needs_lines:
            return True
        try:
            output = decode_line(self._run.read_at(int(columns.offsets[row]), length))
        except ValueError:
            return False
        if (
            self._needs_lines
            and self._condition is not None
            and not self._condition.matches(output)
        ):
            return False
        return self._text is None or self._text.snippet(output) is not None
