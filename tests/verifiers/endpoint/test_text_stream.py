import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.endpoint.tokenizer import TextStream, encode

short_text = st.text("abé", max_size=30)


def cut(text, stops):
    """The text before the stop string that is complete first; of those ending together, the one beginning first."""
    for end in range(1, len(text) + 1):
        begins = [text.index(stop, 0, end) for stop in stops if stop in text[:end]]
        if begins:
            return text[: min(begins)]
    return text


@given(short_text, st.lists(st.text("abé", min_size=1, max_size=4), max_size=3))
def test_the_pieces_join_to_the_text_cut_at_the_first_stop(text, stops):
    stream = TextStream(stops)
    pieces = []
    for token in encode(text):
        pieces.append(stream.feed(token))
        if stream.stopped_by is not None:
            break
    pieces.append(stream.finish())
    assert "".join(pieces) == cut(text, stops)
    assert (stream.stopped_by is not None) == any(stop in text for stop in stops)


def test_what_may_become_a_stop_string_is_held_back():
    stream = TextStream(["END"])
    assert [stream.feed(token) for token in encode("aENxEND")] == ["a", "", "", "ENx", "", "", ""]
    assert (stream.stopped_by, stream.finish()) == ("END", "")


def test_held_text_is_given_when_nothing_more_comes():
    stream = TextStream(["END"])
    assert [stream.feed(token) for token in encode("aEN")] == ["a", "", ""]
    assert stream.finish() == "EN"


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "aEND")])
def test_the_stop_string_itself_is_left_out_unless_asked_for(include, text):
    stream = TextStream(["END"], include_stop=include)
    assert "".join(stream.feed(token) for token in encode("aENDb")) == text
