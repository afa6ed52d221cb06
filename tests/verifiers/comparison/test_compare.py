import json
import math

import numpy as np
import pytest
import scipy.stats

from verifiers.comparison.compare import compare
from verifiers.errors import ConfigError
from verifiers.runs.store import RunNotFound


def random_rewards(n, k, shift, seed):
    generator = np.random.default_rng(seed)
    base = np.random.default_rng(0).uniform(0, 1, n)
    chance = np.clip(base + shift, 0, 1)
    return {i: [float(generator.random() < chance[i]) for _ in range(k)] for i in range(n)}


def test_the_difference_is_candidate_minus_baseline_on_the_examples_of_both(make_run):
    first = make_run("a", {0: [0.0], 1: [0.5], 2: [1.0], 3: [0.25]})
    second = make_run("b", {3: [0.75], 1: [1.0], 2: [0.9], 9: [1.0]})
    [pair] = compare(first, second).pairs
    assert pair.reward.difference == pytest.approx((0.5 + 0.5 - 0.1) / 3)
    assert (pair.pairing.only_first, pair.pairing.only_second) == (1, 1)
    expected = scipy.stats.ttest_rel([1.0, 0.9, 0.75], [0.5, 1.0, 0.25])
    assert pair.reward.p_value == pytest.approx(expected.pvalue)
    assert [flip.example_id for flip in pair.flips] == [2, 1, 3]
    assert pair.flips[0].difference == pytest.approx(-0.1)


def test_examples_are_paired_by_content_and_not_by_their_ids(make_run):
    first = make_run("a", {0: [1.0], 1: [0.0]})
    second = make_run("b", {0: [1.0], 1: [0.0]}, fields=lambda e, _: {"input_key": f"{1 - e:064x}"})
    [pair] = compare(first, second).pairs
    assert [(flip.baseline, flip.candidate) for flip in pair.flips] == [(0.0, 1.0), (1.0, 0.0)][
        ::-1
    ]


