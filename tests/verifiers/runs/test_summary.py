import json
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.runs.prices import ModelPrice
from verifiers.runs.statistics import clustered_mean, naive_stderr, pass_all_k, pass_at_k
from verifiers.runs.summary import RunningSummary, summarize

ERROR = {
    "error": "ModelError",
    "error_chain_repr": "ModelError('503')",
    "error_chain_str": "ModelError: 503",
}


def out(example_id, reward, **fields):
    return {"example_id": example_id, "reward": reward, "error": None, "metrics": {}, **fields}


def test_failed_rollouts_count_and_the_error_free_mean_stands_beside():
    summary = summarize(
        [out(0, 1.0), out(0, 0.0, error=ERROR), out(1, 0.5), out(1, 0.0, error=ERROR)]
    )
    assert summary.reward.mean == 0.375
    assert summary.reward_error_free.mean == 0.75
    assert (summary.rollouts, summary.examples, summary.rollouts_per_example) == (4, 2, 2)
    assert (summary.error_count, summary.error_rate) == (2, 0.5)
    assert summary.errors["ModelError"].count == 2
    assert summary.errors["ModelError"].messages == ("ModelError('503')",)
    assert summary.error_interval == pytest.approx((0.15003898915214947, 0.8499610108478506))


def test_reward_functions_that_raised_are_counted_by_name():
    errors = [{"function": "judge", "type": "TimeoutError", "message": "too slow"}]
    summary = summarize([out(0, 0.0, errors=errors), out(1, 1.0, errors=[])])
    assert summary.reward_errors["judge"].count == 1
    assert summary.reward_errors["judge"].messages == ("too slow",)
    assert summary.reward_error_rollouts == 1
    assert (summary.reward.mean, summary.reward_error_free.mean) == (0.5, 1.0)


@pytest.mark.parametrize("reward", [None, math.nan, math.inf, "1.0", [1]])
def test_a_reward_that_is_no_number_counts_zero_and_is_reported(reward):
    summary = summarize([out(0, 1.0), out(1, reward)])
    assert (summary.reward.mean, summary.unscored) == (0.5, 1)
    assert summary.reward_error_free.mean == 1.0


def test_at_most_three_different_messages_are_kept():
    outputs = [
        out(i, 0.0, error={"error": "E", "error_chain_repr": f"E: {i % 5}"}) for i in range(20)
    ]
    assert summarize(outputs).errors["E"].messages == ("E: 0", "E: 1", "E: 2")
    assert summarize(outputs).errors["E"].count == 20


def test_metrics_are_means_over_the_rollouts_that_have_them():
    summary = summarize(
        [
            out(0, 1.0, metrics={"turns": 2.0, "rare": 1}),
            out(1, 1.0, metrics={"turns": 4.0, "bad": math.nan, "none": None}),
        ]
    )
    assert {name: metric.estimate.mean for name, metric in summary.metrics.items()} == {
        "turns": 3.0,
        "rare": 1.0,
    }
    turns = summary.metrics["turns"]
    assert (turns.low, turns.high, turns.deviation) == (2.0, 4.0, pytest.approx(math.sqrt(2)))


def test_pass_at_k_and_pass_all_k_are_means_over_examples():
    rewards = {0: [1, 0, 1], 1: [0, 0, 0], 2: [1, 1, 1]}
    summary = summarize([out(e, float(r)) for e, rs in rewards.items() for r in rs])
    assert list(summary.pass_at_k) == [1, 2]
    for k in (1, 2):
        expected_at = np.mean([pass_at_k(3, sum(rs), k) for rs in rewards.values()])
        expected_all = np.mean([pass_all_k(3, sum(rs), k) for rs in rewards.values()])
        assert summary.pass_at_k[k].mean == pytest.approx(expected_at)
        assert summary.pass_all_k[k].mean == pytest.approx(expected_all)
    assert summary.pass_at_k[1].clusters == 3


def test_an_example_with_too_few_rollouts_is_left_out_of_larger_k():
    summary = summarize([out(0, 1.0), out(0, 0.0), out(1, 0.0)])
    assert (summary.pass_at_k[1].clusters, summary.pass_at_k[2].clusters) == (2, 1)
    assert summary.pass_at_k[2].mean == 1.0


@pytest.mark.parametrize(("threshold", "passing"), [(0.5, 2), (0.51, 1), (1.0, 1)])
def test_a_reward_at_the_threshold_passes(threshold, passing):
    summary = summarize([out(0, 0.5), out(1, 1.0), out(2, 0.49)], threshold)
    assert summary.pass_at_k[1].mean == pytest.approx(passing / 3)


