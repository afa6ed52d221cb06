"""Check the tasks of a taskset without an agent: prepare each sandbox, apply the known solution, run the tests.

| `reason` | meaning |
|---|---|
| pass, test_failed | `validate_instance` returned True or False |
| gold_apply_failed | the known solution could not be applied |
| setup_failed | `setup` or `validate_instance` raised |
| sandbox_error | the sandbox failed; it is tried again `max_retries` times |
| timeout | a command or the preparation took too long |
| billing_error | the provider of sandboxes requires payment; no further task is started |
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from verifiers.envs.hooks import call_hook
from verifiers.envs.sandbox_client import timeout_errors
from verifiers.envs.sandbox_mixin import ThreadedAsyncSandboxClient, note_death
from verifiers.envs.sandbox_request import CreateSandboxRequest, is_python_image
from verifiers.errors import ConfigError, SandboxError

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_MINUTES = 60
_GOLD = re.compile(
    r"\bgold\b|\b(?:git )?apply failed|patch (?:does not apply|failed)", re.IGNORECASE
)
_BILLING = re.compile(
    r"\bHTTP 402\b|payment required|insufficient (?:funds|credits?|balance)", re.IGNORECASE
)
_SHOWN_CHARACTERS = 2000


async def validate(
    taskset: Any,
    n: int | None = None,
    concurrency: int = 10,
    *,
    out_path: str | Path | None = None,
    max_retries: int = 0,
    resume: bool = False,
    test_output_tail_chars: int = 2000,
) -> list[dict[str, Any]]:
    """Check the first `n` tasks of a `TaskSet` (None: all), `concurrency` at the same time. Return one dict per task.

    A dict has `index`, `instance_id`, `repo`, `valid`, `reason`, `attempts`, `elapsed` (seconds), `error`,
    `error_type` and `test_output_tail`, the end of `state["test_output"]`. Each one is appended to the JSONL file
    `out_path` at once. `resume` keeps the tasks that are in that file and checks the others. Sandboxes come from the
    default back end (`VF_SANDBOX_BACKEND`). Raises ConfigError for `resume` without `out_path`.
    """
    if resume and out_path is None:
        raise ConfigError("resume=True needs out_path, the file with the tasks that are done.")
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1; got {concurrency}.")
    path = None if out_path is None else Path(out_path)
    done = _read_done(path) if resume and path is not None else {}
    count = len(taskset) if n is None else min(n, len(taskset))
    infos = {index: taskset[index].info for index in range(count) if index not in done}
    client = ThreadedAsyncSandboxClient()
    stopped = asyncio.Event()
    places = asyncio.Semaphore(concurrency)

    async def check(index: int, file: TextIO | None) -> dict[str, Any] | None:
        async with places:
            if stopped.is_set():
                return None
            row = await _Check(infos[index], taskset, client, test_output_tail_chars).run(
                index, max_retries
            )
        if row["reason"] == "billing_error":
            stopped.set()
        if file is not None:
            file.write(json.dumps(row, default=str) + "\n")
            file.flush()
        return row

    try:
        with _appending(path, is_new=not resume) as file:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(check(index, file)) for index in infos]
    finally:
        await client.aclose()
    checked = {row["index"]: row for task in running if (row := task.result()) is not None}
    rows = {**done, **checked}
    return [rows[index] for index in range(count) if index in rows]


class _Check:
    """The check of one task."""

    def __init__(self, info: dict[str, Any], taskset: Any, client: Any, tail_chars: int) -> None:
        self.info = info
        self.taskset = taskset
        self.client = client
        self.tail_chars = tail_chars

    async def run(self, index: int, max_retries: int) -> dict[str, Any]:
        start = time.monotonic()
        attempts, state, reason, error = 0, {}, "", None
        while attempts <= max_retries:
            attempts += 1
            state, reason, error = await self._attempt()
            if reason != "sandbox_error":
                break
        output = state.get("test_output")
        return {
            "index": index,
            "instance_id": self.info.get("instance_id"),
            "repo": self.info.get("repo") or self.info.get("repo_name"),
            "valid": reason == "pass",
            "reason": reason,
            "attempts": attempts,
            "elapsed": time.monotonic() - start,
            "error": None if error is None else str(error)[:_SHOWN_CHARACTERS],
            "error_type": None if error is None else type(error).__name__,
            "test_output_tail": None if output is None else _tail(str(output), self.tail_chars),
        }

    async def _attempt(self) -> tuple[MutableMapping[str, Any], str, Exception | None]:
        state: dict[str, Any] = {"info": self.info}
        try:
            is_valid = await self._apply_solution(state)
        except Exception as error:
            logger.debug("task %s: %r", self.info.get("instance_id"), error, exc_info=error)
            note_death(state, error)
            return state, _reason_of(error), error
        return state, "pass" if is_valid else "test_failed", None

    async def _apply_solution(self, state: dict[str, Any]) -> bool:
        spec = self.taskset.get_sandbox_spec(self.info)
        if spec is None:
            return bool(await call_hook(self.taskset.validate_instance, state))
        minutes = spec.timeout_minutes or DEFAULT_TIMEOUT_MINUTES
        request = CreateSandboxRequest(
            name=f"validate-{self.taskset.name or 'task'}",
            docker_image=spec.image,
            cpu_cores=spec.cpu_cores,
            memory_gb=spec.memory_gb,
            disk_size_gb=spec.disk_size_gb,
            gpu_count=spec.gpu_count,
            timeout_minutes=minutes,
            environment_vars=self.taskset.get_env_vars() or None,
            gpu_type=spec.gpu_type,
            vm=spec.gpu_count > 0,
            folders=self._folders(spec.image),
        )
        created = await self.client.create(request)
        try:
            await self.client.wait_for_creation(created.id)
            state.update(
                sandbox_client=self.client, sandbox_id=created.id, test_timeout=int(minutes * 60)
            )
            await call_hook(self.taskset.setup, state)
            return bool(await call_hook(self.taskset.validate_instance, state))
        finally:
            await self.client.delete(created.id)

    def _folders(self, image: str) -> tuple[str, ...]:
        if not is_python_image(image):
            return ()
        return (self.taskset.get_workdir(self.info), *self.taskset.get_folders(self.info))


def _reason_of(error: Exception) -> str:
    text = str(error)
    if _BILLING.search(text):
        return "billing_error"
    if isinstance(error, (TimeoutError, *timeout_errors())):
        return "timeout"
    if _GOLD.search(text) and not isinstance(error, SandboxError):
        return "gold_apply_failed"
    return "sandbox_error" if isinstance(error, SandboxError) else "setup_failed"


def _tail(text: str, characters: int) -> str:
    return text[-characters:] if characters > 0 else ""


def _read_done(path: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of an earlier check by their index. Lines that cannot be read are skipped."""
    done: dict[int, dict[str, Any]] = {}
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
            done[int(row["index"])] = row
        except (ValueError, TypeError, KeyError):
            logger.warning("%s: a broken line is ignored: %.100r", path, line)
    return done


@contextmanager
def _appending(path: Path | None, *, is_new: bool) -> Iterator[TextIO | None]:
    if path is None:
        yield None
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    ends_inside_a_line = not is_new and path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
    with path.open("w" if is_new else "a", encoding="utf-8") as file:
        if ends_inside_a_line:
            file.write("\n")
        yield file


__all__ = ["validate"]
