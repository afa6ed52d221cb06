"""The run: plays rollouts on the server, passes batches to the trainer, and new weights back to the server.

    orchestrator (this process)   RolloutSource: environments, groups, staleness, advantages, packing
    trainer                       `worker.py`: model and optimizer, torch
    inference server              `verifiers.endpoint`: samples with its latest weights

While the trainer computes a step, the server samples with its present weights. New weights arrive during sampling, and
every token records the version that sampled it. If one of the three processes dies, the run ends the other two and
raises an error that names the dead process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from verifiers.endpoint.process import EndpointProcess, start_endpoint_process
from verifiers.errors import ConfigError
from verifiers.rollouts.schedule import first_failure
from verifiers.training.packing import PaddedBatch, micro_batches
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.reference.config import TrainConfig
from verifiers.training.reference.curve import write_curve
from verifiers.training.reference.demonstrations import (
    fitting_noise,
    longest_reply,
    play_demonstrations,
)
from verifiers.training.reference.run_folder import Checkpoint, RunFolder
from verifiers.training.reference.trainer_process import (
    ProcessDied,
    TrainerProcess,
    trainer_process,
)
from verifiers.training.source import RolloutSource

if TYPE_CHECKING:
    from verifiers.loading import Loaded
    from verifiers.training.batch import Batch
    from verifiers.types import SamplingArgs

logger = logging.getLogger(__name__)

MODEL = "policy"
"""Name of the model on the server."""
WARM_START_CHUNK = 10
"""Supervised steps between two checks of `stop`."""
AUTO_NOISE_SCORE = 0.5
"""`noise = "auto"`: score of noisy demonstrations, as a share of the score of correct replies."""
WATCH_INTERVAL_S = 0.2
START_TIMEOUT_S = 120.0


class Listener:
    """Callbacks about the progress of a run. By default they do nothing; they must not block."""

    def started(self, folder: RunFolder, about: dict[str, Any]) -> None:
        """All processes are up.

        `about` has `parameters`, `device`, `pids`, and the `step` that the run continues from.
        """

    def demonstrated(self, count: int, mean_reward: float, noise: float) -> None:
        """The demonstrations of the warm start are played. The mean reward is that of replies with `noise`."""

    def warm_start_step(self, line: dict[str, Any]) -> None:
        """Some supervised steps are done; `line` is the line of `metrics.jsonl`."""

    def evaluated(self, when: str, mean_reward: float) -> None:
        """The evaluation rows are played; `when` is "before" or "after" reinforcement learning."""

    def step(self, line: dict[str, Any]) -> None:
        """A step of reinforcement learning is done; `line` is the line of `metrics.jsonl`."""

    def saved(self, checkpoint: Checkpoint) -> None:
        """A checkpoint is complete."""


class RunResult(NamedTuple):
    """The result of a run."""

    folder: RunFolder
    checkpoint: Checkpoint | None
    """The last step."""
    rewards: list[float]
    """Mean reward of every step of reinforcement learning, including those before an interruption."""
    evaluated_before: float | None
    evaluated_after: float | None
    is_interrupted: bool


async def train(
    config: TrainConfig,
    loaded: Loaded,
    folder: RunFolder,
    *,
    stop: asyncio.Event | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Train to the end, from the folder's latest checkpoint if there is one.

    `stop` ends the run after the current step, with a checkpoint. Raise ConfigError for settings that cannot work,
    ProcessDied if the trainer or the server dies, SourceStalled if the rollouts produce nothing.
    """
    checkpoint = folder.latest()
    folder.forget_after(checkpoint)
    try:
        async with trainer_process(folder.trainer_log, threads=config.compute.threads) as trainer:
            run = _Run(config, loaded, folder, trainer, listener or Listener(), stop)
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(trainer.watch())
                result = await run.to_the_end(tasks, checkpoint)
                watching.cancel()
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None
    return result


