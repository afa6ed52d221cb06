"""Summary of a run: rewards with their standard error, pass@k, metrics, errors, truncations, tokens, speed, cost.

A rollout that crashed counts 0.0 and does not pass, even if its line has a reward: without failures the mean would
flatter a model that fails on hard examples. The summary also has the mean over the rollouts without a failure; if the
two differ much, fix the failures before you trust either.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, cast

import numpy as np

from verifiers.errors import is_void
from verifiers.runs.prices import EvalCost, ModelPrice
from verifiers.runs.statistics import (
    NAN,
    Estimate,
    Interval,
    Spread,
    estimate_from_sums,
    pass_all_k,
    pass_at_k,
    powers_of_two,
    spread_of,
    wilson_interval,
)
from verifiers.types import TokenUsage

MAX_EXAMPLES = 3
"""Number of example messages per type of error."""


@dataclass(frozen=True)
class MetricSummary:
    """One metric over the rollouts that have it."""

    estimate: Estimate
    """Mean, standard error clustered by example, 95 % interval."""
    deviation: float
    """Sample standard deviation of the single values."""
    low: float
    """Smallest value."""
    high: float
    """Largest value."""


@dataclass(frozen=True)
class ErrorCount:
    """Number of failures of one kind, with examples of the message."""

    count: int
    messages: tuple[str, ...]
    """Up to three different messages."""
    where: str | None = None
    """File, line and function of the author's code, from the first failure that has them."""


@dataclass(frozen=True)
class Tokens:
    """Tokens over all rollouts that report them."""

    rollouts: int
    """Number of rollouts that report their tokens."""
    input_tokens: float
    output_tokens: float
    per_rollout: TokenUsage | None
    """Means over those rollouts, in the form of `metadata.json`; None if no rollout reports tokens."""


