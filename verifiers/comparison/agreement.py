"""Agreement of judges: kappa, Krippendorff's alpha, and a rate corrected for the mistakes of a judge.

Sources, cited by number at each function:
    [1] Cohen 1960, A Coefficient of Agreement for Nominal Scales, Educ. Psychol. Measurement 20(1)
    [2] Cohen 1968, Weighted Kappa, Psychological Bulletin 70(4)
    [3] Krippendorff 2011, Computing Krippendorff's Alpha-Reliability, University of Pennsylvania
    [4] Rogan, Gladen 1978, Estimating Prevalence from the Results of a Screening Test, Am. J. Epidemiology 107(1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from verifiers.runs.statistics import NAN

Scale = Literal["nominal", "interval"]


def cohens_kappa(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    *,
    weights: Literal["quadratic"] | None = None,
) -> float:
    """Return the agreement of two raters beyond chance [1]: (p_o - p_e) / (1 - p_e).

    `weights="quadratic"` takes numbers and counts a disagreement by its squared distance [2]. NaN if both raters give
    every item the same value: chance alone would agree.
    """
    if len(first) != len(second):
        raise ValueError(f"Both raters need the same items; got {len(first)} and {len(second)}.")
    if not first:
        return NAN
    if weights == "quadratic":
        a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
        expected = (
            float(((a[:, None] - b[None, :]) ** 2).mean()) if a.size <= 2000 else _expected(a, b)
        )
        return 1 - float(((a - b) ** 2).mean()) / expected if expected > 0 else NAN
    count = len(first)
    agreed = sum(x == y for x, y in zip(first, second, strict=True)) / count
    left, right = Counter(first), Counter(second)
    chance = sum(left[value] * right[value] for value in left) / count**2
    return (agreed - chance) / (1 - chance) if chance < 1 else NAN


def _expected(a, b) -> float:
    """Return the mean of (x - y)² over all pairs, from the moments."""
    return float((a**2).mean() + (b**2).mean() - 2 * a.mean() * b.mean())


def krippendorffs_alpha(
    ratings: Sequence[Sequence[Hashable | None]], *, scale: Scale = "nominal"
) -> float:
    """Return Krippendorff's alpha [3]: 1 - observed disagreement / expected disagreement.

    `ratings[r][i]` is the value of rater r for item i; None is a missing rating. Items with fewer than two ratings do
    not count. The distance is 0 or 1 on a nominal scale, the squared difference on an interval scale. NaN if all values
    are equal, or no item has two ratings.
    """
    lengths = {len(row) for row in ratings}
    if len(lengths) > 1:
        raise ValueError(
            f"Every rater needs one value or None for each item; got lengths {sorted(lengths)}."
        )
    items = [
        [value for value in column if value is not None] for column in zip(*ratings, strict=True)
    ]
    items = [values for values in items if len(values) > 1]
    total = sum(len(values) for values in items)
    if total == 0:
        return NAN
    pooled = [value for values in items for value in values]
    observed = sum(_disagreement(values, scale) / (len(values) - 1) for values in items) / total
    expected = _disagreement(pooled, scale) / (total * (total - 1))
    return 1 - observed / expected if expected > 0 else NAN


def _disagreement(values: Sequence[Hashable], scale: Scale) -> float:
    """Return the sum of the distances of all ordered pairs."""
    if scale == "interval":
        numbers = np.asarray(values, np.float64)
        centred = numbers - numbers.mean()
        return float(2 * numbers.size * (centred @ centred))
    size = len(values)
    return float(size * size - sum(count * count for count in Counter(values).values()))


def corrected_rate(observed: float, *, sensitivity: float, specificity: float) -> float:
    """Return the true share of right answers behind a judge's share `observed` [4], cut to [0, 1].

    (p_obs + specificity - 1) / (sensitivity + specificity - 1). `sensitivity` is the share of right answers that the
    judge accepts, `specificity` the share of wrong answers that it rejects, both from a labelled set. Raises ValueError
    for a judge that is not better than chance.
    """
    better = sensitivity + specificity - 1
    if better <= 0:
        raise ValueError(
            f"A judge with sensitivity {sensitivity} and specificity {specificity} is not better than chance; its "
            "verdicts cannot be corrected."
        )
    return min(1.0, max(0.0, (observed + specificity - 1) / better))
