"""The parts of the protocol buffers wire format that the gateway needs: varints and length-delimited fields.

Format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Fields = dict[int, list[int | bytes]]
"""Field number → its values in the order they came; fixed-width ones as bytes."""


class MalformedMessage(ValueError):
    """Bytes that are no protocol buffers message."""


def encode_varint(value: int) -> bytes:
    """A number from 0 to 2**64 - 1."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_sint(value: int) -> int:
    """Zig-zag of `sint32`: 0, -1, 1, -2 … become 0, 1, 2, 3 …"""
    return (value << 1) ^ (value >> 63)


def decode_sint(value: int) -> int:
    """The reverse of `encode_sint`."""
    return (value >> 1) ^ -(value & 1)


def field(number: int, value: int | bytes | str) -> bytes:
    """One field: a varint for a number, else length-delimited."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | BYTES) + encode_varint(len(data)) + data


def decode(data: bytes) -> Fields:
    """The fields of a message. Raises MalformedMessage, and nothing else, for anything that is none."""
    fields: Fields = {}
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise MalformedMessage("field number 0")
        if kind == VARINT:
            value, position = _varint(data, position)
            fields.setdefault(number, []).append(value)
            continue
        if kind == BYTES:
            length, position = _varint(data, position)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise MalformedMessage(f"wire type {kind}")
        if length > len(data) - position:
            raise MalformedMessage(
                f"a field of {length} bytes where {len(data) - position} are left"
            )
        fields.setdefault(number, []).append(data[position : position + length])
        position += length
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position >= len(data):
            raise MalformedMessage("a number that is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise MalformedMessage("a number of more than 10 bytes")


def text_of(fields: Fields, number: int) -> str | None:
    """A string field, None if it is absent. Raises MalformedMessage if it is no UTF-8 text."""
    data = bytes_of(fields, number)
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"field {number} is no text") from error


def bytes_of(fields: Fields, number: int) -> bytes | None:
    """A bytes or message field (the last one counts), None if it is absent."""
    values = fields.get(number)
    if not values:
        return None
    if not isinstance(values[-1], bytes):
        raise MalformedMessage(f"field {number} is a number, expected bytes")
    return values[-1]


def number_of(fields: Fields, number: int) -> int | None:
    """A varint field, None if it is absent."""
    values = fields.get(number)
    if not values:
        return None
    if not isinstance(values[-1], int):
        raise MalformedMessage(f"field {number} is bytes, expected a number")
    return values[-1]
