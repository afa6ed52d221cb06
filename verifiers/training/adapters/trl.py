"""An environment inside TRL (1.16): `rollout_func` of `GRPOTrainer`, rollout worker of `AsyncGRPOTrainer`.

    rollouts = TRLRollouts(env, client, "policy", before=WeightPush("http://localhost:8000", "weights"))
    GRPOTrainer(..., train_dataset=rollouts.dataset(), rollout_func=rollouts, reward_funcs=env_reward)

TRL passes prompts only, each once per rollout of its group, expects one flat sequence for each, in order, and computes
the advantages itself. Without vLLM it treats the tokens as on-policy. The endpoint therefore needs the weights of the
current step before sampling: TRLRollouts calls `before` first.

    worker = AsyncGRPOWorker(env, [PolicyEndpoint.at(url)], SourceConfig(...), model="policy")
    transfer = FolderWeightTransfer(worker, url, "weights", model_folder=checkpoint)
    AsyncGRPOTrainer(..., rollout_worker=worker, weight_transfer=transfer)

A `RolloutSource` plays, scores, groups and drops stale rollouts in a thread; TRL drains `rollout_buffer` and steps.
AsyncGRPOTrainer needs a GPU; the worker and the transfer do not.
"""

from __future__ import annotations

import asyncio
import json
import queue
import shutil
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.concurrency import run_sync
from verifiers.dialects.chat_completions import native_messages
from verifiers.errors import ConfigError, InfraError
from verifiers.training.adapters import Split, trainer_module
from verifiers.training.adapters.flat import flat_groups
from verifiers.training.adapters.play import play_groups
from verifiers.training.batch import Batch
from verifiers.training.inference_admin import AdminConfig, InferenceAdmin, UpdateFailed, update_all
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.samples import OnDrift
from verifiers.training.source import RolloutSource
from verifiers.training.source_config import SourceConfig
from verifiers.types import SamplingArgs

if TYPE_CHECKING:
    from datasets import Dataset

    from verifiers.envs.environment import Environment
    from verifiers.training.dispatch import Entry
    from verifiers.training.samples import TokenSample


class WeightPush:
    """Pushes the weights of a `transformers.Trainer`, or a trainer like it, once per optimizer step.

    `folder` receives each checkpoint, which is removed after the push. The servers read it, so it must be on storage
    that they share. Call WeightPush in all processes: gathering sharded weights needs every process.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        folder: str | Path,
        *,
        config: AdminConfig | None = None,
        api_key: str | None = None,
    ) -> None:
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.folder = Path(folder).absolute()
        self.config = config
        self._api_key = api_key
        self.pushed_step: int | None = None
        """The step whose weights the servers have; None before the first push."""

    def __call__(self, trainer: Any) -> None:
        """Push the weights if the servers have older ones. Raise UpdateFailed if a server refused them."""
        step = trainer.state.global_step
        if step == self.pushed_step:
            return
        accelerator = trainer.accelerator
        tensors = accelerator.get_state_dict(trainer.model)
        if accelerator.is_main_process:
            target = self.folder / f"step_{step}"
            accelerator.unwrap_model(trainer.model).save_pretrained(target, state_dict=tensors)
            run_sync(lambda: self.push(target, step))
            shutil.rmtree(target)
        accelerator.wait_for_everyone()
        self.pushed_step = step

    async def push(self, weights: Path, version: int) -> None:
        """Load a folder on every server."""
        async with AsyncExitStack() as stack:
            admins = [
                await stack.enter_async_context(
                    InferenceAdmin(url, self.config, api_key=self._api_key)
                )
                for url in self.urls
            ]
            results = await update_all(admins, weights, version)
        failed = {
            url: str(result)
            for url, result in zip(self.urls, results, strict=True)
            if result is not None
        }
        if failed:
            raise UpdateFailed(failed, [url for url in self.urls if url not in failed])


def env_reward(env_reward: Sequence[float], **_: Any) -> list[float]:
    """Return the environment's rewards unchanged: the reward function for TRL."""
    return list(env_reward)


