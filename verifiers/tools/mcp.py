"""MCP servers as tools: what a server is configured with, its results as messages, one server across event loops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from verifiers.errors import ConfigError, MCPAnswerLost, MCPServerError
from verifiers.tools.mcp_connection import CallNotSent, MCPConnection, MCPToolTimeout
from verifiers.types import Tool

NO_RESULT = "No result returned from tool"
_TOOL_NAME = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME = 64
"""Longest tool name that model APIs accept, in characters."""


@dataclass
class MCPServerConfig:
    """How to reach an MCP server: a `command` to start it (stdio), or the `url` of one that runs (streamable HTTP)."""

    name: str
    command: str | None = None
    args: Sequence[str] = ()
    env: dict[str, str] | None = None
    """Environment variables of the server, besides PATH, HOME and the like."""
    description: str = ""
    url: str | None = None
    """Address of its MCP endpoint, e.g. `http://localhost:8000/mcp`."""
    headers: dict[str, str] | None = None
    """HTTP headers sent with every request, e.g. an Authorization."""
    cwd: str | os.PathLike[str] | None = None
    """Folder the command is started in."""
    call_timeout_s: float = 60.0
    """Longest wait for one tool call, in seconds, from when it is sent."""
    connect_timeout_s: float = 30.0
    """Longest wait until the server has started and listed its tools, in seconds."""
    max_concurrent_calls: int = 64
    """Calls this server is sent at once; further ones wait their turn."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigError(
                f"The MCP server {self.name!r} needs either a command (stdio) or a url (HTTP); got "
                f"command={self.command!r}, url={self.url!r}."
            )
        if not self.name:
            raise ConfigError("An MCP server needs a name.")
        self.args = [str(argument) for argument in self.args or ()]
        for limit in ("call_timeout_s", "connect_timeout_s", "max_concurrent_calls"):
            if getattr(self, limit) <= 0:
                raise ConfigError(
                    f"{limit} of the MCP server {self.name!r} must be positive; got {getattr(self, limit)}."
                )


class MCPToolConfig(BaseModel):
    """A command that serves MCP tools, as a validated configuration."""

    model_config = ConfigDict(extra="forbid")

    command: str
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None


class MCPTool:
    """A command that serves MCP tools."""

    def __init__(
        self,
        command: str,
        args: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        self.command = command
        self.args = tuple(args)
        self.env = None if env is None else dict(env)
        self.cwd = cwd

    @classmethod
    def from_mapping(cls, spec: Mapping[str, object]) -> MCPTool:
        """From a mapping with the keys `command`, `args`, `env`, `cwd`; other keys are refused."""
        return cls(**MCPToolConfig.model_validate(dict(spec)).model_dump())


def server_configs(given: Any) -> list[MCPServerConfig]:
    """Configurations from a list of configs, dicts or `MCPTool`s, or from `{name: settings}` (`mcpServers` too).

    Raises ConfigError for keys that do not exist and names used twice.
    """
    if isinstance(given, Mapping):
        named = given.get("mcpServers", given)
        given = [{"name": name, **settings} for name, settings in named.items()]
    configs = [_server_config(one, index) for index, one in enumerate(given or [])]
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"MCP servers must have different names; got {names}.")
    return configs


def _server_config(given: Any, index: int) -> MCPServerConfig:
    if isinstance(given, MCPServerConfig):
        return given
    if isinstance(given, MCPTool | MCPToolConfig):
        name = re.sub(r"\.\w+$", "", os.path.basename(given.command)) or "server"
        given = {
            "name": f"{name}_{index}",
            "command": given.command,
            "args": given.args,
            "env": given.env,
            "cwd": given.cwd,
        }
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"An MCP server is an MCPServerConfig or a dict; got {type(given).__name__}: {given!r:.200}"
        )
    known = [one.name for one in fields(MCPServerConfig)]
    settings = {key: value for key, value in given.items() if key not in ("type", "transport")}
    for key in settings:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" It may have {known}."
            raise ConfigError(f"The MCP server {given.get('name')!r} has no setting {key!r}.{hint}")
    if "name" not in settings:
        raise ConfigError(f"MCP server number {index} needs a 'name': {dict(given)!r:.200}")
    return MCPServerConfig(**settings)


# --------------------------------------------------------------------------------------------------- results


class MCPResult(NamedTuple):
    """What a tool gave: text, or content parts when there are images."""

    content: str | list[dict[str, Any]]
    is_error: bool


def as_result(result: Any) -> MCPResult:
    """A `CallToolResult` of the `mcp` package as the content of a tool message.

    Text parts are joined by line breaks. Images stay images, as `data:` URLs; other binary content is named, not
    shown.
    """
    parts = [_part(part) for part in result.content]
    is_error = bool(getattr(result, "is_error", None) or getattr(result, "isError", None))
    if any(part["type"] == "image_url" for part in parts):
        return MCPResult(parts, is_error)
    if parts:
        return MCPResult("\n".join(part["text"] for part in parts), is_error)
    structured = getattr(result, "structured_content", None) or getattr(
        result, "structuredContent", None
    )
    # The official server wraps what is no object, None included, as {"result": …}.
    says_something = structured and structured != {"result": None}
    return MCPResult(json.dumps(structured) if says_something else NO_RESULT, is_error)


