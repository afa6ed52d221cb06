"""Dataset → rollout inputs: format rows, take rows, repeat them, and recognise them by their content.

A source is a `datasets.Dataset`, a list of dicts, a callable that builds either, or an iterable that may never end.
Rows are formatted when they are taken, so a run of 20 examples formats 20 rows. A source is never shuffled or changed
in place.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, TypeGuard, cast

from verifiers.errors import DatasetError
from verifiers.messages import from_raw_message, normalize_messages
from verifiers.types import Messages, MessageType, SystemMessage, UserMessage

logger = logging.getLogger(__name__)

Row = dict[str, Any]


@dataclass(frozen=True)
class RowFormat:
    """Conversion of a dataset row to a rollout input."""

    system_prompt: str | None = None
    few_shot: Messages = field(default_factory=list)
    message_type: MessageType = "chat"
    question_key: str = "question"
    answer_key: str = "answer"

    def prompt_of(self, row: Mapping[str, Any], index: int) -> Messages | str:
        """Return the prompt of a row: its `prompt`, or system prompt + few-shot examples + its question.

        An empty list is a valid prompt, because `get_prompt_messages` may build the messages during the rollout. Raise
        DatasetError if the row has neither a prompt nor a question.
        """
        prompt = row.get("prompt")
        if prompt is None:
            question = row.get(self.question_key)
            if question is None:
                raise DatasetError(
                    f"Row {index} has neither 'prompt' nor {self.question_key!r}; its keys are "
                    f"{sorted(row)}. Give every row one of them."
                )
            content = question if isinstance(question, str | list) else str(question)
            question_message = from_raw_message({"role": "user", "content": content})
            return [*self._opening(), *self.few_shot, question_message]
        if isinstance(prompt, str):
            if self.message_type == "completion":
                return prompt
            return [*self._opening(), UserMessage.of({"role": "user", "content": prompt})]
        try:
            messages = normalize_messages(prompt, field_name="prompt")
        except (ValueError, TypeError) as error:
            raise DatasetError(f"Row {index} has a prompt that cannot be read: {error}") from error
        if messages and messages[0]["role"] == "system":
            return messages
        return [*self._opening(), *messages]

    def _opening(self) -> Messages:
        if not self.system_prompt:
            return []
        return [SystemMessage.of({"role": "system", "content": self.system_prompt})]

    def input_of(self, row: Mapping[str, Any], index: int) -> Row:
        """Return the row with a `prompt` and an integer `example_id`; any other `example_id` moves to `src_id`."""
        if not isinstance(row, Mapping):
            raise DatasetError(f"Row {index} is a {type(row).__name__}, not a dict: {row!r:.200}")
        row = with_task_payload(row)
        formatted = dict(row)
        own_id = formatted.get("example_id")
        if type(own_id) is not int:
            if isinstance(own_id, Integral) and not isinstance(own_id, bool):  # for example numpy's
                formatted["example_id"] = int(own_id)
            else:
                if own_id is not None:
                    formatted.setdefault("src_id", own_id)
                formatted["example_id"] = index
        if self.answer_key != "answer" and self.answer_key in formatted:
            formatted.setdefault("answer", formatted[self.answer_key])
        formatted["prompt"] = self.prompt_of(row, index)
        info = formatted.get("info")
        if info is None:
            formatted.pop("info", None)
        elif isinstance(info, str):
            formatted["info"] = _parsed_info(info)
        return formatted


def with_task_payload(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the row with the fields of a JSON object that its `task` holds as text, if that object has a `prompt`
    (generation (b)).
    """
    text = row.get("task")
    if not isinstance(text, str) or not text.lstrip().startswith("{"):
        return row
    try:
        task = json.loads(text)
    except ValueError:
        return row
    if "prompt" not in task:
        return row
    own_id = {key: row[key] for key in ("example_id",) if row.get(key) is not None}
    return {**row, **task, **own_id, "task": task}


def _parsed_info(info: str) -> Any:
    """Return `info` as an object if it is the JSON text of an object; other text stays text."""
    try:
        parsed = json.loads(info)
    except ValueError:
        return info
    return parsed if isinstance(parsed, dict) else info


