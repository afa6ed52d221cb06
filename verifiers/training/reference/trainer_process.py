"""The trainer process as the orchestrator uses it, and the messages over the pipe between the two.

A message is 8 bytes of length, then a pickle. Pickles are safe here: both ends are processes of one run that share
nothing but this pipe.
"""

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
    """The process of the trainer or of the inference server ended by itself."""


class TrainerProcess:
    """A running trainer process. `ask` calls the methods of `worker.Worker`."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._busy = asyncio.Lock()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the worker and return its result.

        Raise the worker's exception if it is one of this library, else TrainerFailed. Raise ProcessDied if the process
        ended.
        """
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None  # `trainer_process` starts the process with both pipes
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
        """Return an error that describes how the process ended, with the last line of its log."""
        last_line = last_words(self._log)
        output = f" Its last output: {last_line}" if last_line else ""
        return ProcessDied(
            f"The trainer process {self.pid} {described_exit(self._process.returncode)}.{output} "
            f"Its log: {self._log}"
        )

    async def close(self) -> None:
        """End the process and wait for it. Do nothing if it has ended."""
        await stop_process(self._process, STOP_TIMEOUT_S, own_group=False)


@asynccontextmanager
async def trainer_process(log: Path, *, threads: int) -> AsyncIterator[TrainerProcess]:
    """Start the trainer process. It ends with the block, and with this process.

    `threads`: number of threads of its numeric libraries, 0 for their default. Raise ConfigError if torch is not
    installed.
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
        # A separate task: a second Ctrl-C must not leave the process behind.
        await asyncio.shield(asyncio.ensure_future(trainer.close()))


def last_words(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = log_tail(log).splitlines()
    return lines[-1].strip() if lines else ""


HEADER_BYTES = 8


def frame_of(message: Any) -> bytes:
    """Return a message as bytes for the pipe."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(content).to_bytes(HEADER_BYTES, "little") + content


def length_of(header: bytes) -> int:
    """Return the number of bytes after a header."""
    return int.from_bytes(header, "little")


def message_of(content: bytes) -> Any:
    """Return the message of the bytes after a header."""
    return pickle.loads(content)
