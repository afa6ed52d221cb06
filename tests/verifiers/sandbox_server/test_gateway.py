"""Using a sandbox over HTTP: commands as JSON and as Connect streams, files; hostile and slow clients."""

import asyncio
import gzip
import io
import json
import struct
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from verifiers.sandbox_server import connect
from verifiers.sandbox_server.connect import field

pytestmark = pytest.mark.asyncio(loop_scope="module")
SERVICE = "/command_session.CommandSession"


class Box(NamedTuple):
    """One hosted sandbox and the way to its gateway."""

    wire: Any
    id: str
    url: str
    token: str

    def post(self, path: str, **options: Any) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", **options.pop("headers", {})}
        return self.wire.session.post(self.url + path, headers=headers, **options)

    def get(self, route: str, **query: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        return self.wire.session.get(self.url + route, headers=headers, params=query)

    async def exec(self, command: str, **fields: Any) -> tuple[int, Any]:
        async with self.post("/exec", json={"command": command, **fields}) as answer:
            return answer.status, await answer.json()

    async def upload(self, path: str, data: bytes) -> tuple[int, Any]:
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(data), filename="f")
        async with self.post("/upload", params={"path": path}, data=form) as answer:
            return answer.status, await answer.json()

    def stream(self, method: str, message: bytes, **headers: str) -> Any:
        headers = {"Content-Type": "application/connect+proto", **headers}
        body = struct.pack("!BI", 0, len(message)) + message
        return self.post(f"{SERVICE}/{method}", data=body, headers=headers)

    async def call(self, method: str, message: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/proto"}
        async with self.post(f"{SERVICE}/{method}", data=message, headers=headers) as answer:
            return answer.status, await answer.read()


async def new_box(wire: Any, **fields: Any) -> Box:
    sandbox = await wire.create(**fields)
    auth = sandbox["gatewayAuth"]
    url = f"{auth['gateway_url']}/{auth['user_ns']}/{auth['job_id']}"
    return Box(wire, sandbox["id"], url, auth["token"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def box(wire: Any) -> AsyncIterator[Box]:
    yield await new_box(wire, environment_vars={"FROM": "create"})


def shell(line: str, *, stdin: bool = False, uuid: str = "", cwd: str = "") -> bytes:
    command = field(1, "/bin/bash") + field(2, "-c") + field(2, line)
    command += field(3, field(1, "NAME") + field(2, "value")) + (field(4, cwd) if cwd else b"")
    message = field(1, command) + field(4, int(stdin))
    return message + (field(5, uuid) if uuid else b"")


class Heard(NamedTuple):
    """What a stream brought."""

    pid: int
    stdout: bytes
    stderr: bytes
    exit_code: int | None
    keepalives: int
    trailer: dict[str, Any]


async def envelopes(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[int, bytes]]:
    while not answer.content.at_eof():
        header = await answer.content.readexactly(5)
        flags, length = struct.unpack("!BI", header)
        yield flags, await answer.content.readexactly(length)


async def listen(answer: aiohttp.ClientResponse) -> Heard:
    heard = Heard(0, b"", b"", None, 0, {})
    async for flags, payload in envelopes(answer):
        if flags == 2:
            return heard._replace(trailer=json.loads(payload))
        event = connect.decode(connect.bytes_of(connect.decode(payload), 1) or b"")
        [(number, [content])] = event.items()
        assert isinstance(content, bytes)
        fields = connect.decode(content)
        if number == 1:
            heard = heard._replace(pid=fields[1][0])
        elif number == 2:
            heard = heard._replace(
                stdout=heard.stdout + b"".join(fields.get(1, [])),
                stderr=heard.stderr + b"".join(fields.get(2, [])),
            )
        elif number == 3:
            heard = heard._replace(exit_code=connect.decode_sint(fields[1][0]))
        else:
            heard = heard._replace(keepalives=heard.keepalives + 1)
    raise AssertionError("the stream has no end envelope")


# --- JSON


async def test_a_command_answers_with_output_and_code(box):
    line = "echo $FROM $B; pwd; echo err >&2; exit 3"
    status, answer = await box.exec(line, working_dir="/tmp", env={"B": "call"}, timeout=20)
    assert status == 200
    assert answer == {"stdout": "create call\n/tmp\n", "stderr": "err\n", "exit_code": 3}


async def test_a_command_over_its_time_is_408_and_the_sandbox_lives_on(box):
    status, answer = await box.exec("sleep 1000", timeout=0.2)
    assert (status, "0.2 s" in answer["detail"]) == (408, True)
    assert (await box.exec("echo alive"))[1]["stdout"] == "alive\n"


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ""},
        {"command": 7},
        {"command": "true", "env": {"A": 1}},
        {"command": "true", "env": {"A=": "x"}},
        {"command": "true", "timeout": -1},
        {"command": "true", "timeout": "soon"},
        {"command": "true", "user": "nobody-here"},
        {"command": "true\0"},
    ],
    ids=str,
)
async def test_unusable_commands_are_refused(box, fields):
    async with box.post("/exec", json=fields) as answer:
        assert answer.status in (400, 422)
        assert "detail" in await answer.json()


