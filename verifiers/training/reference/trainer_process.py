"""The orchestrator's side of the trainer process."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verifiers.child_process import described_exit, log_tail, python_command, stop_process
from verifiers.errors import ConfigError, Error

STOP_TIMEOUT_S = 5.0

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class TrainerFailed(Error, RuntimeError):
    """A step of the trainer raised; its process is alive."""


class ProcessDied(Error, RuntimeError):
    """The trainer's or the inference server's process ended by itself."""


class TrainerProcess:
    """A running trainer; `ask` it for the methods of `worker.Worker`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._busy = asyncio.Lock()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, method: str, **arguments: Any) -> Any:
        """What the method gives. Raises what it raised if that is an error of ours, TrainerFailed otherwise, and
        ProcessDied when the process is gone."""
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None  # both are pipes, see `trainer_process`
        assert writer is not None
        async with self._busy:
            try:
                writer.write(frame_of((method, arguments)))
                await writer.drain()
                header = await reader.readexactly(HEADER_BYTES)
                outcome, value = message_of(await reader.readexactly(length_of(header)))
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                await self._process.wait()
                raise self.death() from error
        if outcome == "failed":
            raise (
                value
                if isinstance(value, Error)
                else TrainerFailed(f"The trainer's {method} raised {value} See {self._log}.")
            )
        return value

    async def watch(self) -> None:
        """Raise ProcessDied when the process ends."""
        await self._process.wait()
        raise self.death()

    def death(self) -> ProcessDied:
        """How the process ended, with its last words."""
        words = last_words(self._log)
        said = f" It said: {words}" if words else ""
        return ProcessDied(
            f"The trainer process {self.pid} {described_exit(self._process.returncode)}.{said} "
            f"Its log: {self._log}"
        )

    async def close(self) -> None:
        """End the process and wait for it; nothing if it has ended."""
        await stop_process(self._process, STOP_TIMEOUT_S, own_group=False)


@asynccontextmanager
async def trainer_process(log: Path, *, threads: int) -> AsyncIterator[TrainerProcess]:
    """Start the trainer's process; it ends with the block, and with this process however that ends.

    `threads`: of its numeric libraries, 0 for their own choice. Raises ConfigError when torch is not installed.
    """
    if find_spec("torch") is None:
        raise ConfigError("The reference trainer needs torch: pip install 'torch>=2.9'.")
    variables = dict.fromkeys(THREAD_VARIABLES, str(threads)) if threads else {}
    with open(log, "ab") as errors:  # noqa: ASYNC230 - a file of the run, opened once
        process = await asyncio.create_subprocess_exec(
            *python_command("verifiers.training.reference.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **variables},
        )
    trainer = TrainerProcess(process, log)
    try:
        yield trainer
    finally:
        # In a task of its own: a second Ctrl-C must not leave the process behind.
        await asyncio.shield(asyncio.ensure_future(trainer.close()))


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    lines = log_tail(log).splitlines()
    return lines[-1].strip() if lines else ""


HEADER_BYTES = 8


def frame_of(message: Any) -> bytes:
    """A message as it goes over the pipe."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(HEADER_BYTES, "little") + content


def length_of(header: bytes) -> int:
    """How many bytes follow a header."""
    return int.from_bytes(header, "little")


def message_of(content: bytes) -> Any:
    """What `frame_of` was given."""
    return pickle.loads(content)
