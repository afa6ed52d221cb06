"""The tests of a Harbor task: where they run, and the reward that they write.

| `environment_mode` of the verifier | the tests run in |
|---|---|
| "shared", the default | the sandbox for scoring, with the agent's files but without its processes |
| "separate" | a new sandbox that the agent has never seen; only the artifacts of the task are copied into it |

`verifiers.envs.scoring_sandbox` describes the sandbox for scoring.
"""

from __future__ import annotations

import json
import math
import posixpath
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.envs.harbor.artifacts import CollectedArtifact, collect_artifacts, upload_artifacts
from verifiers.envs.harbor.sandboxes import HarborSandboxMixin
from verifiers.envs.harbor.task_config import TaskConfig, resolved_variables
from verifiers.envs.harbor.task_files import HarborTask, task_of
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.sandbox_request import CreateSandboxRequest
from verifiers.envs.scoring_sandbox import ROOM_MB
from verifiers.errors import ConfigError, SandboxError
from verifiers.sandboxes import SandboxDead, SandboxFileError
from verifiers.state import State

TASK_DIR = "/task"
INSTRUCTION_PATH = f"{TASK_DIR}/instruction.md"
REWARD_DIR = "/logs/verifier"
TESTS_DIR = "/tests"
SOLUTION_DIR = "/solution"
"""Where the agent "oracle" finds the solution."""
TESTS_TIMEOUT_S = 600.0
"""Time limit of a task without `timeout_sec` under `[verifier]`."""
UPLOADS = {"solution": "/oracle", "tests": TESTS_DIR}
"""Folders of a task that its tests need → their paths in the sandbox."""
_SHOWN_CHARACTERS = 1000


