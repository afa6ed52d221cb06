"""Requests as bytes, and what is said of those that cannot be any."""

import pytest

from verifiers.clients.payloads import encoded
from verifiers.errors import ModelError
from verifiers.types import UserMessage


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"messages": [UserMessage(content="How much is \ud83d?")]}, "12 of messages[0].content"),
        ({"prompt": "\udc00"}, "0 of prompt"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab\ud83d"}]}]},
            "2 of messages[0].content[0].text",
        ),
        ({"extra": {"a\ud83d": 1}}, "1 of a key of extra"),
    ],
)
def test_half_a_character_is_named_with_its_place(payload, place):
    with pytest.raises(ModelError, match="not valid Unicode: lone surrogate U") as caught:
        encoded(payload)
    assert f"at character {place}." in str(caught.value)


def test_the_advice_mends_the_text():
    text = "a\ud83d\ude00 b\ud83d c"
    mended = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert mended == "a😀 b\ufffd c"
    assert "😀".encode() in encoded({"prompt": mended})


def test_what_cannot_be_written_as_json_is_named():
    with pytest.raises(
        ModelError, match=r"cannot be written as JSON: .*object.*Keys: .*'messages'"
    ):
        encoded({"model": "m", "messages": [{"content": object()}]})
    assert encoded({1: (1, 2), "s": {3}, "r": UserMessage(content="x")}) == (
        b'{"1":[1,2],"s":[3],"r":{"role":"user","content":"x"}}'
    )


def test_a_request_body_takes_no_more_memory_than_it_is_long():
    import tracemalloc

    tracemalloc.start()
    bodies = [encoded({"content": "x" * 100}) for _ in range(1000)]
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / len(bodies) < 300


def test_a_payload_that_contains_itself_is_an_error_and_no_endless_search():
    payload: dict = {"text": "\ud83d"}
    payload["again"] = payload
    with pytest.raises(ModelError):
        encoded(payload)
