"""`HarborTaskSet` and `HarborDatasetTaskSet`: tasks in Harbor's format, for any harness.

The tests of a task and its solution enter the sandbox only after the agent has ended. `vf.HarborEnv` supports more of
the format: steps, artifacts, MCP servers and images to build.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from verifiers.envs.agents.task_sets import SandboxSpec, SandboxTaskSet
from verifiers.envs.agents.tasksets.common import (
    TaskRubric,
    read_text,
    run_checked,
    test_timeout_s,
    upload_folder,
    write_text,
)
from verifiers.envs.harbor.task_files import INSTRUCTION, TASK_FILE, task_rows, time_limit_s
from verifiers.envs.harbor.verifier import (
    INSTRUCTION_PATH,
    REWARD_DIR,
    TASK_DIR,
    TESTS_DIR,
    UPLOADS,
    parse_reward,
)
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors

_SHOWN_CHARACTERS = 10_000


class HarborDatasetTaskSet(SandboxTaskSet):
    """The tasks below `dataset_path`, or those of them that `task_names` lists.

    Raises FileNotFoundError for a missing folder, and DatasetError, a ValueError, without a valid task.
    """

    default_image = "python:3.11-slim"

    def __init__(
        self,
        dataset_path: str | Path,
        task_names: list[str] | None = None,
        filter_fn: str | None = None,
    ) -> None:
        self.dataset_path = Path(dataset_path)
        rows = task_rows(self.dataset_path, task_names)
        super().__init__(_rows(rows), f"harbor/{self.dataset_path.name}", filter_fn)

    def get_instruction(self, info: dict[str, Any]) -> str:
        """Return the instruction of the task."""
        return (Path(info["task_dir"]) / INSTRUCTION).read_text("utf-8").strip()

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return a sandbox with the image of the task."""
        return SandboxSpec(image=info.get("docker_image") or self.default_image)

    def get_env_vars(self) -> dict[str, str]:
        """Return the variables of Harbor's agents."""
        return {"HARBOR_TASK_DIR": TASK_DIR, "HARBOR_INSTRUCTION_PATH": INSTRUCTION_PATH}

    def get_folders(self, info: dict[str, Any]) -> list[str]:
        """Return the directories of Harbor's tasks."""
        return [TASK_DIR, "/logs", *UPLOADS.values()]

    def get_rubric(self) -> HarborDatasetRubric:
        """Return the rubric that runs the tests."""
        return HarborDatasetRubric(self)

    async def setup(self, state: Any) -> None:
        """Create the directories and write the instruction."""
        client, sandbox_id, info = state["sandbox_client"], state["sandbox_id"], state["info"]
        workdir = shlex.quote(self.get_workdir(info))
        await run_checked(client, sandbox_id, f"mkdir -p {TASK_DIR} {REWARD_DIR} {workdir}")
        await write_text(client, sandbox_id, INSTRUCTION_PATH, self.get_instruction(info))

    async def run_tests(self, state: Any) -> float:
        """Run the tests of the task, store their output as `test_output`, and return their reward.

        The reward is the number in `reward.txt`, else `reward` in `reward.json`; without either, it is 0.0.
        """
        client, sandbox_id, info = state["sandbox_client"], state["sandbox_id"], state["info"]
        await run_checked(
            client,
            sandbox_id,
            f"test ! -L {TESTS_DIR} || rm {TESTS_DIR}; mkdir -p {TESTS_DIR} && find {TESTS_DIR} -mindepth 1 -delete && "
            f"rm -rf {REWARD_DIR} && mkdir -p {REWARD_DIR}",
        )
        await upload_folder(client, sandbox_id, Path(info["task_dir"]) / "tests", TESTS_DIR)
        limit_s = time_limit_s(info.get("config"), "verifier", test_timeout_s(state))
        try:
            done = await client.run_background_job(
                sandbox_id, "bash test.sh", timeout=int(limit_s), working_dir=TESTS_DIR
            )
            output = f"{done.stdout or ''}{done.stderr or ''}"
        except timeout_errors() as error:
            output = str(error)
        state["test_output"] = output[-_SHOWN_CHARACTERS:]
        if isinstance(client, SandboxClient):
            # Processes that the tests left running can no longer change the reward.
            await client.sandbox(sandbox_id).end_processes()
        for name in ("reward.txt", "reward.json"):
            text = await read_text(client, sandbox_id, f"{REWARD_DIR}/{name}")
            if text and text.strip():
                return parse_reward(text) or 0.0
        return 0.0

    async def validate_instance(self, state: Any) -> bool:
        """Run the solution of the task, then its tests. Raises RuntimeError if the solution fails."""
        client, sandbox_id, info = state["sandbox_client"], state["sandbox_id"], state["info"]
        target = UPLOADS["solution"]
        await upload_folder(client, sandbox_id, Path(info["task_dir"]) / "solution", target)
        done = await client.run_background_job(
            sandbox_id,
            f"bash {target}/solve.sh",
            timeout=int(test_timeout_s(state)),
            working_dir=self.get_workdir(info),
        )
        if done.exit_code != 0:
            raise RuntimeError(
                f"The gold solution ended with code {done.exit_code}: {(done.stderr or '').strip()[-500:]}"
            )
        return await self.run_tests(state) >= 1.0


class HarborTaskSet(HarborDatasetTaskSet):
    """The one task in `task_dir`. Raises FileNotFoundError if the folder has no task."""

    def __init__(self, task_dir: str | Path, filter_fn: str | None = None) -> None:
        folder = Path(task_dir)
        if not folder.is_dir():
            raise FileNotFoundError(f"Task directory not found: {folder}")
        for name in (TASK_FILE, INSTRUCTION):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"The task directory {folder} has no {name}.")
        self.dataset_path = folder
        SandboxTaskSet.__init__(
            self, _rows(task_rows([folder])), f"harbor/{folder.name}", filter_fn
        )

    def get_rubric(self) -> HarborRubric:
        """Return the rubric that runs the tests."""
        return HarborRubric(self)


class HarborDatasetRubric(TaskRubric):
    """Reward `solved`: what the tests of the task write."""

    async def verdict(self, state: Any, info: dict[str, Any]) -> float:
        """Return the reward of the tests."""
        return await self.taskset.run_tests(state)


class HarborRubric(HarborDatasetRubric):
    """Reward `solved` of a single task."""


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"question": row["prompt"][-1]["content"], "info": row["info"], "answer": ""}
        for row in rows
    ]


__all__ = ["HarborDatasetRubric", "HarborDatasetTaskSet", "HarborRubric", "HarborTaskSet"]
