"""A port inside a real sandbox without network, which leads to one server outside and nowhere else."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from verifiers.errors import TunnelError
from verifiers.interception import doorway as doorway_module
from verifiers.interception.doorway import Doorway
from verifiers.sandboxes import Sandbox, SandboxSpec
from verifiers.sandboxes.local import LocalBackend

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]
ECHO_CLIENT = """
import hashlib, socket, sys, threading
def talk(number):
    data = bytes([number]) * 300_000
    stream = socket.create_connection(("127.0.0.1", 8765))
    threading.Thread(target=lambda: (stream.sendall(data), stream.shutdown(socket.SHUT_WR))).start()
    got = b""
    while part := stream.recv(65536):
        got += part
    stream.close()
    print(number, got == data)
threads = [threading.Thread(target=talk, args=(number,)) for number in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        yield sandbox


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[doorway_module.Connect]:
    """Serves both ends of socket pairs; closes what is left."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)  # type: ignore[misc]  # every server here is a coroutine function
        except OSError:
            pass
        finally:
            writer.transport.abort()

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        ours, theirs = socket.socketpair()
        tasks.add(asyncio.create_task(handle(*await asyncio.open_connection(sock=theirs))))
        return await asyncio.open_connection(sock=ours)

    yield connect
    if tasks:
        await asyncio.wait(tasks)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(10_000):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def test_many_connections_at_once_keep_their_bytes(sandbox: Sandbox):
    async with server(echo) as connect:
        doorway = Doorway(sandbox, connect, 8765)
        assert await doorway.open() == 8765
        result = await sandbox.exec(["python3", "-c", ECHO_CLIENT])
        await doorway.aclose()
        await doorway.aclose()
    assert sorted(result.text.splitlines()) == [f"{number} True" for number in range(6)]
    assert result.error_text == ""


async def test_a_server_that_ends_first_is_heard_to_the_end(sandbox: Sandbox):
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello " * 50_000)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    program = (
        "import socket, sys\n"
        "stream = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "print(sum(map(len, iter(lambda: stream.recv(9999), b''))))\n"
    )
    async with server(greet) as connect:
        doorway = Doorway(sandbox, connect)
        port = await doorway.open()
        result = await sandbox.exec(["python3", "-c", program, str(port)])
        await doorway.aclose()
    assert result.text == "300000\n", result.error_text


async def test_the_port_is_the_only_way_out(sandbox: Sandbox):
    async with server(echo) as connect:
        doorway = Doorway(sandbox, connect, 8765)
        await doorway.open()
        interfaces = await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1")
        await doorway.aclose()
    assert interfaces.text.split() == ["lo"]


async def test_a_port_that_is_taken_is_named(sandbox: Sandbox):
    async with server(echo) as connect:
        first = Doorway(sandbox, connect, 8765)
        await first.open()
        with pytest.raises(TunnelError, match=r"cannot listen on 127\.0\.0\.1:8765"):
            await Doorway(sandbox, connect, 8765).open()
        await first.aclose()


async def test_a_sandbox_that_dies_takes_its_doorway_along(sandbox: Sandbox):
    async with server(echo) as connect:
        doorway = Doorway(sandbox, connect, 8765)
        await doorway.open()
        await sandbox.terminate()
        await doorway.aclose()


@pytest.mark.parametrize(
    "frames",
    [
        "b'\\xff' * 100",
        "b'\\x00\\x00\\x00\\x00\\x02\\x00\\x00\\x00\\x01' * 200 + b'\\xff' * 9",  # 200 times OPEN
        "b'\\x00\\x00\\x00\\x01\\x03\\x00\\x00\\x00\\x07x' + b'\\xff' * 9",  # DATA of nobody
    ],
)
async def test_nonsense_from_inside_closes_the_doorway_and_nothing_else(
    sandbox: Sandbox, frames: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    ready = "b'\\x00\\x00\\x00\\x011'.replace(b'1', b'\\x01') + b'\\x00\\x00\\x00\\x007'"
    program = tmp_path / "evil.py"
    program.write_text(f"import os, time\nos.write(1, {ready} + {frames})\ntime.sleep(60)\n")
    monkeypatch.setattr(doorway_module, "_PROGRAM", program)
    async with server(echo) as connect:
        doorway = Doorway(sandbox, connect, 8765)
        assert await doorway.open() == 7
        assert doorway._forwarding is not None
        await asyncio.wait([doorway._forwarding])
        assert doorway._forwarding.exception() is None
        await doorway.aclose()
    assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_a_program_that_never_speaks_is_given_up(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    program = tmp_path / "silent.py"
    program.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(doorway_module, "_PROGRAM", program)
    monkeypatch.setattr(doorway_module, "OPEN_TIMEOUT_S", 0.2)
    async with server(echo) as connect:
        with pytest.raises(TunnelError, match=r"did not open within 0\.2 s"):
            await Doorway(sandbox, connect).open()
