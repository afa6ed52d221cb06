"""The comparison of runs: a baseline, and one or more candidates on the same examples.

Every difference is candidate minus baseline, paired by example, so that the difficulty of the examples cancels out. The
formulas are in `paired`, `variance` and `candidates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from verifiers.comparison.candidates import RankSet, holm, rank_sets, simultaneous_intervals
from verifiers.comparison.paired import (
    PairedCounts,
    PairedMean,
    bootstrap_interval_of_mean,
    correlation,
    mcnemar,
    paired_mean,
    posterior_interval,
    sign_flip_p,
    tango_interval,
    unpaired_stderr,
)
from verifiers.comparison.runs import (
    COSTS,
    SECONDS,
    TURNS,
    Incompatibility,
    Pairing,
    RunNumbers,
    example_means,
    incompatibilities,
    pair,
    read_runs,
)
from verifiers.comparison.variance import TwoLevels, detectable_effect, two_levels
from verifiers.errors import ConfigError
from verifiers.runs.statistics import (
    BINOMIAL_PRIOR,
    NAN,
    Floats,
    Interval,
    beta_interval,
    pass_all_k,
    pass_at_k,
    powers_of_two,
)

MAX_RUNS = 8
BOOTSTRAP_EXAMPLES = 100
"""From this number of examples on the second interval is a bootstrap; below, a posterior if rewards are 0 or 1."""

Verdict = Literal["better", "worse", "no difference detected"]


class Measure(NamedTuple):
    """One quantity of two runs on their shared examples."""

    name: str
    baseline: float
    candidate: float
    estimate: PairedMean
    """The mean difference of the examples that have the quantity in both runs."""
    low: float
    high: float
    """Ends of the confidence interval of the difference."""
    p_value: float
    """Two-sided, for this comparison alone."""
    examples: int
    method: str
    """Name of the interval and of the test."""

    @property
    def difference(self) -> float:
        """Candidate minus baseline."""
        return self.estimate.mean

    @property
    def verdict(self) -> Verdict:
        """The conclusion that the interval allows, for a quantity of which more is better."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no difference detected"


class Flip(NamedTuple):
    """An example whose mean reward differs between the runs."""

    example: str
    """Hash of the content."""
    example_id: Any
    baseline: float
    candidate: float

    @property
    def difference(self) -> float:
        """Candidate minus baseline."""
        return self.candidate - self.baseline


@dataclass
class PairReport:
    """The comparison of a candidate with the baseline."""

    baseline: RunNumbers
    candidate: RunNumbers
    pairing: Pairing
    reward: Measure
    unpaired_stderr: float
    """Standard error that the same data would have without pairing."""
    correlation: float
    """Correlation of the example means of the two runs: the reason why pairing helps."""
    detectable: float
    """Smallest true difference that this comparison detects with probability 0.8."""
    levels: TwoLevels
    sign_flip_p: float
    second_interval: Interval
    second_method: str
    """A second interval by another method (bootstrap or posterior), as a check; its name is empty without one."""
    counts: PairedCounts | None
    """Outcomes of the examples, if every reward is 0 or 1 and each run has one rollout per example."""
    passes: list[Measure]
    """pass@k and pass^k."""
    metrics: list[Measure]
    costs: list[Measure]
    """Tokens, turns and seconds per rollout; less is better."""
    flips: list[Flip]
    """Examples that differ, the largest losses first."""
    error_free: Measure | None
    """The reward without failed rollouts; None if no rollout failed."""
    incompatibilities: list[Incompatibility]
    adjusted_p: float = NAN
    """Holm's adjusted p-value; set if there are several candidates."""
    simultaneous: Interval = field(default_factory=lambda: Interval(NAN, NAN))
    """Interval that holds together with those of the other candidates."""

    @property
    def verdict_depends_on_failures(self) -> bool:
        """Whether the verdict changes if failed rollouts are left out instead of counting 0."""
        return self.error_free is not None and self.error_free.verdict != self.reward.verdict

    @property
    def advice(self) -> str:
        """One sentence about the way to a more precise comparison."""
        share = self.levels.sampling_share
        if np.isnan(share):
            return "Run at least two rollouts per example to see whether more rollouts or more examples would help."
        if self.levels.total == 0:
            return (
                "The runs do not differ on any example; more examples would show whether they do."
            )
        if share >= 0.5:
            return (
                f"{share:.0%} of the variance is sampling noise within examples: more rollouts per example "
                "help most."
            )
        return f"{1 - share:.0%} of the variance is between examples: only more examples help."


@dataclass
class Report:
    """The comparison of all runs with the first one."""

    runs: list[RunNumbers]
    pairs: list[PairReport]
    """One per candidate, in the order of the arguments."""
    confidence: float
    ranks: list[RankSet]
    """For each run the ranks that the data do not exclude; empty with one candidate."""
    shared: int
    """Number of examples that all runs have."""


