"""A policy file decides whether a candidate may replace the baseline: PASS, FAIL or INCONCLUSIVE.

    confidence = 0.95            # of the one-sided intervals
    inconclusive = "fail"        # how an inconclusive check counts: "fail", "pass" or "inconclusive" (the default)
    max_failed_share = 0.05      # more failed rollouts of the candidate fail the gate
    strict = true                # runs that are not comparable fail the gate
    waived = ["3f2a…"]           # examples (hash or example id) of known regressions, left out of every check

    [reward]
    margin = 0.02                # fail only if the candidate is worse by more than this
    at_least = 0.70              # and its own mean must be above this

    [metrics.accuracy]
    test = "superiority"         # must be better by more than the margin

    [pass."pass@4"]
    margin = 0.05

    [costs."output tokens"]
    margin = 50.0                # may use at most 50 tokens per rollout more

A check asks for a direction in which more is better; for costs less is better. With the one-sided intervals of the
difference d (candidate minus baseline):

    non-inferiority   PASS if the lower end > -margin, FAIL if the upper end < -margin
    superiority       PASS if the lower end > +margin, FAIL if the upper end < +margin
    equivalence       PASS if both ends are within ±margin (two one-sided tests), FAIL if the interval is outside

Everything between is INCONCLUSIVE: more examples or rollouts would decide it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from verifiers.comparison.compare import Measure, PairReport, Report
from verifiers.errors import ConfigError
from verifiers.runs.statistics import NAN, clustered_mean


class GateOutcome(StrEnum):
    """The result of a check or of the gate."""

    PASS = "PASS"
    INCONCLUSIVE = "INCONCLUSIVE"
    FAIL = "FAIL"


EXIT_CODES = {GateOutcome.PASS: 0, GateOutcome.FAIL: 1, GateOutcome.INCONCLUSIVE: 2}

Margin = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CheckPolicy(BaseModel):
    """The rule for one quantity."""

    model_config = ConfigDict(extra="forbid")
    test: Literal["non-inferiority", "superiority", "equivalence"] = "non-inferiority"
    margin: Margin = 0.0
    at_least: float | None = None
    """The candidate's own mean must be above this."""


