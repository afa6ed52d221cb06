"""`InterceptionServer`: answers the model calls of agents with the responses of their rollouts.

    server = InterceptionServer(port=0)
    await server.start()                          # without `start`, only `open_connection` reaches the server
    queue = server.register_rollout("rollout_1", state)
    request_id = await queue.get()                # an agent has sent a request
    intercept = server.intercepts[request_id]     # the request
    deliver_response(intercept, response)         # `synthesize_stream` for a request with `stream`

A request waits until it is answered, however long that takes. A streamed request receives comments meanwhile, so that
no proxy closes the connection as idle.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from uuid import uuid4

from aiohttp import web

from verifiers.concurrency import PerLoop
from verifiers.dialects import DIALECTS, dialect_of_path
from verifiers.dialects.dialect import Dialect, UnusableRequest, error_status, event
from verifiers.errors import InfraError, RateLimitError
from verifiers.interception.answers import jsonable, serialize_intercept_response
from verifiers.types import Response

logger = logging.getLogger(__name__)

KEEPALIVE_INTERVAL_SECONDS = 3.0
"""Seconds between two comments on a stream that waits for the model."""
MAX_BODY_BYTES = 48 << 20
"""Maximum size of one request; conversations with images are large."""
MAX_WAITING_BYTES = 2 * MAX_BODY_BYTES
"""Maximum size of all waiting requests of one rollout: an agent must not exhaust the host's memory."""

Intercept = dict[str, Any]
"""One waiting request: `request_id`, `rollout_id`, `protocol`, `messages` and `tools` (both in OpenAI's chat
format), `model`, `stream`, `headers`, `body` as received, and `response_future` and `chunk_queue`, which
`deliver_response` and `synthesize_stream` fill.
"""


Answer = Callable[[Any], Awaitable[tuple[int, dict[str, Any]]]]
"""Answers a request of an own route of a rollout: the JSON body → (HTTP status, JSON body of the response)."""


class InterceptionError(InfraError):
    """An agent's model call could not be answered."""


class StreamInterrupted(InterceptionError):
    """A streamed response was cut off on its way to the agent, which may take the received part for the whole."""