async def test_long_output_loses_its_middle(serving):
    async with serving(max_output_bytes=2048) as wire:
        box = await new_box(wire)
        _, answer = await box.exec("seq 1 100000")
        assert "bytes dropped" in answer["stdout"]
        assert len(answer["stdout"]) < 2200


async def test_a_client_that_goes_away_ends_its_command(box):
    waiting = asyncio.create_task(box.exec("touch begun; sleep 1234.5"))
    while "begun" not in (await box.exec("ls"))[1]["stdout"]:
        pass
    waiting.cancel()
    left = "1"
    while left != "0":
        left = (await box.exec("ps ax | grep -c '[s]leep 1234.5'"))[1]["stdout"].strip()


async def test_only_the_sandboxs_own_token_opens_it(box, wire):
    other = await new_box(wire)
    assert (await box._replace(token=other.token).exec("true"))[0] == 401
    assert (await box._replace(token="").exec("true"))[0] == 401
    assert (await box._replace(token="a-token-for-the-tests").exec("true"))[0] == 401
    status, answer = await box._replace(url=box.url + "0").exec("true")
    assert (status, answer["error"]) == (502, "sandbox_not_found")
    await wire.ask("DELETE", f"/sandbox/{other.id}")
    status, answer = await other.exec("true")
    assert (status, answer["error"]) == (410, "sandbox_terminated")
    async with other.stream("Start", shell("true")) as answer:
        assert (answer.status, (await answer.json())["code"]) == (404, "not_found")


async def test_a_sandbox_out_of_memory_says_so(serving):
    async with serving() as wire:
        box = await new_box(wire, memory_gb=0.0625)
        line = "python3 -c 'x = []\nwhile True: x.append(bytearray(8 << 20))'"
        status, answer = await box.exec(line, timeout=30)
        assert (status, answer["exit_code"] != 0) == (200, True)
        told = "out of memory" in answer["stderr"] or "MemoryError" in answer["stderr"]
        assert told, answer


async def test_commands_of_a_token_are_limited(serving):
    from verifiers.sandbox_server import Quota

    async with serving(quota=Quota(max_commands=2)) as wire:
        box = await new_box(wire)
        running = [asyncio.create_task(box.exec("sleep 1000")) for _ in range(2)]
        account = wire.server._inventory.accounts["first"]
        while account.commands < 2:  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0)
        async with box.post("/exec", json={"command": "true"}) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "10")
        async with box.stream("Start", shell("true")) as answer:
            assert (answer.status, (await answer.json())["code"]) == (429, "resource_exhausted")
        for task in running:
            task.cancel()


# --- files