class _Run:
    """One run, from the start of its trainer process to the end."""

    def __init__(
        self,
        config: TrainConfig,
        loaded: Loaded,
        folder: RunFolder,
        trainer: TrainerProcess,
        listener: Listener,
        stop: asyncio.Event | None,
    ) -> None:
        self.config = config
        self.loaded = loaded
        self.folder = folder
        self.trainer = trainer
        self.listener = listener
        self.stop = stop or asyncio.Event()
        # A resumed run counts the time of its earlier steps; `elapsed_s` in metrics.jsonl never decreases.
        earlier_s = max((line.get("elapsed_s", 0.0) for line in folder.metrics()), default=0.0)
        self.begun_s = time.monotonic() - earlier_s
        self.sampling: SamplingArgs = {
            "temperature": config.sampling.temperature,
            "max_tokens": config.sampling.max_tokens,
        }
        self.evaluated: dict[str, float] = {}
        self.clean_loss: float | None = None
        """Loss of the last warm-start steps on correct replies; None before them and after a resume."""
        self.demonstrated = 0.0
        """Mean reward of the demonstrations of the noisy steps."""
        self.last: Checkpoint | None = None

    async def to_the_end(
        self, tasks: asyncio.TaskGroup, checkpoint: Checkpoint | None
    ) -> RunResult:
        """Run warm start, reinforcement learning and evaluation, from `checkpoint` if there is one."""
        self.last = checkpoint
        about = await self.trainer.ask(
            "start",
            config=self.config,
            checkpoint=None if checkpoint is None else checkpoint.folder / "trainer.pt",
        )
        start = self.folder.weights("start")
        await self.trainer.ask("save_model", folder=start)
        version = about["step"] if about["phase"] == "reinforcement" else 0
        if (
            about["phase"] == "reinforcement"
            and (before := self.folder.evaluation("before")) is not None
        ):
            self.evaluated["before"] = before  # measured before the interruption
        async with self._server(start, tasks) as server:
            endpoint = PolicyEndpoint.at(server.url)
            about["pids"] = {"trainer": self.trainer.pid, "server": server.pid}
            self.listener.started(self.folder, about)
            try:
                await self._set_weights(endpoint, str(start), version)
                if about["phase"] == "warm_start":
                    is_over = about["warm_start_is_over"]
                    await self._warm_start(endpoint, about["step"], is_over=is_over)
                if not self.stop.is_set():
                    await self._reinforce(endpoint, checkpoint, version)
            finally:
                await endpoint.client.aclose()
        return RunResult(
            self.folder,
            self.last,
            [line["reward"] for line in self.folder.metrics() if line["phase"] == "step"],
            self.evaluated.get("before"),
            self.evaluated.get("after"),
            self.stop.is_set(),
        )

    @asynccontextmanager
    async def _server(
        self, weights: Any, tasks: asyncio.TaskGroup
    ) -> AsyncIterator[EndpointProcess]:
        # Starting blocks until the server answers. Wait for the thread, so that a cancelled start leaves no process.
        starting = asyncio.ensure_future(
            asyncio.to_thread(
                start_endpoint_process,
                model_name=MODEL,
                weights=weights,
                max_running=self.config.compute.server_sequences,
                start_timeout_s=START_TIMEOUT_S,
            )
        )
        try:
            server = await asyncio.shield(starting)
        except asyncio.CancelledError:
            (await starting).close()
            raise
        watching = tasks.create_task(_watch(server))
        try:
            yield server
        finally:
            watching.cancel()
            await asyncio.shield(asyncio.to_thread(server.close))

    async def _set_weights(self, endpoint: PolicyEndpoint, folder: str, version: int) -> None:
        """Load weights on the server while no source is open."""
        assert endpoint.admin is not None  # `PolicyEndpoint.at` sets it
        async with endpoint.admin as admin:
            await admin.update_weights(folder, version)
        endpoint.set_version(version)

    # ------------------------------------------------------------------------------------------ warm start

    async def _warm_start(self, endpoint: PolicyEndpoint, done: int, *, is_over: bool) -> None:
        begun = done
        if not is_over:
            await self._demonstrate()
        while not is_over and not self.stop.is_set():
            metrics, is_over = await self.trainer.ask("warm_start", steps=WARM_START_CHUNK)
            done = int(metrics.pop("step"))
            if not metrics["is_noisy"]:
                self.clean_loss = metrics["loss"]
            self._note("warm_start", done, metrics, self.listener.warm_start_step)
        if done > begun:
            await self._save("warm_start", done, None)
        if self.stop.is_set():
            return
        await self.trainer.ask("begin_reinforcement")
        weights = self.folder.weights("warm")
        await self.trainer.ask("push", weights=weights)
        await self._set_weights(endpoint, str(weights), 0)
        await self._check_warm_start(endpoint)

    async def _demonstrate(self) -> None:
        """Play the demonstrations. They are the same every time, so a resumed run needs no copy of them."""
        section, seed = self.config.warm_start, self.config.seed
        count, wanted = section.demonstrations, section.min_reward
        clean = await play_demonstrations(self.loaded, count=count, noise=0.0, seed=seed)
        if clean.mean_reward < wanted:
            raise ConfigError(
                f"The correct replies of {self.loaded.environment.env_id} score {clean.mean_reward:.3f} on average, "
                f"less than warm_start.min_reward={wanted:g}. If {clean.mean_reward:.3f} is a full score there, set "
                "min_reward to about a third of it; else correct the answers (`vf-validate` checks them)."
            )
        noisy, noise = clean, section.noise if section.noisy_steps else 0.0
        if noise == "auto":
            goal = max(wanted, AUTO_NOISE_SCORE * clean.mean_reward)
            noise = await fitting_noise(self.loaded, seed=seed, at_least=goal)
        if noise:
            noisy = await play_demonstrations(self.loaded, count=count, noise=noise, seed=seed)
        if noisy.mean_reward < wanted:
            goal = max(wanted, AUTO_NOISE_SCORE * clean.mean_reward)
            better = await fitting_noise(self.loaded, seed=seed, at_least=goal)
            raise ConfigError(
                f"Replies with warm_start.noise={noise:g} score {noisy.mean_reward:.3f} on average, less than "
                f"warm_start.min_reward={wanted:g}, and the policy learns from these replies. Set "
                f'warm_start.noise={better:g}, or noise="auto".'
            )
        longest = longest_reply(clean.samples)
        if longest > self.config.sampling.max_tokens:
            logger.warning(
                "A correct reply has %d tokens, more than sampling.max_tokens=%d, so the policy cannot finish such a "
                "reply. Set sampling.max_tokens=%d.",
                longest,
                self.config.sampling.max_tokens,
                longest + longest // 2,
            )
        await self.trainer.ask("set_demonstrations", clean=clean.samples, noisy=noisy.samples)
        self.demonstrated = noisy.mean_reward
        self.listener.demonstrated(count, noisy.mean_reward, noise)

    async def _check_warm_start(self, endpoint: PolicyEndpoint) -> None:
        """Measure the policy before reinforcement learning.

        Raise an error now, not after an hour, if its reward is too low.
        """
        mean = await self._played_mean(endpoint)
        self._note_evaluation("before", mean)
        wanted = self.config.warm_start.min_reward
        if mean < wanted:
            raise ConfigError(
                f"The policy scores {mean:.3f} after the warm start, less than warm_start.min_reward={wanted:g}: too "
                f"few rollouts would succeed. {self._warm_start_advice()} A resumed run keeps its settings: change the "
                "configuration file and begin a new run."
            )

    def _warm_start_advice(self) -> str:
        """Return advice on the settings, from the results of the warm start."""
        section = self.config.warm_start
        if not section.is_on:
            return "There was no warm start: set warm_start.steps, or model.folder to a model that succeeds sometimes."
        loss = self.clean_loss
        if loss is not None and section.until_loss and loss > section.until_loss:
            return (
                f"The loss on correct replies was still {loss:.3g} after warm_start.steps={section.steps} "
                f"(until_loss={section.until_loss:g}). Set warm_start.steps={4 * section.steps}; the steps end earlier "
                "when the loss is reached. Replies of few tokens teach little per step: raise batch_size too."
            )
        return (
            f"The demonstrations score {self.demonstrated:.3f}, and the policy learned them, but it does not answer "
            "rows that it has not seen. Give the environment more different training rows, or raise "
            f"warm_start.demonstrations (now {section.demonstrations}), or lower warm_start.noisy_steps (now "
            f"{section.noisy_steps})."
        )

    async def _played_mean(self, endpoint: PolicyEndpoint) -> float:
        results = await self.loaded.environment.evaluate(
            endpoint.client,
            MODEL,
            self.sampling,
            num_examples=self.config.evaluation_examples,
            max_concurrent=self.config.source.max_in_flight,
        )
        rewards = [
            float(output["reward"] or 0.0) if output["error"] is None else 0.0
            for output in results["outputs"]
        ]
        return sum(rewards) / max(len(rewards), 1)

    # ------------------------------------------------------------------------------------------ reinforcement

    async def _reinforce(
        self, endpoint: PolicyEndpoint, checkpoint: Checkpoint | None, step: int
    ) -> None:
        config = self.config
        source = RolloutSource(
            self.loaded.environment,
            [endpoint],
            config.source.model_copy(update={"seed": config.seed}),
            model=MODEL,
            sampling_args=self.sampling,
            num_examples=config.environment.num_examples,
            state=None if checkpoint is None else checkpoint.source_state(),
        )
        async with source:
            while step < config.steps:
                waiting_s = time.monotonic()
                batch = await self._next_batch(source)
                if batch is None:
                    break
                step = await self._step(source, batch, waited_s=time.monotonic() - waiting_s)
                every = config.checkpoints.every_steps
                if step == config.steps or (every and step % every == 0):
                    await self._save("step", step, source)
            if self.stop.is_set() and (self.last is None or self.last[1:] != ("step", step)):
                await self._save("step", step, source)
        if not self.stop.is_set():
            self._note_evaluation("after", await self._played_mean(endpoint))

    async def _next_batch(self, source: RolloutSource) -> Batch | None:
        """Return the next batch; None if the run must stop."""
        stopping = asyncio.ensure_future(self.stop.wait())
        taking = asyncio.ensure_future(source.next_batch())
        try:
            await asyncio.wait((stopping, taking), return_when=asyncio.FIRST_COMPLETED)
            return None if self.stop.is_set() else await taking
        finally:
            stopping.cancel()
            taking.cancel()

    async def _step(self, source: RolloutSource, batch: Batch, *, waited_s: float) -> int:
        packed: list[PaddedBatch] = micro_batches(
            batch.samples, self.config.compute.micro_batch_tokens
        )
        step = source.version + 1
        weights = self.folder.weights(f"step_{step:06}")
        training_s = time.monotonic()
        metrics = await self.trainer.ask("step", batches=packed, weights=weights)
        pushing_s = time.monotonic()
        await source.update_weights(weights, version=step)
        line = {
            "reward": batch.metrics["reward/mean"],
            **{f"trainer/{name}": value for name, value in metrics.items()},
            **batch.metrics,
            "time/waiting_s": waited_s,
            "time/training_s": pushing_s - training_s,
            "time/pushing_s": time.monotonic() - pushing_s,
        }
        self._note("step", step, line, self.listener.step)
        return step

    # ------------------------------------------------------------------------------------------ checkpoints

    def _note(self, phase: str, step: int, metrics: dict[str, float], tell: Any) -> None:
        line = {
            "phase": phase,
            "step": step,
            **{name: round(value, 9) for name, value in metrics.items()},
            "elapsed_s": round(time.monotonic() - self.begun_s, 3),
        }
        self.folder.add_metrics(line)
        tell(line)

    def _note_evaluation(self, when: str, mean: float) -> None:
        self.evaluated[when] = mean
        self.folder.add_evaluation(when, mean)
        self.listener.evaluated(when, mean)

    async def _save(self, phase: str, step: int, source: RolloutSource | None) -> None:
        """Write a complete checkpoint. No batch is taken meanwhile."""
        state = None if source is None else source.state_dict()
        keep = self.config.checkpoints.keep
        with self.folder.new_checkpoint(phase, step, keep=keep) as part:
            if state is not None:
                (part / "source.json").write_text(json.dumps(state))
            await self.trainer.ask("save", folder=part)
        self.last = self.folder.latest()
        assert self.last is not None  # just written
        rewards = [line["reward"] for line in self.folder.metrics() if line["phase"] == "step"]
        if rewards:
            write_curve(self.folder.curve_file, {self.loaded.environment.env_id: rewards})
        self.listener.saved(self.last)


async def _watch(server: EndpointProcess) -> None:
    """Raise ProcessDied when the server's process ends. Without this task, retried requests would hide it."""
    while server.is_running:  # noqa: ASYNC110 - the end of a process sets no event
        await asyncio.sleep(WATCH_INTERVAL_S)
    raise ProcessDied(f"The inference server's process {server.pid} ended by itself.")
