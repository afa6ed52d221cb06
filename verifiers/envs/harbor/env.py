"""`HarborEnv`: any command-line agent on tasks in Harbor's format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verifiers.envs.cli_agent_env import CliAgentEnv
from verifiers.envs.harbor.mcp import HarborMCPHealthcheck, HarborMCPMixin
from verifiers.envs.harbor.tasks import parse_reward, task_rows, time_limit_s
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import timeout_errors
from verifiers.errors import ConfigError, SandboxError
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxSpec
from verifiers.state import State

TASK_DIR = "/task"
REWARD_DIR = "/logs/verifier"
TESTS_TIMEOUT_S = 300.0
"""Of a task whose `[verifier] timeout_sec` says nothing else."""
_UPLOADS = {"solution": "/oracle", "tests": "/tests"}
"""Folders of a task that are there for its tests, and where."""
_OWN_PLACES = ("/box", "/tmp")
_SHOWN_CHARACTERS = 1000


class VerifierError(SandboxError):
    """A task's tests ended without a reward: nothing is known about the solution."""


class HarborEnv(HarborMCPMixin, CliAgentEnv):
    """Runs `run_command` on each task below `dataset_path` and scores it with the task's own tests.

    The agent finds its instruction in `/task/instruction.md` and works in `agent_workdir`; the variables
    `HARBOR_TASK_NAME`, `HARBOR_TASK_DIR`, `HARBOR_INSTRUCTION_PATH` and `AGENT_WORKDIR` say so. Tests and solution
    come into the sandbox when the agent has ended. `tasks` names the ones to take; `mcp_launch_commands` starts the
    MCP servers that tasks declare.
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
                    f"HarborEnv makes its own {name} from dataset_path; use add_rubric for further metrics."
                )
        self.dataset_path = Path(dataset_path)
        self.task_names = tasks
        self.agent_workdir = agent_workdir
        self.mcp_launch_commands = mcp_launch_commands or {}
        self.mcp_healthcheck = mcp_healthcheck or HarborMCPHealthcheck()
        super().__init__(
            run_command=run_command,
            docker_image=docker_image,
            dataset=self.load_harbor_dataset(),
            rubric=Rubric(funcs=[self.harbor_reward], weights=[1.0]),
            sandbox_spec=_with_folders(sandbox_spec, agent_workdir),
            **kwargs,
        )

    def load_harbor_dataset(self) -> Any:
        """The tasks as rows: the instruction as prompt; name, folder, image and task.toml in `info`."""
        return task_rows(self.dataset_path, self.task_names)

    async def get_docker_image(self, state: State) -> str:
        """The task's image, or the environment's."""
        return (state.get("info") or {}).get("docker_image") or self.docker_image

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Those of an agent, and where it finds its task and the task's MCP servers."""
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
        """Put the task's instruction in and start its MCP servers."""
        info = state.get("info") or {}
        task_dir = Path(info.get("task_dir") or "")
        if not (task_dir / "instruction.md").is_file():
            raise ConfigError(f"The task folder {str(task_dir)!r} of this row is not there.")
        state["harbor_task_dir"] = str(task_dir)
        sandbox_id = state["sandbox_id"]
        await call_hook(self.prepare_harbor_task, sandbox_id, task_dir)
        await call_hook(self.pre_mcp_setup, state)
        await self.start_mcp_servers(sandbox_id, info.get("config") or {}, state)

    async def pre_mcp_setup(self, state: State) -> None:
        """For authors: install or upload what the MCP servers need."""

    async def prepare_harbor_task(self, sandbox_id: str, task_dir: Path) -> None:
        """Make the folders that tasks expect, and put the instruction in."""
        await self._shell(
            sandbox_id, f"mkdir -p {TASK_DIR} {REWARD_DIR} {shlex.quote(self.agent_workdir)}"
        )
        instruction = str(task_dir / "instruction.md")
        await self.upload_file(sandbox_id, f"{TASK_DIR}/instruction.md", instruction)

    # -------------------------------------------------------------------------------------------- after the agent

    async def upload_test_assets(self, sandbox_id: str, task_dir: Path) -> None:
        """Put tests and solution in, and nothing else: what an agent left in their place, or as its reward, goes."""
        places = " ".join(_UPLOADS.values())
        await self._shell(
            sandbox_id,
            f"mkdir -p {places} && find {places} -mindepth 1 -delete && rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}",
        )
        for name, place in _UPLOADS.items():
            folder = task_dir / name
            for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
                if path.is_file():
                    remote = f"{place}/{path.relative_to(folder).as_posix()}"
                    await self.upload_file(sandbox_id, remote, str(path))

    async def post_rollout(self, state: State) -> None:
        """Score the sandbox as the agent has left it."""
        if state.error is None and "harbor_task_dir" in state:
            state.reward = await self.compute_reward(state)

    async def harbor_reward(self, state: State, **_: Any) -> float:
        """What the task's tests said."""
        return float(state.get("reward") or 0.0)

    async def compute_reward(self, state: State) -> float:
        """Run `tests/test.sh` and read the reward it wrote: `reward.txt`, else `reward.json`.

        Raises VerifierError when it wrote none, whatever its exit code.
        """
        sandbox_id, task_dir = state["sandbox_id"], Path(state["harbor_task_dir"])
        await self.upload_test_assets(sandbox_id, task_dir)
        config = (state.get("info") or {}).get("config")
        limit_s = time_limit_s(config, "verifier", TESTS_TIMEOUT_S)
        try:
            done = await self.run_background_job(state, "bash test.sh", int(limit_s), "/tests")
            ended = f"exit code {done.exit_code}; {(done.stderr or done.stdout or '').strip()[-_SHOWN_CHARACTERS:]}"
        except timeout_errors():
            ended = f"it was stopped after {limit_s:g} s"
        found = await self._shell(
            sandbox_id,
            f"cd {REWARD_DIR} && for name in reward.txt reward.json; do "
            "if [ -s $name ]; then cat $name; break; fi; done",
        )
        reward = parse_reward(found)
        if reward is None:
            wrote = f"the reward {found.strip()[:100]!r}" if found.strip() else "no reward"
            raise VerifierError(
                f"The tests of {task_dir.name} wrote {wrote} to {REWARD_DIR}: {ended}"
            )
        return reward

    async def _shell(self, sandbox_id: str, line: str) -> str:
        done = await self.sandbox_client.execute_command(
            sandbox_id, line, timeout=self.timeouts.extract
        )
        if done.exit_code != 0:
            raise SandboxError(
                f"`{line}` failed in sandbox {sandbox_id}: {done.stderr.strip()[:500]}"
            )
        return done.stdout


def _with_folders(
    sandbox_spec: SandboxSpec | Mapping[str, Any] | None, agent_workdir: str
) -> SandboxSpec:
    spec = SandboxSpec.model_validate(sandbox_spec or {})
    wanted = [agent_workdir, TASK_DIR, "/logs", *_UPLOADS.values()]
    added = [
        folder
        for folder in wanted
        if not any(
            folder == own or folder.startswith(own + "/") for own in (*_OWN_PLACES, spec.workdir)
        )
    ]
    folders = tuple(dict.fromkeys([*spec.folders, *added]))
    return SandboxSpec.model_validate({**dict(spec), "folders": folders})


__all__ = ["HarborEnv", "VerifierError"]