def _part(part: Any) -> dict[str, Any]:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    mime_type = getattr(part, "mime_type", None) or getattr(part, "mimeType", None)
    if part.type == "image":
        return _image(mime_type, part.data)
    if part.type == "resource":
        resource = part.resource
        if (text := getattr(resource, "text", None)) is not None:
            return {"type": "text", "text": text}
        mime_type = getattr(resource, "mime_type", None) or getattr(resource, "mimeType", None)
        if str(mime_type).startswith("image/"):
            return _image(mime_type, resource.blob)
        return {"type": "text", "text": f"[{mime_type or 'binary'} resource {resource.uri}]"}
    if part.type == "resource_link":
        return {"type": "text", "text": f"[resource {part.uri}]"}
    return {"type": "text", "text": f"[{mime_type or part.type} content]"}


def _image(mime_type: Any, data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{data}"}}


def as_tool(tool: Any, name: str) -> Tool:
    """The definition of a server's tool under the name the model will use; its schema is passed on as it is."""
    schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None)
    return Tool(
        name=name,
        description=tool.description or "",
        parameters=schema or {"type": "object", "properties": {}},
    )


def offered_names(
    tools_of: Mapping[str, Sequence[str]], taken: Iterable[str] = ()
) -> dict[tuple[str, str], str]:
    """(server, tool) → the name the model sees.

    A tool keeps its own name; where several servers have one of that name, or it is `taken`, each becomes
    `<server>_<tool>`. Characters that model APIs refuse become `_`. Raises ConfigError when names still clash.
    """
    taken = set(taken)
    own = [
        _TOOL_NAME.sub("_", tool)[:MAX_TOOL_NAME] for tools in tools_of.values() for tool in tools
    ]
    names: dict[tuple[str, str], str] = {}
    for server, tools in tools_of.items():
        for tool in tools:
            name = _TOOL_NAME.sub("_", tool)[:MAX_TOOL_NAME]
            if name in taken or own.count(name) > 1:
                name = _TOOL_NAME.sub("_", f"{server}_{tool}")[:MAX_TOOL_NAME]
            if name in taken or name in names.values():
                raise ConfigError(
                    f"Two tools would be called {name!r}. Give the MCP server {server!r} another name."
                )
            names[server, tool] = name
    return names


# ---------------------------------------------------------------------------------------------------- server


@dataclass
class _InLoop:
    """A server as one event loop knows it."""

    slots: asyncio.Semaphore
    connection: MCPConnection | None = None
    ending: list[MCPConnection] = field(default_factory=list)
    """Lost connections that have not let go of their process or sockets yet."""


class MCPServer:
    """One configured server. Each event loop that uses it has its own connection, opened on first use and shared."""

    def __init__(self, config: MCPServerConfig) -> None:
        self.config = config
        self._in_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _InLoop] = (
            weakref.WeakKeyDictionary()
        )

    def _here(self) -> _InLoop:
        loop = asyncio.get_running_loop()
        known = self._in_loop.get(loop)
        if known is None:
            slots = asyncio.Semaphore(self.config.max_concurrent_calls)
            known = self._in_loop[loop] = _InLoop(slots)
        return known

    async def connection(self) -> MCPConnection:
        """The open connection of this event loop, opened anew when there is none or it is over.

        Raises MCPServerError when the server cannot be reached, ConfigError when its command does not exist or the
        `mcp` package is missing.
        """
        require_mcp()
        here = self._here()
        if here.connection is None or here.connection.is_over:
            here.ending = [
                old for old in (*here.ending, here.connection) if old and not old.is_closed
            ]
            here.connection = MCPConnection(self.config)
        return await here.connection.opened()

    async def call(self, tool: str, arguments: dict[str, Any]) -> MCPResult:
        """Call a tool. A call that no server has read is sent once more over a new connection; others never are."""
        here = self._here()
        async with here.slots:
            for _ in range(2):
                connection = await self.connection()
                try:
                    return as_result(await connection.call(tool, arguments))
                except CallNotSent:
                    connection.close_soon()
                except MCPAnswerLost:
                    connection.close_soon()
                    raise
        raise MCPServerError(
            f"The MCP server {self.config.name!r} ended its connection twice before it could be sent {tool!r}."
        )

    async def aclose(self) -> None:
        """Close the connections of all event loops; those of loops that ended were closed with them."""
        for loop, known in list(self._in_loop.items()):
            connections = [one for one in (*known.ending, known.connection) if one is not None]
            known.ending, known.connection = [], None
            if loop.is_closed():
                continue
            for connection in connections:
                if loop is asyncio.get_running_loop():
                    await connection.aclose()
                elif loop.is_running():
                    closing = asyncio.run_coroutine_threadsafe(connection.aclose(), loop)
                    await asyncio.wrap_future(closing)


def require_mcp() -> None:
    """Raise ConfigError with what to install unless the `mcp` package is there."""
    try:
        import mcp  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise ConfigError("MCP servers need the `mcp` package: pip install 'mcp>=1.30'.") from error


__all__ = [
    "MCPAnswerLost",
    "MCPResult",
    "MCPServer",
    "MCPServerConfig",
    "MCPServerError",
    "MCPTool",
    "MCPToolConfig",
    "MCPToolTimeout",
    "as_result",
    "as_tool",
    "offered_names",
    "server_configs",
]
