import pytest
from games import EditedTurns, alternating, question_env, two_turns
from rollouts import rollout, turn

from verifiers.testing import ScriptedClient
from verifiers.training.adapters.flat import flat_group, flat_groups
from verifiers.training.adapters.play import play_groups
from verifiers.training.samples import SampleError


async def played(env, client, *, size=2, examples=1):
    rows = env.source("train").inputs(examples)
    return await play_groups(env, [[row] * size for row in rows], client, "m", max_retries=0)


async def test_what_follows_the_prompt_is_one_sequence_with_the_sampled_tokens_marked():
    [states] = await played(two_turns(), alternating())
    for state, one in zip(states, flat_group(states), strict=True):
        first, last = (step["tokens"] for step in state["trajectory"])
        assert one.prompt_ids == first["prompt_ids"]
        assert one.prompt_ids + one.completion_ids == last["prompt_ids"] + last["completion_ids"]
        assert len(one.completion_ids) == len(one.mask) == len(one.logprobs)
        sampled = [t for t, own in zip(one.completion_ids, one.mask, strict=True) if own]
        assert sampled == first["completion_ids"] + last["completion_ids"]
        assert all(p == 0.0 for p, own in zip(one.logprobs, one.mask, strict=True) if not own)
        assert (one.reward, one.failure) == (state["reward"], None)


async def test_a_branching_rollout_is_refused_or_reduced_to_its_last_context():
    [states] = await played(two_turns(EditedTurns), alternating())
    with pytest.raises(SampleError, match="Step 1 does not continue the tokens before it"):
        flat_group(states)
    for state, one in zip(states, flat_group(states, on_drift="last"), strict=True):
        last = state["trajectory"][-1]["tokens"]
        assert one.prompt_ids + one.completion_ids == last["prompt_ids"] + last["completion_ids"]
        assert sum(one.mask) == len(last["completion_ids"])
    with pytest.raises(SampleError, match="on_drift='error' or on_drift='last'"):
        flat_group(states, on_drift="fork")


def test_a_failed_rollout_is_not_trained_on_and_moves_no_baseline():
    outputs = [
        rollout([turn([1, 2], [3])], reward=1.0),
        rollout([turn([1, 2], [4])], reward=0.0, error={"error": "SandboxError"}),
        rollout([turn([1, 2], [5])], reward=0.5),
    ]
    good, failed, other = flat_group(outputs)
    assert (good.reward, other.reward) == (1.0, 0.5)
    assert failed.reward == 0.75
    assert (failed.prompt_ids, sum(failed.mask)) == ([1, 2], 0)
    assert failed.failure == "the rollout failed: SandboxError"


def test_a_batch_of_failures_only_is_an_error_that_says_why():
    failed = rollout([], error={"error": "EndpointUnavailable"})
    healthy = rollout([turn([1], [2])])
    assert [one.failure is None for one in flat_groups([[failed], [healthy]])] == [False, True]
    with pytest.raises(SampleError, match=r"None of the 2 rollouts.*EndpointUnavailable"):
        flat_groups([[failed], [failed]])


async def test_rollouts_without_token_ids_are_an_error_that_says_how_to_get_them():
    [states] = await played(question_env(), ScriptedClient(then="yes"))
    with pytest.raises(SampleError, match="openai_chat_completions_token"):
        flat_group(states)


def test_cutting_keeps_the_lists_aligned_and_trains_no_sequence_without_its_whole_prompt():
    [one] = flat_group([rollout([turn([1, 2], [3, 4, 5])])])
    shorter = one.cut(2, 2)
    assert (shorter.completion_ids, shorter.mask, len(shorter.logprobs)) == ([3, 4], [1, 1], 2)
    assert shorter.is_truncated
    assert one.cut(2, 3) == one
    headless = one.cut(1, 3)
    assert (headless.prompt_ids, headless.mask) == ([2], [0, 0, 0])
    assert headless.failure == "its prompt has 2 tokens and 1 fit"


async def test_groups_are_played_together_with_a_limit_and_retried():
    client = alternating()
    env = question_env()
    rows = env.source("train").inputs(2)
    groups = await play_groups(env, [[row] * 3 for row in rows], client, "m", max_concurrent=2)
    assert [[s["example_id"] for s in group] for group in groups] == [[0] * 3, [1] * 3]
    assert client.most_in_flight == 2
