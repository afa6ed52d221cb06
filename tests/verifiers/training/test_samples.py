import dataclasses

import numpy as np
import pytest
from conversations import conversations
from hypothesis import assume, given
from hypothesis import strategies as st
from rollouts import rollout, turn

from verifiers.training.samples import SampleError, Span, samples_of
from verifiers.training.validation import validate


@given(conversations())
def test_a_branch_is_exactly_what_the_model_saw_and_every_sampled_token_is_trained_once(turns):
    output = rollout(turns)
    samples = samples_of(output)
    seen = [one["prompt_ids"] + one["completion_ids"] for one in turns]
    trained = []
    for sample in samples:
        assert sample.token_ids.tolist() in seen
        for step, start, end in sample.spans:
            own = turns[step]
            assert sample.token_ids[:end].tolist() == own["prompt_ids"] + own["completion_ids"]
            assert sample.mask[start:end].tolist() == [bool(m) for m in own["completion_mask"]]
            trained += [(step, n) for n, m in enumerate(own["completion_mask"]) if m]
    wanted = [
        (s, n) for s, one in enumerate(turns) for n, m in enumerate(one["completion_mask"]) if m
    ]
    assert sorted(trained) == wanted
    report = validate(samples, output)
    assert report.problems == ()
    assert report.trained_count == report.sampled_count == len(wanted)


