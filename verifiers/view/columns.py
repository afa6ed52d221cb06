"""The short form of a run in memory: a few numbers per rollout in arrays, texts as codes.

A run of 100,000 rollouts takes about 10 MB, because no rollout has its own object. The columns have the names of the
keys of an output with a dot for nesting (`reward`, `metrics.accuracy`, `token_usage.output_tokens`), so that filters,
sorting and tables address columns and keys of the saved line in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiers.errors import is_void
from verifiers.runs.index import IndexedRollout

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PORTION = 4096
"""Number of rollouts that are added to the columns at a time."""
BOOLEANS = frozenset(["is_completed", "is_truncated", "is_void", "has_failed"])
"""Columns of 0 and 1 that stand for false and true."""
ALIASES = {
    "input_tokens": "token_usage.input_tokens",
    "output_tokens": "token_usage.output_tokens",
    "seconds": "timing.total",
    "example": "example_id",
    "rollout": "rollout_index",
    "truncated": "is_truncated",
    "error.error": "error_type",
    "error.error_chain_repr": "error",
}
"""Short name → column."""


@dataclass(frozen=True)
class TextColumn:
    """One text per rollout, stored once per different text."""

    codes: NDArray[np.int32]
    """Position in `labels`; -1 where the rollout has no text. Shape `[rollouts]`."""
    labels: list[str]

    def __getitem__(self, row: int) -> str | None:
        code = self.codes[row]
        return None if code < 0 else self.labels[code]


@dataclass(frozen=True)
class RunColumns:
    """The columns of a run at one moment. Row numbers are positions among the saved rollouts, from 0."""

    version: str
    """Changes whenever rollouts are added or replaced."""
    offsets: Ints
    """First byte of each line of the results. Shape `[rollouts]`, ascending."""
    lengths: Ints
    """Length of each line in bytes."""
    example_codes: NDArray[np.int32]
    """Position of each rollout's example in `example_ids`."""
    example_ids: list[Any]
    """Ids of the examples in the order of their first rollout."""
    numbers: dict[str, Floats]
    """Column → value per rollout; NaN where the rollout has none."""
    texts: dict[str, TextColumn]

    @property
    def count(self) -> int:
        """Number of rollouts."""
        return len(self.offsets)

    @property
    def end(self) -> int:
        """Position behind the last line, in bytes."""
        return int(self.offsets[-1] + self.lengths[-1]) if self.count else 0

    @property
    def metrics(self) -> list[str]:
        """Names of the metrics, in the order of their first use."""
        return [name[8:] for name in self.numbers if name.startswith("metrics.")]

    def column(self, name: str) -> str | None:
        """Return the name of the column that a field means, or None if the field is only in the saved lines."""
        name = ALIASES.get(name, name)
        if name in self.numbers or name in self.texts:
            return name
        return f"metrics.{name}" if f"metrics.{name}" in self.numbers else None

    def names(self) -> list[str]:
        """Return the names of all columns."""
        return [*self.numbers, *self.texts]

    def value(self, name: str, row: int) -> Any:
        """Return the value of a column in a row: a number, a bool, a text or None."""
        if name in self.texts:
            return self.texts[name][row]
        number = float(self.numbers[name][row])
        if math.isnan(number):
            return None
        return bool(number) if name in BOOLEANS else number

    def rows_of_example(self, code: int) -> Ints:
        """Return the rows of an example in the order of their rollout numbers."""
        rows = np.flatnonzero(self.example_codes == code)
        return rows[np.argsort(self.numbers["rollout_index"][rows], kind="stable")]

    def counted_rewards(self) -> Floats:
        """Return the reward of each rollout as the summary counts it: void and missing rewards are 0.0."""
        rewards = np.nan_to_num(self.numbers["reward"], nan=0.0)
        rewards[self.numbers["is_void"] == 1] = 0.0
        return rewards

    def order(self, rows: Ints, name: str, *, is_descending: bool = False) -> Ints:
        """Return the rows sorted by a column, those without a value last. Equal rows keep their order."""
        keys = (
            self.numbers[name][rows]
            if name in self.numbers
            else self._ranks(self.texts[name])[rows]
        )
        keys = -keys if is_descending else keys
        return rows[np.argsort(keys, kind="stable")]

    @staticmethod
    def _ranks(column: TextColumn) -> Floats:
        """Return the place of each row's text in alphabetical order; numbers within texts count as numbers."""
        by_text = sorted(range(len(column.labels)), key=lambda code: natural(column.labels[code]))
        ranks = np.full(len(column.labels) + 1, np.nan)
        ranks[by_text] = np.arange(len(by_text))
        return ranks[column.codes]  # code -1 is the last entry, NaN


