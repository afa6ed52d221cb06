"""The trainer's own process: requests in on stdin, answers out on stdout, one after the other, end at EOF.

Everything it or torch prints goes to stderr, which the orchestrator sends to the run's `trainer.log`.
"""

# pyright: reportMissingImports=false
# Types are checked where torch is installed; elsewhere the rest must still pass.

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from verifiers.child_process import reserve_stdout
from verifiers.endpoint.weights import write_safetensors
from verifiers.errors import Error
from verifiers.training.packing import PaddedBatch
from verifiers.training.reference.config import TrainConfig
from verifiers.training.reference.learner import Learner
from verifiers.training.reference.trainer_process import (
    HEADER_BYTES,
    frame_of,
    length_of,
    message_of,
)
from verifiers.training.samples import TokenSample


class Worker:
    """What the orchestrator can ask for; the method's name is the request's."""

    def __init__(self) -> None:
        self._learner: Learner | None = None

    @property
    def learner(self) -> Learner:
        """The learner; only after `start`."""
        if self._learner is None:
            raise RuntimeError("The worker has not been started.")
        return self._learner

    def start(self, config: TrainConfig, checkpoint: Path | None) -> dict[str, Any]:
        """Build the model, or go on from a checkpoint's file; what it is and where it has got to."""
        learner = self._learner = Learner(config)
        if checkpoint is not None:
            learner.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
        return {
            "parameters": sum(weight.numel() for weight in learner.model.parameters()),
            "device": str(learner.device),
            "phase": learner.phase,
            "step": learner.step_count,
            "warm_start_is_over": learner.warm_start_is_over,
            "torch": torch.__version__,
        }

    def set_demonstrations(
        self, clean: Sequence[TokenSample], noisy: Sequence[TokenSample]
    ) -> None:
        """What the warm start draws from."""
        self.learner.set_demonstrations(clean, noisy)

    def warm_start(self, steps: int) -> tuple[dict[str, float], bool]:
        """At most so many supervised steps; and whether they were the last."""
        metrics = self.learner.warm_start(steps)
        return metrics, self.learner.warm_start_is_over

    def begin_reinforcement(self) -> None:
        """The warm start is over."""
        self.learner.begin_reinforcement()

    def step(self, batches: Sequence[PaddedBatch], weights: Path) -> dict[str, float]:
        """One update; the new weights go to the folder `weights`."""
        metrics = self.learner.step(batches)
        self.push(weights)
        return metrics

    def push(self, weights: Path) -> None:
        """Write the weights where the server can read them."""
        weights.mkdir(parents=True, exist_ok=True)
        write_safetensors(weights / "model.safetensors", self.learner.tensors())

    def save_model(self, folder: Path) -> None:
        """Write a whole model folder."""
        self.learner.save_model(folder)

    def save(self, folder: Path) -> None:
        """Write what is needed to go on, and the model, into a folder that exists."""
        with open(folder / "trainer.pt", "wb") as file:
            torch.save(self.learner.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        self.learner.save_model(folder / "model")


def read_requests(pipe: BinaryIO, requests: queue.SimpleQueue[Any]) -> None:
    """Put requests in line. When the pipe ends the orchestrator has gone, and this process goes at once."""
    while True:
        header = pipe.read(HEADER_BYTES)
        content = pipe.read(length_of(header)) if len(header) == HEADER_BYTES else b""
        if not content:
            # Not sys.exit: the main thread may be in the middle of a long step that nobody waits for.
            os._exit(0)
        requests.put(message_of(content))


def answer_of(worker: Worker, method: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    """`("done", value)`, or `("failed", error)` with an error that can be sent."""
    try:
        return "done", getattr(worker, method)(**arguments)
    except Exception as error:  # noqa: BLE001 - raised again by the orchestrator
        traceback.print_exc()
        sendable = error if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        return "failed", sendable


def main() -> None:
    """Serve until the pipe ends."""
    # Ctrl-C reaches the whole group; the orchestrator decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = reserve_stdout()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    worker = Worker()
    while True:
        method, arguments = requests.get()
        answers.write(frame_of(answer_of(worker, method, arguments)))
        answers.flush()
