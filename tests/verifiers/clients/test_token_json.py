"""Prompts that are known are neither decoded nor rendered anew, and nothing else changes."""

from __future__ import annotations

import json
from array import array

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.clients.openai_chat_completions_token_client import KnownPrompt
from verifiers.clients.payloads import with_plain_ids

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)
TEXTS = st.text() | st.sampled_from(['"prompt_token_ids":[1,2]', '\\"prompt_token_ids": [', "]"])
RENDERINGS = {
    "compact": lambda answer: json.dumps(answer, separators=(",", ":")).encode(),
    "spaced": lambda answer: json.dumps(answer).encode(),
    "indented": lambda answer: json.dumps(answer, indent=2).encode(),
}


@pytest.mark.parametrize("render", RENDERINGS.values(), ids=RENDERINGS)
@given(
    known=IDS.filter(bool), more=IDS, prompt=IDS | st.none(), in_choice=st.booleans(), said=TEXTS
)
def test_an_answer_is_what_json_says(render, known, more, prompt, in_choice, said):
    choice = {"message": {"content": said, said: said}}
    answer = {"choices": [choice], "model": said}
    place = choice if in_choice else answer
    place["prompt_token_ids"] = [*known, *more] if prompt is None else prompt
    decoded = KnownPrompt(array("i", known)).decode(render(answer))
    assert with_plain_ids(decoded) == answer


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [1],
        {"prompt_token_ids": None},
        {"prompt_token_ids": {"data": [1]}},
        {"prompt_token_ids": [1, "2"]},
        {"prompt_token_ids": [1, 2**40]},
        {"prompt_token_ids": [1, [2]]},
        {"usage": {"prompt_token_ids": [1, 2]}},
        {"choices": [], "error": {"prompt_token_ids": [1]}},
    ],
)
def test_what_is_no_list_of_ids_is_left_to_the_parser(answer):
    assert KnownPrompt(array("i", [1])).decode(orjson.dumps(answer)) == answer


def test_a_known_prompt_is_the_array_itself():
    known = KnownPrompt(array("i", range(1000)))
    body = orjson.dumps({"prompt_token_ids": list(range(1000)), "choices": [{}]})
    assert known.decode(body)["prompt_token_ids"] is known.ids


def test_no_json_is_an_error_of_the_decoder():
    with pytest.raises(orjson.JSONDecodeError):
        KnownPrompt(array("i", [1])).decode(b'{"prompt_token_ids":[1],')


@given(ids=IDS.filter(bool))
def test_a_request_holds_the_ids(ids):
    body = KnownPrompt(array("i", ids)).body({"model": "m", "messages": []})
    assert orjson.loads(body) == {"model": "m", "messages": [], "tokens": ids}