def parse_reward(text: str) -> float | None:
    """Return the reward in a `reward.txt` (a number) or `reward.json` (an object with `reward`), or None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text  # "1.", "+1", "1_0" and similar forms
    return _number(value.get("reward") if isinstance(value, dict) else value)


def parse_rewards(text: str) -> dict[str, float]:
    """Return all finite numbers of a `reward.json`, or the number of a `reward.txt` under the name `reward`.

    The result is empty if there is no number under `reward`.
    """
    reward = parse_reward(text)
    if reward is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    found = {} if not isinstance(value, dict) else {k: _number(v) for k, v in value.items()}
    return {"reward": reward, **{k: v for k, v in found.items() if v is not None}}


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


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
    rewards: Mapping[str, float] = {}
    """All rewards by name, `reward` included. Empty without a reward."""


def combined_rewards(by_step: Sequence[Mapping[str, float]], strategy: str) -> dict[str, float]:
    """Return the rewards of a task with steps: those of the last step ("final"), or the mean of each reward over all
    played steps ("mean"), in which a missing reward counts as 0.
    """
    if strategy == "final":
        return dict(by_step[-1])
    names = dict.fromkeys(name for rewards in by_step for name in rewards)
    return {
        name: sum(rewards.get(name, 0.0) for rewards in by_step) / len(by_step) for name in names
    }


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


class HarborVerifierMixin(HarborSandboxMixin):
    """Runs the tests of a task after its agent has ended."""

    _graded_without_an_agent: dict[str, bool]
    _has_warned = False
    artifacts_dir: Path | None
    """Folder on this machine for the artifacts of all rollouts. None stores no artifacts."""

    async def verify_step(self, state: State, number: int) -> TestRun:
        """Return the verdict of the tests of a step. Its `reward` is never None.

        The reward is the number in `reward.txt`, else `reward` in `reward.json`. If the tests write no reward, they run
        once more in a sandbox without an agent's changes. If they write a reward there, the solution prevented it, and
        the reward is 0.0. Otherwise raises VerifierError.
        """
        task = task_of(state)
        if task.config.of_step(number).verifier.mode == "separate":
            run = await self._run_separately(state, task, number)
        else:
            self._warn_of_root(state["sandbox_id"])
            await self._store_artifacts(state, task, number)
            run = await self._run_tests(state["sandbox_id"], state, task, number)
        return await self._judged(run, state, task, number)

    def _warn_of_root(self, sandbox_id: str) -> None:
        client = self.sandbox_client
        is_ours = isinstance(client, SandboxClient) and client.has(sandbox_id)
        if self._has_warned or not is_ours or not client.sandbox(sandbox_id).spec.writable_image:
            return
        self._has_warned = True
        self.logger.warning(
            "Tasks with a shared verifier run in writable images: an agent with root can replace the programs that the "
            "tests use. Set environment_mode = 'separate' under [verifier] in task.toml."
        )

    async def verify_between(self, state: State, number: int) -> TestRun:
        """Like `verify_step`, while the agent's sandbox stays in use for the next step."""
        task, client = task_of(state), self.sandbox_client
        if task.config.of_step(number).verifier.mode == "separate":
            return await self.verify_step(state, number)
        if not isinstance(client, SandboxClient):
            raise ConfigError(
                f"The steps of {task.name} need the sandbox client of this package; got {type(client).__name__}."
            )
        await self._store_artifacts(state, task, number)
        async with client.scoring_copy(state["sandbox_id"], self.score_in, self.score_env) as copy:
            run = await self._run_tests(copy, state, task, number)
            if copy == state["sandbox_id"]:
                await self._clear_tests(copy)
        return await self._judged(run, state, task, number)

    async def _judged(self, run: TestRun, state: State, task: HarborTask, number: int) -> TestRun:
        if run.reward is not None:
            return run
        if await self._is_graded_without_an_agent(state, task, number):
            state["harbor_tests_ended"] = run.ended
            self.logger.info("Task %s: reward 0, the tests wrote %s", task.name, run.ended)
            return TestRun(0.0, run.ended, {"reward": 0.0})
        raise VerifierError(f"The tests of {task.name} wrote {run.ended}")

    def is_scored_separately(self, state: State) -> bool:
        """Return whether the tests of the running step see nothing but artifacts."""
        if "harbor_task_dir" not in state:
            return False
        config = task_of(state).config.of_step(state.get("harbor_step", 0))
        return config.verifier.mode == "separate"

    async def prepare_harbor_task(self, sandbox_id: str, task_dir: Path) -> None:
        """Create the folders that tasks expect, and upload the instruction."""
        await self._shell(
            sandbox_id, f"mkdir -p {TASK_DIR} {REWARD_DIR} {shlex.quote(self.agent_workdir)}"
        )
        instruction = task_dir / "instruction.md"
        if instruction.is_file():  # a task with steps may have none
            await self.upload_file(sandbox_id, INSTRUCTION_PATH, str(instruction))

    # ------------------------------------------------------------------------------------------ one run of the tests

    async def upload_test_assets(self, sandbox_id: str, task_dir: Path) -> None:
        """Upload tests and solution. Remove the files that the agent left at their paths or as its reward."""
        await self._clear_tests(sandbox_id)
        for name, target in UPLOADS.items():
            await self._upload_folder(sandbox_id, task_dir / name, target)

    async def _clear_tests(self, sandbox_id: str) -> None:
        folders = " ".join(UPLOADS.values())
        # `find` fails on directories that it may not list or change.
        await self._shell(
            sandbox_id,
            f"mkdir -p {folders}; chmod -R u+rwX {folders} /logs 2>/dev/null; find {folders} -mindepth 1 -delete && "
            f"rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}",
        )

    async def _upload_folder(self, sandbox_id: str, folder: Path, target: str) -> None:
        for path in _files_below(folder):
            remote = f"{target}/{path.relative_to(folder).as_posix()}"
            await self.upload_file(sandbox_id, remote, str(path))

    async def _upload_tests(self, sandbox_id: str, task: HarborTask, number: int) -> None:
        """Upload the tests of a step. A separate verifier receives no solution, and its image may have the tests."""
        config = task.config.of_step(number)
        if config.verifier.mode != "separate":
            await call_hook(self.upload_test_assets, sandbox_id, task.folder)
        else:
            found = f"[ -f {TESTS_DIR}/test.sh ] && rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}"
            if self.has_verifier_image(task, number):
                done = await self.sandbox_client.execute_command(sandbox_id, found)
                if done.exit_code == 0:
                    return
            await self._clear_tests(sandbox_id)
            await self._upload_folder(sandbox_id, task.folder / "tests", TESTS_DIR)
        if task.config.steps:
            await self._upload_folder(sandbox_id, task.step_folder(number) / "tests", TESTS_DIR)
            if config.verifier.mode != "separate":
                solution = task.step_folder(number) / "solution"
                await self._upload_folder(sandbox_id, solution, UPLOADS["solution"])

    def has_verifier_image(self, task: HarborTask, number: int) -> bool:
        """Return whether the verifier of a step has a separate image."""
        own, context = (
            task.config.of_step(number).verifier.environment,
            task.verifier_context(number),
        )
        return bool(own and own.docker_image) or task.dockerfile(context) is not None

    async def _run_tests(
        self, sandbox_id: str, state: State, task: HarborTask, number: int
    ) -> TestRun:
        """Upload the tests into a sandbox, run them and read their reward."""
        client, config = self.sandbox_client, task.config.of_step(number)
        limit_s = config.verifier.timeout_sec or TESTS_TIMEOUT_S
        reward_text = ""
        tested = state if sandbox_id == state["sandbox_id"] else {"sandbox_id": sandbox_id}
        try:
            await self._upload_tests(sandbox_id, task, number)
            try:
                done = await self._run_script(tested, config, int(limit_s))
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
        rewards = parse_rewards(reward_text)
        return TestRun(rewards.get("reward"), f"{wrote} to {REWARD_DIR}: {ended}", rewards)

    async def _run_script(self, tested: Any, config: TaskConfig, limit_s: int) -> Any:
        variables = resolved_variables(config.verifier.env, "[verifier] env")
        pairs = "".join(f"{shlex.quote(f'{name}={value}')} " for name, value in variables.items())
        command = f"env {pairs}bash test.sh" if pairs else "bash test.sh"
        environment = config.verifier.environment or config.environment
        workdir = environment.workdir or TESTS_DIR
        if workdir != TESTS_DIR:
            command = command.replace("bash test.sh", f"bash {TESTS_DIR}/test.sh")
        user = self.user_inside(tested["sandbox_id"], config.verifier.user)
        if user is None:
            return await self.run_background_job(tested, command, limit_s, workdir)
        return await self.sandbox_client.run_background_job(
            tested["sandbox_id"], command, limit_s, workdir, user=user
        )

    def user_inside(self, sandbox_id: str, user: str | int | None) -> str | None:
        """Return the user of a command, or None for the usual one. Sandboxes without an image have no other user."""
        client = self.sandbox_client
        if user is None or not isinstance(client, SandboxClient):
            return None
        return str(user) if client.sandbox(sandbox_id).spec.writable_image else None

    # --------------------------------------------------------------------------------------------- other sandboxes

    async def _run_separately(self, state: State, task: HarborTask, number: int) -> TestRun:
        """Run the tests in a new sandbox with the artifacts of the agent's sandbox."""
        with tempfile.TemporaryDirectory(prefix="harbor-artifacts-") as folder:
            artifacts = await self._collect(state, task, number, Path(folder))
            return await self._run_in_new_sandbox(state, task, number, artifacts)

    async def _store_artifacts(self, state: State, task: HarborTask, number: int) -> None:
        """In shared mode: copy the artifacts to this machine, if there is a folder for them."""
        if self.artifacts_dir is not None:
            with tempfile.TemporaryDirectory(prefix="harbor-artifacts-") as folder:
                await self._collect(state, task, number, Path(folder))

    async def _collect(
        self, state: State, task: HarborTask, number: int, folder: Path
    ) -> list[CollectedArtifact]:
        if not isinstance(self.sandbox_client, SandboxClient):
            raise ConfigError(
                "Artifacts of Harbor tasks need the sandbox client of this package; "
                f"got {type(self.sandbox_client).__name__}."
            )
        kept = None
        if self.artifacts_dir is not None:
            step = task.step_folder(number).name if task.config.steps else ""
            kept = self.artifacts_dir / task.name / str(state.get("trajectory_id")) / step
        config = task.config.of_step(number)
        return await collect_artifacts(
            self.sandbox_client, state["sandbox_id"], config, folder, kept
        )

    async def _run_in_new_sandbox(
        self, state: State, task: HarborTask, number: int, artifacts: Sequence[CollectedArtifact]
    ) -> TestRun:
        """Run the tests in a sandbox that no agent has used, with the given artifacts."""
        client = self.sandbox_client
        created = await client.create(await self._verifier_request(state, task, number))
        self.register_sandbox(created.id)
        try:
            await client.wait_for_creation(created.id)
            await call_hook(self.prepare_harbor_task, created.id, task.folder)
            try:
                await upload_artifacts(client.sandbox(created.id), artifacts)
            except SandboxFileError as error:
                return TestRun(None, f"no reward: the artifacts cannot be copied: {error}")
            return await self._run_tests(created.id, state, task, number)
        finally:
            await self.delete_sandbox(created.id)

    async def _verifier_request(
        self, state: State, task: HarborTask, number: int
    ) -> CreateSandboxRequest:
        """Return the request for a sandbox without an agent. It has room for a verdict beside any artifacts."""
        request = self.sandbox_client.request_of(state["sandbox_id"])
        changes: dict[str, Any] = {"name": f"{request.name}-verifier", "start_command": None}
        if request.disk_size_gb is not None:
            changes["disk_size_gb"] = request.disk_size_gb + ROOM_MB / 1024
        if request.memory_gb is not None:
            changes["memory_gb"] = request.memory_gb + 2 * ROOM_MB / 1024
        config = task.config.of_step(number)
        if config.verifier.mode == "separate":
            environment = config.verifier.environment or config.environment
            changes["environment_vars"] = resolved_variables(environment.env, "[environment] env")
            context = task.verifier_context(number)
            if not self.has_verifier_image(task, number):
                context = task.folder / "environment"
                given = (state.get("info") or {}).get("docker_image")
                environment = environment.model_copy(update={"docker_image": given})
            place = await self._place_of(task, environment, context, config.verifier.network_mode)
            roomy = request.model_copy(update={**changes, "spec_fields": {}})
            changes |= self._request_changes(environment, place, roomy)
        return request.model_copy(update=changes)

    async def _is_graded_without_an_agent(
        self, state: State, task: HarborTask, number: int
    ) -> bool:
        """Return whether the tests of a step write a reward in a sandbox without any changes."""
        is_separate = task.config.of_step(number).verifier.mode == "separate"
        if not isinstance(self.sandbox_client, SandboxClient) or (
            self.score_in == "live" and not is_separate
        ):
            return False
        key = posixpath.join(str(task.folder), str(number))
        known = self._graded_without_an_agent.get(key)
        if known is None:
            known = (await self._run_in_new_sandbox(state, task, number, ())).reward is not None
            self._graded_without_an_agent[key] = known
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
