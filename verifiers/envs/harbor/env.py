"""`HarborEnv`: any command-line agent on tasks in Harbor's format."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.envs.cli_agent_env import CliAgentEnv
from verifiers.envs.harbor.mcp import HarborMCPHealthcheck, HarborMCPMixin
from verifiers.envs.harbor.tasks import parse_reward, task_rows, time_limit_s
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.errors import ConfigError, SandboxError
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes import SandboxDead, SandboxFileError, SandboxSpec
from verifiers.state import State

TASK_DIR = "/task"
REWARD_DIR = "/logs/verifier"
TESTS_TIMEOUT_S = 300.0
"""Of a task whose `[verifier] timeout_sec` says nothing else."""
_UPLOADS = {"solution": "/oracle", "tests": "/tests"}
"""Folders of a task that are there for its tests, and where."""
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
    """A task's tests write no reward, whatever the agent does: nothing is known about the solution."""


class _CommandFailed(SandboxError):
    """A command of ours ended with another code than 0."""


class TestRun(NamedTuple):
    """What came of a task's tests."""

    reward: float | None
    ended: str
    """What they wrote where, and how they ended."""


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
        # Without the right to list or change its own directories, `find` would fail.
        await self._shell(
            sandbox_id,
            f"mkdir -p {places}; chmod -R u+rwX {places} /logs 2>/dev/null; find {places} -mindepth 1 -delete && "
            f"rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}",
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

        Tests that write none are run once more in a sandbox in which no agent has been. If they write a reward there,
        the solution prevented it in the first, and the reward is 0.0. Raises VerifierError if they do not.
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
        found = ""
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
                # What the solution left running during the tests no longer changes the reward.
                await client.sandbox(sandbox_id).end_processes()
            found = await self._shell(sandbox_id, _READ_REWARD)
        except SandboxDead as error:
            if not error.by_program:
                raise
            ended = str(error)
        except (SandboxFileError, _CommandFailed) as error:
            ended = f"they could not be put in: {error}"
        wrote = f"the reward {found.strip()[:100]!r}" if found.strip() else "no reward"
        return TestRun(parse_reward(found), f"{wrote} to {REWARD_DIR}: {ended}")

    async def _is_graded_without_an_agent(self, state: State) -> bool:
        """Whether the tests of a task write a reward where nothing has been done."""
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
