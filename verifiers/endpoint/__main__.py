"""The child side of `process.start_endpoint_process`: settings in on stdin, address out on stdout, end at EOF."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from verifiers.endpoint.embedded import EmbeddedEndpoint
from verifiers.endpoint.errors import EndpointError
from verifiers.endpoint.server import EndpointConfig


async def serve_until_orphaned(settings: dict[str, Any]) -> None:
    """Serves until standard input closes."""
    weights = settings.pop("weights")
    if settings["max_running"] is None:
        del settings["max_running"]
    names = tuple(settings.pop("model_names"))
    config = EndpointConfig(
        weights=None if weights is None else Path(weights), model_names=names, **settings
    )
    closed = asyncio.Event()
    async with EmbeddedEndpoint(config) as endpoint:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), closed.set)
        announce({"base_url": endpoint.base_url})
        await closed.wait()


def announce(message: dict[str, Any]) -> None:
    """One line for the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Runs the child."""
    # Ctrl-C reaches the whole group; the parent decides when this process ends, by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One line and no more: a buffered reader would swallow the end of the pipe.
    settings = json.loads(sys.stdin.readline())
    try:
        asyncio.run(serve_until_orphaned(settings))
    except (EndpointError, OSError, ValueError) as error:
        announce({"error": f"The endpoint cannot start: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
