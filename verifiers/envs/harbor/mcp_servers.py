"""MCP servers that Harbor tasks declare: their entries in task.toml, their start, health and end."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import Logger
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from verifiers.decorators import cleanup
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient
from verifiers.envs.sandbox_mixin import SandboxSetupError
from verifiers.errors import ConfigError
from verifiers.state import State

NETWORK_TRANSPORTS = frozenset({"sse", "http", "streamable-http"})
_DEFAULT_PORTS = {"http": 80, "https": 443, "": 80}


@dataclass(frozen=True)
class HarborMCPHealthcheck:
    """How to find out that an MCP server is ready."""

    command: str | None = None
    """Command for the sandbox; exit code 0 means ready. None checks whether a process listens on the server's port."""
    retries: int = 30
    interval_sec: float = 2.0
    start_period_sec: float = 0.0
    """Seconds to wait before the first check."""
    timeout_sec: float = 10.0
    """Time limit of one check."""


@dataclass(frozen=True)
class HarborMCPServer:
    """One entry of `[[environment.mcp_servers]]` in task.toml."""

    name: str
    transport: str
    command: str | None = None
    args: list[str] = field(default_factory=list)
    url: str | None = None

    @property
    def is_network(self) -> bool:
        """Whether the agent reaches the server over a port. Otherwise the agent starts the server itself."""
        return self.transport in NETWORK_TRANSPORTS


def parse_mcp_servers(config: Mapping[str, Any]) -> list[HarborMCPServer]:
    """Return the servers that a task.toml declares. Entries without a name are skipped.

    Raises ConfigError, a ValueError, for a server that cannot be reached or started.
    """
    environment = config.get("environment")
    entries = environment.get("mcp_servers") if isinstance(environment, Mapping) else None
    servers: list[HarborMCPServer] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, Mapping) or not entry.get("name"):
            continue
        name = str(entry["name"])
        transport = str(entry.get("transport") or "sse")
        needed = "url" if transport in NETWORK_TRANSPORTS else "command"
        if transport in {*NETWORK_TRANSPORTS, "stdio"} and not entry.get(needed):
            raise ConfigError(
                f"MCP server {name!r}: {needed!r} is required for transport {transport!r}"
            )
        args = entry.get("args") or []
        if not isinstance(args, list):
            raise ConfigError(f"MCP server {name!r}: 'args' must be a list, got {args!r}")
        servers.append(
            HarborMCPServer(
                name,
                transport,
                command=entry.get("command"),
                args=[str(argument) for argument in args],
                url=entry.get("url"),
            )
        )
    return servers


def mcp_url_port(server: HarborMCPServer) -> int | None:
    """Return the port of a server's URL, or the default port of its scheme; None for a server without a URL. Raises
    ValueError above 65535.
    """
    if not server.url:
        return None
    parts = urlsplit(server.url)
    return parts.port if parts.port is not None else _DEFAULT_PORTS.get(parts.scheme)


def mcp_agent_url(server: HarborMCPServer) -> str | None:
    """Return a server's URL for the agent: the same on 127.0.0.1, because the server runs in the agent's sandbox."""
    if not server.url:
        return None
    parts = urlsplit(server.url)
    port = mcp_url_port(server)
    user, at, _ = parts.netloc.rpartition("@")
    netloc = f"{user}{at}127.0.0.1" + ("" if port is None else f":{port}")
    return urlunsplit(parts._replace(netloc=netloc))