def test_tokens_time_stops_truncations_and_cost():
    usage = {"input_tokens": 100.0, "output_tokens": 50.0, "final_input_tokens": 80}
    outputs = [
        out(
            0,
            1.0,
            token_usage=usage,
            stop_condition="done",
            timing={"start_time": 10.0, "total": 4.0},
        ),
        out(
            1,
            1.0,
            token_usage={"input_tokens": 300.0, "output_tokens": 150.0},
            is_truncated=True,
            stop_condition="max",
        ),
        out(2, 1.0, stop_condition="done", timing={"start_time": 12.0, "total": 8.0}),
    ]
    summary = summarize(outputs, price=ModelPrice(10.0, 20.0))
    assert (summary.tokens.rollouts, summary.tokens.input_tokens, summary.tokens.output_tokens) == (
        2,
        400.0,
        200.0,
    )
    assert summary.tokens.per_rollout == {
        "input_tokens": 200.0,
        "output_tokens": 100.0,
        "final_input_tokens": 80.0,
    }
    assert (summary.truncated, dict(summary.stop_conditions)) == (1, {"done": 2, "max": 1})
    assert summary.wall_time_s == 10.0
    assert (summary.rollouts_per_s, summary.output_tokens_per_s) == (0.3, 20.0)
    assert summary.cost == {"input_usd": 0.004, "output_usd": 0.004, "total_usd": 0.008}
    assert summarize(outputs, wall_time_s=5.0).rollouts_per_s == 0.6


def test_nothing_gives_no_numbers_and_no_error():
    summary = summarize([])
    assert math.isnan(summary.reward.mean)
    assert (
        summary.rollouts,
        summary.error_rate,
        summary.pass_at_k,
        summary.tokens.per_rollout,
    ) == (0, 0.0, {}, None)
    assert json.loads(json.dumps(summary.as_json(), allow_nan=False))["reward"]["mean"] is None


def test_one_example_has_a_mean_but_no_error():
    summary = summarize([out(0, 1.0), out(0, 0.0)])
    assert summary.reward.mean == 0.5
    assert math.isnan(summary.reward.stderr)


def test_the_summary_is_json_with_names():
    as_json = summarize([out(0, 1.0), out(1, 0.0, error=ERROR)]).as_json()
    assert as_json["reward"]["mean"] == 0.5
    assert as_json["errors"] == {
        "ModelError": {"count": 1, "messages": ["ModelError('503')"], "where": None}
    }
    assert as_json["pass_at_k"]["1"]["clusters"] == 2
    assert as_json["error_rate"] == 0.5
    json.dumps(as_json, allow_nan=False)


def test_rollouts_without_an_example_id_are_examples_of_their_own():
    assert summarize([{"reward": 1.0}, {"reward": 0.0}]).examples == 2


def test_tools_are_those_that_every_rollout_had():
    tools = [{"name": "add"}]
    running = RunningSummary()
    running.add([out(0, 1.0, tool_defs=tools), out(1, 1.0, tool_defs=[{"name": "add"}])])
    assert running.tools == tools
    running.add([out(2, 1.0, tool_defs=None), out(3, 1.0, tool_defs=tools)])
    assert running.tools is None


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.floats(-1e3, 1e3), st.booleans(), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 40),
)
def test_a_summary_grown_in_parts_is_that_of_the_whole(rollouts, cut):
    outputs = [
        out(e, r, error=ERROR if failed else None, metrics={"m": r} if has_metric else {})
        for e, r, failed, has_metric in rollouts
    ]
    running = RunningSummary()
    running.add(outputs[:cut])
    running.summary()
    running.add(iter(outputs[cut:]))
    summary = running.summary()
    rewards, examples = [o["reward"] for o in outputs], [o["example_id"] for o in outputs]
    expected = clustered_mean(rewards, examples)
    assert summary.reward == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
    assert summary.reward_naive_stderr == pytest.approx(
        naive_stderr(rewards), rel=1e-6, abs=1e-6, nan_ok=True
    )
    assert running.mean_reward == pytest.approx(np.mean(rewards), rel=1e-9, abs=1e-9)
    clean = [o for o in outputs if o["error"] is None]
    expected = clustered_mean([o["reward"] for o in clean], [o["example_id"] for o in clean])
    assert summary.reward_error_free == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


def test_adding_costs_microseconds(make_output):
    outputs = [make_output(i // 4, i % 2) for i in range(2000)]
    running = RunningSummary()
    started = time.process_time()
    running.add(outputs)
    per_rollout_s = (time.process_time() - started) / len(outputs)
    assert per_rollout_s < 100e-6  # 4 us were measured


def test_the_time_of_a_resumed_run_leaves_out_the_pause():
    def at(start, total):
        return {"timing": {"start_time": start, "total": total}, "reward": 1.0}

    before = [at(100.0, 4.0), at(102.0, 6.0), at(101.0, 1.0)]  # 100 to 108
    after = [at(9000.0, 2.0), at(9001.0, 4.0)]  # 9000 to 9005

    assert summarize(before + after).wall_time_s == 13.0
    assert summarize(after + before).wall_time_s == 13.0
    assert summarize([*after, at(50.0, 10_000.0), *before]).wall_time_s == 10_000.0
    assert summarize([at(100.0, 1.0), at(101.0, 1.0)]).wall_time_s == 2.0
