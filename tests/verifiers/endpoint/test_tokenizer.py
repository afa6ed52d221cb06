import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.endpoint.tokenizer import (
    ASSISTANT,
    BYTE_OFFSET,
    SPECIAL_TOKENS,
    USER,
    VOCAB_SIZE,
    StreamDecoder,
    decode,
    encode,
    token_bytes,
    token_text,
)

any_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)
any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(any_text)
def test_every_text_comes_back_from_its_ids(text):
    ids = encode(text)
    assert decode(ids) == text
    assert all(BYTE_OFFSET <= token < VOCAB_SIZE for token in ids)


@given(st.lists(st.one_of(any_text, st.sampled_from(SPECIAL_TOKENS))).map("".join))
def test_texts_with_control_tokens_come_back_whole(text):
    assert decode(encode(text, parse_special=True), skip_special=False) == text


def test_control_tokens_are_parsed_only_on_demand():
    assert encode("<|user|>a<|assistant|>", parse_special=True) == [
        USER,
        ord("a") + BYTE_OFFSET,
        ASSISTANT,
    ]
    assert min(encode("<|user|>")) >= BYTE_OFFSET


def test_lone_surrogates_become_question_marks():
    assert decode(encode("a\ud800b")) == "a?b"


@given(any_ids, st.booleans())
def test_streamed_text_equals_the_text_decoded_at_once(ids, skip_special):
    stream = StreamDecoder(skip_special=skip_special)
    pieces = [stream.feed(token) for token in ids]
    assert "".join([*pieces, stream.finish()]) == decode(ids, skip_special=skip_special)


def test_a_character_is_held_back_until_its_last_byte():
    stream = StreamDecoder()
    assert [stream.feed(token) for token in encode("é!")] == ["", "é", "!"]


@pytest.mark.parametrize("token", range(VOCAB_SIZE))
def test_every_token_has_a_text_and_bytes(token):
    assert token_text(token)
    assert token_bytes(token) == (
        SPECIAL_TOKENS[token].encode() if token < BYTE_OFFSET else bytes([token - BYTE_OFFSET])
    )