async def test_a_file_goes_in_and_comes_out(box):
    data = bytes(range(256)) * 9000
    for path in ("/box/new/dir/file", "/box/-rf 'ü\n$(touch x)"):
        status, answer = await box.upload(path, data)
        assert (status, answer["size"], answer["path"]) == (200, len(data), path)
        async with box.get("/download", path=path) as got:
            assert (got.status, await got.read() == data) == (200, True)
    await box.upload("/box/empty", b"")
    async with box.get("/download", path="/box/empty") as got:
        assert (got.status, await got.read()) == (200, b"")
    assert "part" not in (await box.exec("find /box /tmp"))[1]["stdout"]


async def test_files_that_cannot_be_copied_are_refused_without_hanging(box):
    await box.exec("mkfifo /box/fifo; mkdir /box/dir; ln -s /box/fifo /box/link")
    for path, status in [
        ("/box/no", 404),
        ("/box/fifo", 400),
        ("/box/link", 400),
        ("/box/dir", 400),
        ("", 422),
    ]:
        for method in ("/download", "/read-file"):
            async with box.get(method, path=path) as answer:
                assert (answer.status, "detail" in await answer.json()) == (status, True)
    for path in ("/box/fifo", "/box/dir", "/usr/bin/evil", "/proc/1/mem"):
        status, answer = await box.upload(path, b"x")
        assert (status, path in answer["detail"]) == (400, True)


async def test_parts_of_a_text_file(box):
    await box.upload("/box/text", b"0123456789" * 10)

    async def part(**query: str) -> Any:
        async with box.get("/read-file", path="/box/text", **query) as answer:
            return answer.status, await answer.json()

    assert (await part())[1]["size"] == 100
    _, answer = await part(offset="98", length="10")
    assert (answer["content"], answer["offset"], answer["truncated"]) == ("89", 98, False)
    _, answer = await part(offset="-3", length="2")
    assert (answer["content"], answer["truncated"], answer["total_size"]) == ("78", True, 100)
    assert (await part(offset="500"))[1]["content"] == ""
    assert (await part(offset="x"))[0] == 422
    assert (await part(length="-1"))[0] == 422
    await box.exec("truncate -s 20M /box/big")
    async with box.get("/read-file", path="/box/big") as answer:
        assert answer.status == 413


async def test_an_upload_over_the_limit_leaves_nothing(serving):
    async with serving(max_upload_bytes=100_000) as wire:
        box = await new_box(wire)
        assert (await box.upload("/box/file", bytes(200_000)))[0] == 413

        async def endless() -> AsyncIterator[bytes]:
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            for _ in range(20):
                yield bytes(10_000)
            yield b"\r\n--b--\r\n"

        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        async with box.post("/upload?path=/box/file", data=endless(), headers=kind) as answer:
            assert answer.status == 413
        async with box.post("/upload?path=/box/file", data=b"x", headers=kind) as answer:
            assert answer.status in (400, 422)
        async with box.post("/upload?path=/box/file", json={}) as answer:
            assert answer.status == 415
        assert (await box.exec("cat /box/file"))[1]["exit_code"] == 1


async def test_a_reader_that_stops_reading_is_cut_off(serving):
    async with serving(client_timeout_s=0.3) as wire:
        box = await new_box(wire)
        reader, writer = await asyncio.open_connection("127.0.0.1", wire.server.port, limit=1024)
        message = shell("cat /dev/zero")
        head = (
            f"POST {box.url.partition(str(wire.server.port))[2]}{SERVICE}/Start HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {box.token}\r\nContent-Type: application/connect+proto\r\n"
            f"Content-Length: {len(message) + 5}\r\n\r\n"
        )
        writer.write(head.encode() + struct.pack("!BI", 0, len(message)) + message)
        await reader.readline()
        account = wire.server._inventory.accounts["first"]
        until_s = time.monotonic() + 20
        while account.commands and time.monotonic() < until_s:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        assert account.commands == 0
        assert (await box.exec("ps ax | grep -c '[c]at /dev'"))[1]["stdout"] == "0\n"
        writer.close()