@given(conversations())
def test_plain_dicts_give_the_same_samples_as_stored_tokens(turns):
    for one, other in zip(
        samples_of(rollout(turns)), samples_of(rollout(turns, stored=False)), strict=True
    ):
        for name in ("token_ids", "mask", "logprobs"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
        assert one.spans == other.spans


@given(conversations())
def test_the_last_context_is_one_sample_with_every_sampled_token_that_lies_on_it(turns):
    output = rollout(turns)
    samples = samples_of(output, on_drift="last")
    assert len(samples) <= 1
    last = turns[-1]["prompt_ids"] + turns[-1]["completion_ids"]
    for sample in samples:
        assert sample.token_ids.tolist() == last
        report = validate(samples, output, complete=False)
        assert report.problems == ()
        assert sample.mask[len(turns[-1]["prompt_ids"]) :].tolist() == [
            bool(m) for m in turns[-1]["completion_mask"]
        ]


def test_a_conversation_without_drift_is_one_sample_whatever_is_asked_for_drift():
    turns = [turn([1, 2], [3]), turn([1, 2, 3, 4], [5, 6])]
    for on_drift in ("fork", "last", "error"):
        [sample] = samples_of(
            rollout(turns, reward=0.5), on_drift=on_drift, group_id="g", env_id="e"
        )
        assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
        assert sample.mask.tolist() == [False, False, True, False, True, True]
        assert sample.logprobs.tolist() == [0, 0, -0.5, 0, -0.5, -0.75]
        assert sample.spans == (Span(0, 2, 3), Span(1, 4, 6))
        assert (sample.prompt_len, sample.trained_count, len(sample)) == (2, 3, 6)
        assert (sample.reward, sample.example_id, sample.rollout_id) == (0.5, 3, "t0")
        assert (sample.group_id, sample.env_id, sample.versions) == ("g", "e", None)


def test_an_answer_the_template_renders_differently_costs_a_branch_and_no_token():
    output = rollout([turn([1, 2], [3, 4]), turn([1, 2, 3, 9, 5], [6])])
    first, second = samples_of(output)
    assert first.token_ids.tolist() == [1, 2, 3, 4]
    assert second.token_ids.tolist() == [1, 2, 3, 9, 5, 6]
    assert second.mask.tolist() == [False] * 5 + [True]
    assert validate([first, second], output).drift == (1,)
    [last] = samples_of(output, on_drift="last")
    assert last.mask.tolist() == [False, False, True, False, False, True]
    with pytest.raises(SampleError, match=r"Step 1 does not continue .* from token 3"):
        samples_of(output, on_drift="error")


def test_agents_that_take_turns_are_two_samples():
    turns = [
        turn([1, 2], [3]),
        turn([7, 8], [9]),
        turn([1, 2, 3, 4], [5]),
        turn([7, 8, 9, 10], [11]),
    ]
    output = rollout(turns)
    one, other = samples_of(output)
    assert one.spans == (Span(0, 2, 3), Span(2, 4, 5))
    assert other.spans == (Span(1, 2, 3), Span(3, 4, 5))
    assert validate([one, other], output).is_ok


def test_an_agent_that_is_not_the_policy_is_not_trained():
    output = rollout([turn([1], [2]), turn([5], [6])], steps={1: {"extras": {"trainable": False}}})
    [sample] = samples_of(output)
    assert sample.token_ids.tolist() == [1, 2]
    assert validate([sample], output).is_ok


@pytest.mark.parametrize(
    "failed",
    [
        {"error": {"error": "ToolError"}},
        {"error": ValueError("x")},
        {"errors": [{"name": "right", "message": "boom"}]},
        {"reward_errors": [{"name": "right", "message": "boom"}]},
        {"reward": None},
        {"reward": float("nan")},
    ],
)
def test_a_rollout_that_failed_never_trains(failed):
    output = rollout([turn([1], [2])]) | failed
    assert samples_of(output) == []
    good = samples_of(rollout([turn([1], [2])]))
    assert not validate(good, output).is_ok


def test_missing_tokens_and_log_probabilities_say_how_to_get_them():
    output = rollout([turn([1], [2])])
    output["trajectory"].append({"tokens": None})
    with pytest.raises(SampleError, match=r"Step 1 has no token ids.*chat_completions_token"):
        samples_of(output)
    with pytest.raises(SampleError, match=r"Step 0 has no log-prob.*logprobs=True"):
        samples_of(rollout([turn([1], [2], completion_logprobs=None)]))
    with pytest.raises(SampleError, match="state_columns"):
        samples_of({"reward": 1.0})


def test_a_rollout_that_sampled_nothing_gives_no_sample():
    assert samples_of(rollout([turn([1], [])])) == []
    assert samples_of(rollout([])) == []


def test_versions_are_per_token_and_old_ones_can_be_masked():
    turns = [
        turn([1], [2, 3], versions=[4, 5]),
        turn([1, 2, 3], [6], versions=6),
        turn([1, 2, 3, 6], [7]),
    ]
    [sample] = samples_of(rollout(turns))
    assert sample.versions.tolist() == [-1, 4, 5, 6, -1]
    assert sample.oldest_version == 4
    young = sample.masked_before(5)
    assert young.mask.tolist() == [False, False, True, True, True]
    assert young.logprobs[1] == 0.0
    assert young.oldest_version == 5
    assert sample.mask.tolist() == [False, True, True, True, True]


def test_advantages_an_environment_gives_to_steps_stay():
    output = rollout(
        [turn([1], [2]), turn([1, 2], [3])], steps={1: {"advantage": -2.0}}, advantage=0.25
    )
    [sample] = samples_of(output)
    assert sample.token_advantages().tolist() == [0.0, 0.25, -2.0]
    assert sample.with_advantage(1.0).token_advantages().tolist() == [0.0, 1.0, -2.0]


def test_a_sample_can_be_cut_to_what_a_trainer_takes():
    [sample] = samples_of(rollout([turn([1, 2], [3]), turn([1, 2, 3, 4], [5, 6])]))
    cut = sample.cut(5)
    assert (len(cut), cut.is_truncated, cut.spans) == (5, True, (Span(0, 2, 3), Span(1, 4, 5)))
    assert sample.cut(6) is sample
    assert sample.cut(1).spans == ()
    assert sample.cut(1).prompt_len == 1


# ------------------------------------------------------------------------------------------------ the validator

MUTATIONS = {
    "another token": lambda s, n: replaced(s, token_ids=bump(s.token_ids, n)),
    "another log-probability": lambda s, n: replaced(
        s, logprobs=bump(s.logprobs, trained(s, n), -0.125)
    ),
    "a shown token is trained": lambda s, n: replaced(s, mask=set_true(s.mask, n)),
    "a shifted mask": lambda s, n: replaced(
        s, mask=np.roll(s.mask, 1), logprobs=np.roll(s.logprobs, 1)
    ),
    "a forgotten token": lambda s, n: replaced(
        s, mask=set_false(s.mask, trained(s, n)), logprobs=set_false(s.logprobs, trained(s, n))
    ),
    "spans of another step": lambda s, n: replaced(
        s, spans=tuple(p._replace(step=p.step + 1) for p in s.spans)
    ),
    "no spans": lambda s, n: replaced(s, spans=()),
    "a positive log-probability": lambda s, n: replaced(
        s, logprobs=bump(s.logprobs, trained(s, n), 100)
    ),
    "a stream too short": lambda s, n: replaced(s, logprobs=s.logprobs[:-1]),
    "an infinite advantage": lambda s, n: replaced(s, advantage=float("inf")),
}


def replaced(sample, **changes):
    return dataclasses.replace(sample, **changes)


def bump(values, place, by=1):
    changed = values.copy()
    changed[place % len(changed)] += by
    return changed


def set_true(values, place):
    changed = values.copy()
    free = np.flatnonzero(~changed)
    assume(len(free))
    changed[free[place % len(free)]] = True
    return changed


def set_false(values, place):
    changed = values.copy()
    changed[place] = 0
    return changed


def trained(sample, place):
    own = np.flatnonzero(sample.mask)
    return own[place % len(own)]


@given(conversations(), st.sampled_from(sorted(MUTATIONS)), st.integers(0, 20))
def test_the_validator_finds_every_kind_of_damage(turns, kind, place):
    output = rollout(turns)
    samples = samples_of(output)
    assume(samples)
    broken = MUTATIONS[kind](samples[place % len(samples)], place)
    assume(kind != "a shifted mask" or (broken.mask != samples[place % len(samples)].mask).any())
    samples[place % len(samples)] = broken
    report = validate(samples, output)
    assert not report.is_ok, kind
    with pytest.raises(SampleError):
        report.raise_for_problems()


@given(conversations(), st.integers(0, 20))
def test_the_validator_finds_samples_that_are_missing_or_twice(turns, place):
    output = rollout(turns)
    samples = samples_of(output)
    assume(samples)
    again = [*samples, samples[place % len(samples)]]
    assert any("trained twice" in problem for problem in validate(again, output).problems)
    fewer = samples[: place % len(samples)] + samples[place % len(samples) + 1 :]
    assert any("not trained" in problem for problem in validate(fewer, output).problems)
    assert validate(fewer, output, complete=False).is_ok


def test_the_validator_knows_the_vocabulary():
    output = rollout([turn([1], [9])])
    assert validate(samples_of(output), output, vocabulary_size=10).is_ok
    assert not validate(samples_of(output), output, vocabulary_size=9).is_ok
