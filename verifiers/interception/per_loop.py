"""An interception server for each event loop that asks for one: servers belong to a loop, environments live longer."""

from __future__ import annotations

import asyncio
import secrets
import weakref

from verifiers.interception.server import InterceptionServer


class LoopServers:
    """Opens a server in each event loop on first use, and closes it with that loop or by `aclose()`."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self.secret = secrets.token_urlsafe(32)
        """The same for all of them."""
        self._in_loop: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[InterceptionServer, asyncio.Task[None]]
        ] = weakref.WeakKeyDictionary()

    def here(self) -> InterceptionServer:
        """The server of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._in_loop.get(loop)
        if found is None or found[1].done():
            server = InterceptionServer(self._port, self.secret)
            found = server, loop.create_task(_keep(server), name="keep interception server")
            self._in_loop[loop] = found
        return found[0]

    async def aclose(self) -> None:
        """Close the servers of all loops; those of loops that have ended were closed with them."""
        running = asyncio.get_running_loop()
        for loop, (_, keeper) in list(self._in_loop.items()):
            if loop is running:
                del self._in_loop[loop]
                keeper.cancel()
                await asyncio.wait([keeper])
            elif loop.is_running():
                del self._in_loop[loop]
                loop.call_soon_threadsafe(keeper.cancel)


async def _keep(server: InterceptionServer) -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        # `asyncio.run` cancels what is left at its end and waits for it: that closes this server too.
        await server.stop()
