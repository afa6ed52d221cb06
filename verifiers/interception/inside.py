"""Runs inside a sandbox: listen on a port and forward its connections over this process's stdin and stdout.

This file is sent as text and needs Python 3.9 only. Frames have the format of `verifiers.sandboxes.guest.frames`,
`u32 length | u8 kind | u32 channel | payload`: READY (the port, as text) and OPEN go out; DATA, END (no more data)
and ABORT go both ways. The program ends when its stdin does.
"""

import os
import selectors
import socket
import struct
import sys

READY, OPEN, DATA, END, ABORT = 1, 2, 3, 4, 5
KINDS = frozenset((READY, OPEN, DATA, END, ABORT))
CHUNK_BYTES = 64 << 10
HEADER = struct.Struct("!IBI")
_BUFFER_BYTES = 4 << 20
"""Bytes kept for an agent that does not read. A connection that exceeds them is closed."""


class Connection:
    """One connection of a program in the sandbox."""

    def __init__(self, channel: int, stream: socket.socket) -> None:
        self.channel = channel
        self.stream = stream
        self.outbox = bytearray()
        self.is_received = False
        """The program in the sandbox sends nothing more."""
        self.is_answered = False
        """The host sends nothing more."""


def send(kind: int, channel: int, payload: bytes = b"") -> None:
    """Write one frame to stdout and wait until it is written."""
    view = memoryview(HEADER.pack(len(payload), kind, channel) + payload)
    while view:
        view = view[os.write(1, view) :]


class Forwarder:
    """All connections, served by one thread."""

    def __init__(self, listener: socket.socket) -> None:
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        self._next_channel = 1
        self._inbox = bytearray()
        self._listener = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        self._selector.register(0, selectors.EVENT_READ, "outside")

    def serve(self) -> None:
        """Forward until stdin ends."""
        while True:
            for key, ready in self._selector.select():
                if key.data is None:
                    self._accept()
                elif key.data == "outside":
                    data = os.read(0, CHUNK_BYTES)
                    if not data:
                        return
                    self._take(data)
                else:
                    self._move(key.data, ready)

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:
            return  # the connection is closed already
        stream.setblocking(False)
        connection = Connection(self._next_channel, stream)
        self._next_channel += 1
        self._connections[connection.channel] = connection
        send(OPEN, connection.channel)
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        events = 0 if connection.is_received else selectors.EVENT_READ
        if connection.outbox:
            events |= selectors.EVENT_WRITE
        try:
            self._selector.unregister(connection.stream)
        except KeyError:
            pass
        if events:
            self._selector.register(connection.stream, events, connection)

    def _move(self, connection: Connection, ready: int) -> None:
        if connection.channel not in self._connections:
            return
        try:
            if ready & selectors.EVENT_READ:
                data = connection.stream.recv(CHUNK_BYTES)
                if data:
                    send(DATA, connection.channel, data)
                else:
                    connection.is_received = True
                    send(END, connection.channel)
            if ready & selectors.EVENT_WRITE:
                self._flush(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            send(ABORT, connection.channel)
            return
        self._settle(connection)

    def _flush(self, connection: Connection) -> None:
        if connection.outbox:
            try:
                del connection.outbox[: connection.stream.send(connection.outbox)]
            except BlockingIOError:
                pass
        if connection.is_answered and not connection.outbox:
            connection.stream.shutdown(socket.SHUT_WR)

    def _settle(self, connection: Connection) -> None:
        if connection.is_received and connection.is_answered and not connection.outbox:
            self._drop(connection)
        else:
            self._watch(connection)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.channel, None) is not None:
            try:
                self._selector.unregister(connection.stream)
            except KeyError:
                pass
            connection.stream.close()

    def _take(self, data: bytes) -> None:
        inbox = self._inbox
        inbox += data
        while len(inbox) >= HEADER.size:
            length, kind, channel = HEADER.unpack_from(inbox)
            end = HEADER.size + length
            if len(inbox) < end:
                return
            payload = bytes(inbox[HEADER.size : end])
            del inbox[:end]
            connection = self._connections.get(channel)
            if connection is not None:
                self._take_frame(connection, kind, payload)

    def _take_frame(self, connection: Connection, kind: int, payload: bytes) -> None:
        if kind == ABORT or len(connection.outbox) + len(payload) > _BUFFER_BYTES + CHUNK_BYTES:
            self._drop(connection)
            return
        if kind == DATA:
            connection.outbox += payload
        elif kind == END:
            connection.is_answered = True
        try:
            self._flush(connection)
        except OSError:
            self._drop(connection)
            send(ABORT, connection.channel)
            return
        self._settle(connection)


def main(port: int) -> None:
    """Listen on the port (0 selects a free one), report it, and forward."""
    try:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        sys.exit("cannot listen on 127.0.0.1:%d: %s" % (port, error))  # noqa: UP031 - short and old
    send(READY, 0, str(listener.getsockname()[1]).encode())
    Forwarder(listener).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