class Rows(Sequence[Row]):
    """Rows of a list source: a list that also has the common methods of `datasets.Dataset`.

    Unlike a `Dataset`, it keeps each row's own keys, so rows with different `info` do not conflict.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """Return a row by number, rows by slice, or a column by name."""
        if isinstance(key, str):
            return [row.get(key) for row in self._rows]
        if isinstance(key, slice):
            return Rows(self._rows[key])
        return self._rows[key]

    def __repr__(self) -> str:
        return f"Rows({len(self)} rows, columns {self.column_names})"

    @property
    def column_names(self) -> list[str]:
        """Return all keys of all rows, in order of appearance."""
        return list(dict.fromkeys(key for row in self._rows for key in row))

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self)

    def to_list(self) -> list[Row]:
        """Return the rows as a list."""
        return list(self._rows)

    def select(self, indices: Iterable[int]) -> Rows:
        """Return the rows at these positions."""
        return Rows([self._rows[index] for index in indices])

    def select_columns(self, column_names: str | list[str]) -> Rows:
        """Return the rows with only these keys."""
        names = [column_names] if isinstance(column_names, str) else column_names
        return Rows([{name: row.get(name) for name in names} for row in self._rows])

    def shuffle(self, seed: int | None = None) -> Rows:
        """Return a shuffled copy."""
        return Rows(random.Random(seed).sample(list(self._rows), len(self)))

    def map(self, function: Callable[[Row], Mapping[str, Any]], **_: Any) -> Rows:
        """Return every row, updated with the function's result for the row."""
        return Rows([{**row, **function(dict(row))} for row in self._rows])

    def filter(self, function: Callable[[Row], bool], **_: Any) -> Rows:
        """Return the rows for which the function is true."""
        return Rows([row for row in self._rows if function(row)])

    def take(self, n: int) -> Rows:
        """Return the first `n` rows."""
        return Rows(self._rows[:n])

    def to_dataset(self) -> Any:
        """Return a `datasets.Dataset`; missing keys become None, because Arrow requires one schema."""
        from datasets import Dataset

        return Dataset.from_list(self.to_list())


def is_arrow(source: Any) -> bool:
    """Return whether the source is a `datasets.Dataset`, without importing that package."""
    return (
        hasattr(source, "column_names")
        and hasattr(source, "select")
        and not isinstance(source, Rows)
    )


