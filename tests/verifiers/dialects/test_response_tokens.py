"""Token ids, log-probabilities and expert routing of an answer."""

from __future__ import annotations

import base64
import struct
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.dialects.chat_completions import parse_routed_experts, parse_tokens
from verifiers.errors import InvalidModelResponseError


def logprobs(*values):
    return {"content": [{"token": "t", "logprob": value} for value in values]}


def test_tokens_of_a_chat_answer():
    tokens = parse_tokens(
        {"prompt_token_ids": [1, 2]}, {"token_ids": [3, 4], "logprobs": logprobs(-0.5, -0.25)}
    )
    assert dict(tokens) == {
        "prompt_ids": [1, 2],
        "prompt_mask": [0, 0],
        "completion_ids": [3, 4],
        "completion_mask": [1, 1],
        "completion_logprobs": [-0.5, -0.25],
    }


def test_tokens_of_a_text_completion():
    choice = {
        "prompt_token_ids": [1],
        "token_ids": [3],
        "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5]},
    }
    assert parse_tokens({}, choice).completion_logprobs == [-0.5]


@pytest.mark.parametrize(
    ("payload", "choice"),
    [
        ({}, {"token_ids": [3], "logprobs": logprobs(-1)}),
        ({"prompt_token_ids": [1]}, {"token_ids": [3]}),
        ({"prompt_token_ids": [1]}, {"token_ids": [3], "logprobs": None}),
        ({"prompt_token_ids": [1]}, {"logprobs": logprobs(-1)}),
        ({"prompt_token_ids": [1]}, {"token_ids": [], "logprobs": logprobs()}),
    ],
)
def test_missing_any_of_the_three_means_no_tokens(payload, choice):
    assert parse_tokens(payload, choice) is None


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": [3, 4], "logprobs": logprobs(-1)},
        {"token_ids": [3], "logprobs": logprobs(None)},
    ],
)
def test_tokens_that_contradict_each_other_are_refused(choice):
    with pytest.raises(InvalidModelResponseError):
        parse_tokens({"prompt_token_ids": [1]}, choice)


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    width=st.sampled_from(["B", "H", "i"]),
    data=st.data(),
)
def test_routed_experts_survive_every_width(shape, width, data):
    count = prod(shape)
    values = data.draw(st.lists(st.integers(0, 127), min_size=count, max_size=count))
    encoded = base64.b85encode(struct.pack(f"<{count}{width}", *values)).decode()
    nested = parse_routed_experts({"data": encoded, "shape": list(shape)})
    assert [v for layers in nested for experts in layers for v in experts] == values
    assert (len(nested), len(nested[0]), len(nested[0][0])) == shape


@pytest.mark.parametrize(
    "value",
    [
        {"data": "0", "shape": [2, 2, 2]},
        {"data": base64.b85encode(b"1234").decode(), "shape": [3, 1, 1]},
        {"data": "~~~\x00", "shape": [1]},
        {"shape": [1, 1, 1]},
    ],
)
def test_routing_that_is_not_of_its_shape_is_refused(value):
    with pytest.raises(InvalidModelResponseError, match="routed_experts"):
        parse_routed_experts(value)


def test_routing_that_is_already_a_list_passes():
    assert parse_routed_experts([[[1]]]) == [[[1]]]


def test_the_versions_of_an_answer_go_along():
    choice = {"token_ids": [3, 4], "logprobs": logprobs(-0.5, -0.25), "token_versions": [6, 7]}
    assert parse_tokens({"prompt_token_ids": [1]}, choice)["versions"] == [6, 7]


def test_a_prompt_that_is_not_made_of_ids_is_refused():
    with pytest.raises(InvalidModelResponseError, match="token ids"):
        parse_tokens({"prompt_token_ids": ["1"]}, {"token_ids": [3], "logprobs": logprobs(-0.5)})
