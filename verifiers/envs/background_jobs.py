"""A command that runs in a sandbox while the rollout goes on, and what it has printed so far."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from verifiers.sandboxes import Process, Sandbox
from verifiers.sandboxes.guest.output import joined

MAX_OUTPUT_BYTES = 1 << 20
"""Kept of each stream: the first and the last half."""


class JobResult(NamedTuple):
    """How a command ended."""

    exit_code: int
    """137 if the sandbox itself ended it."""
    stdout: str
    stderr: str
    oom: bool
    """Something was killed for want of memory while it ran."""


class _Kept:
    """The beginning and the end of one stream."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0

    def add(self, data: bytes) -> None:
        """Keep what fits; of the middle, only its length."""
        half = MAX_OUTPUT_BYTES // 2
        room = half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if (surplus := len(self._tail) - half) > 0:
            del self._tail[:surplus]
            self._dropped_bytes += surplus

    def text(self) -> str:
        """What was kept; a line in the middle says how much is missing."""
        whole = joined(bytes(self._head), bytes(self._tail), self._dropped_bytes)
        return whole.decode("utf-8", "replace")


class RunningJob:
    """Collects the output of one command. Whoever cancels `run` has the command killed, with all it has started."""

    def __init__(self) -> None:
        self._stdout = _Kept()
        self._stderr = _Kept()

    @property
    def stdout(self) -> str:
        """What it has printed so far."""
        return self._stdout.text()

    @property
    def stderr(self) -> str:
        """What it has complained of so far."""
        return self._stderr.text()

    async def run(
        self,
        sandbox: Sandbox,
        command: str,
        working_dir: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
    ) -> JobResult:
        """Run it to its end, without a time limit of its own."""
        process = await sandbox.spawn(command, cwd=working_dir, env=env, user=user)
        is_over = False
        try:
            await self._read(process)
            result = await process.wait()
            is_over = True
        finally:
            if not is_over:
                with suppress(Exception):  # the sandbox may be gone, and the command with it
                    await asyncio.gather(process.kill(), self._read(process))
        exit_code = 137 if result.exit_code is None else result.exit_code
        return JobResult(exit_code, self.stdout, self.stderr, result.oom)

    async def _read(self, process: Process) -> None:
        async for stream, data in process.output():
            (self._stdout if stream == "stdout" else self._stderr).add(data)