@dataclass(frozen=True)
class Summary:
    """The numbers of a run, or of its finished part."""

    rollouts: int
    examples: int
    rollouts_per_example: int
    """Maximum number of rollouts of one example."""
    reward: Estimate
    """Mean reward over all rollouts, including failed ones; standard error and 95 % interval clustered by example."""
    reward_naive_stderr: float
    """The standard error if all rollouts were independent, for comparison; too small if examples differ."""
    reward_error_free: Estimate
    """Mean reward over rollouts without an error and without a reward function that raised."""
    reward_low: float
    """Smallest reward."""
    reward_high: float
    """Largest reward."""
    unscored: int
    """Number of rollouts whose reward is missing, NaN or infinite; they count 0.0."""
    pass_threshold: float
    """Minimum reward of a rollout that passes."""
    pass_at_k: Mapping[int, Estimate]
    """k → probability that at least one of k rollouts passes, over the examples that have k rollouts; k = 1, 2, 4 …"""
    pass_all_k: Mapping[int, Estimate]
    """k → probability that all of k rollouts pass."""
    metrics: Mapping[str, MetricSummary]
    error_count: int
    """Number of rollouts that ended with an error."""
    error_interval: Interval
    """95 % interval of the share of failed rollouts (Wilson)."""
    errors: Mapping[str, ErrorCount]
    """By type of error."""
    reward_errors: Mapping[str, ErrorCount]
    """Reward functions that raised, by function; each counted 0.0 for that rollout."""
    reward_error_rollouts: int
    """Number of rollouts in which a reward function raised."""
    failed: int
    """Number of rollouts with a failure: an error, a reward function that raised, a missing reward."""
    failed_interval: Interval
    """95 % interval of their share (Wilson)."""
    void: int
    """Number of rollouts that crashed or that infrastructure failed; they count 0.0."""
    truncated: int
    stop_conditions: Mapping[str, int]
    tokens: Tokens
    wall_time_s: float
    """As the caller measured it, or the time in which at least one rollout ran; a pause before a resume does not
    count.
    """
    cost: EvalCost | None
    """None without a price."""

    @property
    def error_rate(self) -> float:
        """Share of rollouts that ended with an error."""
        return self.error_count / self.rollouts if self.rollouts else 0.0

    @property
    def rollouts_per_s(self) -> float:
        """Finished rollouts per second."""
        return self.rollouts / self.wall_time_s if self.wall_time_s > 0 else NAN

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens per second, over all rollouts together."""
        return self.tokens.output_tokens / self.wall_time_s if self.wall_time_s > 0 else NAN

    def as_json(self) -> dict[str, Any]:
        """Return the summary as JSON values; NaN and infinity become None."""
        derived = ("error_rate", "rollouts_per_s", "output_tokens_per_s")
        return _json({**_fields(self), **{name: getattr(self, name) for name in derived}})


def _fields(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in fields(value)}


def _json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return _json(_fields(value))
    if isinstance(value, Estimate | Interval):
        return _json(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value


def summarize(
    outputs: Iterable[Mapping[str, Any]],
    pass_threshold: float = 0.5,
    *,
    price: ModelPrice | None = None,
    wall_time_s: float | None = None,
) -> Summary:
    """Return the summary of these rollouts, which may be a stream."""
    running = RunningSummary(pass_threshold, price=price)
    running.add(outputs)
    return running.summary(wall_time_s=wall_time_s)


def rewards_by_example(outputs: Iterable[Mapping[str, Any]]) -> dict[Hashable, list[float]]:
    """Return example → the rewards of its rollouts, counted as in the summary; for `paired_difference` of two runs.

    Examples of two runs are the same if their ids and their answers are equal. The prompts may differ, so that two
    prompts can be compared.
    """
    rewards: dict[Hashable, list[float]] = {}
    for output in outputs:
        key = (output.get("example_id"), repr(output.get("answer")))
        reward = None if is_void(output) else finite(output.get("reward"))
        rewards.setdefault(key, []).append(reward or 0.0)
    return rewards


class _Clusters:
    """Values by example, sufficient for the mean and the clustered error at any time."""

    __slots__ = ("count", "counts", "high", "low", "mean", "squares", "sums")

    def __init__(self) -> None:
        self.sums: dict[Hashable, float] = {}
        self.counts: dict[Hashable, int] = {}
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0  # sum of squared deviations, updated by Welford's method
        self.low, self.high = math.inf, -math.inf

    def add(self, example: Hashable, value: float) -> None:
        self.sums[example] = self.sums.get(example, 0.0) + value
        self.counts[example] = self.counts.get(example, 0) + 1
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.squares += off * (value - self.mean)
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def estimate(self) -> Estimate:
        variance = self.squares / (self.count - 1) if self.count > 1 else 0.0
        return estimate_from_sums(
            list(self.sums.values()),
            list(self.counts.values()),
            spread=Spread(self.low, self.high, variance),
        )

    @property
    def deviation(self) -> float:
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else NAN

    def summary(self) -> MetricSummary:
        return MetricSummary(self.estimate(), self.deviation, self.low, self.high)


@dataclass
class _Failures:
    """Counts by name, with a few messages each."""

    counts: Counter[str] = field(default_factory=Counter)
    messages: dict[str, list[str]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, message: str, where: str | None = None) -> None:
        self.counts[name] += 1
        if where:
            self.places.setdefault(name, where)
        kept = self.messages.setdefault(name, [])
        if len(kept) < MAX_EXAMPLES and message not in kept:
            kept.append(message)

    def summary(self) -> dict[str, ErrorCount]:
        return {
            name: ErrorCount(n, tuple(self.messages[name]), self.places.get(name))
            for name, n in self.counts.most_common()
        }


class RunningSummary:
    """A summary that is updated during the run: adding a rollout takes O(1), `summary` O(examples)."""

    def __init__(self, pass_threshold: float = 0.5, *, price: ModelPrice | None = None) -> None:
        self.pass_threshold = pass_threshold
        self.price = price
        self.rollouts = 0
        self.error_count = 0
        self.truncated = 0
        self.unscored = 0
        self.reward_error_rollouts = 0
        self.failed = 0
        self.void = 0
        self.tools: list[Any] | None = None
        """The tools that every rollout had; None if rollouts differ."""
        self._tools_differ = False
        self._rewards = _Clusters()
        self._clean_rewards = _Clusters()
        self._passes: dict[Hashable, int] = {}
        self._metrics: dict[str, _Clusters] = {}
        self._errors = _Failures()
        self._reward_errors = _Failures()
        self._stops: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._token_counts: Counter[str] = Counter()
        self._busy: list[tuple[float, float]] = []
        """Disjoint spans of time with at least one rollout, in order; a pause before a resume separates two."""

    @property
    def mean_reward(self) -> float:
        """Mean reward so far, 0.0 before the first rollout."""
        return self._rewards.mean

    @property
    def input_tokens(self) -> float:
        """Number of tokens sent to the model so far."""
        return self._tokens["input_tokens"]

    @property
    def output_tokens(self) -> float:
        """Number of tokens that the model has generated so far."""
        return self._tokens["output_tokens"]

    @property
    def cost_usd(self) -> float | None:
        """Cost so far, or None without a price."""
        cost = self.cost
        return None if cost is None else cost["total_usd"]

    @property
    def cost(self) -> EvalCost | None:
        """Cost so far by input and output, or None without a price."""
        return (
            None if self.price is None else self.price.cost(self.input_tokens, self.output_tokens)
        )

    def mean_metrics(self) -> dict[str, float]:
        """Mean of every metric so far, over the rollouts that have it."""
        return {name: values.mean for name, values in self._metrics.items()}

    def add(self, outputs: Iterable[Mapping[str, Any]]) -> None:
        """Add further finished rollouts."""
        for output in outputs:
            self._add(output)

    def _add(self, output: Mapping[str, Any]) -> None:
        example = output.get("example_id")
        if example is None:
            example = ("no example_id", self.rollouts)
        self._take_tools(output.get("tool_defs"))
        self.rollouts += 1
        reward = finite(output.get("reward"))
        failed = self._add_failures(output, unscored=reward is None)
        is_crash = failed and is_void(output)
        if reward is None or is_crash:
            reward = 0.0
        self._rewards.add(example, reward)
        if failed:
            self.failed += 1
            self.void += is_crash
        else:
            self._clean_rewards.add(example, reward)
        passes = reward >= self.pass_threshold and not is_crash
        self._passes[example] = self._passes.get(example, 0) + passes
        for name, value in (output.get("metrics") or {}).items():
            number = finite(value)
            if number is not None:
                if name not in self._metrics:
                    self._metrics[name] = _Clusters()
                self._metrics[name].add(example, number)
        self.truncated += bool(output.get("is_truncated"))
        if (stop := output.get("stop_condition")) is not None:
            self._stops[str(stop)] += 1
        for name, value in (output.get("token_usage") or {}).items():
            self._tokens[name] += value
            self._token_counts[name] += 1
        self._add_timing(output.get("timing"))

    def _add_failures(self, output: Mapping[str, Any], *, unscored: bool) -> bool:
        """Count the failures of a rollout. Return whether there was one."""
        error = output.get("error")
        if error is not None:
            self.error_count += 1
            name = error.get("error") if isinstance(error, Mapping) else error
            message = error.get("error_chain_repr") if isinstance(error, Mapping) else error
            where = error.get("where") if isinstance(error, Mapping) else None
            self._errors.add(str(name), str(message), where)
        reward_errors = output.get("errors") or ()
        for entry in reward_errors:
            name = (
                entry.get("function") or entry.get("name") or entry.get("type") or "reward function"
            )
            self._reward_errors.add(
                str(name),
                str(entry.get("message") or entry.get("error") or entry),
                entry.get("where"),
            )
        self.reward_error_rollouts += bool(reward_errors)
        self.unscored += unscored
        return error is not None or bool(reward_errors) or unscored

    def _take_tools(self, tools: list[Any] | None) -> None:
        if self._tools_differ:
            return
        if self.rollouts == 0:
            self.tools = tools
        elif tools is not self.tools and tools != self.tools:
            self.tools = None
            self._tools_differ = True

    def _add_timing(self, timing: Mapping[str, Any] | None) -> None:
        if not timing or not (start := timing.get("start_time")):
            return
        end = start + (timing.get("total") or 0.0)
        spans = self._busy
        first = bisect_left(spans, start, key=lambda span: span[1])
        last = bisect_right(spans, end, key=lambda span: span[0])
        if first < last:
            start, end = min(start, spans[first][0]), max(end, spans[last - 1][1])
        spans[first:last] = [(start, end)]

    def summary(self, *, wall_time_s: float | None = None) -> Summary:
        """Return the numbers so far. Without a measured `wall_time_s`, the time is that in which some rollout ran."""
        rewards = self._rewards
        counts_E = rewards.counts
        passes_at, passes_all = self._passing()
        spanned_s = sum(end - start for start, end in self._busy)
        return Summary(
            rollouts=self.rollouts,
            examples=len(counts_E),
            rollouts_per_example=max(counts_E.values(), default=0),
            reward=rewards.estimate(),
            reward_naive_stderr=rewards.deviation / math.sqrt(rewards.count)
            if rewards.count
            else NAN,
            reward_error_free=self._clean_rewards.estimate(),
            reward_low=rewards.low if rewards.count else NAN,
            reward_high=rewards.high if rewards.count else NAN,
            unscored=self.unscored,
            pass_threshold=self.pass_threshold,
            pass_at_k=passes_at,
            pass_all_k=passes_all,
            metrics={name: values.summary() for name, values in self._metrics.items()},
            error_count=self.error_count,
            error_interval=wilson_interval(self.error_count, self.rollouts),
            errors=self._errors.summary(),
            reward_errors=self._reward_errors.summary(),
            reward_error_rollouts=self.reward_error_rollouts,
            failed=self.failed,
            failed_interval=wilson_interval(self.failed, self.rollouts),
            void=self.void,
            truncated=self.truncated,
            stop_conditions=dict(self._stops.most_common()),
            tokens=Tokens(
                rollouts=self._token_counts["input_tokens"],
                input_tokens=self.input_tokens,
                output_tokens=self.output_tokens,
                per_rollout=self._tokens_per_rollout(),
            ),
            wall_time_s=spanned_s if wall_time_s is None else wall_time_s,
            cost=self.cost,
        )

    def _tokens_per_rollout(self) -> TokenUsage | None:
        if not self._token_counts:
            return None
        means = {name: self._tokens[name] / count for name, count in self._token_counts.items()}
        return cast(TokenUsage, means)  # the names are those of the outputs' `token_usage`

    def _passing(self) -> tuple[dict[int, Estimate], dict[int, Estimate]]:
        """Return pass@k and pass^k: the mean over examples of the unbiased estimate of each."""
        kinds = Counter((n, self._passes[example]) for example, n in self._rewards.counts.items())
        most = max((n for n, _ in kinds), default=0)
        at: dict[int, Estimate] = {}
        every: dict[int, Estimate] = {}
        for k in powers_of_two(most):
            enough = {kind: number for kind, number in kinds.items() if kind[0] >= k}
            repeats = list(enough.values())
            for into, chance in ((at, pass_at_k), (every, pass_all_k)):
                values_E = np.repeat([chance(n, c, k) for n, c in enough], repeats)
                into[k] = estimate_from_sums(
                    values_E, np.ones_like(values_E), spread=spread_of(values_E)
                )
        return at, every


def finite(value: Any) -> float | None:
    """Return the value as a float, or None if it is not a finite number."""
    if value is None or isinstance(value, str):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
