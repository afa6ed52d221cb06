"""The same environments as `openenv_wire_server.py`, served by the package `openenv` itself."""

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import (
    Action,
    CallToolAction,
    CallToolObservation,
    Environment,
    MCPEnvironment,
    Observation,
    State,
    create_fastapi_app,
)


class Guess(Action):
    message: str


class Text(Observation):
    text: str = ""


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    number = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Text:
        self.number = (seed or 0) % 5
        return Text(text=f"guess (seed {seed})", reward=0.0)

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Text:
        if action.message == "boom":
            raise ValueError("boom")
        is_right = action.message == str(self.number)
        return Text(text="yes" if is_right else "no", done=is_right, reward=float(is_right))

    @property
    def state(self) -> State:
        return State()


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tools")

        @server.tool
        def add(a: int, b: int) -> int:
            return a + b

        @server.tool
        def bad() -> int:
            """Fail."""
            raise ValueError("no")

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Text:
        return Text(text=f"guess (seed {seed})", reward=0.0)

    def _step_impl(self, action: Any, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    port, contract, capacity = sys.argv[1:4]
    kinds = (
        (Tools, CallToolAction, CallToolObservation)
        if contract == "mcp"
        else (Guessing, Guess, Text)
    )
    uvicorn.run(
        create_fastapi_app(*kinds, max_concurrent_envs=int(capacity)),
        port=int(port),
        log_level="warning",
    )
