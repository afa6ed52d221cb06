"""How much kernel memory the sockets of this network namespace take: no process limit and no RSS counts it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_NETLINK_SOCK_DIAG, _BY_FAMILY, _DUMP = 4, 20, 0x301
_ERROR, _DONE = 2, 3
_UNIX_MEMORY, _INET_MEMORY = 5, 7
_HEADER, _ATTRIBUTE, _MEMORY = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=9I")
_REQUESTS = (
    # (request, length of an answer before its attributes, attribute with the memory)
    (struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x20, 0, 0), 16, _UNIX_MEMORY),
    *(
        (struct.pack("=BBBBI48x", family, protocol, 1 << 6, 0, 0xFFFFFFFF), 72, _INET_MEMORY)
        for family in (socket.AF_INET, socket.AF_INET6)
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
    ),
)
ASSUMED_BYTES = 208 << 10
"""Of one socket, where the kernel does not tell: the usual size of its buffer."""
LARGEST_BYTES = 1 << 20
"""One socket may take about as much; fewer sockets than would reach a limit with that are not looked at."""


class SocketMemory:
    """Ask for it while sockets may still be opened; use it afterwards."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._netlink.settimeout(1.0)
        self._statistics = open("/proc/net/sockstat", "rb", buffering=0)  # noqa: SIM115 - for the agent's whole life

    def used_bytes(self, limit_bytes: int) -> int:
        """Of all sockets together. 0 while there are too few for a quarter of the limit."""
        count = self._count()
        if 4 * count * LARGEST_BYTES < limit_bytes:
            return 0
        try:
            return sum(_used(*each) for request in _REQUESTS for each in self._dump(*request))
        except OSError:  # this kernel cannot list them
            return count * ASSUMED_BYTES

    def _count(self) -> int:
        self._statistics.seek(0)
        first = self._statistics.readline().split()
        return int(first[2]) if len(first) > 2 else 0

    def _dump(self, request: bytes, fixed: int, kind: int) -> Iterator[tuple[bytes, int, int]]:
        header = _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 0, 0)
        self._netlink.send(header + request)
        while True:
            data = self._netlink.recv(1 << 18)
            position = 0
            while position + _HEADER.size <= len(data):
                length, answer, _, _, _ = _HEADER.unpack_from(data, position)
                if answer == _DONE:
                    return
                if answer == _ERROR or length < _HEADER.size:
                    raise OSError("the kernel cannot list sockets of this kind")
                yield data[position : position + length], _HEADER.size + fixed, kind
                position += (length + 3) & ~3


def _used(message: bytes, start: int, kind: int) -> int:
    while start + _ATTRIBUTE.size <= len(message):
        length, number = _ATTRIBUTE.unpack_from(message, start)
        if number == kind and length >= _ATTRIBUTE.size + _MEMORY.size:
            received, _, written, _, forward, queued, options, backlog, _ = _MEMORY.unpack_from(
                message, start + _ATTRIBUTE.size
            )
            return received + max(written, queued) + forward + options + backlog
        start += max(4, (length + 3) & ~3)
    return 0
