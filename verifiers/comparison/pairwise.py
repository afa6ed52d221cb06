"""Bradley-Terry: strengths of candidates from pairwise verdicts, for example of a judge that prefers one of two
answers.

P(i beats j) = σ(θ_i - θ_j + γ), with the strengths θ summing to 0 and γ the advantage of the first place. A tie counts
as half a win for each. Sources:
    [1] Bradley, Terry 1952, Rank Analysis of Incomplete Block Designs, Biometrika 39(3/4)
    [2] Davidson, Beaver 1977, On Extending the Bradley-Terry Model to Incorporate Within-Pair Order Effects,
        Biometrics 33(4)
    [3] Liang, Zeger 1986, Longitudinal Data Analysis Using Generalized Linear Models, Biometrika 73(1) (the sandwich)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from verifiers.errors import ConfigError
from verifiers.runs.statistics import Floats, Interval, normal_quantile

RIDGE = 1e-3
"""Precision of the normal prior that keeps strengths finite when some candidate won, or lost, all its games."""
MAX_STEPS = 200


class Verdict(NamedTuple):
    """One comparison of two candidates."""

    first: str
    """The candidate whose answer was shown first."""
    second: str
    score: float
    """1.0 if the first won, 0.0 if the second won, 0.5 for a tie."""
    cluster: Hashable = None
    """The prompt. Verdicts on the same prompt are correlated. None: independent."""


class Strengths(NamedTuple):
    """The fitted model. Arrays have the order of `names`."""

    names: list[str]
    """Candidates, the strongest first."""
    strengths: Floats
    """θ, with the sum 0. A difference of 1 means odds of e to 1."""
    stderrs: Floats
    """Standard errors from the sandwich covariance, clustered by prompt [3]."""
    order_effect: float
    """γ: log-odds by which the first place is preferred [2]; 0.0 unless it was fitted."""
    order_stderr: float
    is_separated: bool
    """Whether some candidates won all games against the others, so that only the ridge keeps strengths finite."""

    def interval(self, place: int, confidence: float = 0.95) -> Interval:
        """Return the interval of one strength."""
        half = normal_quantile(0.5 + confidence / 2) * float(self.stderrs[place])
        return Interval(float(self.strengths[place]) - half, float(self.strengths[place]) + half)

    def win_probability(self, first: str, second: str) -> float:
        """Return the probability that one candidate beats another, without the effect of the order."""
        place = {name: number for number, name in enumerate(self.names)}
        difference = self.strengths[place[first]] - self.strengths[place[second]]
        return float(_sigmoid(difference))


def bradley_terry(verdicts: Iterable[Verdict], *, fit_order: bool = False) -> Strengths:
    """Fit the strengths by maximum likelihood [1], with Newton's method.

    Raises ConfigError for fewer than two candidates, a score outside [0, 1], and candidates that no chain of games
    connects: no data compare their strengths.
    """
    games = list(verdicts)
    names = sorted({name for game in games for name in game[:2]})
    _check(games, names)
    place = {name: number for number, name in enumerate(names)}
    first = np.array([place[game.first] for game in games], np.intp)
    second = np.array([place[game.second] for game in games], np.intp)
    score = np.array([game.score for game in games], np.float64)
    is_separated = not _is_strongly_connected(len(names), first, second, score)
    count = len(names)
    design = np.zeros((len(games), count + 1))
    rows = np.arange(len(games))
    np.add.at(design, (rows, first), 1.0)
    np.add.at(design, (rows, second), -1.0)
    design[:, count] = float(fit_order)
    ridge = np.full(count + 1, RIDGE if is_separated else 0.0)
    theta = _maximize(design, score, ridge, fit_order=fit_order)
    covariance = _sandwich(design, score, ridge, theta, [game.cluster for game in games], fit_order)
    order = np.argsort(-theta[:count], kind="stable")
    errors = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return Strengths(
        [names[i] for i in order],
        theta[:count][order],
        errors[:count][order],
        float(theta[count]),
        float(errors[count]),
        is_separated,
    )


def _check(games: Sequence[Verdict], names: Sequence[str]) -> None:
    if len(names) < 2:
        raise ConfigError(
            f"A ranking needs verdicts on at least two candidates; got {list(names)}."
        )
    for game in games:
        if game.first == game.second:
            raise ConfigError(f"{game.first!r} is compared with itself.")
        if not 0 <= game.score <= 1:
            raise ConfigError(f"The score of a verdict must be in [0, 1]; got {game.score!r}.")
    groups = _components(names, [(game.first, game.second) for game in games])
    if len(groups) > 1:
        listed = "; ".join(", ".join(group) for group in groups)
        raise ConfigError(
            f"No games connect these groups of candidates, so their strengths cannot be compared: {listed}. "
            "Add verdicts between them, or rank each group alone."
        )


def _components(names: Sequence[str], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    group = {name: name for name in names}

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for a, b in edges:
        group[root(a)] = root(b)
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(root(name), []).append(name)
    return list(members.values())


def _is_strongly_connected(count: int, first, second, score) -> bool:
    """Whether every candidate can be reached from every other along wins; then the maximum is finite (Ford 1957)."""
    wins = np.eye(count, dtype=bool)
    wins[first[score > 0], second[score > 0]] = True
    wins[second[score < 1], first[score < 1]] = True
    for middle in range(count):
        wins |= wins[:, middle : middle + 1] & wins[middle : middle + 1, :]
    return bool(wins.all())


def _sigmoid(values):
    return 0.5 * (1 + np.tanh(0.5 * values))


def _information(design: Floats, ridge: Floats, theta: Floats, fit_order: bool) -> Floats:
    """Return the observed information, with the constraint Σθ = 0 as a rank-one term."""
    p = _sigmoid(design @ theta)
    count = theta.size - 1
    hessian = design.T @ (design * (p * (1 - p))[:, None]) + np.diag(ridge)
    hessian[:count, :count] += 1.0 / count
    if not fit_order:
        hessian[count, count] = 1.0
    return hessian


def _maximize(design: Floats, score: Floats, ridge: Floats, *, fit_order: bool) -> Floats:
    count = design.shape[1] - 1
    theta = np.zeros(count + 1)
    value = _objective(design, score, ridge, theta)
    for _ in range(MAX_STEPS):
        gradient = design.T @ (score - _sigmoid(design @ theta)) - ridge * theta
        step = np.linalg.solve(_information(design, ridge, theta, fit_order), gradient)
        scale = 1.0
        while True:  # halve the step until the likelihood does not fall
            trial = theta + scale * step
            trial[:count] -= trial[:count].mean()
            new = _objective(design, score, ridge, trial)
            if new >= value - 1e-13 * abs(value) or scale < 1e-10:
                break
            scale /= 2
        theta, value = trial, new
        if float(np.abs(scale * step).max()) < 1e-12:
            break
    return theta


def _objective(design: Floats, score: Floats, ridge: Floats, theta: Floats) -> float:
    x = design @ theta
    likelihood = score * -np.logaddexp(0, -x) + (1 - score) * -np.logaddexp(0, x)
    return float(likelihood.sum() - 0.5 * (ridge * theta) @ theta)


def _sandwich(
    design: Floats,
    score: Floats,
    ridge: Floats,
    theta: Floats,
    clusters: Sequence[Hashable],
    fit_order: bool,
) -> Floats:
    """Return the covariance A⁻¹·B·A⁻¹, with B from the scores summed within clusters [3], times C/(C - 1)."""
    residuals = design * (score - _sigmoid(design @ theta))[:, None]
    labels = [number if label is None else (label,) for number, label in enumerate(clusters)]
    numbers = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    sums = np.zeros((len(numbers), design.shape[1]))
    np.add.at(sums, [numbers[label] for label in labels], residuals)
    inverse = np.linalg.inv(_information(design, ridge, theta, fit_order))
    groups = len(numbers)
    factor = groups / (groups - 1) if groups > 1 else math.nan
    return inverse @ (sums.T @ sums * factor) @ inverse