def test_runs_of_the_public_package_are_paired_by_prompt_and_answer(make_run, tmp_path):
    ours = make_run("ours", {0: [1.0], 1: [0.0], 2: [1.0]})
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "metadata.json").write_text(json.dumps({"env_id": "demo", "model": "theirs"}))
    lines = [
        {
            "example_id": 7 - e,
            "prompt": [{"role": "user", "content": f"question {e}"}],
            "answer": str(e),
            "reward": 1.0,
            "metrics": {},
            "timing": {"total_ms": 1500.0},
        }
        for e in range(3)
    ]
    (theirs / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    [pair] = compare(ours, theirs).pairs
    assert [flip.example_id for flip in pair.flips] == [1]
    assert {one.name: one.candidate for one in pair.costs} == {"seconds": 1.5}


def test_zeros_and_ones_with_one_rollout_use_tests_for_proportions(make_run):
    [pair] = compare(
        make_run("a", random_rewards(80, 1, 0.0, 1)), make_run("b", random_rewards(80, 1, 0.2, 2))
    ).pairs
    assert pair.counts is not None
    assert pair.counts.n == 80
    assert "Tango" in pair.reward.method
    assert pair.second_method == "posterior"
    assert pair.second_interval == pytest.approx((pair.reward.low, pair.reward.high), abs=0.03)
    assert math.isnan(pair.levels.sampling_share)
    assert "at least two rollouts" in pair.advice


def test_many_examples_have_a_bootstrap_interval_as_a_check(make_run):
    [pair] = compare(
        make_run("a", random_rewards(150, 2, 0.0, 1)), make_run("b", random_rewards(150, 2, 0.2, 2))
    ).pairs
    assert pair.counts is None
    assert pair.second_method == "bootstrap over examples"
    assert pair.second_interval == pytest.approx((pair.reward.low, pair.reward.high), abs=0.02)
    assert pair.reward.verdict == "better"
    assert pair.sign_flip_p < 0.01
    assert pair.correlation > 0.3
    assert pair.unpaired_stderr > pair.reward.estimate.stderr


def test_noise_of_rollouts_advises_more_rollouts_and_other_noise_more_examples(make_run):
    noisy = compare(
        make_run("a", random_rewards(200, 2, 0, 1)), make_run("b", random_rewards(200, 2, 0, 2))
    )
    assert "more rollouts per example" in noisy.pairs[0].advice
    steady = {i: [float(i % 2)] * 4 for i in range(40)}
    other = {i: [float(i % 3 == 0)] * 4 for i in range(40)}
    apart = compare(make_run("c", steady), make_run("d", other))
    assert "only more examples" in apart.pairs[0].advice
    equal = compare(make_run("e", steady), make_run("f", steady)).pairs[0]
    assert (equal.reward.verdict, equal.flips) == ("no difference detected", [])
    assert "do not differ" in equal.advice


def test_pass_at_k_goes_up_to_the_rollouts_of_every_example(make_run):
    first = make_run("a", {0: [1.0, 0.0, 0.0, 1.0], 1: [0.0] * 4})
    second = make_run("b", {0: [1.0] * 4, 1: [0.0, 1.0]})
    [pair] = compare(first, second).pairs
    assert [one.name for one in pair.passes] == ["pass@1", "pass@2", "pass^2"]
    at_two = pair.passes[1]
    assert at_two.baseline == pytest.approx((5 / 6 + 0) / 2)
    assert at_two.candidate == pytest.approx((1 + 1) / 2)
    strict = compare(first, second, pass_threshold=1.5).pairs[0]
    assert strict.passes[0].candidate == 0.0


def test_metrics_and_costs_are_compared_where_both_runs_have_them(make_run):
    first = make_run(
        "a", {0: [1.0], 1: [0.0]}, fields=lambda e, _: {"metrics": {"x": 1.0, "only": 2.0}}
    )
    second = make_run(
        "b",
        {0: [1.0], 1: [0.0]},
        fields=lambda e, _: {"metrics": {"x": 3.0 if e else math.nan}, "timing": {"total": 2.0}},
    )
    [pair] = compare(first, second).pairs
    assert [(one.name, one.examples, one.difference) for one in pair.metrics] == [("x", 1, 2.0)]
    assert {one.name: one.difference for one in pair.costs} == {
        "input tokens": 0.0,
        "output tokens": 0.0,
        "seconds": 1.5,
    }


def test_failed_rollouts_count_zero_and_the_verdict_without_them_is_shown(make_run):
    first = make_run("a", {i: [0.4 + 0.01 * (i % 7)] for i in range(30)})

    def crash(example, _):
        error = {"error": "InfraError", "voids_reward": True}
        return {"error": error, "reward": 0.9} if example % 2 else {}

    second = make_run("b", {i: [0.6 + 0.01 * (i % 5)] for i in range(30)}, fields=crash)
    [pair] = compare(first, second).pairs
    assert pair.reward.candidate == pytest.approx(
        sum(0.6 + 0.01 * (i % 5) for i in range(0, 30, 2)) / 30
    )
    assert pair.error_free is not None
    assert pair.error_free.examples == 15
    assert pair.error_free.verdict == "better"
    assert pair.verdict_depends_on_failures


def test_a_missing_reward_counts_zero(make_run):
    first = make_run("a", {0: [1.0], 1: [1.0]})
    second = make_run("b", {0: [1.0], 1: [1.0]}, fields=lambda e, _: {"reward": None} if e else {})
    [pair] = compare(first, second).pairs
    assert pair.reward.difference == -0.5


def test_clusters_widen_the_interval(make_run):
    def fields(example, _):
        return {"info": {"repository": example // 10}}

    same = {i: [0.5] for i in range(60)}
    shifted = {i: [0.5 + 0.1 * ((i // 10) % 3) + 0.001 * (i % 7)] for i in range(60)}
    folders = make_run("a", same, fields=fields), make_run("b", shifted, fields=fields)
    alone = compare(*folders).pairs[0].reward
    together = compare(*folders, cluster="info.repository").pairs[0].reward
    assert together.estimate.df == 5
    assert together.high - together.low > 2 * (alone.high - alone.low)
    assert together.method == "paired t, clustered"
    with pytest.raises(ConfigError, match=r"has the field 'info\.nothing'"):
        compare(*folders, cluster="info.nothing")


def test_several_candidates_have_adjusted_values_and_ranks(make_run):
    folders = [
        make_run(name, random_rewards(120, 4, shift, seed))
        for seed, (name, shift) in enumerate([("a", 0.0), ("b", 0.3), ("c", 0.0)])
    ]
    report = compare(*folders)
    better, equal = report.pairs
    assert better.adjusted_p >= better.reward.p_value
    assert (
        better.simultaneous.high - better.simultaneous.low > better.reward.high - better.reward.low
    )
    assert better.simultaneous.low > 0 > equal.simultaneous.low
    assert report.ranks[1] == (1, 1)
    assert report.ranks[0].worst == report.ranks[2].worst == 3
    assert math.isnan(compare(*folders[:2]).pairs[0].adjusted_p)


def test_settings_that_differ_are_named_and_refused_if_strict(make_run):
    rewards = {0: [1.0], 1: [0.0]}
    shared = {"sampling_args": {"temperature": 1.0}, "provenance": {"dataset": {"sha256": "x"}}}
    first = make_run("a", rewards, **shared)
    same = make_run("b", rewards, **shared)
    other = make_run(
        "c",
        rewards,
        **(shared | {"sampling_args": {"temperature": 0.0}, "env_args": {"judge_model": "j"}}),
    )
    assert compare(first, same, strict=True).pairs[0].incompatibilities == []
    [found] = compare(first, other).pairs[0].incompatibilities
    assert found == ("sampling arguments", {"temperature": 1.0}, {"temperature": 0.0})
    with pytest.raises(ConfigError, match="not comparable: sampling arguments: "):
        compare(first, other, strict=True)


def test_runs_of_one_model_are_told_apart(make_run, tmp_path):
    rewards = {0: [1.0], 1: [0.0]}
    report = compare(make_run("x", rewards, model="m"), make_run("y", rewards, model="m"))
    assert [run.name for run in report.runs] == ["m (x)", "m (y)"]


def test_rows_of_equal_content_are_reported(make_run):
    same = make_run("a", {0: [1.0], 1: [0.0]}, fields=lambda e, _: {"input_key": "k"})
    [pair] = compare(same, same).pairs
    assert (len(pair.pairing.shared), pair.pairing.duplicates) == (1, 2)


def test_runs_that_cannot_be_compared_are_refused(make_run, tmp_path):
    run, other = make_run("a", {0: [1.0]}), make_run("b", {1: [1.0]})
    empty = make_run("empty", {})
    with pytest.raises(ConfigError, match="share no example"):
        compare(run, other)
    with pytest.raises(ConfigError, match="has no rollouts"):
        compare(run, empty)
    with pytest.raises(ConfigError, match="needs 2 to 8 runs; got 1"):
        compare(run)
    with pytest.raises(ConfigError, match=r"at least 0\.5 and below 1; got 95"):
        compare(run, run, confidence=95)
    with pytest.raises(RunNotFound, match="nowhere"):
        compare(run, tmp_path / "nowhere")


def test_one_shared_example_has_a_difference_but_no_interval(make_run):
    [pair] = compare(make_run("a", {0: [0.5]}), make_run("b", {0: [0.7]})).pairs
    assert pair.reward.difference == pytest.approx(0.2)
    assert math.isnan(pair.reward.low)
    assert pair.reward.verdict == "no difference detected"
