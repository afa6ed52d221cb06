"""The tests of a Harbor task: upload, run, and the reward that they write."""

from __future__ import annotations

import json
import math
from logging import Logger
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.envs.harbor.task_files import time_limit_s
from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.errors import SandboxError
from verifiers.sandboxes import SandboxDead, SandboxFileError
from verifiers.state import State

REWARD_DIR = "/logs/verifier"
TESTS_TIMEOUT_S = 300.0
"""Time limit of a task without `timeout_sec` under `[verifier]`."""
UPLOADS = {"solution": "/oracle", "tests": "/tests"}
"""Folders of a task that its tests need → their paths in the sandbox."""
_SHOWN_CHARACTERS = 1000


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


class HarborVerifierMixin:
    """Runs the tests of a task after its agent has ended."""

    _graded_without_an_agent: dict[str, bool]
    sandbox_client: Any
    logger: Logger

    # -------------------------------------------------------------------------------------------- after the agent

    async def upload_test_assets(self, sandbox_id: str, task_dir: Path) -> None:
        """Upload tests and solution. Remove the files that the agent left at their paths or as its reward."""
        folders = " ".join(UPLOADS.values())
        # `find` fails on directories that it may not list or change.
        await self._shell(
            sandbox_id,
            f"mkdir -p {folders}; chmod -R u+rwX {folders} /logs 2>/dev/null; find {folders} -mindepth 1 -delete && "
            f"rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}",
        )
        for name, target in UPLOADS.items():
            folder = task_dir / name
            for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
                if path.is_file():
                    remote = f"{target}/{path.relative_to(folder).as_posix()}"
                    await self.upload_file(sandbox_id, remote, str(path))

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
