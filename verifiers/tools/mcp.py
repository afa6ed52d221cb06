"""MCP servers as tools: configurations, results as messages, connections, and one server across event loops."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import IO, Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from verifiers.concurrency import PerLoop
from verifiers.errors import ConfigError, MCPAnswerLost, MCPServerError, ToolCallError
from verifiers.types import Tool

logger = logging.getLogger(__name__)

CONNECT_ATTEMPTS_S = (0.1, 0.4, 1.5)
"""Waits before a refused HTTP connection is tried again, in seconds. At that point nothing has been sent."""
CONNECTION_CLOSED = -32000
"""The JSON-RPC code with which `mcp` answers requests whose connection ended."""
END_NOTICE_STEPS = 8
"""Turns of the event loop that the end of a pipe needs through asyncio, anyio and `mcp`: 6 measured, plus a reserve."""
MAX_SERVER_WORDS = 2_000
"""Maximum length of a server's stderr in an error message, in characters."""


NO_RESULT = "No result returned from tool"
_TOOL_NAME = re.compile(r"[^a-zA-Z0-9_-]")
MAX_TOOL_NAME = 64
"""Maximum length of a tool name in model APIs, in characters."""


@dataclass
class MCPServerConfig:
    """How to reach an MCP server: the `command` that starts it (stdio), or its `url` (streamable HTTP)."""

    name: str
    command: str | None = None
    args: Sequence[str] = ()
    env: dict[str, str] | None = None
    """Environment variables of the server, in addition to PATH, HOME and similar ones."""
    description: str = ""
    url: str | None = None
    """URL of the server, for example `http://localhost:8000/mcp`."""
    headers: dict[str, str] | None = None
    """HTTP headers of every request, for example Authorization."""
    cwd: str | os.PathLike[str] | None = None
    """Folder in which the command runs."""
    call_timeout_s: float = 60.0
    """Time limit of one tool call after it was sent, in seconds."""
    connect_timeout_s: float = 30.0
    """Time limit for the start of the server and the list of its tools, in seconds."""
    max_concurrent_calls: int = 64
    """Maximum number of concurrent calls to this server. Further calls wait."""

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
        """Return an MCPTool from a mapping with the keys `command`, `args`, `env` and `cwd`. Raises an error for other
        keys.
        """
        return cls(**MCPToolConfig.model_validate(dict(spec)).model_dump())


def server_configs(servers: Any) -> list[MCPServerConfig]:
    """Return the configurations in a list of configs, dicts or `MCPTool`s, or in `{name: settings}` (also
    `mcpServers`).

    Raises ConfigError for unknown keys and duplicate names.
    """
    if isinstance(servers, Mapping):
        named = servers.get("mcpServers", servers)
        servers = [{"name": name, **settings} for name, settings in named.items()]
    configs = [_server_config(one, index) for index, one in enumerate(servers or [])]
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"MCP servers must have different names; got {names}.")
    return configs


