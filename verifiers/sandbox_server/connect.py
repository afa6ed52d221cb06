"""The Connect protocol for one service, `command_session.CommandSession`: envelopes, messages, errors. No I/O.

Protocol: https://connectrpc.com/docs/protocol. Messages are protocol buffers, of which the gateway needs varints and
length-delimited fields: https://protobuf.dev/programming-guides/encoding. The docstring of a function lists the fields
of its message.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Literal, NamedTuple

SERVICE = "command_session.CommandSession"
STREAM_TYPE = "application/connect+proto"
UNARY_TYPE = "application/proto"
HEADER_BYTES = 5
COMPRESSED, END_OF_STREAM = 1, 2
_HEADER = struct.Struct("!BI")
Code = Literal[
    "invalid_argument",
    "deadline_exceeded",
    "not_found",
    "resource_exhausted",
    "failed_precondition",
    "unimplemented",
    "unavailable",
    "unauthenticated",
    "internal",
]
HTTP_STATUS: dict[Code, int] = {
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "unavailable": 503,
    "unauthenticated": 401,
    "internal": 500,
}

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10

Fields = dict[int, list[int | bytes]]
"""Field number → its values in order of arrival; fixed-width values as bytes."""


class MalformedMessage(ValueError):
    """Bytes that are not a protocol buffers message."""


def encode_varint(value: int) -> bytes:
    """Return the varint of a number from 0 to 2**64 - 1."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_sint(value: int) -> int:
    """Return the zig-zag encoding of a `sint32`: 0, -1, 1, -2 … become 0, 1, 2, 3 …"""
    return (value << 1) ^ (value >> 63)


def decode_sint(value: int) -> int:
    """Return the number of a zig-zag encoding, the inverse of `encode_sint`."""
    return (value >> 1) ^ -(value & 1)


def field(number: int, value: int | bytes | str) -> bytes:
    """Return one field: a varint for a number, otherwise length-delimited."""
    if isinstance(value, int):
        return encode_varint(number << 3 | VARINT) + encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | BYTES) + encode_varint(len(data)) + data


def decode(data: bytes) -> Fields:
    """Return the fields of a message. Raises MalformedMessage, and no other exception, for malformed bytes."""
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
                f"a field of {length} bytes, but only {len(data) - position} are left"
            )
        fields.setdefault(number, []).append(data[position : position + length])
        position += length
    return fields


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position >= len(data):
            raise MalformedMessage("a truncated number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
    raise MalformedMessage("a number of more than 10 bytes")


def text_of(fields: Fields, number: int) -> str | None:
    """Return a string field, or None if it is absent. Raises MalformedMessage if it is not UTF-8."""
    data = bytes_of(fields, number)
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"field {number} is not text") from error


def bytes_of(fields: Fields, number: int) -> bytes | None:
    """Return a bytes or message field (the last one counts), or None if it is absent."""
    values = fields.get(number)
    if not values:
        return None
    if not isinstance(values[-1], bytes):
        raise MalformedMessage(f"field {number} is a number, expected bytes")
    return values[-1]


def number_of(fields: Fields, number: int) -> int | None:
    """Return a varint field, or None if it is absent."""
    values = fields.get(number)
    if not values:
        return None
    if not isinstance(values[-1], int):
        raise MalformedMessage(f"field {number} is bytes, expected a number")
    return values[-1]


class ConnectError(Exception):
    """A failed call: the protocol's code, and a message for the client."""

    def __init__(self, code: Code, message: str):
        super().__init__(message)
        self.code: Code = code
        self.message = message

    def as_json(self) -> bytes:
        """Return the body of a failed unary call."""
        return json.dumps({"code": self.code, "message": self.message}).encode()


def envelope(payload: bytes, flags: int = 0) -> bytes:
    """Return the envelope of one message of a stream."""
    return _HEADER.pack(flags, len(payload)) + payload


def end_of_stream(error: ConnectError | None = None) -> bytes:
    """Return the last envelope of a response."""
    content = {} if error is None else {"error": {"code": error.code, "message": error.message}}
    return envelope(json.dumps(content).encode(), END_OF_STREAM)


def parse_header(data: bytes) -> tuple[int, int]:
    """Return the flags, and the length of the payload after a header of `HEADER_BYTES`."""
    flags, length = _HEADER.unpack(data)
    return flags, length


def decompressed(data: bytes, max_bytes: int) -> bytes:
    """Return the content of gzip data. Raises ConnectError if it is not gzip, or is larger than allowed."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ConnectError("invalid_argument", f"The message is not gzip: {error}.") from None
    if len(plain) > max_bytes:
        raise ConnectError(
            "resource_exhausted", f"The maximum size of a message is {max_bytes} bytes."
        )
    if not unpacker.eof:
        raise ConnectError("invalid_argument", "The gzip message is truncated.")
    return plain


# --- requests


class CommandSpec(NamedTuple):
    """`{1 cmd, 2 args repeated, 3 envs map, 4 cwd, 5 user}`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str | None
    user: str | None


