"""Starts workers, detects workers that died or went silent, and replaces them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verifiers.child_process import (
    GRACE_S,
    described_exit,
    kill_group,
    start_python,
    stop_process,
)
from verifiers.serve.wire import EnvWorkerStats, ServerError

logger = logging.getLogger(__name__)

MAX_START_FAILURES = 3
"""Number of consecutive workers that may die before they are ready, while no other worker runs.

Then the server ends.
"""
QUICK_DEATH_S = 5.0
LONGEST_PAUSE_S = 5.0


class WorkersFailed(ServerError):
    """No worker can be started."""


@dataclass(frozen=True)
class WorkerPlan:
    """Settings for starting workers."""

    count: int
    settings: Mapping[str, Any]
    """Settings that every worker receives."""
    python: str | None
    """Interpreter of the workers; None for this one."""
    heartbeat_timeout_s: float
    """Time without a heartbeat after which a worker counts as dead, in seconds."""
    startup_timeout_s: float
    """Maximum time until a worker is ready, in seconds."""
    log_dir: Path | None = None


@dataclass(eq=False)
class WorkerProcess:
    """A running worker."""

    index: int
    name: str
    process: asyncio.subprocess.Process
    started: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    stats: EnvWorkerStats | None = None
    failure: dict[str, Any] | None = None
    """The error with which it failed to load the environment."""
    killed_for: str | None = None

    def kill(self, reason: str) -> None:
        """Kill it at once."""
        self.killed_for = self.killed_for or reason
        kill_group(self.process.pid)


class Supervisor:
    """Keeps `plan.count` workers running.

    It calls `lost(name, reason)` after every death, before the next start; `lost` returns the number of requests that
    the worker had.
    """

    def __init__(self, plan: WorkerPlan, lost: Callable[[str, str], Awaitable[int]]) -> None:
        self._plan = plan
        self._lost = lost
        self.workers: dict[str, WorkerProcess] = {}
        self.restarts = 0

    @property
    def ready(self) -> list[WorkerProcess]:
        """Workers that accept requests."""
        return [worker for worker in self.workers.values() if worker.is_ready]

    async def run(self) -> None:
        """Keep the workers running until cancelled. Raise WorkersFailed if no worker can be started."""
        async with asyncio.TaskGroup() as tasks:
            for index in range(self._plan.count):
                tasks.create_task(self._keep(index))
            tasks.create_task(self._watch())

    async def _keep(self, index: int) -> None:
        generation = start_failures = quick_deaths = 0
        while True:
            worker = await self._start(index, generation)
            try:
                code = await worker.process.wait()
            finally:
                await self._end(worker)
            how = self._how_it_ended(worker, code)
            logger.warning("Worker %s %s; a new one is started.", worker.name, how)
            held = await self._lost(worker.name, how)
            start_failures = 0 if worker.is_ready else start_failures + 1
            if start_failures and not self.ready:
                self._give_up_if_hopeless(worker, start_failures, how)
            lived_s = time.monotonic() - worker.started
            # A worker that had requests may have died from them, and requests are retried a limited number of times.
            # Without requests nothing else limits the number of starts.
            is_quick = lived_s < QUICK_DEATH_S and not held
            quick_deaths = quick_deaths + 1 if is_quick else 0
            if quick_deaths > 1:
                await asyncio.sleep(min(LONGEST_PAUSE_S, 0.1 * 2**quick_deaths))
            generation += 1
            self.restarts += 1

    def _give_up_if_hopeless(self, worker: WorkerProcess, failures: int, how: str) -> None:
        if worker.failure is not None:
            raise WorkersFailed(worker.failure["error"])
        if failures >= MAX_START_FAILURES:
            raise WorkersFailed(
                f"{failures} workers in a row died before they loaded the environment; the last one {how}."
            )

    async def _start(self, index: int, generation: int) -> WorkerProcess:
        name = f"worker-{index}-{generation}"
        with ExitStack() as files:
            log = None
            if self._plan.log_dir is not None:
                path = worker_log_file(self._plan.log_dir, index)
                log = files.enter_context(path.open("ab"))
            process = await start_python(
                "verifiers.serve.worker",
                {**self._plan.settings, "worker_id": index, "name": name},
                python=self._plan.python,
                log=log,
            )
        worker = self.workers[name] = WorkerProcess(index, name, process)
        return worker

    async def _end(self, worker: WorkerProcess) -> None:
        """Give the worker time to clean up if it still runs, then kill it and its children."""
        try:
            await stop_process(worker.process, GRACE_S)
        finally:
            self.workers.pop(worker.name, None)

    async def _watch(self) -> None:
        """Kill workers that are silent or not ready in time; their keepers then start others."""
        plan = self._plan
        while True:
            await asyncio.sleep(min(1.0, plan.heartbeat_timeout_s / 4))
            now = time.monotonic()
            for worker in list(self.workers.values()):
                if worker.is_ready and now - worker.heard > plan.heartbeat_timeout_s * 1.5:
                    worker.kill(f"was silent for {now - worker.heard:.0f} s and was killed")
                elif not worker.is_ready and now - worker.started > plan.startup_timeout_s:
                    worker.kill(
                        f"was not ready after {plan.startup_timeout_s:.0f} s and was killed"
                    )

    def _how_it_ended(self, worker: WorkerProcess, code: int) -> str:
        if worker.failure is not None:
            return f"could not load the environment: {worker.failure['error']}"
        if worker.killed_for is not None:
            return worker.killed_for
        timeout_s = self._plan.heartbeat_timeout_s
        if worker.is_ready and time.monotonic() - worker.heard > timeout_s * 0.9:
            return f"ended itself: its event loop was blocked for {timeout_s:g} s (its log has the stack)"
        return described_exit(code)


def worker_log_file(log_dir: str | Path, worker_id: int) -> Path:
    """Return the log file of a worker, which also receives the output of its environment."""
    return Path(log_dir) / f"env_worker_{worker_id}.log"
