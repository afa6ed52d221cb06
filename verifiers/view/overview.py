"""The numbers of a run, or of a part of it, from its columns: the definitions of `runs.summary`, on whole arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verifiers.runs.statistics import (
    Estimate,
    Interval,
    estimate_from_sums,
    pass_all_k,
    pass_at_k,
    powers_of_two,
    spread_of,
    wilson_interval,
)
from verifiers.view.columns import Floats, Ints, RunColumns

BINS = 20
"""Number of bins of a histogram of rewards that have many values."""
MAX_EXACT = 12
"""Maximum number of different rewards that each have a bin."""
MAX_MESSAGES = 3


class Bin(NamedTuple):
    """A bar of a histogram: rewards from `low` to `high`."""

    low: float
    high: float
    rollouts: int
    includes_high: bool
    """Whether `high` itself belongs to the bin."""

    @property
    def condition(self) -> str:
        """The filter expression of the bin."""
        if self.low == self.high:
            return f"reward == {self.low!r}"
        return (
            f"reward >= {self.low!r} and reward {'<=' if self.includes_high else '<'} {self.high!r}"
        )


class MetricRow(NamedTuple):
    """One metric over the rollouts that have it."""

    name: str
    estimate: Estimate
    deviation: float
    low: float
    high: float
    counts: list[int]
    """Numbers of values in ten equal parts of the range, for a small chart."""


class ErrorGroup(NamedTuple):
    """Failures of one kind."""

    name: str
    rollouts: int
    messages: list[str]
    condition: str
    """The filter expression of these rollouts."""


class Quantiles(NamedTuple):
    """Distribution of a number over rollouts."""

    mean: float
    median: float
    p90: float
    p99: float
    high: float
    total: float


@dataclass(frozen=True)
class Overview:
    """The numbers of a part of a run."""

    rollouts: int
    examples: int
    rollouts_per_example: int
    """Maximum number of rollouts of one example."""
    reward: Estimate
    reward_error_free: Estimate
    bins: list[Bin]
    metrics: list[MetricRow]
    pass_at_k: dict[int, Estimate]
    pass_all_k: dict[int, Estimate]
    pass_threshold: float
    failed: int
    failed_interval: Interval
    void: int
    truncated: int
    errors: list[ErrorGroup]
    reward_errors: list[ErrorGroup]
    stop_conditions: list[tuple[str, int]]
    times: dict[str, Quantiles]
    """Part of a rollout → seconds: total, setup, model, env, scoring."""
    tokens: dict[str, Quantiles]
    """input_tokens and output_tokens per rollout."""


def overview(
    columns: RunColumns, rows: Ints | None = None, *, pass_threshold: float = 0.5
) -> Overview:
    """Return the numbers over these rows; None means all."""
    rows = np.arange(columns.count) if rows is None else rows
    codes = columns.example_codes[rows]
    rewards = columns.counted_rewards()[rows]
    failed = columns.numbers["has_failed"][rows] == 1
    counts = np.bincount(codes)
    passes = (rewards >= pass_threshold) & (columns.numbers["is_void"][rows] != 1)
    at, every = _passing(codes, counts, passes)
    return Overview(
        rollouts=len(rows),
        examples=int(np.count_nonzero(counts)),
        rollouts_per_example=int(counts.max()) if len(counts) else 0,
        reward=estimate(codes, rewards),
        reward_error_free=estimate(codes[~failed], rewards[~failed]),
        bins=histogram(columns.numbers["reward"][rows]),
        metrics=[_metric(columns, rows, codes, name) for name in columns.metrics],
        pass_at_k=at,
        pass_all_k=every,
        pass_threshold=pass_threshold,
        failed=int(failed.sum()),
        failed_interval=wilson_interval(int(failed.sum()), len(rows)),
        void=int((columns.numbers["is_void"][rows] == 1).sum()),
        truncated=int((columns.numbers["is_truncated"][rows] == 1).sum()),
        errors=_groups(columns, rows, "error_type", "error"),
        reward_errors=_groups(columns, rows, "reward_error", "reward_error"),
        stop_conditions=_counted(columns, rows, "stop_condition"),
        times=_quantiles(columns, rows, "timing.", ("total", "setup", "model", "env", "scoring")),
        tokens=_quantiles(columns, rows, "token_usage.", ("input_tokens", "output_tokens")),
    )


def estimate(codes: NDArray[np.int32], values: Floats) -> Estimate:
    """Return the mean with its interval, clustered by example. Values that are not finite are left out."""
    finite = np.isfinite(values)
    codes, values = codes[finite], values[finite]
    counts = np.bincount(codes)
    sums = np.bincount(codes, weights=values)
    has_any = counts > 0
    return estimate_from_sums(sums[has_any], counts[has_any], spread=spread_of(values))


def example_means(columns: RunColumns) -> tuple[Ints, Floats, Floats]:
    """Return, per example: number of rollouts, mean counted reward, standard deviation (NaN for one rollout)."""
    codes, rewards = columns.example_codes, columns.counted_rewards()
    size = len(columns.example_ids)
    counts = np.bincount(codes, minlength=size)
    means = np.bincount(codes, weights=rewards, minlength=size) / np.maximum(counts, 1)
    squares = np.bincount(codes, weights=(rewards - means[codes]) ** 2, minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        deviations = np.sqrt(np.where(counts > 1, squares / (counts - 1), np.nan))
    return counts, means, deviations


def histogram(values: Floats) -> list[Bin]:
    """Return a bin per value if there are few different values, else equal bins over their range."""
    values = values[np.isfinite(values)]
    if not len(values):
        return []
    different, counts = np.unique(values, return_counts=True)
    if len(different) <= MAX_EXACT:
        return [
            Bin(float(value), float(value), int(count), True)
            for value, count in zip(different, counts, strict=True)
        ]
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    edges = [_rounded(edge, high - low) for edge in np.linspace(low, high, BINS + 1).tolist()]
    edges[0], edges[-1] = min(edges[0], low), max(edges[-1], high)
    bins = []
    for number, (left, right) in enumerate(pairwise(edges)):
        is_last = number == BINS - 1
        inside = (values >= left) & ((values <= right) if is_last else (values < right))
        bins.append(Bin(left, right, int(inside.sum()), is_last))
    return bins


def _rounded(value: float, span: float) -> float:
    """Return the value with enough digits for a bin's edge, so that conditions are short."""
    digits = max(0, 3 - math.floor(math.log10(span))) if span > 0 else 6
    return round(value, digits)