class StartRequest(NamedTuple):
    """`{1 command, 2 pty, 4 stdin bool, 5 session_uuid}`."""

    command: CommandSpec
    has_stdin: bool
    session_uuid: str | None


class Selector(NamedTuple):
    """`oneof {1 pid uint32, 3 session_uuid}`: exactly one of them is present."""

    pid: int | None
    session_uuid: str | None


def _message(data: bytes | None, what: str) -> Fields:
    if data is None:
        raise MalformedMessage(f"{what} is missing")
    return decode(data)


def parse_command(data: bytes) -> CommandSpec:
    """Raises MalformedMessage."""
    fields = decode(data)
    program = text_of(fields, 1)
    if not program:
        raise MalformedMessage("the command has no program")
    arguments: list[str] = [text_of({2: [value]}, 2) or "" for value in fields.get(2, [])]
    env: dict[str, str] = {}
    for value in fields.get(3, []):
        entry = _message(bytes_of({3: [value]}, 3), "an entry of envs")
        env[text_of(entry, 1) or ""] = text_of(entry, 2) or ""
    cwd, user = text_of(fields, 4) or None, text_of(fields, 5) or None
    return CommandSpec((program, *arguments), env, cwd, user)


def parse_start(data: bytes) -> StartRequest:
    """Raises MalformedMessage, and ConnectError for a terminal."""
    fields = decode(data)
    if 2 in fields:
        raise ConnectError("unimplemented", "This server does not support terminals (pty).")
    command = bytes_of(fields, 1)
    if command is None:
        raise MalformedMessage("command is missing")
    has_stdin = bool(number_of(fields, 4))
    return StartRequest(parse_command(command), has_stdin, text_of(fields, 5) or None)


def parse_selector(data: bytes | None) -> Selector:
    """Raises MalformedMessage."""
    fields = _message(data, "session")
    selector = Selector(number_of(fields, 1), text_of(fields, 3))
    if selector.pid is None and not selector.session_uuid:
        raise MalformedMessage("session has neither pid nor session_uuid")
    return selector


def parse_connect(data: bytes) -> Selector:
    """`ConnectRequest {1 session}`. Raises MalformedMessage."""
    return parse_selector(bytes_of(decode(data), 1))


def parse_input(data: bytes) -> tuple[Selector, bytes, str | None]:
    """`SendInputRequest {1 session, 2 input {1 stdin | 2 pty}, 3 input_uuid}`. Raises MalformedMessage."""
    fields = decode(data)
    content = _message(bytes_of(fields, 2), "input")
    stdin = bytes_of(content, 1)
    if stdin is None:
        raise MalformedMessage("input does not contain stdin")
    selector = parse_selector(bytes_of(fields, 1))
    return selector, stdin, text_of(fields, 3)


def parse_signal(data: bytes) -> tuple[Selector, int, str | None]:
    """`SendSignalRequest {1 session, 2 signal, 3 signal_uuid}`. Raises MalformedMessage."""
    fields = decode(data)
    number = number_of(fields, 2)
    if number is None or not 0 < number < 65:
        raise MalformedMessage(f"{number} is not a signal")
    selector = parse_selector(bytes_of(fields, 1))
    return selector, number, text_of(fields, 3)


# --- events: CommandSessionEvent oneof {1 start {1 pid} | 2 data {1 stdout, 2 stderr} | 3 end | 4 keepalive}


def _event(number: int, content: bytes) -> bytes:
    return envelope(field(1, field(number, content)))


def started(pid: int) -> bytes:
    """Return the event of a command that has started."""
    return _event(1, field(1, pid))


def output(stream: Literal["stdout", "stderr"], data: bytes) -> bytes:
    """Return the event of output."""
    return _event(2, field(1 if stream == "stdout" else 2, data))


def ended(exit_code: int, status: str, error: str | None = None) -> bytes:
    """Return the event of a command that has ended: `end {1 exit_code sint32, 2 exited, 3 status, 4 error}`."""
    content = field(1, encode_sint(exit_code)) + field(2, 1) + field(3, status)
    return _event(3, content if error is None else content + field(4, error))


def keepalive() -> bytes:
    """Return the event that shows that a silent command still runs."""
    return _event(4, b"")


def session_list(sessions: list[tuple[CommandSpec, int, str]]) -> bytes:
    """`ListResponse {1 sessions repeated {1 command, 2 pid, 4 session_uuid}}`."""
    return b"".join(
        field(1, field(1, _encode_command(command)) + field(2, pid) + field(4, uuid))
        for command, pid, uuid in sessions
    )


def _encode_command(command: CommandSpec) -> bytes:
    parts = [field(1, command.argv[0]), *(field(2, argument) for argument in command.argv[1:])]
    if command.cwd is not None:
        parts.append(field(4, command.cwd))
    return b"".join(parts)
