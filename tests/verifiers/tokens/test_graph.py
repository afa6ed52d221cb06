import copy
import json
import pickle
from array import array

import numpy as np
import pytest
from conversations import conversations
from hypothesis import given
from hypothesis import strategies as st

from verifiers.runs.output import decode_line, encode_line
from verifiers.tokens import TokenGraph, TokensInvalid, graph_of
from verifiers.types import ResponseTokens


def commit_all(turns):
    graph = TokenGraph()
    return graph, [graph.commit(turn) for turn in turns]


def turn(prompt, completion, **more):
    return {
        "prompt_ids": prompt,
        "prompt_mask": [0] * len(prompt),
        "completion_ids": completion,
        "completion_mask": [1] * len(completion),
        "completion_logprobs": [-0.5] * len(completion),
        **more,
    }


@given(conversations())
def test_every_turn_reads_back_exactly_as_it_was_whatever_came_after_it(turns):
    _, steps = commit_all(turns)
    for given_turn, step in zip(turns, steps, strict=True):
        for key, value in given_turn.items():
            assert step[key] == value, key
        assert (step.prompt_length, step.completion_length) == (
            len(given_turn["prompt_ids"]),
            len(given_turn["completion_ids"]),
        )


@given(conversations())
def test_a_chain_up_to_a_turn_is_what_the_model_saw_and_said(turns):
    _, steps = commit_all(turns)
    for given_turn, step in zip(turns, steps, strict=True):
        ids = np.frombuffer(step.chain.first(step.length), np.int32).tolist()
        assert ids == given_turn["prompt_ids"] + given_turn["completion_ids"]


@given(conversations())
def test_every_completion_has_a_place_of_its_own(turns):
    graph, steps = commit_all(turns)
    places = [
        (id(step.chain), place)
        for step in steps
        for place in range(step.prompt_length, step.length)
    ]
    assert len(set(places)) == len(places)
    for step in steps:
        assert step.chain in graph.chains
        assert step.chain.shared <= step.prompt_length


@given(conversations())
def test_nothing_is_stored_twice_while_turns_extend_each_other(turns):
    linear, context = [], []
    for one in turns:
        prompt = context + one["prompt_ids"]
        linear.append({**one, "prompt_ids": prompt, "prompt_mask": [0] * len(prompt)})
        context = prompt + one["completion_ids"]
    graph, _ = commit_all(linear)
    assert len(graph.chains) == 1
    assert graph.token_count == len(context)


def test_a_prompt_that_renders_an_old_answer_differently_begins_a_chain_at_the_first_other_token():
    graph, (_, second) = commit_all([turn([1, 2], [3, 4, 5]), turn([1, 2, 3, 9, 5, 6], [7])])
    assert len(graph.chains) == 2
    assert second.chain.shared == 3
    assert graph.token_count == 5 + 4


def test_two_agents_that_take_turns_extend_two_chains():
    graph, steps = commit_all(
        [
            turn([1, 2], [3]),
            turn([1, 8], [9]),
            turn([1, 2, 3, 4], [5]),
            turn([1, 8, 9, 10], [11]),
        ]
    )
    assert len(graph.chains) == 2
    assert steps[0].chain is steps[2].chain
    assert steps[1].chain is steps[3].chain
    assert graph.token_count == 5 + 4  # the agents share their first token


def test_chains_do_not_queue_up_behind_each_other_when_every_turn_drifts():
    graph = TokenGraph()
    for number in range(50):
        graph.commit(turn([1, 2, 3, 100 + number], [4]))
    assert max(depth(chain) for chain in graph.chains) <= 2


def depth(chain):
    return 0 if chain is None else 1 + depth(chain.parent)


@pytest.mark.parametrize(
    "kind", [lambda v: array("i", v), lambda v: np.array(v, np.int32), lambda v: np.array(v), list]
)
def test_ids_may_come_as_any_kind_of_integers(kind):
    _, [step] = commit_all([turn(kind([1, 2, 70000]), kind([4, 5]))])
    assert step["prompt_ids"] == [1, 2, 70000]
    assert step["completion_ids"] == [4, 5]
    assert all(type(i) is int for i in step["prompt_ids"])


@pytest.mark.parametrize("kind", [list, tuple, bytes, np.array, lambda m: np.array(m, bool)])
@pytest.mark.parametrize("mask", [[1, 1], [0, 1], [0, 0]])
def test_masks_may_come_as_any_kind_of_truth_values(kind, mask):
    _, [step] = commit_all([turn([1], [4, 5], completion_mask=kind(mask))])
    assert step["completion_mask"] == mask


def test_log_probabilities_may_be_a_float_array_or_missing():
    graph, [step] = commit_all([turn([1], [2, 3], completion_logprobs=np.array([-1, -2.5], "f"))])
    assert step["completion_logprobs"] == [-1.0, -2.5]
    without = graph.commit(turn([1, 2, 3], [4], completion_logprobs=None))
    assert without["completion_logprobs"] is None
    after = graph.commit(turn([1, 2, 3, 4], [5], completion_logprobs=[-3.0]))
    assert after["completion_logprobs"] == [-3.0]
    assert step["completion_logprobs"] == [-1.0, -2.5]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("completion_logprobs", [-1.0], "2 token ids but 1 log-probabilities"),
        ("completion_logprobs", [-1.0, None], "must be numbers"),
        ("versions", [1], "2 token ids but 1 policy versions"),
        ("completion_mask", [1], "2 token ids, but its mask has 1"),
        ("prompt_mask", [0, 0], "1 token ids, but its mask has 2"),
        ("completion_ids", [1, 2**31], "fit 32 bits"),
        ("prompt_ids", ["a"], "whole numbers"),
        ("prompt_ids", None, "whole numbers"),
    ],
)
def test_tokens_that_contradict_each_other_are_refused_and_leave_the_graph_as_it_was(
    field, value, said
):
    graph, _ = commit_all([turn([1], [2, 3])])
    with pytest.raises(TokensInvalid, match=said):
        graph.commit(turn([1], [2, 3]) | {field: value})
    assert graph.token_count == 3
    assert len(graph.chains) == 1


