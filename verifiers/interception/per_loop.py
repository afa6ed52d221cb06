"""Interception servers, one per event loop."""

from __future__ import annotations

import secrets

from verifiers.interception.server import InterceptionServer
from verifiers.per_loop import PerLoop


class LoopServers(PerLoop[InterceptionServer]):
    """Opens a server in each event loop on first use, and closes it with that loop or by `aclose()`."""

    def __init__(self, port: int = 0) -> None:
        self.secret = secrets.token_urlsafe(32)
        """The same for all of them."""
        super().__init__(
            lambda: InterceptionServer(port, self.secret), lambda server: server.stop()
        )
