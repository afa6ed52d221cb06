"""`MCPEnv`: the tools of MCP servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifiers.decorators import setup, teardown
from verifiers.envs.tool_env import ErrorFormatter, ToolEnv
from verifiers.errors import ConfigError, MCPServerError, ToolCallError
from verifiers.state import State
from verifiers.tools.mcp import (
    MCPServer,
    MCPServerConfig,
    MCPTool,
    MCPToolConfig,
    as_tool,
    offered_names,
    server_configs,
)
from verifiers.types import GenerateOutputs


def _error_text(error: Exception) -> str:
    return f"Error: {error}"


class MCPEnv(ToolEnv):
    """Offers the tools of MCP servers, in addition to `tools`.

    `mcp_servers` holds `MCPServerConfig`s, or dicts with the same keys (`name` and `command`, `args`, `env`, or
    `name` and `url`, `headers`). Servers start when the first rollout needs them. All rollouts of an event loop
    share them, servers that died are restarted, and `aclose()` or the end of the loop closes them.

    The model sees the answers of a tool, including errors and timeouts. A server that cannot be reached, or that is
    lost during a call, is not the model's fault: the rollout ends with an `MCPServerError`, which is an
    `InfraError`, so the whole rollout may be retried. The call alone is never repeated. With
    `fail_on_server_error=False` the model receives this error, too, as in v0, and the rollout continues.
    """

    def __init__(
        self,
        mcp_servers: Sequence[MCPServerConfig | Mapping[str, Any] | MCPTool | MCPToolConfig]
        | Mapping[str, Any] = (),
        max_turns: int = 10,
        error_formatter: ErrorFormatter = _error_text,
        *,
        fail_on_server_error: bool = True,
        **kwargs: Any,
    ) -> None:
        self.mcp_servers = server_configs(mcp_servers)
        self.servers = [MCPServer(config) for config in self.mcp_servers]
        self._tools_known = False
        stop_errors = [*(kwargs.pop("stop_errors", None) or ())]
        if fail_on_server_error:
            stop_errors.append(MCPServerError)
        super().__init__(
            max_turns=max_turns, error_formatter=error_formatter, stop_errors=stop_errors, **kwargs
        )

    async def connect(self) -> None:
        """Start the servers that are not running, and offer their tools.

        The first rollout calls this method. Call it earlier to read `tool_defs`. Raises MCPServerError that names a
        server which cannot be used, and ConfigError if a command does not exist.
        """
        self._keep_open()  # an environment that was closed has something to close again
        try:
            async with asyncio.TaskGroup() as group:
                opening = [group.create_task(server.connection()) for server in self.servers]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        if self._tools_known:
            return
        offered = {
            server.config.name: {tool.name: tool for tool in task.result().tools}
            for server, task in zip(self.servers, opening, strict=True)
        }
        names = offered_names({name: list(tools) for name, tools in offered.items()}, self.tool_map)
        for server in self.servers:
            for tool in offered[server.config.name].values():
                self._offer_remote(server, tool, names[server.config.name, tool.name])
        self._tools_known = True

    def _offer_remote(self, server: MCPServer, tool: Any, name: str) -> None:
        function = self._caller(server, tool.name)
        function.__name__ = name
        definition = as_tool(tool, name)
        self.toolbox.functions[name] = function
        self.toolbox.definitions[name] = definition
        self.tools.append(function)
        self.tool_defs = [*(self.tool_defs or []), definition]
        self.tool_monitor_rubric.add_tool_metric(name)

    def _caller(self, server: MCPServer, tool_name: str) -> Callable[..., Any]:
        async def call(**arguments: Any) -> Any:
            try:
                result = await server.call(tool_name, arguments)
            except ConfigError as error:  # the command existed before and has been removed since
                raise MCPServerError(str(error)) from error
            if result.is_error:
                error = ToolCallError(str(result.content))
                if self._should_stop_for_error(error):
                    raise error
            return result.content

        return call

    @setup(priority=1000)
    async def offer_server_tools(self, state: State) -> None:
        """Start the servers and add their tools to those of this rollout."""
        if not self._tools_known:
            before = self._tools_for(state)
            await self.connect()
            if before == state.tool_defs:
                state.tool_defs = self._tools_for(state)

    async def generate(self, *args: Any, **kwargs: Any) -> GenerateOutputs:
        """Generate or evaluate as in every environment. If a server cannot be used, the run ends before a rollout."""
        await self.connect()
        return await super().generate(*args, **kwargs)

    @teardown
    async def teardown_mcp_servers(self) -> None:
        """Close all connections, which ends the servers that were started for them."""
        for server in self.servers:
            await server.aclose()


__all__ = ["MCPEnv", "MCPServerConfig", "MCPTool", "MCPToolConfig"]