def compare(
    *runs: str | Path,
    confidence: float = 0.95,
    cluster: str | None = None,
    pass_threshold: float | None = None,
    strict: bool = False,
    leave_out: Callable[[Mapping[str, Any]], Collection[str]] | None = None,
    seed: int = 0,
) -> Report:
    """Compare saved runs, given by their folders. The first is the baseline.

    `cluster` names a field of the rollouts, such as `info.repository`, whose values group correlated examples.
    `pass_threshold` is the reward from which a rollout passes; by default that of the baseline. With `strict`, runs
    that differ in environment, dataset, prompt, sampling or judge are refused with ConfigError, as are runs without a
    common example and fewer than two or more than eight runs.
    """
    if not 2 <= len(runs) <= MAX_RUNS:
        raise ConfigError(f"A comparison needs 2 to {MAX_RUNS} runs; got {len(runs)}.")
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"The confidence must be at least 0.5 and below 1; got {confidence!r}.")
    numbers = read_runs(runs, cluster=cluster)
    if leave_out is not None:
        ids = {key: example for run in numbers for key, example in run.example_ids.items()}
        for key in leave_out(ids):
            for run in numbers:
                run.drop(key)
    threshold = pass_threshold
    if threshold is None:
        threshold = float(numbers[0].metadata.get("pass_threshold") or 0.5)
    pairs = [
        _compared(numbers[0], candidate, confidence=confidence, threshold=threshold, seed=seed)
        for candidate in numbers[1:]
    ]
    if strict and (found := [str(one) for one in pairs for one in one.incompatibilities]):
        raise ConfigError(
            f"The runs are not comparable: {'; '.join(found)}. Without strict they are compared with a warning."
        )
    shared = [key for key in numbers[0].rewards if all(key in run.rewards for run in numbers)]
    ranks: list[RankSet] = []
    if len(pairs) > 1:
        ranks = _compare_together(numbers, pairs, shared, confidence, seed)
    return Report(numbers, pairs, confidence, ranks, len(shared))


def _compare_together(
    runs: Sequence[RunNumbers],
    pairs: Sequence[PairReport],
    shared: Sequence[str],
    confidence: float,
    seed: int,
) -> list[RankSet]:
    """Fill in what holds for all candidates at once, on the examples that all runs have. Return the rank sets."""
    for report, p_value in zip(pairs, holm([one.reward.p_value for one in pairs]), strict=True):
        report.adjusted_p = p_value
    if len(shared) < 2:
        return []
    means = np.stack([example_means(run.rewards, shared) for run in runs])
    clusters = _clusters(runs[0], shared)
    together = simultaneous_intervals(
        means[1:] - means[0], clusters, confidence=confidence, seed=seed
    )
    for report, interval in zip(pairs, together.intervals, strict=True):
        report.simultaneous = interval
    return rank_sets(means, clusters, confidence=confidence, seed=seed)


def _clusters(run: RunNumbers, examples: Sequence[str]) -> list[Any] | None:
    return [run.clusters.get(key) for key in examples] if run.clusters else None


def _compared(
    baseline: RunNumbers, candidate: RunNumbers, *, confidence: float, threshold: float, seed: int
) -> PairReport:
    pairing = pair(baseline, candidate)
    shared = pairing.shared
    first, second = (example_means(run.rewards, shared) for run in (baseline, candidate))
    d = second - first
    clusters = _clusters(baseline, shared)

    def measured(
        name: str, old: Mapping[str, Sequence[float]], new: Mapping[str, Sequence[float]]
    ) -> Measure | None:
        return _measure(name, old, new, shared, _clusters(baseline, shared), confidence)

    counts = _counts(baseline, candidate, shared) if clusters is None else None
    reward = measured("reward", baseline.rewards, candidate.rewards)
    assert reward is not None
    if counts is not None:
        low, high = tango_interval(counts, confidence)
        reward = reward._replace(
            low=low,
            high=high,
            p_value=mcnemar(counts)[1],
            method="Tango's interval, McNemar's mid-p",
        )
    interval, method = _second_interval(d, clusters, counts, confidence, seed)
    return PairReport(
        baseline,
        candidate,
        pairing,
        reward,
        unpaired_stderr(first, second),
        correlation(first, second),
        detectable_effect(reward.estimate.stderr),
        two_levels(
            [baseline.rewards[key] for key in shared], [candidate.rewards[key] for key in shared], d
        ),
        sign_flip_p(d, clusters, seed=seed),
        interval,
        method,
        counts,
        _pass_measures(baseline, candidate, shared, threshold, confidence),
        [
            one
            for name in sorted(baseline.values.keys() & candidate.values.keys())
            if name not in (*COSTS, TURNS, SECONDS)
            and (one := measured(name, baseline.values[name], candidate.values[name]))
        ],
        [
            one
            for name in (*COSTS, TURNS, SECONDS)
            if (
                one := measured(name, baseline.values.get(name, {}), candidate.values.get(name, {}))
            )
        ],
        sorted(
            (
                Flip(key, baseline.example_ids[key], float(old), float(new))
                for key, old, new in zip(shared, first, second, strict=True)
                if abs(new - old) > 1e-9
            ),
            key=lambda flip: flip.difference,
        ),
        None
        if baseline.clean == baseline.rewards and candidate.clean == candidate.rewards
        else measured("reward without failed rollouts", baseline.clean, candidate.clean),
        incompatibilities(baseline, candidate),
    )