class InterceptionServer:
    """Serves any number of rollouts, each below a separate path: `/rollout/ROLLOUT_ID/v1/…`.

    `port` 0 lets the system choose. Requests must carry `secret` (random by default) as a bearer token or
    `x-api-key`. The server belongs to the event loop of its first use.
    """

    def __init__(
        self,
        port: int,
        secret: str | None = None,
        *,
        host: str = "127.0.0.1",
        intercepts: dict[str, Intercept] | None = None,
    ) -> None:
        self.port = port
        self.host = host
        self.secret = secret or secrets.token_urlsafe(32)
        self.active_rollouts: dict[str, dict[str, Any]] = {}
        """Rollout id → `request_id_queue`, `state`, `routes` and `waiting_bytes`."""
        self.intercepts: dict[str, Intercept] = {} if intercepts is None else intercepts
        """Request id → waiting request. Servers of several event loops may share it."""
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        self._lock = asyncio.Lock()

    # ---------------------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Listen on the port. Has no effect on a server that is listening."""
        runner = await self._ready()
        async with self._lock:
            if self._site is not None:
                return
            site = web.TCPSite(runner, self.host, self.port)
            try:
                await site.start()
            except OSError as error:
                raise InterceptionError(
                    f"The interception server cannot listen on {self.host}:{self.port}: {error.strerror}. "
                    "Choose another interception_port; 0 selects a free port."
                ) from error
            self._site = site
            self.port = runner.addresses[0][1]

    async def _ready(self) -> web.AppRunner:
        async with self._lock:
            if self._runner is None:
                app = web.Application(client_max_size=MAX_BODY_BYTES)
                for dialect in DIALECTS.values():
                    path = f"/rollout/{{rollout_id}}/v1{dialect.route}"
                    app.router.add_post(path, self._handle_request)
                app.router.add_get("/rollout/{rollout_id}/v1/models", self._handle_models)
                app.router.add_post("/rollout/{rollout_id}/v1/{route:.+}", self._handle_request)
                app.router.add_get("/health", self._handle_health)
                runner = web.AppRunner(
                    app, access_log=None, handle_signals=False, handler_cancellation=True
                )
                await runner.setup()
                self._runner = runner
            return self._runner

    async def stop(self) -> None:
        """Close every connection and stop listening. A second call has no effect."""
        loop = asyncio.get_running_loop()
        for intercept in list(self.intercepts.values()):
            future = intercept.get(
                "response_future"
            )  # an intercept that a caller has added may lack it
            if isinstance(future, asyncio.Future) and future.get_loop() is loop:
                future.cancel()
        async with self._lock:
            runner, self._runner, self._site = self._runner, None, None
        if runner is not None:
            await runner.cleanup()

    async def open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the server that needs no port, for `Doorway`."""
        runner = await self._ready()
        assert runner.server is not None
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            theirs.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(runner.server, theirs)
            return await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise

    # ------------------------------------------------------------------------------------------ rollouts

    def register_rollout(
        self,
        rollout_id: str,
        state: MutableMapping[str, Any] | None = None,
        routes: Mapping[str, Answer] | None = None,
    ) -> asyncio.Queue[str]:
        """Accept a rollout's requests from now on. Their ids arrive in the returned queue in order.

        `routes` maps paths below `/v1`, such as `/rlm/tools`, to functions that answer their requests instead.
        """
        queue: asyncio.Queue[str] = asyncio.Queue()
        self.active_rollouts[rollout_id] = {
            "request_id_queue": queue,
            "state": state,
            "routes": routes or {},
            "waiting_bytes": 0,
        }
        return queue

    def unregister_rollout(self, rollout_id: str) -> None:
        """Stop accepting a rollout's requests and end those that wait."""
        self.active_rollouts.pop(rollout_id, None)
        for intercept in list(self.intercepts.values()):
            if (
                intercept.get("rollout_id") == rollout_id
                and not intercept["response_future"].done()
            ):
                ended = InterceptionError("The rollout has ended.")
                if intercept["stream"]:
                    _fail_stream(intercept, ended)
                else:
                    deliver_response(intercept, None, ended)

    def _set_rollout_error(self, rollout_id: str, error: BaseException) -> None:
        """Record an error of a rollout. The first one counts."""
        state = self.active_rollouts.get(rollout_id, {}).get("state")
        if state is not None and state.get("error") is None:
            state["error"] = error

    # ------------------------------------------------------------------------------------------ requests

    async def _handle_health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _handle_models(self, request: web.Request) -> web.Response:
        rollout = self._rollout_of(request)
        model = (rollout["state"] or {}).get("model") or ""
        entry = {"id": model, "object": "model", "created": 0, "owned_by": "verifiers"}
        return web.json_response({"object": "list", "data": [entry]})

    def _rollout_of(self, request: web.Request) -> dict[str, Any]:
        if not _knows_secret(request.headers, self.secret):
            raise _refusal(
                web.HTTPUnauthorized, "Unauthorized: this server requires its own API key."
            )
        rollout = self.active_rollouts.get(request.match_info["rollout_id"])
        if rollout is None:
            raise _refusal(web.HTTPNotFound, "Rollout not found: it has ended or never existed.")
        return rollout

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        rollout = self._rollout_of(request)
        answer = rollout["routes"].get(request.path.partition("/v1")[2])
        if answer is None and "route" in request.match_info:
            raise _refusal(web.HTTPNotFound, f"There is no API at {request.path}.")
        dialect = dialect_of_path(request.path)
        length = request.content_length
        size_bytes = MAX_BODY_BYTES if length is None else length
        if rollout["waiting_bytes"] + size_bytes > MAX_WAITING_BYTES:
            refusal = RateLimitError("Too many requests are waiting for the model: retry later.")
            return web.json_response(dialect.error_body(refusal), status=429)
        rollout["waiting_bytes"] += size_bytes
        try:
            if answer is not None:
                return await _own_answer(request, answer)
            return await self._take_request(request, rollout, dialect)
        except UnusableRequest as error:
            logger.warning("An agent's request was refused: %s", error)
            return web.json_response(dialect.error_body(error), status=400)
        finally:
            rollout["waiting_bytes"] -= size_bytes

    async def _take_request(
        self, request: web.Request, rollout: dict[str, Any], dialect: Dialect
    ) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError) as error:
            raise UnusableRequest(f"Invalid JSON: {error}") from error
        agent_request = dialect.read_request(body)
        request_id = f"req_{uuid4().hex[:8]}"
        intercept: Intercept = {
            "request_id": request_id,
            "rollout_id": request.match_info["rollout_id"],
            "protocol": dialect.name,
            "messages": agent_request.messages,
            "tools": agent_request.tools,
            "model": body.get("model"),
            "stream": agent_request.is_streamed,
            "wants_usage": agent_request.wants_usage,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": body,
            "chunk_queue": asyncio.Queue() if agent_request.is_streamed else None,
            "response_future": asyncio.get_running_loop().create_future(),
        }
        self.intercepts[request_id] = intercept
        rollout["request_id_queue"].put_nowait(request_id)
        try:
            if agent_request.is_streamed:
                return await self._stream(request, intercept)
            return await _whole_answer(intercept)
        finally:
            # A request whose agent has disconnected is not a turn: the consumer of the queue sees it as cancelled.
            intercept["response_future"].cancel()
            self.intercepts.pop(request_id, None)

    async def _stream(self, request: web.Request, intercept: Intercept) -> web.StreamResponse:
        answer: web.StreamResponse | None = None
        is_complete = False
        try:
            while not is_complete:
                chunks = await _next_chunks(intercept["chunk_queue"])
                if isinstance(chunks[0], BaseException) and answer is None:
                    return _error_answer(chunks[0], intercept)
                if answer is None:
                    answer = web.StreamResponse(headers={"Cache-Control": "no-cache"})
                    answer.content_type = "text/event-stream"
                    await answer.prepare(request)
                # Sent in one piece: an agent that disconnects after reading its result has then read everything.
                is_complete = chunks[-1] is None or isinstance(chunks[-1], BaseException)
                data = [_event_bytes(chunk, _dialect_of(intercept)) for chunk in chunks]
                await answer.write(b"".join(data))
            assert answer is not None
            await answer.write_eof()
            return answer
        except (ConnectionError, asyncio.CancelledError) as error:
            future: asyncio.Future[Any] = intercept["response_future"]
            if future.done() and not future.cancelled() and not is_complete:
                broken = StreamInterrupted(
                    "The response to the agent was cut off: it has disconnected."
                )
                self._set_rollout_error(intercept["rollout_id"], broken)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise asyncio.CancelledError from error


