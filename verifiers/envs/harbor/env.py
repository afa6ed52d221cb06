"""`HarborEnv`: any command-line agent on tasks in Harbor's format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verifiers.decorators import cleanup
from verifiers.envs.cli_agent_env import CliAgentEnv, keep_job
from verifiers.envs.harbor.datasets import dataset_folders, is_remote
from verifiers.envs.harbor.mcp_servers import (
    HarborMCPHealthcheck,
    HarborMCPMixin,
    becomes_healthy,
    succeeds,
)
from verifiers.envs.harbor.sandboxes import DEFAULT_IMAGE, DEFAULT_WORKDIR, TaskPlace
from verifiers.envs.harbor.task_config import Healthcheck, resolved_variables
from verifiers.envs.harbor.task_files import HarborTask, has_solution, task_of, task_rows
from verifiers.envs.harbor.verifier import (
    INSTRUCTION_PATH,
    SOLUTION_DIR,
    TASK_DIR,
    UPLOADS,
    HarborVerifierMixin,
    TestRun,
    combined_rewards,
)
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient
from verifiers.envs.sandbox_mixin import FIRST, SandboxSetupError
from verifiers.envs.sandbox_request import with_folders
from verifiers.errors import ConfigError
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxSpec
from verifiers.state import State

SETUP_TIMEOUT_S = 600.0
"""Time limit of `setup.sh`."""


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
        agent_workdir: str = DEFAULT_WORKDIR,
        docker_image: str = DEFAULT_IMAGE,
        mcp_launch_commands: dict[str, str] | None = None,
        mcp_healthcheck: HarborMCPHealthcheck | None = None,
        *,
        artifacts_dir: str | Path | None = None,
        registry: str | Path | None = None,
        sandbox_spec: SandboxSpec | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in ("dataset", "rubric"):
            if name in kwargs:
                raise TypeError(
                    f"HarborEnv creates its own {name} from dataset_path; use add_rubric for further metrics."
                )
        self.dataset_path = Path(dataset_path)
        self._reference, self.registry = dataset_path, registry
        self.task_names = tasks
        self.artifacts_dir = None if artifacts_dir is None else Path(artifacts_dir)
        self.agent_workdir = agent_workdir
        self.mcp_launch_commands = mcp_launch_commands or {}
        self.mcp_healthcheck = mcp_healthcheck or HarborMCPHealthcheck()
        self._graded_without_an_agent: dict[str, bool] = {}
        self._builders = {}
        spec = SandboxSpec.model_validate(sandbox_spec or {})
        self._network_is_chosen = "network" in spec.model_fields_set
        super().__init__(
            run_command=run_command,
            docker_image=docker_image,
            # Fetched on first use: constructors use no network.
            dataset=self.load_harbor_dataset
            if is_remote(dataset_path, registry)
            else self.load_harbor_dataset(),
            rubric=Rubric(funcs=[self.harbor_reward], weights=[1.0]),
            sandbox_spec=_with_folders(sandbox_spec, agent_workdir),
            **kwargs,
        )

    def load_harbor_dataset(self) -> Any:
        """Return the tasks as rows: the instruction as prompt; name, folder, image and task.toml in `info`."""
        return task_rows(dataset_folders(self._reference, self.registry), self.task_names)

    async def get_docker_image(self, state: State) -> str:
        """Return the image of the task, which is built first if it has a Dockerfile, or that of the environment."""
        info = state.get("info") or {}
        if not info.get("task_dir"):
            return info.get("docker_image") or self.docker_image
        task = task_of(state)
        environment = task.config.environment.model_copy(
            update={"docker_image": info.get("docker_image")}
        )
        place = await self._place_of(
            task,
            environment,
            task.folder / "environment",
            task.config.agent.network_mode,
            secrets=tuple(task.secret_folders()),
        )
        state["harbor_workdir"], state["harbor_spec_fields"] = place.workdir, place.spec_fields
        return place.image

    async def build_env_vars(self, state: State) -> dict[str, str]:
        """Return the variables of an agent, the location of its task and the URLs of the task's MCP servers."""
        info = state.get("info") or {}
        own = task_of(state).config.environment.env
        return {
            **resolved_variables(own, "[environment] env"),
            **await super().build_env_vars(state),
            "HARBOR_TASK_NAME": str(info.get("task_name") or ""),
            "HARBOR_TASK_DIR": TASK_DIR,
            "HARBOR_INSTRUCTION_PATH": INSTRUCTION_PATH,
            "AGENT_WORKDIR": self._workdir_of(state),
            **await self.mcp_agent_env_vars(info.get("config") or {}, state),
        }

    def _workdir_of(self, state: State) -> str:
        return state.get("harbor_workdir") or self.agent_workdir

    # ------------------------------------------------------------------------------------------- before the agent

    async def create_sandbox(self, state: Any, request: Any) -> str:
        """Create the sandbox of a task: its image, services, size, network and the host names of its MCP servers."""
        info = state.get("info") or {}
        if "harbor_workdir" in state:
            fields = dict(state["harbor_spec_fields"])
            if names := await self.mcp_host_names(info.get("config") or {}, state):
                fields["host_names"] = names
            place = TaskPlace(request.docker_image, state["harbor_workdir"], fields)
            environment = task_of(state).config.environment
            changes = self._request_changes(environment, place, request)
            request = request.model_copy(update=changes)
        return await super().create_sandbox(state, request)

    async def post_sandbox_setup(self, state: State) -> None:
        """Upload the instruction of the task, wait until its services are healthy and start its MCP servers."""
        task = task_of(state)
        if not task.instruction_file().is_file():
            raise ConfigError(
                f"The task folder {str(task.folder)!r} of this row does not exist or has no instruction.md."
            )
        state["harbor_task_dir"] = str(task.folder)
        sandbox_id = state["sandbox_id"]
        await self._refuse_secrets(sandbox_id, task)
        await call_hook(self.prepare_harbor_task, sandbox_id, task.folder)
        await self._wait_until_healthy(sandbox_id, task, task.config.environment.healthcheck)
        await call_hook(self.pre_mcp_setup, state)
        await self.start_mcp_servers(sandbox_id, state["info"].get("config") or {}, state)
        if task.config.steps:
            state["harbor_steps"] = []
            await self._begin_step(state, task, 0)

    async def pre_mcp_setup(self, state: State) -> None:
        """Hook for authors: install or upload the files that the MCP servers need."""

    async def _wait_until_healthy(
        self, sandbox_id: str, task: HarborTask, check: Healthcheck | None
    ) -> None:
        if check is None:
            return
        if not await becomes_healthy(
            lambda: succeeds(self.sandbox_client, sandbox_id, check.command, check.timeout_sec),
            retries=check.retries,
            interval_s=check.interval_sec,
            start_period_s=check.start_period_sec,
            start_interval_s=check.start_interval_sec,
        ):
            raise SandboxSetupError(
                f"The health check {check.command[:200]!r} of the task {task.name} failed {check.retries} times in a "
                "row. If the services need more time, raise retries or start_period_sec in task.toml."
            )

    # -------------------------------------------------------------------------------------------- the agent and steps

    def reference_row(self, row: Mapping[str, Any], agent: str) -> dict[str, Any] | None:
        """Return a copy of a row in which `agent` replaces `run_command`: "oracle" runs the solution of the task, and
        "nop" does nothing. Return None if the task has no solution.
        """
        info = row.get("info") or {}
        if agent == "oracle" and not has_solution(task_of(row)):
            return None
        return {**row, "info": {**info, "harbor_agent": agent}}

    async def _launch_agent(self, state: State) -> Any:
        task, number = task_of(state), state.get("harbor_step", 0)
        user = self.user_inside(state["sandbox_id"], task.config.of_step(number).agent.user)
        options: dict[str, Any] = {} if user is None else {"user": user}
        command = self.run_command
        agent = (state.get("info") or {}).get("harbor_agent")
        if agent is not None:
            command, options = "true", {}
        if agent == "oracle":
            for folder in task.solution_folders(number):
                await self._upload_folder(state["sandbox_id"], folder, SOLUTION_DIR)
            variables = resolved_variables(task.config.solution.env, "[solution] env")
            options["env"] = {"DEBIAN_FRONTEND": "noninteractive", **variables}
            options["working_dir"] = self._workdir_of(state)
            # Its tests judge a solution, not its exit code.
            command = f'bash {SOLUTION_DIR}/solve.sh || echo "solve.sh: exit code $?" >&2'
        return await self.sandbox_client.start_background_job(
            state["sandbox_id"], command, **options
        )

    async def poll_job_completion(self, state: State, sandbox_id: str, background_job: Any) -> None:
        """Wait until the agent has ended, in each step of the task. Earlier steps are verified in between."""
        task = task_of(state)
        await self._wait_for_agent(state, task, background_job)
        for number in range(1, task.step_count):
            if not await self._finish_step(state, task, number - 1):
                return
            await self._begin_step(state, task, number)
            state["background_job"] = await self._launch_agent(state)
            await self._wait_for_agent(state, task, state["background_job"])

    async def _wait_for_agent(self, state: State, task: HarborTask, job: Any) -> None:
        """Wait until the agent has ended. `[agent] timeout_sec` ends it, unless `timeout_seconds` limits rollouts."""
        sandbox_id, client = state["sandbox_id"], self.sandbox_client
        config = task.config.of_step(state.get("harbor_step", 0))
        limit_s = config.agent.timeout_sec if self.timeout_seconds is None else None
        try:
            async with asyncio.timeout(limit_s):
                await super().poll_job_completion(state, sandbox_id, job)
        except TimeoutError:
            self.logger.info("Task %s: the agent was stopped after %s s", task.name, limit_s)
            if isinstance(client, SandboxClient):
                status = await client.end_background_job(sandbox_id, job)
                keep_job(state, status)
            if state.get("harbor_step", 0) + 1 == task.step_count:
                state["timed_out"] = True

    async def _begin_step(self, state: State, task: HarborTask, number: int) -> None:
        """Give the agent the instruction and the files of a step, and run its `setup.sh`."""
        sandbox_id = state["sandbox_id"]
        state["harbor_step"] = number
        await self.upload_file(sandbox_id, INSTRUCTION_PATH, str(task.instruction_file(number)))
        files, workdir = task.step_folder(number) / "workdir", self._workdir_of(state)
        await self._upload_folder(sandbox_id, files, workdir)
        if (files / "setup.sh").is_file():
            done = await self.sandbox_client.execute_command(
                sandbox_id, "bash setup.sh", workdir, timeout=SETUP_TIMEOUT_S
            )
            if done.exit_code != 0:
                raise SandboxSetupError(
                    f"setup.sh of the step {task.config.steps[number].name!r} of {task.name} failed with exit code "
                    f"{done.exit_code}: {(done.stderr or done.stdout).strip()[-1000:]}"
                )
        await self._wait_until_healthy(sandbox_id, task, task.config.steps[number].healthcheck)

    async def _finish_step(self, state: State, task: HarborTask, number: int) -> bool:
        """Verify a step before the next one. Return whether the task goes on."""
        run = await self.verify_between(state, number)
        return self._note_step(state, task, number, run)

    def _note_step(self, state: State, task: HarborTask, number: int, run: TestRun) -> bool:
        step = task.config.steps[number]
        is_passed = step.is_passed_by(run.rewards)
        state["harbor_steps"].append(
            {"name": step.name, "rewards": dict(run.rewards), "passed": is_passed}
        )
        return is_passed

    # -------------------------------------------------------------------------------------------- after the agent

    @cleanup(priority=FIRST)
    async def begin_scoring(self, state: State) -> None:
        """See SandboxMixin. A separate verifier reads artifacts and needs no copy of the agent's sandbox."""
        if self.is_scored_separately(state) and not self._is_kept_for_scoring(state):
            await self._before_scoring(state)
        else:
            await super().begin_scoring(state)

    async def post_rollout(self, state: State) -> None:
        """Score the task: the tests of its last step, and the verdicts of earlier steps."""
        if state.get("error") is None and "harbor_task_dir" in state:
            state["reward"] = await self.compute_reward(state)

    async def compute_reward(self, state: State) -> float:
        """Return the reward of the task, which the tests of its last step write.

        With steps, `multi_step_reward_strategy` combines the verdicts: "mean" (the default) or "final". Steps that
        were not played do not count. See `verify_step` for a missing reward.
        """
        task = task_of(state)
        number, played = state.get("harbor_step", 0), state.get("harbor_steps")
        if played is None:
            rewards = dict((await self.verify_step(state, number)).rewards)
        else:
            if len(played) <= number:
                self._note_step(state, task, number, await self.verify_step(state, number))
            by_step = [step["rewards"] for step in played]
            rewards = combined_rewards(by_step, task.config.multi_step_reward_strategy or "mean")
        state["harbor_rewards"] = rewards
        return rewards["reward"]

    async def harbor_reward(self, state: State, **_: Any) -> float:
        """Return the reward that the tests of the task have written."""
        return float(state.get("reward") or 0.0)


def _with_folders(
    sandbox_spec: SandboxSpec | Mapping[str, Any] | None, agent_workdir: str
) -> SandboxSpec:
    spec = SandboxSpec.model_validate(sandbox_spec or {})
    needed = [agent_workdir, TASK_DIR, "/logs", SOLUTION_DIR, *UPLOADS.values()]
    return SandboxSpec.model_validate({**dict(spec), "folders": with_folders(spec, needed)})