def natural(text: str) -> tuple[int, float, str]:
    """Return a key that sorts numbers by value, before other texts."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text.casefold())


def error_text(error: Any) -> str | None:
    """Return the type and message of a saved error as one text, or None."""
    if error is None:
        return None
    if not isinstance(error, Mapping):
        return str(error)
    kind, chain = str(error.get("error") or "error"), str(error.get("error_chain_repr") or "")
    return chain if chain.startswith(kind) else f"{kind}: {chain}" if chain else kind


def error_type(error: Any) -> str | None:
    """Return the type of a saved error, or None."""
    if error is None:
        return None
    return str(error.get("error") or "error") if isinstance(error, Mapping) else str(error)


def _reward_error(output: Mapping[str, Any]) -> str | None:
    """Return the reward functions that raised, with their messages, as one text."""
    errors = output.get("errors")
    if not isinstance(errors, list) or not errors:
        return None
    parts = []
    for entry in errors:
        if isinstance(entry, Mapping):
            name = entry.get("function") or entry.get("name") or "reward function"
            parts.append(f"{name}: {entry.get('message') or entry.get('error') or ''}")
        else:
            parts.append(str(entry))
    return "; ".join(parts)


def _has_failed(output: Mapping[str, Any]) -> bool:
    reward = output.get("reward")
    return output.get("error") is not None or bool(output.get("errors")) or reward is None


DERIVED: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "error": lambda output: error_text(output.get("error")),
    "error_type": lambda output: error_type(output.get("error")),
    "reward_error": _reward_error,
    "is_void": is_void,
    "has_failed": _has_failed,
}
"""Columns that are not keys of an output, and how they follow from the output."""


class _Codes:
    """A growing text column."""

    def __init__(self) -> None:
        self.parts: list[NDArray[np.int32]] = []
        self.known: dict[str, int] = {}

    def extend(self, values: Sequence[str | None]) -> None:
        known = self.known
        codes = [-1 if value is None else known.setdefault(value, len(known)) for value in values]
        self.parts.append(np.array(codes, dtype=np.int32))

    @property
    def codes(self) -> NDArray[np.int32]:
        return _joined(self.parts, np.int32)


class ColumnsBuilder:
    """Columns that grow while a run is written. Rollouts are added in portions, column by column, which is fast."""

    def __init__(self) -> None:
        self._places: list[Ints] = []
        self._examples = _Codes()
        self._ids: list[Any] = []
        self._numbers: dict[str, list[Floats]] = {
            name: [] for name in ("reward", "rollout_index", *sorted(BOOLEANS))
        }
        self._texts = {
            name: _Codes()
            for name in ("task", "stop_condition", "error", "error_type", "reward_error")
        }
        self.count = 0
        """Number of rollouts so far."""

    def extend(self, rollouts: Iterable[IndexedRollout]) -> None:
        """Add rollouts."""
        left = iter(rollouts)
        while portion := list(islice(left, PORTION)):
            self._places.append(np.array([rollout.place for rollout in portion], dtype=np.int64))
            self._add([rollout.output for rollout in portion])
            self.count += len(portion)

    def _add(self, outputs: list[dict[str, Any]]) -> None:
        self._add_examples([output.get("example_id") for output in outputs])
        for name in ("reward", "rollout_index", "is_completed", "is_truncated"):
            self._number(name, [output.get(name) for output in outputs])
        failed = [_has_failed(output) for output in outputs]
        failures = list(zip(failed, outputs, strict=True))
        self._number("has_failed", failed)
        self._number("is_void", [has_failed and is_void(output) for has_failed, output in failures])
        for name in ("error", "error_type", "reward_error"):
            derived = DERIVED[name]
            self._texts[name].extend([derived(output) if bad else None for bad, output in failures])
        for name in ("task", "stop_condition"):
            values = [output.get(name) for output in outputs]
            self._texts[name].extend([None if value is None else str(value) for value in values])
        for group in ("metrics", "token_usage", "timing"):
            parts = [_mapping(output.get(group)) for output in outputs]
            kinds = dict.fromkeys(map(tuple, parts))  # the rollouts of a run have the same keys
            for name in dict.fromkeys(name for kind in kinds for name in kind):
                self._number(f"{group}.{name}", [part.get(name) for part in parts])

    def _add_examples(self, examples: list[Any]) -> None:
        names = [
            f"no id, line {row}" if example is None else str(example)
            for row, example in enumerate(examples, self.count)
        ]
        before = len(self._examples.known)
        self._examples.extend(names)
        if len(self._examples.known) > before:
            ids = dict(zip(reversed(names), reversed(examples), strict=True))
            for name in list(self._examples.known)[before:]:
                self._ids.append(name if ids[name] is None else ids[name])

    def _number(self, name: str, values: list[Any]) -> None:
        parts = self._numbers.get(name)
        if parts is None:
            if not any(isinstance(value, int | float) for value in values):
                return
            parts = self._numbers[name] = []
        missing = self.count - sum(map(len, parts))
        if missing > 0:
            parts.append(np.full(missing, np.nan))
        parts.append(_floats(values))

    def columns(self, version: str) -> RunColumns:
        """Return the columns so far."""
        places = _joined(self._places, np.int64).reshape(-1, 2)
        numbers = {}
        for name, parts in self._numbers.items():
            values = _joined(parts, np.float64)
            numbers[name] = np.full(self.count, np.nan)
            numbers[name][: len(values)] = values
        examples = self._examples.codes
        texts = {"example_id": TextColumn(examples, list(self._examples.known))}
        for name, column in self._texts.items():
            texts[name] = TextColumn(column.codes, list(column.known))
        offsets, lengths = places[:, 0].copy(), places[:, 1].copy()
        return RunColumns(version, offsets, lengths, examples, list(self._ids), numbers, texts)


def _joined(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    """Return the parts as one array, which replaces them."""
    if not parts:
        return np.zeros(0, dtype=kind)
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _floats(values: list[Any]) -> Floats:
    """Return numbers as an array; NaN for null and for values that are not numbers."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_float(value) for value in values])


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
