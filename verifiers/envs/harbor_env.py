"""`HarborEnv`: any command-line agent on tasks in Harbor's format.

    tasks/hello/task.toml           metadata, limits, image, MCP servers
                instruction.md      the instruction for the agent
                environment/        how to build the image; not used here
                tests/test.sh       writes /logs/verifier/reward.txt or reward.json
                solution/           a solution, to check the task itself

Source: https://github.com/harbor-framework/harbor
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import Logger
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from verifiers.decorators import cleanup
from verifiers.envs.cli_agent_env import CliAgentEnv
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.sandbox_mixin import SandboxSetupError
from verifiers.errors import ConfigError, DatasetError, SandboxError
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxDead, SandboxFileError, SandboxSpec
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


logger = logging.getLogger(__name__)


def task_rows(dataset_path: Path, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return one row per task, in the order of the names. Other folders are skipped with a warning.

    Raises FileNotFoundError for a missing folder, and DatasetError if a task cannot be read or no task is left.
    """
    if not dataset_path.exists():
        raise FileNotFoundError(f"Dataset path not found: {dataset_path}")
    rows: list[dict[str, Any]] = []
    for folder in sorted(path for path in dataset_path.iterdir() if path.is_dir()):
        if names is not None and folder.name not in names:
            continue
        if not ((folder / "task.toml").is_file() and (folder / "instruction.md").is_file()):
            logger.warning("Skipping %s: missing task.toml or instruction.md", folder.name)
            continue
        rows.append({"example_id": len(rows), **_row(folder)})
    missing = sorted(set(names or ()) - {row["info"]["task_name"] for row in rows})
    if not rows or missing:
        wanted = f"; missing: {', '.join(missing)}" if missing else ""
        raise DatasetError(f"No valid Harbor tasks found in {dataset_path}{wanted}.")
    return rows


