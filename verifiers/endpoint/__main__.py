"""The child process of `process.start_endpoint_process`: read settings from stdin, print the address, exit at EOF."""

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
    """Serve until standard input closes."""
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
    """Print one JSON line for the parent process."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the child process."""
    # Ctrl-C reaches the whole process group. The parent decides when this process ends, by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Read one line only: a buffered reader would also consume the end of the pipe.
    settings = json.loads(sys.stdin.readline())
    try:
        asyncio.run(serve_until_orphaned(settings))
    except (EndpointError, OSError, ValueError) as error:
        announce({"error": f"The endpoint cannot start: {error}"})
        sys.exit(1)


if __name__ == "__main__":
    main()