# --- Connect


async def test_a_stream_brings_start_output_and_end(box):
    line = "echo out $NAME; pwd; echo err >&2; exit 3"
    async with box.stream("Start", shell(line, cwd="/tmp")) as answer:
        assert answer.headers["Content-Type"] == "application/connect+proto"
        heard = await listen(answer)
    assert heard.pid > 0
    assert heard[1:] == (b"out value\n/tmp\n", b"err\n", 3, 0, {})


async def test_a_compressed_request_is_understood_and_a_bomb_is_not(box):
    for message, wanted in [(shell("echo small"), None), (bytes(8 << 20), "resource_exhausted")]:
        packed = gzip.compress(message)
        body = struct.pack("!BI", 1, len(packed)) + packed
        headers = {"Content-Type": "application/connect+proto"}
        async with box.post(f"{SERVICE}/Start", data=body, headers=headers) as answer:
            if wanted is None:
                assert (await listen(answer)).stdout == b"small\n"
            else:
                assert (await answer.json())["code"] == wanted


async def test_a_deadline_ends_the_command(box):
    headers = {"Connect-Timeout-Ms": "200"}
    async with box.stream("Start", shell("sleep 4321"), **headers) as answer:
        assert (await listen(answer)).trailer["error"]["code"] == "deadline_exceeded"
    left = "1"
    while left != "0":
        left = (await box.exec("ps ax | grep -c '[s]leep 4321'"))[1]["stdout"].strip()


async def test_input_and_signals_reach_a_command_once(box):
    uuid = "session-1"
    line = (
        "trap 'echo got; exit 9' TERM; echo ready; read x; echo [$x]; while :; do sleep 0.01; done"
    )
    session = field(1, field(3, uuid))
    async with box.stream("Start", shell(line, stdin=True, uuid=uuid)) as answer:
        await answer.content.readexactly(5)
        hello = session + field(2, field(1, b"hello\n")) + field(3, "input-1")
        for _ in range(2):  # the second repeats the first, as after a lost answer
            assert await box.call("SendInput", hello) == (200, b"")
        _, listed = await box.call("List", b"")
        assert uuid.encode() in listed
        answer.close()
    async with box.stream("Connect", session) as answer:
        ending = asyncio.create_task(listen(answer))
        while uuid.encode() in (await box.call("List", b""))[1]:
            await box.call("SendSignal", session + field(2, 15) + field(3, "signal-1"))
        heard = await ending
    assert (heard.stdout.endswith(b"got\n"), heard.exit_code) == (True, 9)
    status, answer = await box.call(
        "SendInput", field(1, field(3, "no-such")) + hello[len(session) :]
    )
    assert (status, json.loads(answer)["code"]) == (404, "not_found")


async def test_a_silent_command_sends_signs_of_life(serving):
    async with serving(keepalive_s=0.05) as wire:
        box = await new_box(wire)
        async with box.stream("Start", shell("sleep 0.5")) as answer:
            heard = await listen(answer)
    assert (heard.exit_code, heard.keepalives > 2) == (0, True)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_argument"),
        (b"\0\0\0\0\x05abc", "invalid_argument"),
        (struct.pack("!BI", 0, 2) + b"\xff\xff", "invalid_argument"),
        (struct.pack("!BI", 1, 2) + b"\xff\xff", "invalid_argument"),
        (struct.pack("!BI", 0, 0), "invalid_argument"),
        (struct.pack("!BI", 0, 4) + field(1, b"") + field(2, b""), "unimplemented"),
    ],
)
async def test_malformed_streams_are_refused(box, body, code):
    headers = {"Content-Type": "application/connect+proto"}
    async with box.post(f"{SERVICE}/Start", data=body, headers=headers) as answer:
        assert (await answer.json())["code"] == code
    async with box.post(f"{SERVICE}/Start", json={}) as answer:
        assert answer.status == 415
