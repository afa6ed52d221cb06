"""An OpenAI-compatible endpoint that does the sums it is asked, for tests of the commands. Real HTTP, in a thread."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from typing import Any


class AnsweringEndpoint:
    """Answers "What is 17 + 25?" with `<answer>42</answer>`.

    `wrong_every`: every n-th answer is wrong. `refuse_every`: every n-th request is refused with `status`. `models`:
    what the endpoint serves; requests for others are answered 404. `hold_after`: requests after this many are not
    answered before `release` is called.
    """

    def __init__(
        self,
        *,
        wrong_every: int = 0,
        refuse_every: int = 0,
        status: int = 400,
        hold_after: int | None = None,
        message: str = "the model is on fire",
        models: list[str] | None = None,
    ) -> None:
        self.models = models
        self.wrong_every = wrong_every
        self.refuse_every = refuse_every
        self.status = status
        self.hold_after = hold_after
        self.message = message
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.is_holding = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._stop = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> AnsweringEndpoint:
        self._thread.start()
        self._is_up.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def release(self) -> None:
        """Answer what was held."""
        self._loop.call_soon_threadsafe(self._released.set)

    @property
    def url(self) -> str:
        """What `-b` takes."""
        return f"http://127.0.0.1:{self.port}/v1"

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        await self._stop.wait()
        # First accept nothing more, then end what was accepted, then close. asyncio leaks the socket of a connection
        # whose task is cancelled before its handler starts, or whose server is closed before that.
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        self._released.set()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        server.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not self._stop.is_set():
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    k.strip().lower(): v.strip()
                    for k, _, v in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if head[0].startswith("GET ") and head[0].split()[1].endswith("/models"):
                    found = {"data": [{"id": name} for name in self.models or []]}
                    await self._send(200, found, writer)
                    continue
                await self._answer(json.loads(body or b"{}"), headers, writer)
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._writers.discard(writer)

    async def _answer(
        self, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        self.requests.append(body)
        self.headers.append(headers)
        number = len(self.requests)
        if self.hold_after is not None and number > self.hold_after:
            self.is_holding.set()
            await self._released.wait()
        if self.models is not None and body.get("model") not in self.models:
            status, answer = 404, {"error": {"message": f"no model {body.get('model')}"}}
        elif self.refuse_every and number % self.refuse_every == 0:
            status, answer = self.status, {"error": {"message": self.message}}
        else:
            status, answer = 200, self._completion(body, number)
        await self._send(status, answer, writer)

    async def _send(self, status: int, answer: Any, writer: asyncio.StreamWriter) -> None:
        content = json.dumps(answer).encode()
        head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
        writer.write(head.encode() + b"\r\n\r\n" + content)
        await writer.drain()

    def _completion(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        messages = body.get("messages") or [{"content": ""}]
        numbers = re.findall(r"\d+", str(messages[-1]["content"]))
        result = sum(map(int, numbers))
        if self.wrong_every and number % self.wrong_every == 0:
            result += 1
        message = {"role": "assistant", "content": f"<answer>{result}</answer>"}
        return {
            "id": f"c{number}",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model", "sums"),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }
