"""MCP servers that Harbor tasks declare: their entries in task.toml, their start, health and end."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import Logger
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from verifiers.decorators import cleanup
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.sandbox_mixin import SandboxSetupError
from verifiers.errors import ConfigError, SandboxError
from verifiers.state import State

NETWORK_TRANSPORTS = frozenset({"sse", "http", "streamable-http"})
STOP_TIMEOUT_S = 10
SHARED = ("none", "restricted")
"""Isolation levels at which a sandbox has the files of this machine."""
_DEFAULT_PORTS = {"http": 80, "https": 443, "": 80}


@dataclass(frozen=True)
class HarborMCPHealthcheck:
    """How to find out that an MCP server is ready."""

    command: str | None = None
    """Command for the sandbox; exit code 0 means ready. `{port}` is replaced by the port of the server. None checks
    whether a process listens on that port.
    """
    retries: int = 30
    """Number of consecutive failures that make the server fail."""
    interval_sec: float = 2.0
    start_period_sec: float = 0.0
    """Failures in this time do not count."""
    timeout_sec: float = 10.0
    """Time limit of one check, in whole seconds."""


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
    """Starts and stops the MCP servers that tasks declare.

    Servers of a network transport that have a launch command run in the sandbox of the agent. All others are left
    alone: the agent receives the URL of a remote server as the task declares it, and starts a stdio server itself.
    """

    mcp_launch_commands: dict[str, str]
    """Name of a server → command that starts it. Servers without a command are not started."""
    mcp_healthcheck: HarborMCPHealthcheck
    sandbox_client: Any
    logger: Logger

    async def mcp_launch_command(self, server: HarborMCPServer, state: State) -> str | None:
        """Return the shell command that starts a server. None means that the server is started elsewhere."""
        return self.mcp_launch_commands.get(server.name)

    async def mcp_agent_env_vars(self, config: dict[str, Any], state: State) -> dict[str, str]:
        """Return `HARBOR_MCP_<NAME>_URL` for each server that is reached over a port.

        The URL leads to 127.0.0.1 if the server is started here; otherwise it is the URL of the task.
        """
        launched = {server.name for server, _ in await self._launched_mcp_servers(config, state)}
        return {
            f"HARBOR_MCP_{re.sub(r'[^A-Za-z0-9]', '_', server.name).upper()}_URL": url
            for server in parse_mcp_servers(config)
            if server.is_network
            and (url := mcp_agent_url(server) if server.name in launched else server.url)
        }

    async def mcp_host_names(self, config: dict[str, Any], state: State) -> tuple[str, ...]:
        """Return the host names that must lead to the sandbox itself: those of the servers that are started here."""
        return _host_names(await self._launched_mcp_servers(config, state))

    async def start_mcp_servers(
        self, sandbox_id: str, config: dict[str, Any], state: State
    ) -> None:
        """Start the declared servers that have a command, all at once, and wait until each is healthy.

        The first failure ends the wait for the others. Raises SandboxError with the stderr of the server.
        """
        launched = await self._launched_mcp_servers(config, state)
        if not launched:
            return
        await self._name_hosts(sandbox_id, _host_names(launched))
        state["harbor_mcp_jobs"] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for server, command in launched:
                    group.create_task(self._start_mcp_server(sandbox_id, server, command, state))
        except BaseExceptionGroup as failures:
            first = failures.exceptions[0]
            if isinstance(first, SandboxError) or not isinstance(first, Exception):
                raise first from None
            raise SandboxSetupError(f"The MCP servers did not start: {first!r}") from first

    @cleanup(priority=1)
    async def stop_mcp_servers(self, state: State) -> None:
        """Kill the servers of this rollout with their child processes."""
        client, sandbox_id = self.sandbox_client, state.get("sandbox_id")
        is_gone = isinstance(client, SandboxClient) and not client.has(sandbox_id)
        for name in () if is_gone else state.get("harbor_mcp_jobs") or ():
            try:
                await client.execute_command(
                    sandbox_id, _stop_command(name), timeout=STOP_TIMEOUT_S
                )
            except Exception as error:  # noqa: BLE001 - the servers end with their sandbox at the latest
                self.logger.warning("The MCP server %r could not be stopped: %r", name, error)
        state["harbor_mcp_jobs"] = {}

    async def _launched_mcp_servers(
        self, config: dict[str, Any], state: State
    ) -> list[tuple[HarborMCPServer, str]]:
        """Return the servers that are started here, each with its command."""
        commands = [
            (server, await call_hook(self.mcp_launch_command, server, state))
            for server in parse_mcp_servers(config)
            if server.is_network
        ]
        return [(server, command) for server, command in commands if command is not None]

    async def _start_mcp_server(
        self, sandbox_id: str, server: HarborMCPServer, command: str, state: State
    ) -> None:
        job = await self.sandbox_client.start_background_job(
            sandbox_id=sandbox_id,
            command=_start_command(server.name, command),
            working_dir=None,
        )
        state["harbor_mcp_jobs"][server.name] = job
        if (port := mcp_url_port(server)) is not None:
            await self._wait_for_mcp_server(sandbox_id, server.name, port, job)

    async def _wait_for_mcp_server(self, sandbox_id: str, name: str, port: int, job: Any) -> None:
        check = self.mcp_healthcheck
        command = (check.command or self._default_mcp_health_cmd(port)).replace("{port}", str(port))

        async def is_healthy() -> bool:
            status = await self.sandbox_client.get_background_job(sandbox_id, job)
            if status.completed:
                raise SandboxSetupError(
                    f"MCP server {name!r} on port {port} exited before becoming healthy "
                    f"(exit_code={status.exit_code}): {_last_words(status)}"
                )
            return await succeeds(self.sandbox_client, sandbox_id, command, check.timeout_sec)

        if not await becomes_healthy(
            is_healthy,
            retries=check.retries,
            interval_s=check.interval_sec,
            start_period_s=check.start_period_sec,
        ):
            status = await self.sandbox_client.get_background_job(sandbox_id, job)
            raise SandboxSetupError(
                f"MCP server {name!r} on port {port} failed its health check after {max(1, check.retries)} consecutive "
                f"retries. Allow more with mcp_healthcheck=HarborMCPHealthcheck(retries=…). {_last_words(status)}"
            )

    async def _name_hosts(self, sandbox_id: str, names: Sequence[str]) -> None:
        """Resolve the host names of task.toml to the sandbox itself. Raises SandboxError if that is not possible."""
        client = self.sandbox_client
        if not names:
            return
        if isinstance(client, SandboxClient):
            sandbox = client.sandbox(sandbox_id)
            if set(names) <= set(sandbox.spec.host_names):
                return
            if sandbox.info.isolation in SHARED:
                self.logger.warning("%s: use 127.0.0.1; /etc/hosts is that of this machine", names)
                return
        lines = [shlex.quote(f"127.0.0.1 {name}") for name in names]
        added = [f"(grep -qxF {line} /etc/hosts || echo {line} >> /etc/hosts)" for line in lines]
        done = await client.execute_command(sandbox_id, " && ".join(added), working_dir=None)
        if done.exit_code != 0:
            raise SandboxSetupError(
                f"The host names {', '.join(names)} of MCP servers cannot be added to /etc/hosts "
                f"(exit_code={done.exit_code}): {(done.stderr or '').strip()}. The user of the sandbox may lack the "
                "permission, or the root file system is read-only: declare the servers with URLs on 127.0.0.1."
            )

    @staticmethod
    def _default_mcp_health_cmd(port: int) -> str:
        """Return a command with exit code 0 if a process listens on the port. It reads the kernel's tables, so that no
        server receives a stray connection.
        """
        return (
            f"awk '$4 == \"0A\" && $2 ~ /:{port:04X}$/ {{found = 1}} END {{exit !found}}' "
            "/proc/net/tcp /proc/net/tcp6 2>/dev/null"
        )


async def becomes_healthy(
    is_healthy: Callable[[], Awaitable[bool]],
    *,
    retries: int,
    interval_s: float,
    start_period_s: float = 0.0,
    start_interval_s: float | None = None,
) -> bool:
    """Return True at the first success, False after `retries` consecutive failures.

    Checks also run during the first `start_period_s` seconds, every `start_interval_s` (None: `interval_s`), but
    failures in that time do not count.
    """
    start_s, failures = time.monotonic(), 0
    while True:
        counts = time.monotonic() - start_s >= start_period_s
        if await is_healthy():
            return True
        failures += counts
        if failures >= max(1, retries):
            return False
        await asyncio.sleep(interval_s if counts or start_interval_s is None else start_interval_s)


async def succeeds(
    client: Any, sandbox_id: str, command: str, timeout_s: float, **options: Any
) -> bool:
    """Return whether a command ends with exit code 0 within its time limit, in whole seconds."""
    limit_s = max(1, int(timeout_s))
    try:
        done = await client.execute_command(
            sandbox_id, command, working_dir=None, timeout=limit_s, **options
        )
    except timeout_errors():
        return False
    return done.exit_code == 0


def _host_names(launched: Sequence[tuple[HarborMCPServer, str]]) -> tuple[str, ...]:
    names = {urlsplit(server.url or "").hostname for server, _ in launched}
    return tuple(sorted(name for name in names if name and not _is_local_address(name)))


def _pid_file(name: str) -> str:
    return shlex.quote(f"/tmp/harbor-mcp-{name.replace('/', '_')}.pid")


def _start_command(name: str, command: str) -> str:
    """Return a command that runs the server in its own process group and records the group's leader."""
    return f"setsid sh -c {shlex.quote(command)} & echo $! > {_pid_file(name)}; wait $!"


def _stop_command(name: str) -> str:
    file = _pid_file(name)
    return f'kill -9 -"$(cat {file} 2>/dev/null)" 2>/dev/null; rm -f {file}'


def _last_words(status: Any) -> str:
    return (status.stderr or status.stdout or "").strip()[-1000:]


def _is_local_address(host: str) -> bool:
    """Return whether a host needs no entry in /etc/hosts: localhost, or an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