class TRLRollouts:
    """A `rollout_func` that TRL calls with `(prompts, trainer)`."""

    def __init__(
        self,
        env: Environment,
        client: Any,
        model: str,
        *,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        before: Callable[[Any], None] | None = None,
        max_concurrent: int = 64,
        on_drift: OnDrift = "error",
    ) -> None:
        """`before(trainer)` is called before a batch is sampled. Missing sampling arguments come from the trainer."""
        self.env = env
        self.client = client
        self.model = model
        self.sampling_args = sampling_args or {}
        self.before = before
        self.max_concurrent = max_concurrent
        self.on_drift: OnDrift = on_drift
        self._rows = PromptRows(env, num_examples)

    def dataset(self, split: Split = "train") -> Dataset:
        """Return the `train_dataset`, or the `eval_dataset`, with one column `prompt`."""
        from datasets import Dataset

        return Dataset.from_list([{"prompt": prompt} for prompt in self._rows.prompts(split)])

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return token ids, log-probabilities, `env_mask` and `env_reward` of one rollout for each prompt."""
        if self.before is not None:
            self.before(trainer)
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        rows = [self._rows.row_of(prompt) for prompt in prompts]
        runs = [list(group) for _, group in groupby(rows, key=lambda row: row["example_id"])]
        groups = [run[n : n + size] for run in runs for n in range(0, len(run), size)]
        if self.env.requires_group_rollouts and any(len(group) < size for group in groups):
            raise ConfigError(
                "This environment scores whole groups, but a process receives only a part of one. Make "
                f"per_device_train_batch_size a multiple of num_generations={size}."
            )
        args = trainer.args
        sampling = {"temperature": args.temperature, "top_p": args.top_p} | self.sampling_args
        sampling.setdefault("max_tokens", args.max_completion_length)

        async def play() -> list[Any]:
            return await play_groups(
                self.env, groups, self.client, self.model, sampling,
                max_concurrent=self.max_concurrent,
            )  # fmt: skip

        sequences = flat_groups(run_sync(play), on_drift=self.on_drift)
        return {
            "prompt_ids": [sequence.prompt_ids for sequence in sequences],
            "completion_ids": [sequence.completion_ids for sequence in sequences],
            "logprobs": [sequence.logprobs for sequence in sequences],
            "env_mask": [sequence.mask for sequence in sequences],
            "env_reward": [sequence.reward for sequence in sequences],
        }


class PromptRows:
    """The rows of an environment by their prompts, because TRL returns nothing but the prompt.

    Rows that have the same prompt and different answers carry their `example_id` in the first message.
    """

    def __init__(self, env: Environment, num_examples: int = -1) -> None:
        self._env = env
        self._num_examples = num_examples
        self._splits: dict[Split, dict[str, dict[str, Any]]] = {}

    def prompts(self, split: Split = "train") -> list[list[dict[str, Any]]]:
        """Return the prompts for the trainer's dataset, in the order of the rows."""
        return [json.loads(key) for key in self._rows(split)]

    def row_of(self, prompt: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the row of a prompt. Raise ConfigError if no row has this prompt."""
        key = _key(_plain(prompt))
        # Read the evaluation rows only if the prompt is not a training prompt.
        row = self._rows("train").get(key) or self._rows("eval").get(key)
        if row is None:
            raise ConfigError(
                f"The trainer requests a prompt that is not in the environment's dataset: {prompt!r:.200}. "
                "Train on the dataset that the adapter made."
            )
        return row

    def _rows(self, split: Split) -> dict[str, dict[str, Any]]:
        if split not in self._splits:
            rows = [dict(row) for row in self._env.source(split).inputs(self._num_examples)]
            prompts = [_plain(row["prompt"]) for row in rows]
            counts = Counter(map(_key, prompts))
            for row, prompt in zip(rows, prompts, strict=True):
                if counts[_key(prompt)] > 1:
                    prompt[0] = {**prompt[0], "example_id": f"{split}-{row['example_id']}"}
            self._splits[split] = {_key(p): row for p, row in zip(prompts, rows, strict=True)}
        return self._splits[split]


def _plain(prompt: Any) -> list[dict[str, Any]]:
    """Return messages without None values, which Arrow adds for fields of other rows."""
    return [
        {name: value for name, value in message.items() if value is not None}
        for message in native_messages(prompt)
    ]


def _key(prompt: list[dict[str, Any]]) -> str:
    return json.dumps(prompt, ensure_ascii=False, sort_keys=True)


FULL_POLL_S = 0.05


class WorkerFailed(InfraError):
    """The rollout worker stopped, or delivered nothing for too long."""


class AsyncGRPOWorker:
    """TRL's `RolloutWorkerProtocol`.

    `options`: arguments of `RolloutSource`. At most `max_buffered` samples wait for the trainer. Further batches stay
    in the source, which drops stale ones.
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
        """Start to play. Return once the source is open; raise the reason if it cannot open."""
        self._sample_type = trainer_module(
            "trl.experimental.async_grpo.async_rollout_worker",
            "RolloutSample",
            install="pip install 'trl>=1.16' requests",
        ).RolloutSample
        self._thread.start(self.version)

    def stop(self) -> None:
        """Cancel all rollouts and wait for their clean-up."""
        self._thread.stop()

    def update_model_version(self, model_version: int) -> None:
        """Record that the servers have new weights. Return once rollouts that became too old are cancelled."""
        self.version = model_version
        self._thread.set_version(model_version)

    def check_health(self, stale_after_s: float) -> None:
        """Raise WorkerFailed if the rollouts stopped, or if no sample arrived for `stale_after_s` seconds."""
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
        # The trainer's queue belongs to a thread and cannot be awaited.
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


class SourceThread:
    """Plays a source in its own thread and event loop, for trainers without one.

    Every batch goes to `deliver`; the next batch is made when `deliver` returns.
    """

    def __init__(self, source: RolloutSource, deliver: Callable[[Batch], Awaitable[None]]) -> None:
        self.failure: BaseException | None = None
        """The error that stopped the thread; None if there is none."""
        self._source = source
        self._deliver = deliver
        self._version = 0
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_playing(self) -> bool:
        """Whether more batches can follow."""
        return self.failure is None and self._thread.is_alive()

    def start(self, version: int) -> None:
        """Return once the source is open and its endpoints are at `version`. Raise the reason if it cannot open."""
        self._version = version
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Cancel all rollouts and wait for their clean-up."""
        if self._thread.is_alive():
            self._ready.result().call_soon_threadsafe(self._stop_task)
            self._thread.join()

    def _stop_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def set_version(self, version: int) -> None:
        """Record that the servers have new weights. Return once rollouts that became too old are cancelled."""
        if self._ready.done() and self._thread.is_alive():
            change = self._source.set_version(version)
            asyncio.run_coroutine_threadsafe(change, self._ready.result()).result()

    def wait(self, timeout_s: float) -> None:
        """Wait until the thread has stopped, for at most `timeout_s` seconds."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except asyncio.CancelledError:
            pass  # stop()
        except BaseException as error:  # noqa: BLE001 - the trainer's thread reads `failure`
            self.failure = error
            if not self._ready.done():
                self._ready.set_exception(error)

    async def _play(self) -> None:
        self._task = asyncio.current_task()
        async with self._source as source:
            await source.set_version(self._version)
            self._ready.set_result(asyncio.get_running_loop())
            while True:
                await self._deliver(await source.next_batch())


class FolderWeightTransfer:
    """TRL's `WeightTransferProtocol` through a folder that trainer and inference servers share.

    Writes the tensors as a Hugging Face folder and loads it on every server, as the version that TRL sends to `worker`
    next. `model_folder`: a checkpoint of the model; its configuration and tokenizer are copied beside the tensors.
    """

    def __init__(
        self,
        worker: AsyncGRPOWorker,
        urls: str | Sequence[str],
        folder: str | Path,
        *,
        model_folder: str | Path,
        config: AdminConfig | None = None,
    ) -> None:
        self.worker = worker
        self.urls = [urls] if isinstance(urls, str) else list(urls)
        self.folder = Path(folder).absolute()
        self.model_folder = Path(model_folder)
        self.config = config

    def init_weight_transfer(self) -> None:
        """Check the folders and that every server answers. Raise if one of them fails."""
        if not (self.model_folder / "config.json").is_file():
            raise FileNotFoundError(
                f"{self.model_folder} is not a checkpoint: it has no config.json."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._each(lambda admin: admin.wait_until_healthy(admin.config.request_timeout_s))

    def pause(self) -> None:
        """Pause generation. Requests in flight continue with the new weights."""
        self._each(lambda admin: admin.pause())

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Save the tensors and load them on every server."""
        torch_files = trainer_module(
            "safetensors.torch", "save_file", install="pip install safetensors"
        )
        version = self.worker.version + 1
        target = self.folder / f"version_{version}"
        target.mkdir()
        try:
            for path in self.model_folder.glob("*.json"):
                if path.name != "model.safetensors.index.json":
                    shutil.copy(path, target)
            tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in iterator}
            torch_files.save_file(tensors, target / "model.safetensors", {"format": "pt"})
            self._each(lambda admin: admin.load_weights(target, version))
        finally:
            shutil.rmtree(target)

    def resume(self) -> None:
        """Continue generation."""
        self._each(lambda admin: admin.resume())

    def destroy(self) -> None:
        """Remove the folder of the weights."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _each(self, act: Callable[[InferenceAdmin], Awaitable[Any]]) -> None:
        async def run() -> None:
            async with AsyncExitStack() as stack:
                for url in self.urls:
                    admin = InferenceAdmin(url, self.config)
                    await act(await stack.enter_async_context(admin))

        run_sync(run)
