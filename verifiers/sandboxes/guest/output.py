"""What is kept of output that may be longer than anyone wants: the beginning and the end."""

from __future__ import annotations

HARD_LIMIT_BYTES = 256 << 20
"""A stream longer than this stops its command: reading and dropping on would only burn a core."""


class HeadTail:
    """Keeps the first and the last half of a stream within `max_bytes`. Feeding costs O(length of the data)."""

    def __init__(self, max_bytes: int) -> None:
        self._head_room = max_bytes - max_bytes // 2
        self._tail_max = max_bytes // 2
        # One buffer, cut only when it is twice too long: a list of pieces would cost far more than its content when
        # a program prints byte by byte.
        self._tail = bytearray()
        self._after_head_bytes = 0
        self.seen_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes; returns those that belong to the head, to be passed on now."""
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
        """Bytes that are neither in the head nor in the tail."""
        return max(0, self._after_head_bytes - self._tail_max)

    def tail(self) -> bytes:
        """The end of the stream, as far as it is not in the head."""
        return bytes(self._tail[-self._tail_max :]) if self._tail_max else b""


def joined(head: bytes, tail: bytes, dropped_bytes: int) -> bytes:
    """Head and tail with a line between them that counts what is missing."""
    if not dropped_bytes:
        return head + tail
    return head + b"\n[... %d bytes dropped ...]\n" % dropped_bytes + tail