def _row(folder: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        instruction = (folder / "instruction.md").read_text("utf-8").strip()
    except ValueError as error:  # errors of tomllib and UTF-8
        raise DatasetError(f"The task {folder} cannot be read: {error}") from error
    environment = config.get("environment")
    image = environment.get("docker_image") if isinstance(environment, dict) else None
    return {
        "prompt": [{"role": "user", "content": instruction}],
        "info": {
            "task_name": folder.name,
            "task_dir": str(folder),
            "docker_image": image,
            "config": config,
        },
    }


def time_limit_s(config: Any, section: str, default_s: float) -> float:
    """Return `timeout_sec` of a section of task.toml."""
    inner = (config or {}).get(section) or {}
    limit_s = inner.get("timeout_sec")
    return float(limit_s) if isinstance(limit_s, int | float) and limit_s > 0 else default_s


def parse_reward(text: str) -> float | None:
    """Return the reward in a `reward.txt` (a number) or `reward.json` (an object with `reward`), or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = float(text)  # "1.", "+1", "1_0" and similar forms
        except ValueError:
            return None
    if isinstance(value, dict):
        value = value.get("reward")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float):
        return None
    try:
        reward = float(value)
    except OverflowError:
        return None
    return reward if math.isfinite(reward) else None


TASK_DIR = "/task"
REWARD_DIR = "/logs/verifier"
TESTS_TIMEOUT_S = 300.0
"""Time limit of a task without `timeout_sec` under `[verifier]`."""
_UPLOADS = {"solution": "/oracle", "tests": "/tests"}
"""Folders of a task that its tests need → their paths in the sandbox."""
_OWN_PLACES = ("/box", "/tmp")
_SHOWN_CHARACTERS = 1000


_READ_REWARD = f"""
cd {REWARD_DIR} 2>/dev/null || exit 0
for name in reward.txt reward.json; do
  if [ -f $name ] && [ ! -L $name ] && [ -s $name ]; then head -c 65536 $name; break; fi
done
"""
"""Links and fifos are not read."""


class VerifierError(SandboxError):
    """The tests of a task never write a reward, so the solution cannot be judged."""


class _CommandFailed(SandboxError):
    """A command of this module ended with an exit code other than 0."""


class TestRun(NamedTuple):
    """The result of a task's tests."""

    reward: float | None
    ended: str
    """A description of the reward that they wrote, and of their end."""


class HarborEnv(HarborMCPMixin, CliAgentEnv):
    """Runs `run_command` on each task below `dataset_path` and scores it with the tests of the task.

    The agent finds its instruction in `/task/instruction.md` and works in `agent_workdir`. The variables
    `HARBOR_TASK_NAME`, `HARBOR_TASK_DIR`, `HARBOR_INSTRUCTION_PATH` and `AGENT_WORKDIR` hold these values. Tests
    and solution are uploaded when the agent has ended. `tasks` selects tasks by name. `mcp_launch_commands` starts
    the MCP servers that tasks declare.
    """

    def __init__(
        self,
        run_command: str,
        dataset_path: str | Path,
        tasks: list[str] | None = None,
        agent_workdir: str = "/app",
        docker_image: str = "python:3.11-slim",
        mcp_launch_commands: dict[str, str] | None = None,
        mcp_healthcheck: HarborMCPHealthcheck | None = None,
        *,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in ("dataset", "rubric"):
            if name in kwargs:
                raise TypeError(
                    f"HarborEnv creates its own {name} from dataset_path; use add_rubric for further metrics."
                )
        self.dataset_path = Path(dataset_path)
        self.task_names = tasks
        self.agent_workdir = agent_workdir
        self.mcp_launch_commands = mcp_launch_commands or {}
        self.mcp_healthcheck = mcp_healthcheck or HarborMCPHealthcheck()
        self._graded_without_an_agent: dict[str, bool] = {}
        super().__init__(
            run_command=run_command,
            docker_image=docker_image,
            dataset=self.load_harbor_dataset(),
            rubric=Rubric(funcs=[self.harbor_reward], weights=[1.0]),
            sandbox_spec=_with_folders(sandbox_spec, agent_workdir),
            **kwargs,
        )

    def load_harbor_dataset(self) -> Any:
        """Return the tasks as rows: the instruction as prompt; name, folder, image and task.toml in `info`."""
        return task_rows(self.dataset_path, self.task_names)

    async def get_docker_image(self, state: State) -> str:
        """Return the image of the task, or that of the environment."""
        return (state.get("info") or {}).get("docker_image") or self.docker_image

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Return the variables of an agent, the location of its task and the URLs of the task's MCP servers."""
        info = state.get("info") or {}
        return {
            **await super().build_env_vars(state),
            "HARBOR_TASK_NAME": str(info.get("task_name") or ""),
            "HARBOR_TASK_DIR": TASK_DIR,
            "HARBOR_INSTRUCTION_PATH": f"{TASK_DIR}/instruction.md",
            "AGENT_WORKDIR": self.agent_workdir,
            **await self.mcp_agent_env_vars(info.get("config") or {}, state),
        }

    # ------------------------------------------------------------------------------------------- before the agent

    async def post_sandbox_setup(self, state: State) -> None:
        """Upload the instruction of the task and start its MCP servers."""
        info = state.get("info") or {}
        task_dir = Path(info.get("task_dir") or "")
        if not (task_dir / "instruction.md").is_file():
            raise ConfigError(
                f"The task folder {str(task_dir)!r} of this row does not exist or has no instruction.md."
            )
        state["harbor_task_dir"] = str(task_dir)
        sandbox_id = state["sandbox_id"]
        await call_hook(self.prepare_harbor_task, sandbox_id, task_dir)
        await call_hook(self.pre_mcp_setup, state)
        await self.start_mcp_servers(sandbox_id, info.get("config") or {}, state)

    async def pre_mcp_setup(self, state: State) -> None:
        """Hook for authors: install or upload the files that the MCP servers need."""

    async def prepare_harbor_task(self, sandbox_id: str, task_dir: Path) -> None:
        """Create the folders that tasks expect, and upload the instruction."""
        await self._shell(
            sandbox_id, f"mkdir -p {TASK_DIR} {REWARD_DIR} {shlex.quote(self.agent_workdir)}"
        )
        instruction = str(task_dir / "instruction.md")
        await self.upload_file(sandbox_id, f"{TASK_DIR}/instruction.md", instruction)

    # -------------------------------------------------------------------------------------------- after the agent

    async def upload_test_assets(self, sandbox_id: str, task_dir: Path) -> None:
        """Upload tests and solution. Remove the files that the agent left at their paths or as its reward."""
        folders = " ".join(_UPLOADS.values())
        # `find` fails on directories that it may not list or change.
        await self._shell(
            sandbox_id,
            f"mkdir -p {folders}; chmod -R u+rwX {folders} /logs 2>/dev/null; find {folders} -mindepth 1 -delete && "
            f"rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}",
        )
        for name, target in _UPLOADS.items():
            folder = task_dir / name
            for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
                if path.is_file():
                    remote = f"{target}/{path.relative_to(folder).as_posix()}"
                    await self.upload_file(sandbox_id, remote, str(path))

    async def post_rollout(self, state: State) -> None:
        """Score the sandbox in the state in which the agent left it."""
        if state.error is None and "harbor_task_dir" in state:
            state.reward = await self.compute_reward(state)

    async def harbor_reward(self, state: State, **_: Any) -> float:
        """Return the reward that the tests of the task have written."""
        return float(state.get("reward") or 0.0)

    async def compute_reward(self, state: State) -> float:
        """Run `tests/test.sh` and read the reward that it wrote: `reward.txt`, else `reward.json`.

        If the tests write no reward, they run once more in a sandbox without an agent's changes. If they write a
        reward there, the solution prevented it, and the reward is 0.0. Otherwise raises VerifierError.
        """
        sandbox_id, task_dir = state["sandbox_id"], Path(state["harbor_task_dir"])
        run = await self._run_tests(sandbox_id, state)
        if run.reward is not None:
            return run.reward
        if await self._is_graded_without_an_agent(state):
            state["harbor_tests_ended"] = run.ended
            self.logger.info("Task %s: reward 0, the tests wrote %s", task_dir.name, run.ended)
            return 0.0
        raise VerifierError(f"The tests of {task_dir.name} wrote {run.ended}")

    async def _run_tests(self, sandbox_id: str, state: State) -> TestRun:
        """Upload the tests into a sandbox, run them and read their reward."""
        task_dir, client = Path(state["harbor_task_dir"]), self.sandbox_client
        config = (state.get("info") or {}).get("config")
        limit_s = time_limit_s(config, "verifier", TESTS_TIMEOUT_S)
        reward_text = ""
        tested = state if sandbox_id == state["sandbox_id"] else {"sandbox_id": sandbox_id}
        try:
            await self.upload_test_assets(sandbox_id, task_dir)
            try:
                done = await self.run_background_job(tested, "bash test.sh", int(limit_s), "/tests")
                last_words = (done.stderr or done.stdout or "").strip()[-_SHOWN_CHARACTERS:]
                ended = f"exit code {done.exit_code}; {last_words}"
            except timeout_errors():
                ended = f"it was stopped after {limit_s:g} s"
            if isinstance(client, SandboxClient):
                # Processes that the solution left running during the tests can no longer change the reward.
                await client.sandbox(sandbox_id).end_processes()
            reward_text = await self._shell(sandbox_id, _READ_REWARD)
        except SandboxDead as error:
            if not error.by_program:
                raise
            ended = str(error)
        except (SandboxFileError, _CommandFailed) as error:
            ended = f"the tests could not be uploaded: {error}"
        wrote = f"the reward {reward_text.strip()[:100]!r}" if reward_text.strip() else "no reward"
        return TestRun(parse_reward(reward_text), f"{wrote} to {REWARD_DIR}: {ended}")

    async def _is_graded_without_an_agent(self, state: State) -> bool:
        """Return whether the tests of a task write a reward in a sandbox without any changes."""
        task_dir, client = Path(state["harbor_task_dir"]), self.sandbox_client
        if not isinstance(client, SandboxClient) or self.score_in == "live":
            return False
        known = self._graded_without_an_agent.get(str(task_dir))
        if known is None:
            created = await client.create_like(state["sandbox_id"])
            self.register_sandbox(created.id)
            try:
                await client.wait_for_creation(created.id)
                await call_hook(self.prepare_harbor_task, created.id, task_dir)
                known = (await self._run_tests(created.id, state)).reward is not None
            finally:
                await self.delete_sandbox(created.id)
            self._graded_without_an_agent[str(task_dir)] = known
        return known

    async def _shell(self, sandbox_id: str, line: str) -> str:
        done = await self.sandbox_client.execute_command(
            sandbox_id, line, timeout=self.timeouts.extract
        )
        if done.exit_code != 0:
            raise _CommandFailed(
                f"`{line}` failed in sandbox {sandbox_id}: {done.stderr.strip()[:500]}"
            )
        return done.stdout


def _with_folders(
    sandbox_spec: SandboxSpec | Mapping[str, Any] | None, agent_workdir: str
) -> SandboxSpec:
    spec = SandboxSpec.model_validate(sandbox_spec or {})
    needed = [agent_workdir, TASK_DIR, "/logs", *_UPLOADS.values()]
    added = [
        folder
        for folder in needed
        if not any(
            folder == own or folder.startswith(own + "/") for own in (*_OWN_PLACES, spec.workdir)
        )
    ]
    folders = tuple(dict.fromkeys([*spec.folders, *added]))
    return SandboxSpec.model_validate({**dict(spec), "folders": folders})


__all__ = ["HarborEnv", "VerifierError"]
