"""Parts of several tasksets: loading rows, and rubrics that work in the sandbox of the rollout."""

from __future__ import annotations

import asyncio
import io
import posixpath
import shlex
import tarfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from verifiers.decorators import cleanup
from verifiers.errors import DatasetError, SandboxError
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.sandbox_rubric import note_lost_sandbox

DEFAULT_TEST_TIMEOUT_S = 900
_MAX_FILE_BYTES = 1 << 20


def load_rows(
    dataset_name: str,
    subset: str | None,
    split: str,
    num_proc: int | None = None,
    keep_in_memory: bool = True,
) -> Any:
    """Return a dataset of the Hugging Face hub or of a folder of this machine."""
    import datasets  # heavy, and only environments with such a dataset need it

    return datasets.load_dataset(
        dataset_name, subset, split=split, keep_in_memory=keep_in_memory, num_proc=num_proc
    )


def rows_from(
    rows: Any, convert: Callable[[Mapping[str, Any]], dict[str, Any]], needed: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return the converted rows. Raises DatasetError if a column is missing."""
    missing = [name for name in needed if name not in rows.column_names]
    if missing:
        raise DatasetError(
            f"The dataset has no column {', '.join(map(repr, missing))}. It has {', '.join(rows.column_names)}."
        )
    return [convert(row) for row in rows]


def between(rows: Any, key: str | None, lowest: float, highest: float) -> Any:
    """Return the rows whose `key` lies between two numbers, both included; all rows without a key or its column."""
    if key is None or key not in rows.column_names:
        return rows
    kept = [
        n for n, value in enumerate(rows[key]) if value is not None and lowest <= value <= highest
    ]
    return rows.select(kept)


async def read_text(client: Any, sandbox_id: str, path: str, timeout_s: float = 30) -> str | None:
    """Return the text of a file in a sandbox, or None if there is none. Links are not read."""
    quoted = shlex.quote(path)
    command = f"test -f {quoted} && test ! -L {quoted} && head -c {_MAX_FILE_BYTES} {quoted}"
    done = await client.execute_command(sandbox_id, command, timeout=timeout_s)
    return done.stdout if done.exit_code == 0 else None


async def run_checked(client: Any, sandbox_id: str, command: str, timeout_s: float = 60) -> str:
    """Return the stdout of a command. Raises SandboxError if it fails."""
    done = await client.execute_command(sandbox_id, command, timeout=timeout_s)
    if done.exit_code != 0:
        output = (done.stderr or done.stdout or "").strip()[-500:]
        raise SandboxError(f"`{command[:200]}` failed with exit code {done.exit_code}: {output}")
    return done.stdout or ""


async def write_text(client: Any, sandbox_id: str, path: str, text: str) -> None:
    """Write a text file in a sandbox, and its folder."""
    await run_checked(client, sandbox_id, f"mkdir -p {shlex.quote(posixpath.dirname(path) or '.')}")
    await client.upload_bytes(sandbox_id, path, text.encode(), posixpath.basename(path))


async def upload_folder(client: Any, sandbox_id: str, folder: Path, target: str) -> None:
    """Upload a folder of this machine to a new path of a sandbox. A folder that does not exist is left out."""
    packed = await asyncio.to_thread(_packed, folder, target)
    if packed is not None:
        await unpack(client, sandbox_id, packed)


async def unpack(client: Any, sandbox_id: str, packed: bytes) -> None:
    """Unpack a gzipped tar file at the root of a sandbox."""
    path = f"/tmp/_task_{uuid.uuid4().hex}.tar.gz"
    await client.upload_bytes(sandbox_id, path, packed, "task.tar.gz")
    await run_checked(client, sandbox_id, f"tar -xzf {path} -C / && rm -f {path}")


def _packed(folder: Path, target: str) -> bytes | None:
    if not folder.is_dir():
        return None

    def of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, target.strip("/"), filter=of_root)
    return buffer.getvalue()


class TaskRubric(Rubric):
    """Reward `solved`: the value of `verdict`, computed in the sandbox of the rollout, which is then deleted.

    A rollout with an error, or without a sandbox, counts 0.0. If the sandbox fails during the tests, the rollout has
    failed. The environment needs `keep_sandbox_for_scoring=True`.
    """

    def __init__(self, taskset: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.taskset = taskset
        self._add_rewards()

    def _add_rewards(self) -> None:
        self.add_reward_func(self.solved)

    async def verdict(self, state: Any, info: dict[str, Any]) -> float:
        """Return the reward of a rollout."""
        raise NotImplementedError

    async def solved(self, state: Any, info: Any = None, **kwargs: Any) -> float:
        """Return 1.0 if the tests of the task accept the work of the agent."""
        if state.get("error") is not None:
            return 0.0
        if not state.get("sandbox_id") or state.get("sandbox_client") is None:
            self.logger.warning(
                "There is no sandbox to run the tests in. Set keep_sandbox_for_scoring=True in the environment."
            )
            return 0.0
        try:
            return await self.verdict(state, info if info is not None else state.get("info") or {})
        except Exception as error:  # noqa: BLE001 - counts 0.0, as in v0
            self.logger.warning("The tests could not be run: %r", error)
            state["test_output"] = f"ERROR: {error}"
            note_lost_sandbox(state, error)
            return 0.0

    @cleanup
    async def cleanup_sandbox(self, state: Any) -> None:
        """Delete the sandbox of the rollout."""
        sandbox_id, client = state.get("sandbox_id"), state.get("sandbox_client")
        if sandbox_id and client is not None:
            try:
                await client.delete(sandbox_id)
            except Exception as error:  # noqa: BLE001 - the environment tries again
                self.logger.warning("Sandbox %s could not be deleted: %r", sandbox_id, error)


def test_timeout_s(state: Mapping[str, Any]) -> float:
    """Return the time limit of the tests of a rollout."""
    return float(state.get("test_timeout") or DEFAULT_TEST_TIMEOUT_S)


test_timeout_s.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest

__all__ = [
    "TaskRubric",
    "between",
    "load_rows",
    "read_text",
    "rows_from",
    "run_checked",
    "test_timeout_s",
    "unpack",
    "upload_folder",
    "write_text",
]