class HarborMCPMixin:
    """Starts and stops the MCP servers that tasks declare."""

    mcp_launch_commands: dict[str, str]
    """Name of a server → command that starts it. Servers without a command are not started."""
    mcp_healthcheck: HarborMCPHealthcheck
    sandbox_client: Any
    logger: Logger

    async def mcp_launch_command(self, server: HarborMCPServer, state: State) -> str | None:
        """Return the shell command that starts a server. None means that the server is started elsewhere."""
        return self.mcp_launch_commands.get(server.name)

    async def mcp_agent_env_vars(self, config: dict[str, Any], state: State) -> dict[str, str]:
        """Return `HARBOR_MCP_<NAME>_URL` for each server that is reached over a port."""
        urls = {s.name: mcp_agent_url(s) for s in parse_mcp_servers(config) if s.is_network}
        return {
            f"HARBOR_MCP_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}_URL": url
            for name, url in urls.items()
            if url
        }

    async def start_mcp_servers(
        self, sandbox_id: str, config: dict[str, Any], state: State
    ) -> None:
        """Start the declared servers that have a command, one after the other, and wait until each is ready.

        Raises SandboxSetupError with the output of the server.
        """
        state["harbor_mcp_jobs"] = {}
        servers = parse_mcp_servers(config)
        await self._name_hosts(sandbox_id, servers)
        for server in servers:
            command = await call_hook(self.mcp_launch_command, server, state)
            if command is None:
                continue
            job = await self.sandbox_client.start_background_job(sandbox_id, command)
            state["harbor_mcp_jobs"][server.name] = job
            if (port := mcp_url_port(server)) is not None:
                await self._wait_for_mcp_server(sandbox_id, server.name, port, job)

    @cleanup(priority=1)
    async def stop_mcp_servers(self, state: State) -> None:
        """Stop the servers of this rollout."""
        jobs = state.pop("harbor_mcp_jobs", None) or {}
        client, sandbox_id = self.sandbox_client, state.get("sandbox_id")
        if isinstance(client, SandboxClient) and client.has(sandbox_id):
            for job in jobs.values():
                await client.end_background_job(sandbox_id, job)

    async def _wait_for_mcp_server(self, sandbox_id: str, name: str, port: int, job: Any) -> None:
        check = self.mcp_healthcheck
        command = check.command or self._default_mcp_health_cmd(port)
        await asyncio.sleep(check.start_period_sec)
        for attempt in range(max(1, check.retries)):
            if attempt:
                await asyncio.sleep(check.interval_sec)
            status = await self.sandbox_client.get_background_job(sandbox_id, job)
            if status.completed:
                raise SandboxSetupError(
                    f"MCP server {name!r} ended with code {status.exit_code} during its start: "
                    f"{(status.stderr or status.stdout or '').strip()[-1000:]}"
                )
            looked = await self.sandbox_client.execute_command(
                sandbox_id, command, timeout=check.timeout_sec
            )
            if looked.exit_code == 0:
                return
        raise SandboxSetupError(
            f"MCP server {name!r} did not listen on port {port} after {check.retries} checks. Allow more checks with "
            "mcp_healthcheck=HarborMCPHealthcheck(retries=…)."
        )

    async def _name_hosts(self, sandbox_id: str, servers: list[HarborMCPServer]) -> None:
        """Resolve the host names of task.toml to the sandbox itself, if its /etc/hosts is writable."""
        urls = [urlsplit(server.url) for server in servers if server.is_network and server.url]
        names = {parts.hostname for parts in urls if parts.hostname} - {"localhost", "127.0.0.1"}
        for name in sorted(names):
            line = shlex.quote(f"127.0.0.1 {name}")
            done = await self.sandbox_client.execute_command(
                sandbox_id, f"grep -qxF {line} /etc/hosts || echo {line} >> /etc/hosts"
            )
            if done.exit_code != 0:
                self.logger.info("%s cannot be resolved in the sandbox; use 127.0.0.1", name)

    @staticmethod
    def _default_mcp_health_cmd(port: int) -> str:
        """Return a command with exit code 0 if a process listens on the port. It reads the kernel's tables, so that no
        server receives a stray connection.
        """
        return (
            f"awk '$4 == \"0A\" && $2 ~ /:{port:04X}$/ {{found = 1}} END {{exit !found}}' "
            "/proc/net/tcp /proc/net/tcp6 2>/dev/null"
        )
