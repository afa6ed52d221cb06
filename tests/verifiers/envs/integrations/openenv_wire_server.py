"""A small server of OpenEnv's wire, as a program: `python openenv_wire_server.py PORT CONTRACT CAPACITY`.

It says what `openenv-core` 0.3.0 says to the same messages; `test_openenv_env.py` runs against both.
"""

import json
import sys
from typing import Any

from aiohttp import WSMsgType, web

GYM = {
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "message": {"type": "string"}},
    "required": ["message"],
}
MCP = {
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "type": {"const": "call_tool"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
    },
    "required": ["tool_name"],
}
TOOLS = [
    {
        "name": "add",
        "description": "",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        },
    },
    {"name": "bad", "description": "Fail.", "input_schema": {"type": "object"}},
]


class Session:
    """Guess a number below five: the seed's remainder."""

    def __init__(self, contract: str) -> None:
        self.contract = contract
        self.number = 0

    def answer(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if kind == "reset":
            seed = data.get("seed")
            self.number = (seed or 0) % 5
            return observed({"text": f"guess (seed {seed})"}, 0.0)
        if kind != "step":
            return failed("UNKNOWN_TYPE", f"Unknown message type: {kind}")
        if self.contract == "mcp":
            return self.tool(data)
        if set(data) != {"message"}:
            problem = [{"loc": ["message"], "msg": "Field required"}]
            return failed("VALIDATION_ERROR", "Invalid message", errors=problem)
        if data["message"] == "boom":
            return failed("EXECUTION_ERROR", "boom")
        is_right = data["message"] == str(self.number)
        return observed({"text": "yes" if is_right else "no"}, 1.0 if is_right else 0.0, is_right)

    def tool(self, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("type") == "list_tools":
            return observed({"tools": TOOLS}, None)
        name, arguments = data["tool_name"], data.get("arguments", {})
        if name == "add":
            value = arguments["a"] + arguments["b"]
            result = {"content": [{"type": "text", "text": str(value)}], "data": value}
            return observed({"tool_name": name, "result": result, "error": None}, None)
        kind, message = "tool_not_found", f"Unknown tool: {name!r}"
        if name == "bad":
            kind, message = "execution_error", "Error calling tool 'bad': no"
        error = {"error_type": kind, "message": message}
        return observed({"tool_name": name, "result": None, "error": error}, None)


def observed(observation: Any, reward: float | None, done: bool = False) -> dict[str, Any]:
    data = {"observation": observation, "reward": reward, "done": done}
    return {"type": "observation", "data": data}


def failed(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


def application(contract: str, capacity: int) -> web.Application:
    active: set[object] = set()

    async def talk(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if len(active) >= capacity:
            await socket.send_json(failed("CAPACITY_REACHED", f"Server at capacity: {capacity}"))
            await socket.close()
            return socket
        active.add(socket)
        session = Session(contract)
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                said = json.loads(message.data)
                if said["type"] == "close":
                    break
                await socket.send_json(session.answer(said["type"], said.get("data", {})))
                if said.get("data") == {"message": "hang up"}:
                    break
        finally:
            active.discard(socket)
        await socket.close()
        return socket

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def schema(_: web.Request) -> web.Response:
        return web.json_response({"action": MCP if contract == "mcp" else GYM})

    served = web.Application()
    served.add_routes(
        [web.get("/ws", talk), web.get("/health", health), web.get("/schema", schema)]
    )
    return served


if __name__ == "__main__":
    port, contract, capacity = sys.argv[1:4]
    web.run_app(
        application(contract, int(capacity)), host="127.0.0.1", port=int(port), print=lambda _: None
    )
