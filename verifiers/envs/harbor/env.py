"""`HarborEnv`: any command-line agent on tasks in Harbor's format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verifiers.envs.cli_agent_env import CliAgentEnv
from verifiers.envs.harbor.mcp_servers import HarborMCPHealthcheck, HarborMCPMixin
from verifiers.envs.harbor.task_files import task_rows
from verifiers.envs.harbor.verifier import REWARD_DIR, UPLOADS, HarborVerifierMixin
from verifiers.envs.hooks import call_hook
from verifiers.errors import ConfigError
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxSpec
from verifiers.state import State

TASK_DIR = "/task"
_OWN_PLACES = ("/box", "/tmp")


class HarborEnv(HarborMCPMixin, HarborVerifierMixin, CliAgentEnv):
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

    async def post_rollout(self, state: State) -> None:
        """Score the sandbox in the state in which the agent left it."""
        if state.error is None and "harbor_task_dir" in state:
            state.reward = await self.compute_reward(state)

    async def harbor_reward(self, state: State, **_: Any) -> float:
        """Return the reward that the tests of the task have written."""
        return float(state.get("reward") or 0.0)


def _with_folders(
    sandbox_spec: SandboxSpec | Mapping[str, Any] | None, agent_workdir: str
) -> SandboxSpec:
    spec = SandboxSpec.model_validate(sandbox_spec or {})
    needed = [agent_workdir, TASK_DIR, "/logs", *UPLOADS.values()]
    added = [
        folder
        for folder in needed
        if not any(
            folder == own or folder.startswith(own + "/") for own in (*_OWN_PLACES, spec.workdir)
        )
    ]
    folders = tuple(dict.fromkeys([*spec.folders, *added]))
    return SandboxSpec.model_validate({**dict(spec), "folders": folders})
