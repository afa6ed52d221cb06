"""The stream over a live process of the Prime package ends whatever the package does with a cancellation."""

import asyncio
from collections.abc import AsyncIterator

from verifiers.sandboxes.connection import GuestConnection
from verifiers.sandboxes.prime import ProcessStream


class ForgetfulProcess:
    """What the package's process looks like, on the day when each cancellation comes together with an answer."""

    def __init__(self) -> None:
        self.is_being_written = asyncio.Event()
        self.is_closed = False
        self.stdout = self._output()
        self.stderr = self._output()

    async def _output(self) -> AsyncIterator[bytes]:
        while True:
            await self._lose_one_cancellation()
            yield b""

    async def write_stdin(self, piece: bytes) -> None:
        self.is_being_written.set()
        await self._lose_one_cancellation()

    async def _lose_one_cancellation(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    async def aclose(self) -> None:
        self.is_closed = True


async def test_a_cancellation_that_the_package_loses_does_not_keep_the_stream_open():
    process = ForgetfulProcess()
    stream = ProcessStream(process, GuestConnection(lambda error: None))
    stream.write(b"something")
    await process.is_being_written.wait()
    async with asyncio.timeout(10):
        await stream.closed()
    assert process.is_closed
