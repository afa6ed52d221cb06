"""Coverage-guided fuzzing of everything that parses bytes from inside a sandbox (needs the package atheris).

usage: python tests/verifiers/sandboxes/fuzz_hostile_bytes.py -max_total_time=60
"""

import asyncio
import sys
import tempfile

import atheris  # pyright: ignore[reportMissingImports]

with atheris.instrument_imports(include=["verifiers.sandboxes"]):
    from verifiers.sandboxes.connection import Collected, GuestConnection, GuestProcess
    from verifiers.sandboxes.guest import archive, frames
    from verifiers.sandboxes.proxy import Refused, parse_request
    from verifiers.sandboxes.python_session import Interpreter

LOOP = asyncio.new_event_loop()
FOLDER = tempfile.mkdtemp()


async def converse(data: bytes) -> None:
    connection = GuestConnection(lambda error: None)
    sinks = (Collected(100), GuestProcess(connection, has_stdin=True), Interpreter(connection))
    for sink in sinks:
        sink.channel = connection.open(b"{}", sink)
    answer = sinks[2].begin("1", 100)
    connection.data_received(data)
    connection.fail(EOFError())
    for future in (*(sink.ended for sink in sinks), answer, connection.ready):
        if future.done():
            future.exception()


def one_input(data: bytes) -> None:
    if not data:
        return
    choice, data = data[0] % 3, data[1:]
    if choice == 0:
        LOOP.run_until_complete(converse(data))
    elif choice == 1:
        unpacker = archive.Unpacker(FOLDER + "/x", max_bytes=10_000)
        try:
            unpacker.feed(data)
            unpacker.finish()
        except (archive.BadArchive, archive.ArchiveTooLarge, OSError):
            pass
        finally:
            unpacker.close()
    else:
        try:
            parse_request(data)
        except Refused:
            pass


if __name__ == "__main__":
    assert frames.HOST_KINDS
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
