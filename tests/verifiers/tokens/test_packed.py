"""`PackedTokens` reads as `ResponseTokens` whichever way it is read first."""

from __future__ import annotations

import copy
import json
import pickle
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.tokens import TokenGraph
from verifiers.tokens.packed import PackedTokens, packed_ids
from verifiers.types import ResponseTokens

PROMPT, COMPLETION, LOGPROBS = [5, 6, 7], [8, 9], [-0.5, -0.25]
PLAIN = ResponseTokens(
    prompt_ids=PROMPT,
    prompt_mask=[0, 0, 0],
    completion_ids=COMPLETION,
    completion_mask=[1, 1],
    completion_logprobs=LOGPROBS,
)
READINGS = {
    "equality": lambda tokens: tokens == PLAIN,
    "inequality": lambda tokens: not tokens != dict(PLAIN),  # noqa: SIM202
    "dict": lambda tokens: dict(tokens) == dict(PLAIN),
    "unpacking": lambda tokens: {**tokens} == dict(PLAIN),
    "union": lambda tokens: (tokens | {"versions": 3})["prompt_mask"] == [0, 0, 0],
    "items": lambda tokens: sorted(tokens.items()) == sorted(PLAIN.items()),
    "keys": lambda tokens: set(tokens.keys()) == set(PLAIN) == set(tokens),
    "values": lambda tokens: all(type(value) is list for value in tokens.values()),
    "length": lambda tokens: len(tokens) == 5,
    "contains": lambda tokens: "prompt_mask" in tokens and "nothing" not in tokens,
    "attributes": lambda tokens: tokens.prompt_ids + tokens.completion_ids == PROMPT + COMPLETION,
    "get": lambda tokens: tokens.get("completion_mask") == [1, 1] and tokens.get("x", 4) == 4,
    "slicing": lambda tokens: tokens["prompt_ids"][1:] == [6, 7],
    "optional field": lambda tokens: tokens.routed_experts is None,
    "JSON": lambda tokens: json.loads(json.dumps(tokens)) == dict(PLAIN),
    "pydantic's JSON": lambda tokens: json.loads(tokens.model_dump_json(exclude_none=True)) == dict(PLAIN),
    "pydantic's dump": lambda tokens: tokens.model_dump()["prompt_ids"] == PROMPT,
    "pickle": lambda tokens: dict(pickle.loads(pickle.dumps(tokens))) == dict(PLAIN),
    "a copy": lambda tokens: dict(tokens.copy()) == dict(PLAIN),
    "a deep copy": lambda tokens: dict(copy.deepcopy(tokens)) == dict(PLAIN),
    "repr": lambda tokens: "prompt_mask=[0, 0, 0]" in repr(tokens),
}  # fmt: skip


def packed(**others):
    return PackedTokens.make(array("i", PROMPT), COMPLETION, LOGPROBS, **others)


@pytest.mark.parametrize("reads_right", READINGS.values(), ids=READINGS)
def test_whichever_reading_comes_first_sees_lists(reads_right):
    assert reads_right(packed())


def test_it_is_a_response_tokens_and_a_dict():
    assert isinstance(packed(), ResponseTokens)
    assert isinstance(packed(), dict)


def test_what_a_reader_changes_is_what_the_next_reader_sees():
    tokens = packed()
    tokens["prompt_ids"].append(1)
    tokens["completion_mask"] = [1, 0]
    assert tokens["prompt_ids"] == [5, 6, 7, 1]
    assert tokens.packed()["completion_mask"] == [1, 0]
    assert TokenGraph().commit({**tokens, "prompt_mask": [0] * 4})["completion_mask"] == [1, 0]


def test_the_graph_takes_them_without_making_lists():
    tokens = packed(versions=[2, 3])
    assert TokenGraph().commit(tokens)["versions"] == [2, 3]
    assert type(tokens.packed()["prompt_ids"]) is array


@given(ids=st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_any_ids_of_32_bits_come_back(ids):
    assert PackedTokens.make(packed_ids(ids), [], [])["prompt_ids"] == ids


@pytest.mark.parametrize("ids", [[2**31], [1.5], ["1"], [None]])
def test_anything_else_is_refused(ids):
    with pytest.raises(ValueError, match="whole numbers"):
        packed_ids(ids)