def _measure(
    name: str,
    old: Mapping[str, Sequence[float]],
    new: Mapping[str, Sequence[float]],
    examples: Sequence[str],
    labels: Sequence[Any] | None,
    confidence: float,
) -> Measure | None:
    """Compare one quantity on the examples that have it in both runs; None if there are none."""
    places = [number for number, key in enumerate(examples) if old.get(key) and new.get(key)]
    if not places:
        return None
    chosen = [examples[number] for number in places]
    first, second = example_means(old, chosen), example_means(new, chosen)
    estimate = paired_mean(
        second - first, None if labels is None else [labels[number] for number in places]
    )
    low, high = estimate.interval(confidence)
    if all(0 <= value <= 1 for runs in (old, new) for key in chosen for value in runs[key]):
        low, high = _within_bounds(estimate, low, high, len(chosen), confidence)
    return Measure(
        name,
        float(first.mean()),
        float(second.mean()),
        estimate,
        low,
        high,
        estimate.p_value,
        len(chosen),
        "paired t" if labels is None else "paired t, clustered",
    )


def _within_bounds(
    estimate: PairedMean, low: float, high: float, examples: int, confidence: float
) -> Interval:
    """Return the interval of a difference of rewards in [0, 1], which is in [-1, 1].

    Differences that are all equal have no variance. As in `bounded_interval` of a run's mean, an unseen share of the
    examples may then have any difference.
    """
    if math.isnan(low):
        return Interval(NAN, NAN)
    if estimate.stderr == 0:
        unseen = beta_interval(0.0, examples, BINOMIAL_PRIOR, confidence).high
        mean = estimate.mean
        return Interval(mean - unseen * (1 + mean), mean + unseen * (1 - mean))
    return Interval(max(-1.0, low), min(1.0, high))


def _counts(
    baseline: RunNumbers, candidate: RunNumbers, shared: Sequence[str]
) -> PairedCounts | None:
    """Return the outcomes of the examples, or None unless each run has one 0/1 reward per example."""
    outcomes = [(candidate.rewards[key], baseline.rewards[key]) for key in shared]
    if any(len(r) != 1 or r[0] not in (0.0, 1.0) for pair in outcomes for r in pair):
        return None
    kinds = [(int(new[0]), int(old[0])) for new, old in outcomes]
    return PairedCounts(*(kinds.count(kind) for kind in ((1, 1), (1, 0), (0, 1), (0, 0))))


def _second_interval(
    d: Floats,
    clusters: Sequence[Any] | None,
    counts: PairedCounts | None,
    confidence: float,
    seed: int,
) -> tuple[Interval, str]:
    if d.size >= BOOTSTRAP_EXAMPLES:
        found = bootstrap_interval_of_mean(d, clusters, seed=seed, confidence=confidence)
        return found, "bootstrap over clusters" if clusters else "bootstrap over examples"
    if counts is not None:
        return posterior_interval(counts, seed=seed, confidence=confidence), "posterior"
    return Interval(NAN, NAN), ""


def _pass_measures(
    baseline: RunNumbers,
    candidate: RunNumbers,
    shared: Sequence[str],
    threshold: float,
    confidence: float,
) -> list[Measure]:
    """Compare pass@k and pass^k for k = 1, 2, 4 … up to the rollouts that every shared example has in both runs."""
    passes = [run.passes(threshold) for run in (baseline, candidate)]
    fewest = min(count[key][0] for count in passes for key in shared)
    kinds: list[tuple[str, Callable[[int, int, int], float]]] = [
        ("pass@{}", pass_at_k),
        ("pass^{}", pass_all_k),
    ]
    found: list[Measure] = []
    for title, chance in kinds:
        for k in powers_of_two(fewest):
            if k == 1 and chance is pass_all_k:
                continue  # equal to pass@1
            old, new = ({key: [chance(*run[key], k)] for key in shared} for run in passes)
            one = _measure(
                title.format(k), old, new, shared, _clusters(baseline, shared), confidence
            )
            found += [one] if one else []
    return found
