"""A `RolloutSource` as the rollout worker of TRL's `AsyncGRPOTrainer` (1.16), and weights through a folder.

    worker = AsyncGRPOWorker(env, [PolicyEndpoint.at(url)], SourceConfig(...), model="policy")
    transfer = FolderWeightTransfer(worker, url, "weights", model_folder=checkpoint)
    AsyncGRPOTrainer(..., rollout_worker=worker, weight_transfer=transfer)

The source plays, scores, groups and drops what is too old; TRL drains `rollout_buffer` and steps. AsyncGRPOTrainer
itself needs a GPU.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from verifiers.errors import InfraError
from verifiers.training.adapters import trainer_module
from verifiers.training.adapters.source_thread import SourceThread
from verifiers.training.batch import Batch
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.source import RolloutSource
from verifiers.training.source_config import SourceConfig

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment
    from verifiers.training.dispatch_events import Entry
    from verifiers.training.samples import TokenSample

FULL_POLL_S = 0.05


class WorkerFailed(InfraError):
    """The rollout worker has stopped, or has given nothing for too long."""


class AsyncGRPOWorker:
    """TRL's `RolloutWorkerProtocol`.

    `options` are those of `RolloutSource`. At most `max_buffered` samples wait for the trainer; beyond that the source
    keeps its batches, where the bound on staleness still holds.
    """

    def __init__(
        self,
        env: Environment,
        endpoints: Sequence[PolicyEndpoint],
        config: SourceConfig,
        *,
        max_buffered: int = 1024,
        **options: Any,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.version = 0
        self.max_buffered = max_buffered
        self._source = RolloutSource(env, endpoints, config, **options)
        self._thread = SourceThread(self._source, self._deliver)
        self._last_sample_time = time.monotonic()

    def start(self) -> None:
        """Begin to play. Returns once the source is open; raises what kept it from opening."""
        self._sample_type = trainer_module(
            "trl.experimental.async_grpo.async_rollout_worker",
            "RolloutSample",
            install="pip install 'trl>=1.16' requests",
        ).RolloutSample
        self._thread.start(self.version)

    def stop(self) -> None:
        """Cancel what is played and wait until it has cleaned up."""
        self._thread.stop()

    def update_model_version(self, model_version: int) -> None:
        """The servers have new weights. Returns when rollouts that became too old have been stopped."""
        self.version = model_version
        self._thread.set_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise WorkerFailed when nothing comes any more, or nothing has for `stale_after_s` seconds."""
        if not self._thread.is_playing:
            failure = self._thread.failure
            raise WorkerFailed(f"The rollouts have stopped: {failure!r}") from failure
        silent_s = time.monotonic() - self._last_sample_time
        if silent_s > stale_after_s and self.rollout_buffer.empty():
            raise WorkerFailed(
                f"No sample for {silent_s:.0f} s; {self._source.in_flight} rollouts are in flight."
            )

    async def _deliver(self, batch: Batch) -> None:
        self.metrics_queue.put(dict(batch.metrics))
        for entry in batch.entries:
            for sample in entry.outcome.samples:
                self.rollout_buffer.put(self._sample_of(entry, sample))
        self._last_sample_time = time.monotonic()
        # The trainer's queue is a thread's, which cannot be awaited.
        while self.rollout_buffer.qsize() >= self.max_buffered:  # noqa: ASYNC110
            await asyncio.sleep(FULL_POLL_S)

    def _sample_of(self, entry: Entry, sample: TokenSample) -> Any:
        oldest = sample.oldest_version
        return self._sample_type(
            prompt=[],
            completion=[],
            input_ids=sample.token_ids.astype("int64"),
            completion_mask=sample.mask.astype("int64"),
            old_log_probs=sample.logprobs,
            advantage=sample.advantage,
            model_version=entry.version if oldest is None else oldest,
            group_id=entry.group,
            metrics={"reward": sample.reward},
            enqueued_at=time.time(),
        )
