"""The sandbox server: its routes, authentication, errors as responses, start and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import cast

from aiohttp import web

from verifiers.errors import ConfigError
from verifiers.sandbox_server import metrics as prometheus
from verifiers.sandbox_server.config import ServerConfig, token_owner
from verifiers.sandbox_server.connect import HTTP_STATUS, SERVICE, ConnectError
from verifiers.sandbox_server.control import ControlPlane, answer
from verifiers.sandbox_server.gateway import CommandService, Gateway, SandboxGone, bearer_token
from verifiers.sandbox_server.inventory import RETRY_AFTER_S, Account, Inventory
from verifiers.sandbox_server.metrics import ServerMetrics
from verifiers.sandbox_server.requests import ClientTooSlow, RequestRefused, Transfer
from verifiers.sandboxes.errors import SandboxDead, SandboxError
from verifiers.sandboxes.sandbox import SandboxBackend

logger = logging.getLogger(__name__)

BACKLOG = 1024
SHUTDOWN_TIMEOUT_S = 5.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class SandboxServer:
    """Serve the sandboxes of a back end until the end of the `async with` block, which ends every sandbox.

    The server opens and closes the back end. Default: `LocalBackend()`.
    """

    def __init__(self, config: ServerConfig, backend: SandboxBackend | None = None) -> None:
        self.config = config
        self.metrics = ServerMetrics()
        if backend is None:
            # Imported here, since a server may receive another back end.
            from verifiers.sandboxes.local import LocalBackend

            backend = LocalBackend()
        self._backend = backend
        self._inventory = Inventory(config, backend, self.metrics)
        self._transfer = Transfer(config, self.metrics)
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._awaiting: set[asyncio.BaseProtocol] = set()
        """Connections that have not sent their first request."""
        self.port = config.port
        """The port; after the start the real one, if the configuration has 0."""

    @property
    def base_url(self) -> str:
        """The address for clients."""
        if self.config.public_url is not None:
            return self.config.public_url.rstrip("/")
        host = self.config.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    # --- life

    async def __aenter__(self) -> SandboxServer:
        await self._backend.__aenter__()
        try:
            app = web.Application(
                middlewares=[self._answer_errors], client_max_size=self.config.max_json_bytes
            )
            for part in (
                ControlPlane(self._inventory, self._transfer, self._account_of),
                Gateway(self._inventory, self._transfer),
                CommandService(self._inventory, self._transfer),
            ):
                app.add_routes(part.routes())
            app.router.add_get("/metrics", self._metrics_page)
            app.router.add_get("/healthz", self._health)
            self._runner = web.AppRunner(
                app,
                access_log=None,
                handler_cancellation=True,  # a client that disconnects cancels its request
                keepalive_timeout=self.config.client_timeout_s,
                shutdown_timeout=SHUTDOWN_TIMEOUT_S,
            )
            await self._runner.setup()
            self._listener = await self._listen()
            self.port = self._listener.sockets[0].getsockname()[1]
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _listen(self) -> asyncio.Server:
        host, port = self.config.host, self.config.port
        try:
            return await asyncio.get_running_loop().create_server(
                self._accept, host, port, backlog=BACKLOG
            )
        except OSError as error:
            raise ConfigError(
                f"Cannot listen on {host}:{port}: {error.strerror or error}. Choose another host or port; "
                "port 0 takes a free one."
            ) from error

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(self.aclose())

    async def aclose(self) -> None:
        """Stop serving and end every sandbox. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        await self._inventory.aclose()  # also completes the requests that wait for a sandbox
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        await self._backend.aclose()

    # --- connections

    def _accept(self) -> asyncio.BaseProtocol:
        assert self._runner is not None
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self.config.max_connections:
            self.metrics.add("clients_cut_off_total", cause="too_many_connections")
            return _Refusal()
        connection = server()
        self._awaiting.add(connection)
        asyncio.get_running_loop().call_later(
            self.config.client_timeout_s, self._cut_off_silent, connection
        )
        return connection

    def _cut_off_silent(self, connection: web.RequestHandler) -> None:  # pyright: ignore[reportMissingTypeArgument]
        if connection in self._awaiting:
            self._awaiting.discard(connection)
            if connection.transport is not None:
                self.metrics.add("clients_cut_off_total", cause="sends_too_slowly")
                connection.transport.abort()

    # --- requests

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        self._awaiting.discard(request.protocol)
        is_rpc = SERVICE in request.path
        try:
            return await handler(request)
        except web.HTTPException as error:
            return answer(
                {"detail": f"{error.reason}: {request.method} {request.path}"}, error.status
            )
        except ConnectError as error:
            return web.Response(
                body=error.as_json(),
                status=HTTP_STATUS[error.code],
                content_type="application/json",
            )
        except ClientTooSlow as refusal:
            if request.transport is not None:
                request.transport.abort()
            return self._refuse(request, refusal, is_rpc=is_rpc)
        except RequestRefused as refusal:
            return self._refuse(request, refusal, is_rpc=is_rpc)
        except (SandboxGone, SandboxDead) as error:
            return _gone(error, is_rpc=is_rpc)
        except (ConnectionResetError, asyncio.CancelledError):
            raise  # the client has disconnected
        except SandboxError as error:
            logger.warning("%s %s: %s", request.method, request.path, error)
            return answer({"detail": str(error)}, 503)
        except Exception:
            logger.exception("%s %s failed", request.method, request.path)
            return answer({"detail": "Internal server error. See the log of the server."}, 500)

    def _account_of(self, request: web.Request) -> Account:
        """Return the account of a request. Raises RequestRefused if the request has no valid token."""
        token = token_owner(self.config.tokens, bearer_token(request))
        if token is None:
            raise RequestRefused(
                401,
                "The request needs the header `Authorization: Bearer TOKEN` with a token of this server.",
            )
        return self._inventory.accounts[token.name]

    def _refuse(
        self, request: web.Request, refusal: RequestRefused, *, is_rpc: bool
    ) -> web.Response:
        owner = token_owner(self.config.tokens, bearer_token(request))
        self.metrics.add(
            "requests_refused_total",
            token=owner.name if owner is not None else "",
            status=str(refusal.status),
        )
        if is_rpc:
            code = {
                401: "unauthenticated",
                408: "deadline_exceeded",
                429: "resource_exhausted",
            }.get(refusal.status, "unavailable" if refusal.status == 409 else "invalid_argument")
            content: dict[str, object] = {"code": code, "message": refusal.detail}
        else:
            content = {"detail": refusal.detail}
        response = answer(content, refusal.status)
        if refusal.status == 429:
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        if refusal.status == 413:
            response.force_close()  # the server does not wait for the rest of the body
        return response

    async def _metrics_page(self, request: web.Request) -> web.Response:
        """GET /metrics: open to every token."""
        self._account_of(request)
        self._inventory.measure()
        return web.Response(
            body=self.metrics.text().encode(),
            headers={"Content-Type": prometheus.CONTENT_TYPE},
        )

    async def _health(self, request: web.Request) -> web.Response:
        """GET /healthz: open to all, without a token."""
        return answer({"status": "ok"})


class _Refusal(asyncio.Protocol):
    """Closes a connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        cast(
            asyncio.Transport, transport
        ).abort()  # a TCP server creates no other kind of transport


def _gone(error: SandboxGone | SandboxDead, *, is_rpc: bool) -> web.Response:
    if is_rpc:
        return answer({"code": "not_found", "message": str(error)}, HTTP_STATUS["not_found"])
    if isinstance(error, SandboxGone) and error.kind == "sandbox_not_found":
        return answer({"error": error.kind, "detail": error.detail}, 502)
    return answer({"error": "sandbox_terminated", "detail": str(error)}, 410)
