import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import rollout, turn

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.testing import ScriptedClient
from verifiers.training.advantages import (
    ESTIMATORS,
    estimator_of,
    group_mean,
    group_mean_std,
    group_samples,
    leave_one_out,
    length_penalized,
    max_rl,
)

REWARDS = st.lists(st.floats(0, 10, width=32), min_size=1, max_size=16)


@pytest.mark.parametrize(
    ("estimator", "rewards", "expected"),
    [
        (group_mean, [1, 0, 0, 1], [0.5, -0.5, -0.5, 0.5]),
        (group_mean, [1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        # mean 1/4, squared distances 9/16 + 3/16 = 3/4, over n - 1 = 3: the deviation is 1/2
        (group_mean_std, [1, 0, 0, 0], [0.75 / 0.5001, *[-0.25 / 0.5001] * 3]),
        # the others of the first have mean 0, the others of the second 1/3
        (leave_one_out, [1, 0, 0, 0], [1, -1 / 3, -1 / 3, -1 / 3]),
        # one success in four counts four times its mean: 1/0.25 - 1
        (max_rl, [1, 0, 0, 0], [3, -1, -1, -1]),
        (max_rl, [1, 1, 0, 0], [1, 1, -1, -1]),
        (max_rl, [0, 0, 0, 0], [0, 0, 0, 0]),
        (group_mean, [0.3], [0.0]),
        (leave_one_out, [0.3], [0.0]),
    ],
)
def test_advantages_are_what_the_formulas_say(estimator, rewards, expected):
    assert estimator(rewards).tolist() == pytest.approx(expected)


@given(REWARDS)
def test_the_formulas_agree_with_their_definition_one_rollout_at_a_time(rewards):
    mean = math.fsum(rewards) / len(rewards)
    same = len(set(rewards)) == 1
    for index, reward in enumerate(rewards):
        others = rewards[:index] + rewards[index + 1 :]
        assert group_mean(rewards)[index] == pytest.approx(0 if same else reward - mean, abs=1e-9)
        if not same:
            assert leave_one_out(rewards)[index] == pytest.approx(
                reward - statistics.fmean(others), abs=1e-9
            )
            assert group_mean_std(rewards)[index] == pytest.approx(
                (reward - mean) / (statistics.stdev(rewards) + 1e-4), rel=1e-6, abs=1e-9
            )
            assert max_rl(rewards)[index] == pytest.approx(
                (reward - mean) / mean, rel=1e-9, abs=1e-9
            )


@given(REWARDS, st.sampled_from(sorted(ESTIMATORS)))
def test_advantages_sum_to_nothing_and_equal_rewards_have_none(rewards, name):
    advantages = ESTIMATORS[name](rewards)
    assert len(advantages) == len(rewards)
    assert abs(advantages.sum()) <= 1e-6 * (1 + np.abs(advantages).sum())
    assert ESTIMATORS[name]([rewards[0]] * 3).tolist() == [0.0, 0.0, 0.0]


def test_a_length_penalty_counts_tokens_in_both_directions():
    found = length_penalized([1.0, 1.0, 0.0], [2000, 1900, 2300], [2000, 2000, 2000])
    assert found.tolist() == pytest.approx([1.0, 1 - 0.03, -0.09])
    with pytest.raises(ValueError, match="3 rewards has 1 lengths"):
        length_penalized([1, 2, 3], [1], [1, 2, 3])


@pytest.mark.parametrize("rewards", [[], [float("nan")], [1, float("inf")]])
def test_rewards_that_are_no_numbers_are_refused(rewards):
    for estimator in ESTIMATORS.values():
        with pytest.raises(ValueError, match=r"at least one reward|finite"):
            estimator(rewards)


def test_max_rl_refuses_negative_rewards():
    with pytest.raises(ValueError, match="at least 0; got -1"):
        max_rl([-1, 0])


def test_an_estimator_has_a_name_or_is_a_function():
    assert estimator_of("max_rl") is max_rl
    assert estimator_of(max_rl) is max_rl
    with pytest.raises(ConfigError, match="estimators: group_mean"):
        estimator_of("grpo")


def group(*rewards, **more):
    return [rollout([turn([1, 2], [3, 4])], reward=r, **more) for r in rewards]


def test_a_group_gives_samples_with_advantages():
    found = group_samples(group(1.0, 0.0), group_id="g7", env_id="e")
    assert [sample.advantage for sample in found.samples] == [0.5, -0.5]
    assert {(sample.group_id, sample.env_id) for sample in found.samples} == {("g7", "e")}
    assert found.has_signal
    assert not group_samples(group(1.0, 1.0)).has_signal


def test_a_failed_rollout_is_no_sample_and_not_in_the_baseline():
    outputs = [*group(1.0, 0.0), *group(0.0, error={"error": "SandboxError"})]
    found = group_samples(outputs)
    assert found.rewards == [1.0, 0.0]
    assert found.advantages == [0.5, -0.5]
    assert found.failures == ["the rollout failed: SandboxError"]
    assert group_samples(group(0.0, error={"error": "x"})).samples == []


def test_every_branch_of_a_rollout_has_its_advantage():
    branching = rollout([turn([1], [2]), turn([5], [6])], reward=1.0)
    found = group_samples([branching, *group(0.0)])
    assert [sample.advantage for sample in found.samples] == [0.5, 0.5, -0.5]


def test_advantages_of_the_environment_replace_the_estimators():
    outputs = [
        output | {"advantage": value}
        for output, value in zip(group(1, 0), [3.0, -4.0], strict=True)
    ]
    assert group_samples(outputs).advantages == [3.0, -4.0]
    outputs[1]["advantage"] = None
    assert group_samples(outputs).advantages == [0.5, -0.5]


@pytest.mark.parametrize("columns", [["trajectory"], ["trajectory", "advantage"]])
async def test_what_scoring_a_group_writes_does_not_replace_the_chosen_estimator(columns):
    replies = iter(["yes", "no", "no", "no"])

    def right(completions) -> list[float]:
        return [float(c[-1]["content"] == "yes") for c in completions]

    env = vf.SingleTurnEnv(
        dataset=[{"question": "q", "answer": "yes"}], rubric=vf.Rubric(funcs=[right])
    )
    row = env.get_dataset()[0]
    client = ScriptedClient(lambda _: next(replies), token_ids=True)
    outputs = await env.run_group(
        [vf.RolloutInput(**row)] * 4, client, "m", {}, state_columns=columns
    )
    assert [step["advantage"] for step in outputs[0]["trajectory"]] == [0.75]
    for name, expected in {"group_mean": 0.75, "leave_one_out": 1.0, "max_rl": 3.0}.items():
        found = group_samples(outputs, name)
        assert found.advantages[0] == pytest.approx(expected)
        own = found.samples[0]
        assert own.token_advantages()[own.mask] == pytest.approx(expected)


def test_an_advantage_for_one_step_stays_beside_an_estimator():
    steps = {0: {"advantage": 0.5}, 1: {"advantage": 9.0}}  # 0.5: what scoring wrote
    two = [turn([1], [2]), turn([1, 2], [3])]
    outputs = [
        rollout(two, reward=1.0, steps=steps, advantage=0.5),
        rollout(two, reward=0.0, steps={n: {"advantage": -0.5} for n in (0, 1)}, advantage=-0.5),
    ]
    found = group_samples(outputs, "leave_one_out")
    assert found.samples[0].token_advantages().tolist() == [0.0, 1.0, 9.0]
    assert found.samples[1].token_advantages().tolist() == [0.0, -1.0, -1.0]


def test_what_scoring_wrote_counts_failed_rollouts_and_the_estimator_does_not():
    rewards = [1.0, 0.0, 0.0]
    outputs = [
        output | {"advantage": reward - 1 / 3}
        for output, reward in zip(group(*rewards), rewards, strict=True)
    ]
    outputs[2]["error"] = {"error": "SandboxError"}
    assert group_samples(outputs).advantages == [0.5, -0.5]
