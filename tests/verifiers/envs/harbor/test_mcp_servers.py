"""MCP servers of a task on any sandbox client: what is started, how it is watched, published and stopped."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

import verifiers as vf
from verifiers.envs.experimental.harbor_env import HarborMCPHealthcheck, HarborMCPMixin
from verifiers.envs.sandbox_client import command_timeout
from verifiers.errors import SandboxError

DECLARED: dict[str, Any] = {
    "environment": {
        "mcp_servers": [
            {"name": "a b/c", "transport": "http", "url": "http://alpha:8001/mcp"},
            {"name": "beta", "transport": "sse", "url": "http://beta/x"},
            {"name": "far", "transport": "streamable-http", "url": "https://remote.example/x"},
            {"name": "near", "transport": "http", "url": "http://localhost:9000/"},
            {"name": "own", "transport": "stdio", "command": "own"},
        ]
    }
}
LAUNCH = {"a b/c": "run a", "beta": "run b --x 'y'", "near": "run n", "own": "run o"}
QUICK = HarborMCPHealthcheck(interval_sec=0.001)


class RecordingClient:
    """A sandbox client of somebody else: it notes every call and answers as it is told."""

    def __init__(self, *, probes: Any = 0, hosts: int = 0, ended: dict[str, int] | None = None):
        self.calls: list[tuple[str, Any]] = []
        self.probes, self.hosts, self.ended = probes, hosts, ended or {}

    @property
    def commands(self) -> list[str]:
        return [what for kind, what in self.calls if kind == "run"]

    async def execute_command(
        self, sandbox_id: str, command: str, working_dir: str | None = None, timeout: Any = None
    ) -> Any:
        assert sandbox_id == "box"
        self.calls.append(("run", command))
        if "/etc/hosts" in command or command.startswith("kill"):
            code = self.hosts
        else:
            self.calls.append(("limit", timeout))
            code = self.probes() if callable(self.probes) else self.probes
        return SimpleNamespace(exit_code=code, stdout="", stderr="no permission")

    async def start_background_job(
        self, sandbox_id: str, command: str, working_dir: str | None = None
    ) -> str:
        self.calls.append(("start", command))
        return f"job of {command}"

    async def get_background_job(self, sandbox_id: str, job: str) -> Any:
        code = next((code for name, code in self.ended.items() if name in job), None)
        return SimpleNamespace(completed=code is not None, exit_code=code, stdout="", stderr="boom")


class Servers(HarborMCPMixin):
    def __init__(
        self, client: Any, launch: dict[str, str], check: HarborMCPHealthcheck = QUICK
    ) -> None:
        self.sandbox_client, self.mcp_launch_commands, self.mcp_healthcheck = client, launch, check
        self.logger = logging.getLogger(__name__)


async def started(client: Any, launch: dict[str, str], check: HarborMCPHealthcheck = QUICK) -> Any:
    servers, state = Servers(client, launch, check), vf.State({"sandbox_id": "box"})
    await servers.start_mcp_servers("box", DECLARED, state)
    return servers, state


async def test_only_network_servers_with_a_command_are_started_and_all_others_left_alone():
    client = RecordingClient()
    servers, state = await started(client, LAUNCH)
    starts = [what for kind, what in client.calls if kind == "start"]
    assert ["run a" in starts[0], "run b" in starts[1], "run n" in starts[2]] == [True] * 3
    assert len(starts) == 3
    assert set(state["harbor_mcp_jobs"]) == {"a b/c", "beta", "near"}
    assert state["harbor_mcp_jobs"]["beta"] == f"job of {starts[1]}"
    assert await servers.mcp_agent_env_vars(DECLARED, state) == {
        "HARBOR_MCP_A_B_C_URL": "http://127.0.0.1:8001/mcp",
        "HARBOR_MCP_BETA_URL": "http://127.0.0.1:80/x",
        "HARBOR_MCP_FAR_URL": "https://remote.example/x",
        "HARBOR_MCP_NEAR_URL": "http://127.0.0.1:9000/",
    }
    nothing = Servers(RecordingClient(), {})
    published = await nothing.mcp_agent_env_vars(DECLARED, state)
    assert published["HARBOR_MCP_BETA_URL"] == "http://beta/x"
    await nothing.start_mcp_servers("box", DECLARED, state)
    assert nothing.sandbox_client.calls == []


async def test_one_command_names_all_hosts_before_the_first_start():
    client = RecordingClient()
    await started(client, LAUNCH)
    kind, command = client.calls[0]
    assert (kind, command.count("/etc/hosts")) == ("run", 4)
    assert "'127.0.0.1 alpha'" in command
    assert "'127.0.0.1 beta'" in command
    assert not any(name in command for name in ("remote", "localhost"))
    assert client.calls[1][0] == "start"


async def test_a_host_that_cannot_be_named_is_an_error_and_nothing_is_started():
    client = RecordingClient(hosts=1)
    with pytest.raises(SandboxError, match=r"beta .*/etc/hosts \(exit_code=1\): no permission"):
        await started(client, {"beta": "run b"})
    assert [kind for kind, _ in client.calls] == ["run"]


async def test_every_port_in_a_health_command_is_filled_in_and_its_limit_is_whole_seconds():
    client = RecordingClient()
    check = HarborMCPHealthcheck(command="probe {port} {other} {port}", timeout_sec=7.5)
    await started(client, {"a b/c": "run a"}, check)
    assert client.commands[1] == "probe 8001 {other} 8001"
    assert ("limit", 7) in client.calls


async def test_failures_of_the_start_period_do_not_count_and_probing_goes_on():
    results = iter([1, 1, 1, 1, 1, 0])
    check = HarborMCPHealthcheck(retries=1, interval_sec=0.001, start_period_sec=60)
    await started(RecordingClient(probes=lambda: next(results)), {"beta": "run b"}, check)
    with pytest.raises(StopIteration):
        next(results)


async def test_the_number_of_consecutive_failures_is_limited():
    client = RecordingClient(probes=1)
    check = HarborMCPHealthcheck(retries=3, interval_sec=0.001)
    with pytest.raises(SandboxError, match=r"'beta' on port 80 .* after 3 consecutive retries"):
        await started(client, {"beta": "run b"}, check)
    assert len(client.commands) == 1 + 3


async def test_a_probe_at_its_time_limit_has_failed():
    def probe() -> int:
        raise command_timeout("box", "probe", 1)

    check = HarborMCPHealthcheck(retries=2, interval_sec=0.001)
    with pytest.raises(SandboxError, match="after 2 consecutive retries"):
        await started(RecordingClient(probes=probe), {"beta": "run b"}, check)


async def test_a_server_that_has_exited_is_noticed_before_the_next_probe():
    client = RecordingClient(ended={"run b": 7})
    with pytest.raises(SandboxError, match=r"exited before becoming healthy \(exit_code=7\): boom"):
        await started(client, {"beta": "run b"})
    assert len(client.commands) == 1  # the hosts


async def test_servers_start_together_and_the_first_failure_ends_the_others():
    class Together(RecordingClient):
        def __init__(self) -> None:
            super().__init__()
            self.barrier = asyncio.Barrier(3)

        async def start_background_job(self, *args: Any, **kwargs: Any) -> str:
            job = await super().start_background_job(*args, **kwargs)
            await self.barrier.wait()
            if "run b" in job:
                raise OSError("no more processes")
            await asyncio.Event().wait()  # only the failure of another server ends this
            return job

    async with asyncio.timeout(60):
        with pytest.raises(SandboxError, match="no more processes"):
            await started(Together(), LAUNCH)


async def test_servers_are_killed_with_their_children_on_any_client():
    client = RecordingClient()
    servers, state = await started(client, {"beta": "run b", "a b/c": "run a"})
    client.calls.clear()
    await servers.stop_mcp_servers(state)
    assert [command.count('kill -9 -"$(cat ') for command in client.commands] == [1, 1]
    assert "harbor-mcp-beta.pid" in client.commands[1]
    assert state["harbor_mcp_jobs"] == {}
    await servers.stop_mcp_servers(state)
    assert len(client.commands) == 2