class TaskSource:
    """An author's dataset and the format of its rows. Built on first use."""

    def __init__(self, source: Any, row_format: RowFormat, **map_kwargs: Any) -> None:
        self._given = source
        self._built: Any = None
        self._endless: _Endless | None = None
        self.row_format = row_format
        self.map_kwargs = map_kwargs

    @property
    def raw(self) -> Any:
        """The dataset: a `datasets.Dataset`, a list of rows, or an `_Endless` iterable."""
        if self._built is None:
            self._built = _as_source(self._given)
        return self._built

    @property
    def is_endless(self) -> bool:
        """Whether the number of rows is unknown; every use must then state a number of rows."""
        return isinstance(self.raw, _Endless)

    def __len__(self) -> int:
        if self.is_endless:
            raise DatasetError(
                "This dataset has no known length; say how many examples to use (-n)."
            )
        return len(self.raw)

    def inputs(self, n: int = -1, seed: int | None = None) -> list[Row]:
        """Return the first `n` rows as rollout inputs (all rows for n < 1). With a seed, the rows are shuffled first.

        Raise DatasetError for a seed with an endless source, which cannot be shuffled.
        """
        rows = [self.row_format.input_of(row, index) for index, row in self._numbered(n, seed)]
        if _has_clashing_ids(rows):
            # Rollouts of one example form a group. Different rows with the same id must not form a group.
            logger.warning(
                "Different rows share an example_id; they are numbered again, and their own ids are in src_id."
            )
            for index, row in enumerate(rows):
                row["src_id"], row["example_id"] = row["example_id"], index
        return rows

    def _numbered(self, n: int, seed: int | None) -> Iterator[tuple[int, Row]]:
        raw = self.raw
        if isinstance(raw, _Endless):
            if n < 1:
                len(self)
            if seed is not None:
                raise DatasetError(
                    "An endless dataset cannot be shuffled; seed its generator instead."
                )
            return enumerate(raw.first(n))
        order: Iterable[int] = range(len(raw))
        if seed is not None:
            order = shuffled_order(raw, seed)
        if n > 0:
            order = itertools.islice(order, n)
        return ((index, raw[index]) for index in order)

    def dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return a `datasets.Dataset` if the source is one, otherwise `Rows`."""
        raw = self.raw
        if not is_arrow(raw):
            return Rows(self.inputs(n, seed))
        formatted = self._formatted_arrow()
        if seed is not None:
            formatted = formatted.shuffle(seed=seed)
        return formatted.select(range(min(n, len(formatted)))) if n > 0 else formatted

    def _formatted_arrow(self) -> Any:
        cached = getattr(self, "_arrow", None)
        if cached is None:
            cached = self._arrow = format_arrow(self.raw, self.row_format, self.map_kwargs)
        return cached


def _has_clashing_ids(rows: Sequence[Row]) -> bool:
    """Return whether different rows share an id; several copies of one row form a group."""
    first: dict[int, Row] = {}
    return any(first.setdefault(row["example_id"], row) != row for row in rows)


class _Endless:
    """Rows of an iterable, kept as they are drawn, so that every use receives the same rows."""

    def __init__(self, make: Callable[[], Iterable[Row]]) -> None:
        self._iterator: Iterator[Row] | None = None
        self._make = make
        self._drawn: list[Row] = []

    def first(self, n: int) -> list[Row]:
        if self._iterator is None:
            self._iterator = iter(self._make())
        while len(self._drawn) < n:
            try:
                self._drawn.append(next(self._iterator))
            except StopIteration:
                break
        return self._drawn[:n]


def _as_source(given: Any) -> Any:
    if isinstance(given, _Endless | Rows):
        return given
    if is_arrow(given):
        return given
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return given
    if isinstance(given, str | bytes):
        raise DatasetError(
            f"A dataset is a list of rows, not the text {given!r:.200}. If that is its name, load it first: "
            "datasets.load_dataset(…), or vf.load_example_dataset(…)."
        )
    if type(given).__module__.partition(".")[0] in ("pandas", "polars"):
        raise DatasetError(
            f"A dataset is a list of rows, not a {type(given).__name__}, whose iteration gives columns. Pass "
            "df.to_dict('records') (pandas) or df.to_dicts() (polars)."
        )
    if isinstance(given, Mapping):
        raise DatasetError(
            f"A dataset is a list of rows, not a mapping with the keys {sorted(given)!r:.200}. "
            "If these are splits, pass one of them."
        )
    if callable(given):
        built = given()
        if hasattr(built, "__next__"):
            first: list[Iterable[Row]] = [cast(Iterable[Row], built)]

            def rows() -> Iterable[Row]:
                return first.pop() if first else cast(Iterable[Row], given())

            return _Endless(rows)
        return _as_source(built)
    if isinstance(given, Iterable):
        return _Endless(lambda: given)
    raise DatasetError(f"A dataset cannot be made from {type(given).__name__}: {given!r:.200}")


def shuffled_order(rows: Any, seed: int) -> list[int]:
    """Return the positions in the order of `datasets.Dataset.shuffle(seed)`, for any source."""
    import numpy as np

    return np.random.default_rng(seed).permutation(len(rows)).tolist()


def format_arrow(dataset: Any, row_format: RowFormat, map_kwargs: Mapping[str, Any]) -> Any:
    """Return a `datasets.Dataset` with `prompt` (message keys not None-filled per row) and integer `example_id`."""
    columns = dataset.column_names
    if "example_id" in columns and not str(dataset.features["example_id"].dtype).startswith("int"):
        dataset = dataset.rename_column("example_id", "src_id")
        columns = dataset.column_names
    if "example_id" not in columns:
        dataset = dataset.add_column("example_id", list(range(len(dataset))))
    needs_prompt = "prompt" not in columns or bool(row_format.system_prompt)
    if needs_prompt:

        def add_prompt(row: Row, index: int) -> Row:
            prompt = row_format.prompt_of(row, index)
            return {"prompt": prompt if isinstance(prompt, str) else [dict(m) for m in prompt]}

        dataset = dataset.map(add_prompt, with_indices=True, **map_kwargs)
    if (
        row_format.answer_key != "answer"
        and row_format.answer_key in columns
        and "answer" not in columns
    ):
        dataset = dataset.rename_column(row_format.answer_key, "answer")
    return dataset


def repeat(inputs: Sequence[Row], rollouts_per_example: int) -> list[Row]:
    """Return each input `rollouts_per_example` times in a row; every repetition is a separate dict."""
    if rollouts_per_example < 1:
        raise DatasetError(f"rollouts_per_example must be at least 1; got {rollouts_per_example}.")
    return [dict(row) for row in inputs for _ in range(rollouts_per_example)]


def group(inputs: Iterable[Row]) -> list[list[Row]]:
    """Return the inputs grouped by example, in order of first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in inputs:
        groups.setdefault(row["example_id"], []).append(row)
    return list(groups.values())


_NOT_CONTENT = frozenset({"example_id", "input_key", "rollout_index"})
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def input_key(row: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that identify a row by its content: equal rows have equal keys, regardless of order
    and id.

    The digits are the SHA-256 of the row's canonical JSON without `example_id`. A value that JSON cannot hold counts by
    its `repr` without addresses, a set by its sorted members, so the key is equal in every process.
    """
    content = {k: v for k, v in row.items() if k not in _NOT_CONTENT and v is not None}
    try:
        text = _canonical_json(content)
    except TypeError:  # keys that cannot be sorted, or are not text
        text = _canonical_json(_with_text_keys(content))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _canonical_json(content: Any) -> str:
    return json.dumps(
        content, sort_keys=True, separators=(",", ":"), default=_described, ensure_ascii=False
    )


def _described(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if hasattr(value, "tolist"):  # numpy
        return value.tolist()
    return _ADDRESS.sub("", repr(value))


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            repr(k) if not isinstance(k, str) else k: _with_text_keys(v) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in value]
    return value


def is_rows(value: Any) -> TypeGuard[Sequence[Row]]:
    """Return whether the value is a list of rows rather than one row."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | Mapping)
