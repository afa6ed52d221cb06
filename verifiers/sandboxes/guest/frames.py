"""The wire format between host and guest: `u32 length | u8 kind | u32 channel | payload`, big-endian.

Channel 0 is the sandbox itself. Every other channel is one job; the host numbers the jobs. The host treats
everything from the guest as hostile: `FrameReader` is the only parser and raises only `ProtocolViolation`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAX_PAYLOAD_BYTES = 1 << 20
STREAM_WINDOW_BYTES = 256 << 10
"""Number of bytes that a streaming job may send before the host grants more."""
STDIN_CHUNK_BYTES = 64 << 10

# host → guest
START = 1
"""JSON: see `jobs.JobRequest`."""
STDIN = 2
"""Bytes for stdin; an empty payload closes it."""
SIGNAL = 3
"""One byte: a signal number for the job's process group. KILL_TREE ends everything that the job started. On channel 0,
KILL_TREE ends every process inside except the guest, jobs included.
"""
CREDIT = 4
"""u32: number of bytes of a streaming job that the host has consumed."""
CONTROL = 5
"""Bytes for a session's control stream (nested frames)."""
PING = 6

# guest → host
READY = 16
"""JSON: the guest accepts jobs."""
STDOUT = 17
STDERR = 18
STDOUT_TAIL = 19
"""The last bytes of a capped stream, after its omitted middle."""
STDERR_TAIL = 20
STDIN_TAKEN = 21
"""u32: number of bytes written to the command's stdin; 2**32 - 1 when the command has closed its stdin."""
EXIT = 22
"""JSON: how the job ended. The last frame of its channel."""
CONTROL_OUT = 23
"""Bytes from a session's control stream."""
PONG = 24
FAILED = 25
"""UTF-8 text on channel 0: the setup of the sandbox failed."""

HOST_KINDS = frozenset((START, STDIN, SIGNAL, CREDIT, CONTROL, PING))
AGENT_KINDS = frozenset(range(READY, FAILED + 1))

KILL_TREE = 255
STDIN_CLOSED = 0xFFFFFFFF

_HEADER = struct.Struct("!IBI")
_U32 = struct.Struct("!I")


class ProtocolViolation(ValueError):
    """The other side sent bytes that are not valid frames."""


class Frame(NamedTuple):
    """One message."""

    kind: int
    channel: int
    payload: bytes


def encode(kind: int, channel: int, payload: bytes = b"") -> bytes:
    """Return one frame. Raises ProtocolViolation for a payload over `MAX_PAYLOAD_BYTES`."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolViolation(f"payload of {len(payload)} bytes, maximum {MAX_PAYLOAD_BYTES}")
    return _HEADER.pack(len(payload), kind, channel) + payload


def encode_count(kind: int, channel: int, count: int) -> bytes:
    """Return a frame whose payload is one number."""
    return encode(kind, channel, _U32.pack(count))


def count_of(payload: bytes) -> int:
    """Return the number in a frame of `encode_count`."""
    if len(payload) != 4:
        raise ProtocolViolation(f"a count of {len(payload)} bytes instead of 4")
    return int(_U32.unpack(payload)[0])


class FrameReader:
    """Splits a byte stream into frames. After a ProtocolViolation the stream is unusable."""

    def __init__(self, kinds: frozenset[int]) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Yield the frames that these bytes complete. Holds at most one incomplete frame and the last `data`."""
        buffer = self._buffer
        buffer += data
        position = 0
        try:
            while len(buffer) - position >= _HEADER.size:
                length, kind, channel = _HEADER.unpack_from(buffer, position)
                if length > MAX_PAYLOAD_BYTES:
                    raise ProtocolViolation(f"a frame of {length} bytes")
                if kind not in self._kinds:
                    raise ProtocolViolation(f"a frame of unknown kind {kind}")
                end = position + _HEADER.size + length
                if len(buffer) < end:
                    break
                payload = bytes(memoryview(buffer)[position + _HEADER.size : end])
                position = end
                yield Frame(kind, channel, payload)
        finally:
            buffer[:position] = bytes(position)  # freed memory keeps its content
            del buffer[:position]


HARD_LIMIT_BYTES = 256 << 20
"""A longer stream ends its command: reading and dropping more output would only waste a core."""


class HeadTail:
    """Keeps the first and the last half of a stream within `max_bytes`. Feeding costs O(length of the data)."""

    def __init__(self, max_bytes: int) -> None:
        self._head_room = max_bytes - max_bytes // 2
        self._tail_max = max_bytes // 2
        # One buffer, cut when it is twice the limit. A list of pieces would cost far more memory than its content when
        # a program prints single bytes.
        self._tail = bytearray()
        self._after_head_bytes = 0
        self.seen_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Count bytes of the stream. Return those that belong to the head, which the caller passes on immediately."""
        self.seen_bytes += len(data)
        head = data[: self._head_room]
        self._head_room -= len(head)
        rest = data[len(head) :]
        if rest:
            self._after_head_bytes += len(rest)
            self._tail += rest[-self._tail_max :] if self._tail_max else b""
            if len(self._tail) > 2 * self._tail_max:
                del self._tail[: len(self._tail) - self._tail_max]
        return head

    @property
    def dropped_bytes(self) -> int:
        """Number of bytes that are neither in the head nor in the tail."""
        return max(0, self._after_head_bytes - self._tail_max)

    def tail(self) -> bytes:
        """The end of the stream, without bytes that are in the head."""
        return bytes(self._tail[-self._tail_max :]) if self._tail_max else b""


def joined(head: bytes, tail: bytes, dropped_bytes: int) -> bytes:
    """Return head and tail, with a line between them that counts the missing bytes."""
    if not dropped_bytes:
        return head + tail
    return head + b"\n[... %d bytes dropped ...]\n" % dropped_bytes + tail
