"""`ReplProcess`: the host's side of the REPL worker in a sandbox (`worker.py` is the other side)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from verifiers.errors import Error
from verifiers.sandboxes import Process, Sandbox

MAX_REPLY_BYTES = 64 << 20
"""Maximum size of one reply. Output is cut inside, so only a huge answer can reach it."""
_COMPLAINT_BYTES = 4000
_SCRIPT = Path(__file__).with_name("worker.py")


class WorkerEnded(Error):
    """The worker ended before it replied. The message contains its last words."""


def worker_script() -> str:
    """Return the program of the worker, for `customize_worker_script`."""
    return _SCRIPT.read_text("utf-8")


class ReplProcess:
    """A running worker. It answers one request at a time; all its data is treated as hostile."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._replies: asyncio.Queue[str | None] = asyncio.Queue()
        self._complaint = b""
        self._turn = asyncio.Lock()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="RLM worker")
        self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())

    @classmethod
    async def start(
        cls,
        sandbox: Sandbox,
        script: str,
        settings: Mapping[str, Any],
        env: Mapping[str, str],
        limit_s: float,
    ) -> ReplProcess:
        """Start the worker and wait until it is ready.

        Raises WorkerEnded if the script fails, TimeoutError after `limit_s` seconds, and SandboxError.
        """
        # The worker enters its directory after its imports, so no file there can replace a module.
        process = await sandbox.spawn_python(
            script, argv=[json.dumps(settings)], env=env, cwd="/", stdin=True
        )
        worker = cls(process)
        try:
            async with asyncio.timeout(limit_s):
                await worker._next_reply()
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send a request that has no reply."""
        try:
            await self._process.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            pass  # the worker has ended: `_next_reply` reports it

    async def ask(self, message: Mapping[str, Any]) -> str:
        """Send a request and return the line of its reply. Raises WorkerEnded. Kill the worker if this is cancelled."""
        async with self._turn:
            await self.send(message)
            return await self._next_reply()

    async def kill(self) -> None:
        """Kill the worker and every process that its code has started."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        with suppress(Exception):  # the sandbox may be gone
            await self._process.kill()

    async def _next_reply(self) -> str:
        line = await self._replies.get()
        if line is not None:
            return line
        self._replies.put_nowait(None)  # for later requests
        reason = "it ended"
        with suppress(Exception):  # the sandbox may be gone
            result = await self._process.wait()
            reason = "it was killed" if result.exit_code is None else f"code {result.exit_code}"
            if result.oom:
                reason = "out of memory"
        complaint = self._complaint.decode("utf-8", "replace").strip()
        raise WorkerEnded(f"{reason}. {complaint}".rstrip(". ") + ".")

    async def _read(self) -> None:
        line = bytearray()
        try:
            async for stream, data in self._process.output():
                if stream == "stderr":
                    self._complaint = (self._complaint + data)[-_COMPLAINT_BYTES:]
                    continue
                *whole, rest = data.split(b"\n")
                for part in whole:
                    self._replies.put_nowait((line + part).decode("utf-8", "replace"))
                    line.clear()
                line += rest
                if len(line) > MAX_REPLY_BYTES:
                    self._complaint = b"Its reply was too long."
                    break
        finally:
            self._replies.put_nowait(None)


__all__ = ["ReplProcess", "WorkerEnded", "worker_script"]