def _metric(columns: RunColumns, rows: Ints, codes: NDArray[np.int32], name: str) -> MetricRow:
    values = columns.numbers[f"metrics.{name}"][rows]
    finite = values[np.isfinite(values)]
    if not len(finite):
        return MetricRow(name, estimate(codes, values), math.nan, math.nan, math.nan, [])
    low, high = float(finite.min()), float(finite.max())
    span = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high if high > low else low + 1)
    counts, _ = np.histogram(finite, bins=10, range=span)
    deviation = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    return MetricRow(name, estimate(codes, values), deviation, low, high, counts.tolist())


def _passing(
    codes: NDArray[np.int32], counts: Ints, passes: NDArray[np.bool_]
) -> tuple[dict[int, Estimate], dict[int, Estimate]]:
    """Return pass@k and pass^k over the examples that have k rollouts, as `runs.summary` does."""
    passed = np.bincount(codes, weights=passes, minlength=len(counts)).astype(int)
    kinds = Counter((int(n), int(c)) for n, c in zip(counts, passed, strict=True) if n > 0)
    at: dict[int, Estimate] = {}
    every: dict[int, Estimate] = {}
    for k in powers_of_two(max((n for n, _ in kinds), default=0)):
        enough = {kind: number for kind, number in kinds.items() if kind[0] >= k}
        repeats = list(enough.values())
        for into, chance in ((at, pass_at_k), (every, pass_all_k)):
            values = np.repeat([chance(n, c, k) for n, c in enough], repeats)
            into[k] = estimate_from_sums(values, np.ones_like(values), spread=spread_of(values))
    return at, every


def _counted(columns: RunColumns, rows: Ints, name: str) -> list[tuple[str, int]]:
    column = columns.texts[name]
    codes = column.codes[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.labels))
    order = np.argsort(-counts, kind="stable")
    return [(column.labels[code], int(counts[code])) for code in order if counts[code]]


def _groups(columns: RunColumns, rows: Ints, name: str, messages: str) -> list[ErrorGroup]:
    if name == messages:
        return _function_groups(columns, rows, name)
    details = columns.texts[messages]
    groups = []
    for label, count in _counted(columns, rows, name):
        code = columns.texts[name].labels.index(label)
        places = rows[columns.texts[name].codes[rows] == code]
        kinds = list(dict.fromkeys(details.codes[places].tolist()))[:MAX_MESSAGES]
        texts = [details.labels[kind] for kind in kinds if kind >= 0]
        groups.append(ErrorGroup(label, count, texts, f"error == {quoted(label)}"))
    return groups


def _function_groups(columns: RunColumns, rows: Ints, name: str) -> list[ErrorGroup]:
    """Return reward functions that raised, by function."""
    counts: Counter[str] = Counter()
    messages: dict[str, list[str]] = {}
    for label, count in _counted(columns, rows, name):
        function = label.partition(":")[0]
        counts[function] += count
        kept = messages.setdefault(function, [])
        if len(kept) < MAX_MESSAGES:
            kept.append(label)
    return [
        ErrorGroup(function, count, messages[function], f"reward_error ~ {quoted(function + ':')}")
        for function, count in counts.most_common()
    ]


def quoted(text: str) -> str:
    """Return a text as a literal of a filter expression."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _quantiles(
    columns: RunColumns, rows: Ints, prefix: str, names: tuple[str, ...]
) -> dict[str, Quantiles]:
    found = {}
    for name in names:
        values = columns.numbers.get(prefix + name)
        if values is None:
            continue
        values = values[rows]
        values = values[np.isfinite(values)]
        if len(values):
            median, p90, p99 = np.quantile(values, [0.5, 0.9, 0.99]).tolist()
            found[name] = Quantiles(
                float(values.mean()), median, p90, p99, float(values.max()), float(values.sum())
            )
    return found


def cost_of(metadata: Mapping[str, Any]) -> float | None:
    """Return the cost of a run in US dollars from its metadata, or None."""
    cost = metadata.get("cost")
    total = cost.get("total_usd") if isinstance(cost, Mapping) else cost
    return float(total) if isinstance(total, int | float) and math.isfinite(total) else None