async def _own_answer(request: web.Request, answer: Answer) -> web.Response:
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        return web.json_response({"error": f"Invalid JSON: {error}"}, status=400)
    status, reply = await answer(body)
    return web.json_response(reply, status=status)


async def _next_chunks(queue: asyncio.Queue[Any]) -> list[Any]:
    """Yield the data to send, up to the end of the stream; a comment after a period without data."""
    try:
        async with asyncio.timeout(KEEPALIVE_INTERVAL_SECONDS):
            chunks = [await queue.get()]
    except TimeoutError:
        return [b": keepalive\n\n"]
    while not queue.empty() and not (chunks[-1] is None or isinstance(chunks[-1], BaseException)):
        chunks.append(queue.get_nowait())
    return chunks


def _knows_secret(headers: Mapping[str, str], secret: str) -> bool:
    given = headers.get("Authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _refusal(kind: type[web.HTTPException], message: str) -> web.HTTPException:
    body = {"error": {"message": message, "type": "invalid_request_error"}}
    return kind(text=json.dumps(body), content_type="application/json")


def _dialect_of(intercept: Intercept) -> Dialect:
    return DIALECTS[intercept["protocol"]]


async def _whole_answer(intercept: Intercept) -> web.Response:
    try:
        response = await intercept["response_future"]
    except Exception as error:  # noqa: BLE001 - any failure of the rollout is reported to the agent
        return _error_answer(error, intercept)
    return web.json_response(serialize_intercept_response(response, intercept["protocol"]))


def _error_answer(error: BaseException, intercept: Intercept) -> web.Response:
    body = _dialect_of(intercept).error_body(error)
    return web.json_response(body, status=error_status(error))


def _event_bytes(chunk: Any, dialect: Dialect) -> bytes:
    if chunk is None or isinstance(chunk, bytes):
        return chunk or b""
    if isinstance(chunk, BaseException):
        return dialect.error_event(chunk)
    return event(jsonable(chunk))


# ------------------------------------------------------------------------------------------------- answering


def deliver_response(
    intercept: Intercept, response: Any, error: BaseException | None = None
) -> None:
    """Answer a request without `stream`, or report an error to the agent. Only the first answer counts."""
    future: asyncio.Future[Any] = intercept["response_future"]
    if future.done():
        return
    if error is None:
        future.set_result(response)
    else:
        future.set_exception(error)
        future.exception()  # the agent may have disconnected


async def synthesize_stream(
    intercept: Intercept, response: Response | None, error: BaseException | None = None
) -> None:
    """Answer a request with `stream` with the events of a whole response, or report an error to the agent."""
    if error is not None or response is None:
        _fail_stream(intercept, error or InterceptionError("The rollout gave no response."))
        return
    deliver_response(intercept, response)
    queue: asyncio.Queue[Any] = intercept["chunk_queue"]
    for each in _dialect_of(intercept).events(response, intercept["wants_usage"]):
        queue.put_nowait(each)
    queue.put_nowait(None)


def _fail_stream(intercept: Intercept, error: BaseException) -> None:
    deliver_response(intercept, None, error)
    intercept["chunk_queue"].put_nowait(error)


class LoopServers(PerLoop[InterceptionServer]):
    """Opens a server in each event loop on first use, and closes it with that loop or by `aclose()`."""

    def __init__(self, port: int = 0) -> None:
        self.secret = secrets.token_urlsafe(32)
        """Equal for all servers."""
        self.intercepts: dict[str, Intercept] = {}
        """The waiting requests of all servers."""
        super().__init__(
            lambda: InterceptionServer(port, self.secret, intercepts=self.intercepts),
            lambda server: server.stop(),
        )
