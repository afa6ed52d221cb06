"""An MCP server for the tests: `python tool_server.py [folder] [--http PORT]`.

Every start appends its process id to `<folder>/starts`, every call of `touch` a line to `<folder>/touched`.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

try:
    from mcp.server.mcpserver import Image, MCPServer
except ImportError:  # mcp 1
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[no-redef]
    from mcp.server.fastmcp import Image

server = MCPServer("tools")
folder = Path(sys.argv[1])


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def touch(mark: str) -> str:
    """Leave a trace."""
    with (folder / "touched").open("a") as file:
        file.write(f"{mark}\n")
    return "ok"


@server.tool()
def touch_and_die(mark: str) -> str:
    """Leave a trace and end the server before it answers."""
    touch(mark)
    os._exit(3)


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def nothing() -> None:
    """No result."""


@server.tool()
def several() -> list[str]:
    """Two lines."""
    return ["x", "y"]


@server.tool()
def fail() -> str:
    """Always raises."""
    raise ValueError("no luck")


@server.tool()
async def hang() -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return "never"


@server.tool()
def block() -> str:
    """Blocks the whole server."""
    time.sleep(3600)
    return "never"


@server.tool()
def process_id() -> int:
    """Who answers."""
    return os.getpid()


def main() -> None:
    with (folder / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if "--http" in sys.argv:
        import uvicorn

        app = server.streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[-1]), log_level="warning")
    else:
        server.run()


if __name__ == "__main__":
    main()