@given(conversations(max_turns=4), st.integers(1, 8))
def test_a_longest_length_cuts_completion_then_prompt_and_says_so(turns, limit):
    graph = TokenGraph()
    for one in turns:
        step = graph.commit(one, max_length=limit)
        ids = one["prompt_ids"] + one["completion_ids"]
        assert step["prompt_ids"] + step["completion_ids"] == ids[:limit]
        assert step["is_truncated"] == (len(ids) > limit)
        assert step["overlong_prompt"] == (len(one["prompt_ids"]) > limit)
        count = len(step["completion_ids"])
        assert step["completion_mask"] == one["completion_mask"][:count]
        assert step["completion_logprobs"] == one["completion_logprobs"][:count]


def test_a_view_reads_as_the_dict_it_replaces():
    [step] = commit_all([turn([1, 2], [3], routed_experts=[[[0]]], multi_modal_data={"a": 1})])[1]
    expected = {
        **turn([1, 2], [3]),
        "overlong_prompt": False,
        "is_truncated": False,
        "routed_experts": [[[0]]],
        "multi_modal_data": {"a": 1},
    }
    assert dict(step) == expected == step.copy() == step.model_dump()
    assert step == expected
    assert list(step) == list(expected)
    assert step.completion_ids == [3]
    assert step.get("nothing") is None
    assert "prompt_ids" in step
    assert step["prompt_ids"] + step["completion_ids"] == [1, 2, 3]
    assert len(step["prompt_ids"]) == 2
    assert step["prompt_ids"][1:] == [2]
    assert json.loads(json.dumps(step["prompt_ids"])) == [1, 2]
    with pytest.raises(KeyError):
        step["nothing"]
    with pytest.raises(AttributeError):
        _ = step.nothing


def test_a_view_is_saved_as_0_1_14_saves_its_dict():
    [step] = commit_all([turn([1, 2], [3])])[1]
    line = encode_line({"example_id": 0, "trajectory": [{"tokens": step}]})
    assert decode_line(line)["trajectory"][0]["tokens"] == dict(step)


def test_views_survive_pickle_and_copies_with_one_graph_for_all():
    _, steps = commit_all([turn([1, 2], [3]), turn([1, 2, 3, 4], [5])])
    for other in (pickle.loads(pickle.dumps(steps)), copy.deepcopy(steps)):
        assert [dict(step) for step in other] == [dict(step) for step in steps]
        assert other[0].graph is other[1].graph
        assert other[0].chain is other[1].chain


def test_masks_and_flags_may_be_assigned_but_what_was_sampled_may_not():
    [step] = commit_all([turn([1, 2], [3, 4])])[1]
    step["completion_mask"] = [0, 1]
    step["is_truncated"] = True
    assert (step["completion_mask"], step["is_truncated"]) == ([0, 1], True)
    step["completion_mask"] = [1, 1]
    step["is_truncated"] = False
    assert dict(step) == turn([1, 2], [3, 4]) | {
        "overlong_prompt": False,
        "is_truncated": False,
        "routed_experts": None,
    }
    with pytest.raises(TokensInvalid):
        step["completion_mask"] = [1]
    with pytest.raises(TypeError, match="your own dict"):
        step["completion_ids"] = [1, 2]


def test_versions_that_are_all_the_same_are_kept_as_one_number():
    _, [step] = commit_all([turn([1], [3, 4], versions=[7, 7])])
    assert step.versions == 7
    step["versions"] = [7, 8]
    assert step.versions == [7, 8]


def test_arrays_have_their_types():
    [step] = commit_all([turn([1, 2], [3, 4], completion_mask=[1, 0])])[1]
    kinds = {
        "prompt_ids": np.int32,
        "completion_ids": np.int32,
        "completion_logprobs": np.float32,
        "prompt_mask": np.bool_,
        "completion_mask": np.bool_,
    }
    for name, kind in kinds.items():
        assert step.array(name).dtype == kind
        assert step.array(name).tolist() == step[name]


def test_the_graph_of_a_trajectory_is_that_of_its_latest_stored_step():
    graph, [step] = commit_all([turn([1], [2])])
    assert graph_of([{"tokens": step}, {"tokens": None}, {"tokens": turn([1], [2])}]) is graph
    assert graph_of([]).chains == []


def test_a_sampled_token_takes_eight_bytes_and_a_prompt_token_four():
    graph, context = TokenGraph(), []
    for number in range(20):
        prompt = [*context, *range(number * 1000, number * 1000 + 128)]
        completion = list(range(384))
        graph.commit(ResponseTokens.of(turn(prompt, completion, completion_logprobs=[-0.1] * 384)))
        context = prompt + completion
    exact = 20 * (128 * 4 + 384 * 8)
    assert (
        exact <= graph.resident_bytes <= exact * 1.14
    )  # a growing bytearray keeps an eighth in reserve
