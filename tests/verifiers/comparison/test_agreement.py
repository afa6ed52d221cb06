import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.inter_rater import cohens_kappa as statsmodels_kappa
from statsmodels.stats.inter_rater import to_table

from verifiers.comparison.agreement import cohens_kappa, corrected_rate, krippendorffs_alpha

RATINGS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30)


@given(RATINGS, st.sampled_from([None, "quadratic"]))
def test_kappa_agrees_with_statsmodels(pairs, weights):
    table, _ = to_table(np.array(pairs), bins=4)
    first, second = zip(*pairs, strict=True)
    kind = {"wt": "fc"} if weights else {}
    with np.errstate(all="ignore"):
        expected = statsmodels_kappa(table, return_results=False, **kind)
    found = cohens_kappa(first, second, weights=weights)
    if math.isnan(found):
        assert len(set(first) | set(second)) == 1
    else:
        assert found == pytest.approx(expected, abs=1e-9)


def test_alpha_of_published_data():
    # Krippendorff 2011, section C: four observers, twelve units, missing data, nominal and interval metric.
    n = None
    data = [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, n, n, n],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, n, 3],
        [n, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, n],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, n],
    ]
    assert krippendorffs_alpha(data) == pytest.approx(0.743, abs=5e-4)
    assert krippendorffs_alpha(data, scale="interval") == pytest.approx(0.849, abs=5e-4)


def test_perfect_agreement_chance_and_too_little_data():
    assert krippendorffs_alpha([[1, 0, 1], [1, 0, 1]]) == 1.0
    assert math.isnan(krippendorffs_alpha([[1, None], [None, 1]]))
    assert math.isnan(krippendorffs_alpha([[1, 1], [1, 1]]))
    assert math.isnan(cohens_kappa([], []))
    generator = np.random.default_rng(0)
    first, second = generator.integers(0, 2, (2, 5000)).tolist()
    assert abs(cohens_kappa(first, second)) < 0.05
    assert abs(krippendorffs_alpha([first, second])) < 0.05


@pytest.mark.parametrize(
    "call", [lambda: cohens_kappa([1], [1, 2]), lambda: krippendorffs_alpha([[1], [1, 2]])]
)
def test_raters_with_different_items_are_refused(call):
    with pytest.raises(ValueError, match="need"):
        call()


@given(st.floats(0, 1), st.floats(0.6, 1), st.floats(0.6, 1))
def test_the_corrected_rate_undoes_the_mistakes_of_a_judge(rate, sensitivity, specificity):
    observed = rate * sensitivity + (1 - rate) * (1 - specificity)
    found = corrected_rate(observed, sensitivity=sensitivity, specificity=specificity)
    assert found == pytest.approx(rate, abs=1e-9)


def test_a_judge_no_better_than_chance_is_refused():
    with pytest.raises(ValueError, match="not better than chance"):
        corrected_rate(0.5, sensitivity=0.4, specificity=0.6)