class Policy(BaseModel):
    """A policy file; see the module."""

    model_config = ConfigDict(extra="forbid")
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    inconclusive: Literal["pass", "fail", "inconclusive"] = "inconclusive"
    max_failed_share: Annotated[float, Field(ge=0, le=1)] | None = None
    strict: bool = False
    waived: list[str | int] = []
    reward: CheckPolicy | None = None
    metrics: dict[str, CheckPolicy] = {}
    passes: Annotated[dict[str, CheckPolicy], Field(alias="pass")] = {}
    costs: dict[str, CheckPolicy] = {}

    @classmethod
    def load(cls, path: str | Path) -> Policy:
        """Read a policy file. Raises ConfigError with the place of each mistake."""
        try:
            policy = cls.model_validate(tomllib.loads(Path(path).read_text("utf-8")))
        except OSError as error:
            raise ConfigError(f"The policy {path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"The policy {path} is not a TOML file: {error}.") from error
        except ValidationError as error:
            mistakes = "; ".join(
                f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()
            )
            raise ConfigError(f"The policy {path} is not valid: {mistakes}.") from error
        has_checks = policy.reward or policy.metrics or policy.passes or policy.costs
        if not has_checks and policy.max_failed_share is None:
            raise ConfigError(
                f"The policy {path} checks nothing. Add a table such as [reward] with a margin."
            )
        return policy


class GateCheck(NamedTuple):
    """One decided rule."""

    candidate: str
    name: str
    rule: str
    outcome: GateOutcome
    detail: str
    """The numbers behind the outcome."""


class Decision(NamedTuple):
    """The outcome of the gate and of each of its checks."""

    outcome: GateOutcome
    checks: list[GateCheck]

    @property
    def exit_code(self) -> int:
        """0 for PASS, 1 for FAIL, 2 for INCONCLUSIVE."""
        return EXIT_CODES[self.outcome]


def decide(report: Report, policy: Policy) -> Decision:
    """Apply a policy to a comparison. Raises ConfigError for a check of a quantity that the runs do not have.

    The report must have been made without the waived examples; see `waived_examples`.
    """
    checks = [check for pair in report.pairs for check in _checks(pair, policy)]
    outcomes = {check.outcome for check in checks}
    outcome = GateOutcome.PASS
    if GateOutcome.FAIL in outcomes:
        outcome = GateOutcome.FAIL
    elif GateOutcome.INCONCLUSIVE in outcomes:
        outcome = GateOutcome[policy.inconclusive.upper()]
    return Decision(outcome, checks)


def _checks(pair: PairReport, policy: Policy) -> list[GateCheck]:
    name = pair.candidate.name
    checks = []
    if policy.strict and pair.incompatibilities:
        detail = "; ".join(map(str, pair.incompatibilities))
        checks.append(GateCheck(name, "comparability", "equal settings", GateOutcome.FAIL, detail))
    if policy.max_failed_share is not None:
        checks.append(_failed_share(pair, policy.max_failed_share))
    groups: list[tuple[Mapping[str, CheckPolicy], Sequence[Measure], bool]] = [
        ({"reward": policy.reward} if policy.reward else {}, [pair.reward], True),
        (policy.metrics, pair.metrics, True),
        (policy.passes, pair.passes, True),
        (policy.costs, pair.costs, False),
    ]
    for rules, measures, more_is_better in groups:
        found = {measure.name: measure for measure in measures}
        for quantity, rule in rules.items():
            if quantity not in found:
                raise ConfigError(
                    f"The policy checks {quantity!r}, which {pair.baseline.folder} and {pair.candidate.folder} do not "
                    f"both have. They share: {', '.join(found) or 'nothing'}."
                )
            checks.append(
                _difference_check(name, found[quantity], rule, policy.confidence, more_is_better)
            )
            if rule.at_least is not None:
                checks.append(_level_check(pair, found[quantity], rule.at_least, policy.confidence))
    return checks


def _difference_check(
    candidate: str, measure: Measure, rule: CheckPolicy, confidence: float, more_is_better: bool
) -> GateCheck:
    low, high = measure.estimate.one_sided(confidence)
    if measure.estimate.stderr == 0:
        low = high = measure.difference
    if not more_is_better:
        low, high = -high, -low
    margin = rule.margin
    if rule.test == "equivalence":
        passes, fails = -margin < low and high < margin, high < -margin or low > margin
    else:
        bound = margin if rule.test == "superiority" else -margin
        passes, fails = low > bound, high < bound
        if rule.test == "non-inferiority" and low == high == bound == 0:
            passes = True  # equal results on every example are not worse
    outcome = (
        GateOutcome.PASS if passes else GateOutcome.FAIL if fails else GateOutcome.INCONCLUSIVE
    )
    ends = measure.estimate.one_sided(confidence)
    detail = (
        f"difference {measure.difference:+.4g}, one-sided {confidence:.0%} ends {ends.low:+.4g} and {ends.high:+.4g}, "
        f"{measure.examples} examples"
    )
    return GateCheck(candidate, measure.name, f"{rule.test}, margin {margin:g}", outcome, detail)


def _level_check(
    pair: PairReport, measure: Measure, at_least: float, confidence: float
) -> GateCheck:
    """Compare the candidate's own mean with a level, by the interval of the mean of a run."""
    values = _values_of(pair, measure)
    low, high = clustered_mean(
        [value for rewards in values.values() for value in rewards],
        [key for key, rewards in values.items() for _ in rewards],
        confidence=2 * confidence - 1,
    ).interval
    if low != low:  # one example, or equal values outside [0, 1]
        low = high = measure.candidate
    outcome = GateOutcome.INCONCLUSIVE
    if low > at_least or low == high == at_least:
        outcome = GateOutcome.PASS
    elif high < at_least:
        outcome = GateOutcome.FAIL
    detail = (
        f"mean {measure.candidate:.4g}, one-sided {confidence:.0%} ends {low:.4g} and {high:.4g}"
    )
    return GateCheck(pair.candidate.name, measure.name, f"at least {at_least:g}", outcome, detail)


def _values_of(pair: PairReport, measure: Measure) -> Mapping[str, Sequence[float]]:
    run = pair.candidate
    values = run.rewards if measure.name == "reward" else run.values.get(measure.name)
    if values is None:
        raise ConfigError(
            f"`at_least` is not offered for {measure.name}; use it for the reward, a metric or a cost."
        )
    return {key: values[key] for key in pair.pairing.shared if values.get(key)}


def _failed_share(pair: PairReport, maximum: float) -> GateCheck:
    run = pair.candidate
    failed = run.rollouts - sum(map(len, run.clean.values()))
    share = failed / run.rollouts if run.rollouts else NAN
    outcome = GateOutcome.FAIL if share > maximum else GateOutcome.PASS
    detail = f"{failed} of {run.rollouts} rollouts failed"
    return GateCheck(run.name, "failed rollouts", f"at most {maximum:.1%}", outcome, detail)


def waived_examples(policy: Policy, ids: Mapping[str, Any]) -> set[str]:
    """Return the content hashes of the waived examples, from hashes, their beginnings (at least 8 digits), or ids.

    `ids` maps hashes to example ids. Raises ConfigError for an entry that matches no example.
    """
    found: set[str] = set()
    for entry in policy.waived:
        text = str(entry)
        matches = {
            key
            for key, example in ids.items()
            if str(example) == text or (len(text) >= 8 and key.startswith(text))
        }
        if not matches:
            raise ConfigError(f"The waived example {text!r} is in none of the runs.")
        found |= matches
    return found