def _server_config(server: Any, index: int) -> MCPServerConfig:
    if isinstance(server, MCPServerConfig):
        return server
    if isinstance(server, MCPTool | MCPToolConfig):
        name = re.sub(r"\.\w+$", "", os.path.basename(server.command)) or "server"
        server = {
            "name": f"{name}_{index}",
            "command": server.command,
            "args": server.args,
            "env": server.env,
            "cwd": server.cwd,
        }
    if not isinstance(server, Mapping):
        raise ConfigError(
            f"An MCP server must be an MCPServerConfig or a dict; got {type(server).__name__}: {server!r:.200}"
        )
    allowed = [one.name for one in fields(MCPServerConfig)]
    settings = {key: value for key, value in server.items() if key not in ("type", "transport")}
    for key in settings:
        if key not in allowed:
            near = get_close_matches(str(key), allowed, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" The settings are {allowed}."
            raise ConfigError(
                f"The MCP server {server.get('name')!r} has no setting {key!r}.{hint}"
            )
    if "name" not in settings:
        raise ConfigError(f"MCP server number {index} needs a 'name': {dict(server)!r:.200}")
    return MCPServerConfig(**settings)


# --------------------------------------------------------------------------------------------------- results


class MCPResult(NamedTuple):
    """The result of a tool: text, or content parts if it contains images."""

    content: str | list[dict[str, Any]]
    is_error: bool


def as_result(result: Any) -> MCPResult:
    """Return a `CallToolResult` of the `mcp` package as content of a tool message.

    Text parts are joined by line breaks. Images stay images, as `data:` URLs. Other binary content is replaced by
    its name.
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
    # The official server wraps values other than objects, None included, as {"result": …}.
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
    """Return the definition of a server's tool under the name for the model. Its schema is passed on unchanged."""
    schema = getattr(tool, "input_schema", None) or getattr(tool, "inputSchema", None)
    return Tool(
        name=name,
        description=tool.description or "",
        parameters=schema or {"type": "object", "properties": {}},
    )


def offered_names(
    tools_of: Mapping[str, Sequence[str]], taken: Iterable[str] = ()
) -> dict[tuple[str, str], str]:
    """Return the mapping (server, tool) → name for the model.

    A tool keeps its own name. If several servers use that name, or it is in `taken`, each tool becomes
    `<server>_<tool>`. Characters that model APIs refuse become `_`. Raises ConfigError if names still clash.
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
                    f"Two tools would have the name {name!r}. Give the MCP server {server!r} another name."
                )
            names[server, tool] = name
    return names


# ------------------------------------------------------------------------------------------------ connection
#
# The `mcp` package opens cancel scopes that must be left in the task that entered them. Each connection therefore has a
# task that opens the transport, waits until the connection is closed or the loop ends, and closes the transport.
# Callers in other tasks only send requests through the session.
#
# A call is never sent twice once a server may have read it. The connection therefore records whether the request of a
# call was passed to the transport, and, over HTTP, whether the server refused it unread. Works with major versions 1
# and 2 of `mcp`.


class MCPToolTimeout(ToolCallError, TimeoutError):
    """A tool of an MCP server did not answer in time."""


class CallNotSent(Exception):
    """The server has not read this call, so it may be sent again over a new connection."""


_outgoing: ContextVar[set[Any] | None] = ContextVar("mcp_outgoing_call_ids", default=None)
"""The ids of the call requests that the current task passed to a transport."""


@contextmanager
def _recording() -> Generator[set[Any]]:
    ids: set[Any] = set()
    token = _outgoing.set(ids)
    try:
        yield ids
    finally:
        _outgoing.reset(token)


class _Stream:
    """A transport's stream, passed through."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> Any:
        return await self._stream.__aexit__(*details)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _ReportingStream(_Stream):
    """A stream for messages to the server. It records the id of every tool call that passes."""

    async def send(self, item: Any) -> None:
        ids = _outgoing.get()
        message = getattr(item.message, "root", item.message)
        request_id = getattr(message, "id", None)
        if ids is None or getattr(message, "method", None) != "tools/call":
            await self._stream.send(item)
            return
        # Recorded first: a send that is interrupted may have delivered the message.
        ids.add(request_id)
        import anyio

        try:
            await self._stream.send(item)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            ids.discard(request_id)
            raise


class _WatchedStream(_Stream):
    """A stream for messages from the server. It calls `ended` when the server has sent its last message."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        super().__init__(stream)
        self._ended = ended

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except Exception:
            self._ended()
            raise

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except Exception:
            self._ended()
            raise


class MCPConnection:
    """A session that is opening, open or ended. Create it in the event loop that uses it."""

    def __init__(self, config: MCPServerConfig) -> None:
        self.config = config
        self.session: Any = None
        self.tools: list[Any] = []
        """The tools of the server, as the `mcp` package describes them."""
        self._refused: set[Any] = set()
        self._clocks: set[asyncio.Timeout] = set()
        """The time limits of the calls in flight."""
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A failure that no caller awaits is reported by the next use, not by the garbage collector.
        self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        self._task = asyncio.create_task(self._live(), name=f"mcp-{config.name}")

    @property
    def is_over(self) -> bool:
        """Whether the connection can no longer send requests."""
        return self._task.done() or self._closing.is_set()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has released its process or sockets."""
        return self._task.done()

    async def opened(self) -> MCPConnection:
        """Return the connection once it is open. Raises MCPServerError or ConfigError if it cannot be opened.

        Cancelling one caller does not stop the opening for others.
        """
        await asyncio.shield(self._ready)
        return self

    def close_soon(self) -> None:
        """Close the connection in the background."""
        self._closing.set()

    async def aclose(self) -> None:
        """Close the session and end the server process, if there is one."""
        self._closing.set()
        await asyncio.wait([self._task])

    # ------------------------------------------------------------------------------------------------ calling

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Return the server's result for one call, which may be an error result.

        Raises CallNotSent, MCPAnswerLost, MCPToolTimeout, or ToolCallError if the server refuses the call.
        """
        limit_s = self.config.call_timeout_s
        if not self.config.url and not self._clocks:
            await self._notice_the_end()
        clock = asyncio.timeout(limit_s)
        with _recording() as sent:
            try:
                async with clock:
                    self._clocks.add(clock)
                    return await self.session.call_tool(tool, arguments)
            except TimeoutError as error:
                if not clock.expired():
                    raise ToolCallError(f"Tool {tool!r}: {error}") from error
                self._explain(tool, error, sent)
                raise MCPToolTimeout(
                    f"Tool {tool!r} of the MCP server {self.config.name!r} did not answer within {limit_s:g} s."
                ) from None
            except Exception as error:
                self._explain(tool, error, sent)
                raise ToolCallError(str(error) or f"{type(error).__name__}") from error
            finally:
                self._clocks.discard(clock)

    async def _notice_the_end(self) -> None:
        """Let the event loop read the end of a dead server's output before a call is written to its pipe.

        This is needed only while no call is in flight: a call in flight detects the end itself.
        """
        for _ in range(END_NOTICE_STEPS):
            await asyncio.sleep(0)
            if self.is_over:
                break
        if self.is_over:
            raise CallNotSent

    def _explain(self, tool: str, error: Exception, sent: set[Any]) -> None:
        """Raise the error that the end of a connection causes for a call. Return if the connection is not the cause."""
        if sent and sent <= self._refused:
            raise CallNotSent from error
        import anyio

        closed = isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError)
        code = getattr(getattr(error, "error", None), "code", None)
        if not closed and code != CONNECTION_CLOSED and not self.is_over:
            return
        if not sent:
            raise CallNotSent from error
        raise MCPAnswerLost(
            f"The MCP server {self.config.name!r} was lost while it ran {tool!r}. "
            "It is not known whether the tool took effect."
        ) from error

    # ------------------------------------------------------------------------------------------------- living

    async def _live(self) -> None:
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr:
            try:
                async with AsyncExitStack() as stack:
                    await self._open(stack, stderr)
                    if not self._ready.done():
                        self._ready.set_result(None)
                    try:
                        await self._closing.wait()
                    finally:
                        self._closing.set()
                        for clock in self._clocks:  # no answers will arrive
                            clock.reschedule(asyncio.get_running_loop().time())
            except asyncio.CancelledError:
                self._fail(
                    MCPServerError(
                        f"The start of the MCP server {self.config.name!r} was interrupted."
                    )
                )
                raise
            except BaseException as error:  # noqa: BLE001 - passed to the waiting caller, or logged
                self._fail(self._described(error, stderr))
            finally:
                self._closing.set()

    def _fail(self, error: Exception) -> None:
        if self._ready.done():
            logger.info("MCP server %r: %s", self.config.name, error)
        else:
            self._ready.set_exception(error)

    def _described(self, error: BaseException, stderr: IO[str]) -> Exception:
        if isinstance(error, ConfigError):
            return error
        name = self.config.name
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
            return ConfigError(
                f"The MCP server {name!r} cannot be started: {error}. Is {self.config.command!r} installed and on "
                "the PATH?"
            )
        if isinstance(error, TimeoutError):
            reason = f"it did not answer within {self.config.connect_timeout_s:g} s"
        else:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        stderr.seek(0)
        output = stderr.read()[-MAX_SERVER_WORDS:].strip()
        target = self.config.url or " ".join([self.config.command or "", *self.config.args])
        failure = MCPServerError(
            f"The MCP server {name!r} ({target}) cannot be used: {reason}."
            + (f" Its last output:\n{output}" if output else "")
        )
        failure.__cause__ = error
        return failure

    async def _open(self, stack: AsyncExitStack, stderr: IO[str]) -> None:
        from mcp import ClientSession

        async with asyncio.timeout(self.config.connect_timeout_s):
            if self.config.url:
                streams = await stack.enter_async_context(self._http_transport())
            else:
                streams = await stack.enter_async_context(self._stdio_transport(stderr))
            self.session = await stack.enter_async_context(
                ClientSession(
                    _WatchedStream(streams[0], self._closing.set),  # pyright: ignore[reportArgumentType]
                    _ReportingStream(streams[1]),  # pyright: ignore[reportArgumentType]
                )
            )
            await self.session.initialize()
            self.tools = await _all_tools(self.session)

    def _stdio_transport(self, stderr: IO[str]) -> Any:
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        config = self.config
        parameters = StdioServerParameters(
            command=config.command or "",
            args=list(config.args),
            env=config.env,
            cwd=None if config.cwd is None else os.fspath(config.cwd),
        )
        return stdio_client(parameters, errlog=stderr)  # pyright: ignore[reportArgumentType]

    def _http_transport(self) -> Any:
        streamable_http: Any = importlib.import_module("mcp.client.streamable_http")
        url = self.config.url or ""
        client = _http_client(streamable_http, self.config, self._refused)
        if hasattr(streamable_http, "streamable_http_client"):
            return _with_client(
                streamable_http.streamable_http_client(url, http_client=client), client
            )
        return streamable_http.streamablehttp_client(  # mcp before 1.24
            url, headers=self.config.headers, httpx_client_factory=lambda **_: client
        )


async def _all_tools(session: Any) -> list[Any]:
    """Return every page of the server's list of tools."""
    from mcp import types

    page = await session.list_tools()
    tools = list(page.tools)
    while cursor := getattr(page, "next_cursor", None) or getattr(page, "nextCursor", None):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
    return tools


@asynccontextmanager
async def _with_client(transport: Any, client: Any) -> AsyncGenerator[Any]:
    """Open a transport together with the HTTP client that was made for it."""
    async with client, transport as streams:
        yield streams


def _http_client(sdk: Any, config: MCPServerConfig, refused: set[Any]) -> Any:
    """Return a client of the HTTP library that this version of `mcp` uses.

    The client waits for a server that is being restarted. It adds to `refused` the ids of requests that no server
    read: requests without a connection, and requests for a session that the server does not have (404).
    """
    http = getattr(sdk, "httpx2", None) or sdk.httpx

    class Client(http.AsyncClient):
        async def send(self, request: Any, **options: Any) -> Any:
            for wait_s in (*CONNECT_ATTEMPTS_S, None):
                try:
                    response = await super().send(request, **options)
                except (http.ConnectTimeout, http.PoolTimeout):
                    _note_refused(request, refused)
                    raise
                except http.ConnectError:
                    if wait_s is None or request.method != "POST":
                        _note_refused(request, refused)
                        raise
                    await asyncio.sleep(wait_s)
                else:
                    if response.status_code == 404 and "mcp-session-id" in request.headers:
                        _note_refused(request, refused)
                    return response

    size = config.max_concurrent_calls
    return Client(
        headers=config.headers,
        timeout=http.Timeout(config.connect_timeout_s, read=None),
        limits=http.Limits(max_connections=size + 8, max_keepalive_connections=size + 8),
    )


def _note_refused(request: Any, refused: set[Any]) -> None:
    try:
        refused.add(json.loads(request.content)["id"])
    except (ValueError, KeyError, TypeError, RuntimeError):
        pass  # a notification, a GET or a DELETE, which has no answer


# ---------------------------------------------------------------------------------------------------- server


class _LoopLink:
    """The connection of one event loop to a server, and the slots of its calls."""

    def __init__(self, config: MCPServerConfig) -> None:
        self.config = config
        self.slots = asyncio.Semaphore(config.max_concurrent_calls)
        self._connection: MCPConnection | None = None
        self._ending: list[MCPConnection] = []
        """Lost connections that have not released their process or sockets yet."""

    async def connection(self) -> MCPConnection:
        """Return the open connection. Open a new one if there is none, or if it has ended."""
        if self._connection is None or self._connection.is_over:
            known = (*self._ending, self._connection)
            self._ending = [old for old in known if old and not old.is_closed]
            self._connection = MCPConnection(self.config)
        return await self._connection.opened()

    async def aclose(self) -> None:
        """Close all connections."""
        connections = [one for one in (*self._ending, self._connection) if one is not None]
        self._ending, self._connection = [], None
        for connection in connections:
            await connection.aclose()


class MCPServer:
    """One configured server. Each event loop has its own connection, which is opened on first use and shared."""

    def __init__(self, config: MCPServerConfig) -> None:
        self.config = config
        self._links = PerLoop(lambda: _LoopLink(config), lambda link: link.aclose())

    async def connection(self) -> MCPConnection:
        """Return the open connection of this event loop. Open a new one if there is none, or if it has ended.

        Raises MCPServerError if the server cannot be reached, and ConfigError if its command does not exist or the
        `mcp` package is missing.
        """
        require_mcp()
        return await self._links.here().connection()

    async def call(self, tool: str, arguments: dict[str, Any]) -> MCPResult:
        """Call a tool. A call that no server has read is sent once more over a new connection; other calls are not
        repeated.
        """
        async with self._links.here().slots:
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
            f"The connection to the MCP server {self.config.name!r} ended twice before {tool!r} could be sent."
        )

    async def aclose(self) -> None:
        """Close the connections of all event loops."""
        await self._links.aclose()


def require_mcp() -> None:
    """Raise ConfigError with the command to install, if the `mcp` package is missing."""
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
