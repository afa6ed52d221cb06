"""An MCP server on stdin and stdout that speaks the protocol itself: `python plain_tool_server.py FOLDER`.

For tests of starts, losses and ends: it is there at once, while importing the package `mcp` takes a second. Every start
appends its process id to `<folder>/starts`, every call of a tool that touches a line to `<folder>/touched`. With a file
`<folder>/silent` the server never answers, so that its start does not end.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

folder = Path(sys.argv[1])
TOOLS = ("add", "touch", "touch_and_die", "fail", "hang", "block", "process_id")


def called(name: str, arguments: dict[str, Any]) -> str | None:
    """The text of the result; None for no answer."""
    if name == "add":
        return str(arguments["a"] + arguments.get("b", 2))
    if name in ("touch", "touch_and_die"):
        with (folder / "touched").open("a") as file:
            file.write(f"{arguments['mark']}\n")
        if name == "touch_and_die":
            os._exit(3)
        return "ok"
    if name == "fail":
        raise ValueError("Error executing tool fail: no luck")
    if name == "process_id":
        return str(os.getpid())
    if name == "block":
        time.sleep(3600)
    return None


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tools", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {}}
        return {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
    if method == "tools/call":
        is_error = False
        try:
            text = called(params["name"], params.get("arguments") or {})
        except ValueError as error:
            text, is_error = str(error), True
        if text is None:
            return None
        return {"content": [{"type": "text", "text": text}], "isError": is_error}
    return {}


def main() -> None:
    with (folder / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request or (folder / "silent").exists():
            continue
        result = answer(request["method"], request.get("params") or {})
        if result is not None:
            reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
            sys.stdout.write(f"{json.dumps(reply)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
