"""The wire format by property: what is encoded comes back, and no bytes raise anything unexpected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.sandbox_server import connect
from verifiers.sandbox_server.connect import ConnectError, MalformedMessage

NUMBERS = st.integers(1, 2**29 - 1)
VALUES = st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=300))


@given(st.lists(st.tuples(NUMBERS, VALUES), max_size=8))
def test_what_is_encoded_is_decoded(fields: list[tuple[int, int | bytes]]):
    wanted: dict[int, list[int | bytes]] = {}
    for number, value in fields:
        wanted.setdefault(number, []).append(value)
    data = b"".join(connect.field(number, value) for number, value in fields)
    assert connect.decode(data) == wanted


@given(st.integers(-(2**31), 2**31 - 1))
def test_signed_numbers_survive(value: int):
    assert connect.decode_sint(connect.encode_sint(value)) == value


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_the_two_errors(data: bytes):
    for parse in (
        connect.parse_start,
        connect.parse_connect,
        connect.parse_input,
        connect.parse_signal,
    ):
        try:
            parse(data)
        except (MalformedMessage, ConnectError):
            pass
    try:
        connect.decompressed(data, 100)
    except ConnectError:
        pass


def test_known_bytes():
    # From the format's own documentation: field 1 = 150, and the text "testing" as field 2.
    assert connect.field(1, 150) == b"\x08\x96\x01"
    assert connect.field(2, "testing") == b"\x12\x07testing"
    with pytest.raises(MalformedMessage):
        connect.decode(b"\x12\x08testing")
