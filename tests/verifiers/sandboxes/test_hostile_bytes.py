"""Whatever bytes come out of a sandbox, the host's event loop goes on."""

import asyncio
import json
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.errors import SandboxError
from verifiers.sandboxes.connection import Collected, GuestConnection, GuestProcess, JobReport
from verifiers.sandboxes.errors import SandboxDead
from verifiers.sandboxes.guest import frames
from verifiers.sandboxes.guest.frames import HeadTail, joined
from verifiers.sandboxes.python_session import Interpreter

guest_frames = st.builds(
    frames.encode,
    st.sampled_from(sorted(frames.AGENT_KINDS)),
    st.integers(0, 2**32 - 1) | st.integers(0, 4),
    st.binary(max_size=200)
    | st.builds(
        lambda value: json.dumps(value).encode(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(
                    st.sampled_from(
                        ["exit_code", "timed_out", "dropped", "run_s", "oom", "overflowed", "x"]
                    ),
                    inner,
                    max_size=6,
                )
            ),
            max_leaves=8,
        ),
    ),
)


@given(st.lists(guest_frames, max_size=20), st.data())
def test_frames_survive_being_cut_anywhere(encoded: list[bytes], data: st.DataObject):
    stream = b"".join(encoded)
    reader = frames.FrameReader(frames.AGENT_KINDS)
    seen = []
    position = 0
    while position < len(stream):
        step = data.draw(st.integers(1, max(1, len(stream) - position)))
        seen += list(reader.feed(stream[position : position + step]))
        position += step
    assert [frames.encode(*frame) for frame in seen] == encoded


@given(st.lists(st.binary(max_size=300), max_size=10))
def test_any_bytes_are_frames_or_a_protocol_violation(chunks: list[bytes]):
    reader = frames.FrameReader(frames.AGENT_KINDS)
    try:
        for chunk in chunks:
            for frame in reader.feed(chunk):
                assert len(frame.payload) <= frames.MAX_PAYLOAD_BYTES
    except frames.ProtocolViolation:
        pass


def test_an_oversized_frame_is_refused_by_its_header_alone():
    reader = frames.FrameReader(frames.AGENT_KINDS)
    with pytest.raises(frames.ProtocolViolation):
        list(reader.feed(struct.pack("!IBI", 1 << 31, frames.STDOUT, 1)))
    with pytest.raises(frames.ProtocolViolation):
        frames.encode(frames.STDOUT, 1, bytes(frames.MAX_PAYLOAD_BYTES + 1))


@given(st.binary(max_size=100))
def test_a_report_is_checked_or_refused(payload: bytes):
    try:
        JobReport(payload)
    except frames.ProtocolViolation:
        pass


@given(st.lists(guest_frames | st.binary(max_size=60), max_size=25))
def test_the_host_survives_any_conversation(pieces: list[bytes]):
    async def converse() -> None:
        closed: list[Exception] = []
        connection = GuestConnection(closed.append)
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
            command, process = Collected(1000), GuestProcess(connection, has_stdin=True)
            session = Interpreter(connection)
            for sink in (command, process, session):
                sink.channel = connection.open(b"{}", sink)
            answer = session.begin("1", 100)
            for piece in pieces:
                connection.data_received(piece)
            connection.fail(SandboxDead("over"))
            assert len(closed) == 1
            for future in (command.ended, process.ended, session.ended, answer):
                assert future.done()
                future.exception()
            with pytest.raises(SandboxError):
                connection.open(b"{}", command)
            if connection.ready.done():
                connection.ready.exception()
        await asyncio.sleep(0)

    asyncio.run(converse())


async def test_more_output_than_asked_for_is_not_kept():
    connection = GuestConnection(lambda error: None)
    command = Collected(100)
    command.channel = connection.open(b"{}", command)
    for _ in range(1000):
        connection.data_received(frames.encode(frames.STDOUT, command.channel, bytes(1000)))
    connection.data_received(frames.encode(frames.EXIT, command.channel, b'{"exit_code": 0}'))
    result = command.result(command.ended.result(), 0.0)
    assert len(result.stdout) < 10_000
    connection.fail(SandboxDead("over"))


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(0, 60))
def test_output_keeps_its_beginning_and_its_end(chunks: list[bytes], max_bytes: int):
    whole = b"".join(chunks)
    kept = HeadTail(max_bytes)
    head = b"".join(kept.feed(chunk) for chunk in chunks)
    tail = kept.tail()
    assert len(head) + len(tail) + kept.dropped_bytes == len(whole) == kept.seen_bytes
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head) + len(tail) <= max_bytes
    if len(whole) <= max_bytes:
        assert joined(head, tail, kept.dropped_bytes) == whole
    else:
        assert len(head) == max_bytes - max_bytes // 2


async def test_whoever_waits_gets_the_reason_that_the_back_end_knows():
    def explain(error: Exception) -> None:
        connection.fail(SandboxDead("too much memory", "oom"))

    connection = GuestConnection(explain)
    waiting = Collected(100)
    waiting.channel = connection.open(b"{}", waiting)
    connection.connection_lost(None)
    with pytest.raises(SandboxDead) as caught:
        await waiting.ended
    assert caught.value.reason == "oom"
