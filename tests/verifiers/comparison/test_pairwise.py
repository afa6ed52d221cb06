import itertools

import numpy as np
import pytest
import statsmodels.api as sm

from verifiers.comparison.pairwise import Verdict, bradley_terry
from verifiers.errors import ConfigError


def games(strengths, number, *, order=0.0, seed=0, ties=False):
    generator = np.random.default_rng(seed)
    names = list(strengths)
    verdicts = []
    for prompt in range(number):
        a, b = generator.choice(names, 2, replace=False)
        p = 1 / (1 + np.exp(-(strengths[a] - strengths[b] + order)))
        score = 0.5 if ties and generator.random() < 0.2 else float(generator.random() < p)
        verdicts.append(Verdict(a, b, score, prompt // 3))
    return verdicts


def test_the_strengths_are_those_of_choix():
    choix = pytest.importorskip("choix")
    verdicts = games({"a": 1.0, "b": 0.0, "c": -0.5, "d": -0.5}, 400)
    names = ["a", "b", "c", "d"]
    wins = [
        (names.index(v.first), names.index(v.second))
        if v.score
        else (names.index(v.second), names.index(v.first))
        for v in verdicts
    ]
    expected = choix.opt_pairwise(4, wins)
    found = bradley_terry(verdicts)
    order = [names.index(name) for name in found.names]
    assert found.strengths == pytest.approx(expected[order], abs=1e-5)


@pytest.mark.parametrize("fit_order", [False, True])
def test_strengths_and_clustered_errors_agree_with_a_logistic_regression(fit_order):
    verdicts = games({"a": 0.8, "b": 0.1, "c": -0.9}, 300, order=0.4)
    found = bradley_terry(verdicts, fit_order=fit_order)
    rows = [[(v.first == x) - (v.second == x) for x in "ab"] + [1.0] * fit_order for v in verdicts]
    groups = np.array([v.cluster for v in verdicts])
    model = sm.Logit([v.score for v in verdicts], np.array(rows, float)).fit(
        disp=0, cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}
    )
    place = {name: number for number, name in enumerate(found.names)}
    theta = found.strengths
    # The regression fixes c at 0; ours fixes the sum.
    assert theta[place["a"]] - theta[place["c"]] == pytest.approx(model.params[0], abs=1e-6)
    assert theta[place["b"]] - theta[place["c"]] == pytest.approx(model.params[1], abs=1e-6)
    assert theta.sum() == pytest.approx(0, abs=1e-9)
    # θ_a = (2·a - b)/3 in the parameters of the regression.
    weights = np.array([2 / 3, -1 / 3] + [0.0] * fit_order)
    count = len(set(groups))
    variance = weights @ model.cov_params() @ weights * count / (count - 1)
    assert found.stderrs[place["a"]] == pytest.approx(variance**0.5, rel=1e-5)
    if fit_order:
        assert found.order_effect == pytest.approx(model.params[2], abs=1e-6)
        assert found.order_stderr == pytest.approx(
            (model.cov_params()[2, 2] * count / (count - 1)) ** 0.5, rel=1e-5
        )


def test_ties_are_half_a_win_for_each():
    found = bradley_terry(
        [Verdict("a", "b", 0.5)] * 4 + [Verdict("a", "b", 1.0), Verdict("b", "a", 1.0)]
    )
    assert found.strengths == pytest.approx([0.0, 0.0], abs=1e-9)
    assert found.win_probability("a", "b") == pytest.approx(0.5)


def test_intervals_cover_95_percent_with_ties_and_an_effect_of_the_order():
    strengths = {"a": 0.5, "b": 0.0, "c": -0.5}
    covered = 0
    for seed in range(200):
        found = bradley_terry(games(strengths, 240, order=0.3, seed=seed), fit_order=True)
        low, high = found.interval(found.names.index("a"))
        covered += low <= 0.5 <= high
    assert 0.9 <= covered / 200 <= 0.99


def test_a_candidate_that_wins_all_games_has_a_finite_strength():
    verdicts = [Verdict("a", "b", 1.0)] * 20 + [Verdict("b", "c", 1.0), Verdict("c", "b", 1.0)]
    found = bradley_terry(verdicts)
    assert found.is_separated
    assert found.names[0] == "a"
    assert np.isfinite(found.strengths).all()
    assert found.win_probability("a", "b") > 0.99
    assert not bradley_terry(games({"a": 0.1, "b": 0.0}, 50)).is_separated


def test_the_result_does_not_depend_on_the_order_of_the_verdicts():
    verdicts = games({"a": 0.5, "b": 0.0, "c": -0.5}, 60, ties=True)
    first, second = bradley_terry(verdicts), bradley_terry(verdicts[::-1])
    assert first.names == second.names
    assert first.strengths == pytest.approx(second.strengths, abs=1e-9)


@pytest.mark.parametrize(
    ("verdicts", "message"),
    [
        ([Verdict("a", "b", 1.0), Verdict("c", "d", 1.0)], "a, b; c, d"),
        ([Verdict("a", "a", 1.0), Verdict("a", "b", 0.0)], "compared with itself"),
        ([Verdict("a", "b", 1.5)], r"in \[0, 1\]; got 1.5"),
        ([], "at least two candidates"),
    ],
)
def test_verdicts_that_rank_nothing_are_refused(verdicts, message):
    with pytest.raises(ConfigError, match=message):
        bradley_terry(verdicts)


def test_many_candidates_of_equal_strength_stay_near_each_other():
    verdicts = [
        Verdict(a, b, float(win)) for a, b in itertools.permutations("abcdef", 2) for win in (0, 1)
    ]
    assert bradley_terry(verdicts).strengths == pytest.approx(np.zeros(6), abs=1e-9)
