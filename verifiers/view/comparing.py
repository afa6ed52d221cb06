"""The comparison of runs as pages: `verifiers.comparison`, examples by regression, answers side by side."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import numpy as np

from verifiers.comparison.compare import MAX_RUNS, PairReport, Report, compare
from verifiers.comparison.report import (
    headline,
    mean_reward,
    power_sentence,
    rows_of,
    warnings,
)
from verifiers.errors import ConfigError
from verifiers.runs.statistics import Estimate
from verifiers.view import transcript
from verifiers.view.columns import RunColumns
from verifiers.view.sources import Run

MAX_REPORTS = 4
MAX_DIFF = 2500
"""Maximum number of words of a text that is compared word by word; longer texts are compared by line."""
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")


class TextChange(NamedTuple):
    """A piece of the difference between two texts."""

    kind: str
    """same, added or removed"""
    text: str


class ComparedRun(NamedTuple):
    """A run in a comparison."""

    run: Run
    name: str
    reward: Estimate
    ranks: tuple[int, int] | None
    """Best and worst rank that the data allow."""


class ComparedExample(NamedTuple):
    """An example in the list of examples that differ."""

    key: str
    """Hash of the content."""
    name: str
    means: list[float | None]
    """Mean reward per run."""
    difference: float
    """Largest loss of a candidate, or its gain if no candidate lost."""


class Answer(NamedTuple):
    """The answers of one run to an example."""

    compared: ComparedRun
    rows: list[tuple[int, float | None, float | None]]
    """(row, rollout number, reward) of its rollouts."""
    row: int | None
    """The row of the answer that is shown."""
    reward: float | None
    changes: list[TextChange]
    """The answer, with its difference from that of the baseline."""


@dataclass(frozen=True)
class RunComparison:
    """A report with the runs that it is about."""

    report: Report
    runs: list[ComparedRun]
    headline: str
    warnings: list[str]
    examples: list[ComparedExample]
    """Examples that differ, the largest losses first."""

    @property
    def span(self) -> tuple[float, float]:
        """The range of all intervals of differences, with zero."""
        ends = [end for pair in self.report.pairs for end in (pair.reward.low, pair.reward.high)]
        ends = [end for end in ends if np.isfinite(end)]
        reach = max([0.01, *(abs(end) for end in ends)])
        return -reach * 1.05, reach * 1.05

    @staticmethod
    def rows(pair: PairReport) -> list[tuple[str, ...]]:
        """Return the table of a pair as texts."""
        return list(rows_of(pair))

    @staticmethod
    def power(pair: PairReport) -> str:
        """Return the difference that the comparison could have found."""
        return power_sentence(pair)

    @staticmethod
    def estimate(pair: PairReport) -> Estimate:
        """Return the difference of the reward as an estimate."""
        one = pair.reward
        return Estimate(
            one.difference, one.estimate.stderr, one.low, one.high, one.examples, one.examples
        )


class Comparisons:
    """Comparisons by their runs; the last ones are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[tuple[str, str], ...], RunComparison] = OrderedDict()
        self._guard = threading.Lock()

    def of(self, runs: Sequence[tuple[Run, RunColumns]]) -> RunComparison:
        """Return the comparison of runs; the first is the baseline. Raises ConfigError if they cannot be compared."""
        if not 2 <= len(runs) <= MAX_RUNS:
            raise ConfigError(f"A comparison needs 2 to {MAX_RUNS} runs; {len(runs)} were chosen.")
        key = tuple((run.key, columns.version) for run, columns in runs)
        with self._guard:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        folders = [run.folder for run, _ in runs if run.folder is not None]
        if len(folders) < len(runs):
            raise ConfigError("Only runs in folders can be compared.")
        found = _comparison(compare(*folders), [run for run, _ in runs])
        with self._guard:
            self._kept[key] = found
            while len(self._kept) > MAX_REPORTS:
                self._kept.popitem(last=False)
        return found


def _comparison(report: Report, runs: Sequence[Run]) -> RunComparison:
    compared = [
        ComparedRun(
            run,
            numbers.name,
            mean_reward(numbers, report.confidence),
            (report.ranks[place].best, report.ranks[place].worst) if report.ranks else None,
        )
        for place, (run, numbers) in enumerate(zip(runs, report.runs, strict=True))
    ]
    differences: dict[str, list[float]] = {}
    for pair in report.pairs:
        for flip in pair.flips:
            differences.setdefault(flip.example, []).append(flip.difference)
    examples = []
    for key, values in differences.items():
        known = [numbers.rewards.get(key) for numbers in report.runs]
        means = [None if not rewards else sum(rewards) / len(rewards) for rewards in known]
        name = next(
            str(numbers.example_ids[key]) for numbers in report.runs if key in numbers.example_ids
        )
        losses = [value for value in values if value < 0]
        examples.append(ComparedExample(key, name, means, min(losses) if losses else max(values)))
    examples.sort(key=lambda one: one.difference)
    return RunComparison(report, compared, headline(report), warnings(report), examples)


def answers(
    comparison: RunComparison, columns: Sequence[RunColumns], example: str, rollout: int
) -> list[Answer]:
    """Return the answers of all runs to an example, by the hash of its content; `rollout` counts from 0."""
    base: str | None = None
    found = []
    for compared, numbers, run_columns in zip(
        comparison.runs, comparison.report.runs, columns, strict=True
    ):
        rows: list[int] = []
        if example in numbers.example_ids:
            labels = run_columns.texts["example_id"].labels
            name = str(numbers.example_ids[example])
            rows = (
                run_columns.rows_of_example(labels.index(name)).tolist() if name in labels else []
            )
        row = rows[min(rollout, len(rows) - 1)] if rows else None
        text = "" if row is None else _answer(compared.run, row)
        changes = [TextChange("same", text)] if base is None else difference(base, text)
        base = text if base is None else base
        found.append(
            Answer(
                compared,
                [
                    (one, run_columns.value("rollout_index", one), run_columns.value("reward", one))
                    for one in rows
                ],
                row,
                None if row is None else run_columns.value("reward", row),
                changes,
            )
        )
    return found


def _answer(run: Run, row: int) -> str:
    return transcript.shown(_last_content(run.output(row).get("completion"))).text


def _last_content(completion: Any) -> Any:
    """Return the content of the last message that has one."""
    if not isinstance(completion, list):
        return completion if completion is not None else ""
    contents = (
        one.get("content") if isinstance(one, dict) else one for one in reversed(completion)
    )
    return next((content for content in contents if content), "")


def difference(old: str, new: str) -> list[TextChange]:
    """Return the difference of two texts by words, or by lines if they are long."""
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    if max(len(before), len(after)) > MAX_DIFF:
        before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    changes: list[TextChange] = []
    for kind, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            changes.append(TextChange("same", "".join(after[j1:j2])))
            continue
        if i2 > i1:
            changes.append(TextChange("removed", "".join(before[i1:i2])))
        if j2 > j1:
            changes.append(TextChange("added", "".join(after[j1:j2])))
    return changes
