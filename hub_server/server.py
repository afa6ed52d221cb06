"""The application in uvicorn, with a time limit for request heads, which uvicorn lacks."""

import asyncio
import os
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hub_server.private_files import keep_private
from hub_server.process import configure_logging, leave, leave_at_exit
from hub_server.settings import Settings, environment_of, settings_from_environment


class TimedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that drops a connection whose request head does not arrive in time."""

    header_timeout_s = 10.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(
        self, transport: Any
    ) -> None:  # uvicorn types the transport for internal use
        """Start to wait for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def on_message_begin(self) -> None:
        """Give the rest of a head the same time after its first byte."""
        super().on_message_begin()
        self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Stop waiting: the head is complete."""
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting: the connection is closed."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._head_timer = self.loop.call_later(self.header_timeout_s, self._drop)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _drop(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.abort()


def serve(settings: Settings) -> None:
    """Serve until a signal arrives. Each of several workers is a separate process."""
    os.environ.update(environment_of(settings))  # for the workers
    uvicorn.run(
        "hub_server.server:application",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers if settings.workers > 1 else None,
        loop="uvloop",
        http="hub_server.server:TimedProtocol",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=True,
        proxy_headers=True,
        forwarded_allow_ips=settings.trusted_proxies,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=10,
        h11_max_incomplete_event_size=32 * 1024,
        backlog=2048,
    )


def application() -> Any:  # an ASGI application, whose type uvicorn does not export
    """Return the application of a worker."""
    from hub_server.app import (
        create_app,
    )  # here, because the parent process of workers does not need it

    configure_logging()
    keep_private()
    leave_at_exit()
    settings = settings_from_environment()
    TimedProtocol.header_timeout_s = settings.header_timeout_s
    return create_app(settings)


if __name__ == "__main__":
    configure_logging()
    try:
        serve(settings_from_environment())
    except SystemExit as ended:  # uvicorn could not start and has logged the reason
        leave(ended.code if isinstance(ended.code, int) else 1)
    leave(0)
