"""The program of the trainer process: reads requests from stdin, writes responses to stdout in order, ends at EOF.

Its own output and torch's go to stderr, which the orchestrator redirects to the run's `trainer.log`.
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
    """The methods that the orchestrator can call. A request names its method."""

    def __init__(self) -> None:
        self._learner: Learner | None = None

    @property
    def learner(self) -> Learner:
        """The learner. Call `start` first."""
        if self._learner is None:
            raise RuntimeError("The worker has not been started.")
        return self._learner

    def start(self, config: TrainConfig, checkpoint: Path | None) -> dict[str, Any]:
        """Build the model, or continue from a checkpoint's file. Return a description of the model and its progress."""
        learner = self._learner = Learner(config)
        if checkpoint is not None:
            learner.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True))
        return {
            "parameters": sum(weight.numel() for weight in learner.model.parameters()),
            "device": str(learner.device),
            "phase": learner.phase,
            "step": learner.step_count,
            "warm_start_is_over": learner.warm_start_is_over,
            # A plain string: the object itself would import torch in the process that unpickles it.
            "torch": str(torch.__version__),
        }

    def set_demonstrations(
        self, clean: Sequence[TokenSample], noisy: Sequence[TokenSample]
    ) -> None:
        """Set the samples of the warm start."""
        self.learner.set_demonstrations(clean, noisy)

    def warm_start(self, steps: int) -> tuple[dict[str, float], bool]:
        """Take up to `steps` supervised steps. Return their metrics and whether the warm start is over."""
        metrics = self.learner.warm_start(steps)
        return metrics, self.learner.warm_start_is_over

    def begin_reinforcement(self) -> None:
        """End the warm start."""
        self.learner.begin_reinforcement()

    def step(self, batches: Sequence[PaddedBatch], weights: Path) -> dict[str, float]:
        """Update the weights once, and write them to the folder `weights`."""
        metrics = self.learner.step(batches)
        self.push(weights)
        return metrics

    def push(self, weights: Path) -> None:
        """Write the weights to a folder that the server reads."""
        weights.mkdir(parents=True, exist_ok=True)
        write_safetensors(weights / "model.safetensors", self.learner.tensors())

    def save_model(self, folder: Path) -> None:
        """Write a complete model folder."""
        self.learner.save_model(folder)

    def save(self, folder: Path) -> None:
        """Write the state for a resumed run, and the model, into an existing folder."""
        with open(folder / "trainer.pt", "wb") as file:
            torch.save(self.learner.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        self.learner.save_model(folder / "model")


def read_requests(pipe: BinaryIO, requests: queue.SimpleQueue[Any]) -> None:
    """Queue the requests. Exit at once when the pipe closes, because the orchestrator has ended."""
    while True:
        header = pipe.read(HEADER_BYTES)
        content = pipe.read(length_of(header)) if len(header) == HEADER_BYTES else b""
        if not content:
            # Not sys.exit: the main thread may be in a long step whose result is no longer needed.
            os._exit(0)
        requests.put(message_of(content))


def answer_of(worker: Worker, method: str, arguments: dict[str, Any]) -> tuple[str, Any]:
    """Return `("done", value)`, or `("failed", error)` with an error that can be pickled."""
    try:
        return "done", getattr(worker, method)(**arguments)
    except Exception as error:  # noqa: BLE001 - raised again by the orchestrator
        traceback.print_exc()
        sendable = error if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        return "failed", sendable


def main() -> None:
    """Serve until the pipe closes."""
    # Ctrl-C reaches the whole process group; the orchestrator decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = reserve_stdout()
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    worker = Worker()
    while True:
        method, arguments = requests.get()
        answers.write(frame_of(answer_of(worker, method, arguments)))
        answers.flush()
