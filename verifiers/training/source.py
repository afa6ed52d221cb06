"""`RolloutSource`: batches of fresh samples for a trainer, while rollouts continue.

    async with RolloutSource(env, [PolicyEndpoint.at(url)], SourceConfig(...), model="m") as source:
        while (batch := await source.next_batch()).step <= 1000:
            ...train on batch.samples...
            await source.update_weights(folder, version=batch.step)

Rollouts run continuously: a rollout that ends is replaced immediately. `Dispatch` decides and this module acts: it
plays, scores, turns rollouts into samples, and reports results to `Dispatch`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from verifiers.envs.env_group import EnvGroup, routed_name
from verifiers.envs.play import play, score
from verifiers.envs.preflight import EarlyStop
from verifiers.errors import ConfigError
from verifiers.rollouts.limits import RolloutLimits, run_limits
from verifiers.rollouts.retries import is_retryable
from verifiers.state import State
from verifiers.training.advantages import estimator_of
from verifiers.training.batch import Batch, batch_metrics
from verifiers.training.difficulty import ExampleSampler
from verifiers.training.dispatch import Cancellation, CancelReason, Dispatch, Entry, Start
from verifiers.training.inference_admin import Weights, update_all
from verifiers.training.policy import EndpointWatch, PolicyEndpoint, SourceStalled
from verifiers.training.rollout_results import (
    Evaluation,
    Evaluations,
    GroupOutcome,
    RolloutResult,
    RunningEvaluation,
    decoded,
    encoded,
    hang_of,
    has_signal,
    outcome_of,
    result_of,
    young_part,
)
from verifiers.training.source_config import SourceConfig
from verifiers.types import SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment


logger = logging.getLogger(__name__)

STATE_FORMAT = 1


class RolloutSource:
    """See the module. Use it as an async context manager, with one task that takes batches."""

    def __init__(
        self,
        env: Environment,
        endpoints: Sequence[PolicyEndpoint],
        config: SourceConfig,
        *,
        model: str,
        sampling_args: SamplingArgs | None = None,
        num_examples: int = -1,
        state: Mapping[str, Any] | None = None,
        version: int | None = None,
        on_rollout: Callable[[State], None] | None = None,
        on_cancellation: Callable[[Cancellation], None] | None = None,
    ) -> None:
        """`num_examples`: number of rows to train on, -1 for all (an endless dataset needs a number).

        `state`: a result of `state_dict` to continue from. `version`: the version of the policy that the endpoints
        have now, if it is not 0 or the saved one, as after a trainer's resume. `on_rollout` is called with every
        scored training rollout, `on_cancellation` with every dropped group; neither may block.
        """
        if not endpoints:
            raise ConfigError("A source needs at least one endpoint.")
        self.env = env
        self.config = config
        self.endpoints = list(endpoints)
        self._model = model
        self._sampling_args: SamplingArgs = {**env.sampling_args, **(sampling_args or {})}
        self._num_examples = num_examples
        self._saved = state
        self._first_version = version
        self._on_rollout = on_rollout
        self._on_cancellation = on_cancellation
        self._estimator = estimator_of(config.advantage)
        self._min_healthy = min(config.min_healthy, config.rollouts_per_group)
        self._rows: list[dict[str, Any]] = []
        self._dispatch: Dispatch | None = None
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup | None = None
        self._spawned: set[asyncio.Task[None]] = set()
        self._running: dict[int, asyncio.Task[None]] = {}
        """Rollouts being played, by ticket."""
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        """Set when the source has failed or is closed."""
        self._failure: Exception | None = None
        self._in_a_row = 0
        self._last_cancelled: Cancellation | None = None
        self._cancelled_since: list[Cancellation] = []
        self._durations_s: list[float] = []
        """Statistics of rollouts since the last batch."""
        self._played_s: dict[int, list[float]] = {}
        """Seconds of each rollout of a group that has not ended, by group; those that were stopped included."""
        self._stale_s: list[float] = []
        """Seconds of the rollouts whose groups were dropped as stale since the last batch."""
        self._without_signal = 0
        """Number of consecutive groups whose rollouts all have the same reward."""
        self._last_batch_time = 0.0
        self._updating = asyncio.Lock()
        self._limits = RolloutLimits(rollout_timeout_s=config.rollout_timeout_s)
        self._evaluations = Evaluations()
        self._early_stop = EarlyStop()

    # ------------------------------------------------------------------------------------------ opening, closing

    async def __aenter__(self) -> Self:
        # Building a dataset may read files and take seconds.
        self._rows = await asyncio.to_thread(self.env.source("train").inputs, self._num_examples)
        suspects = self.env._check_before_run(self._rows)
        self._early_stop = EarlyStop(suspects, len(self.endpoints))
        sampler = ExampleSampler(
            [self._env_name(row) for row in self._rows],
            seed=self.config.seed,
            difficulty=self.config.difficulty,
            env_weights=self.config.env_weights,
        )
        dispatch = Dispatch(self.config.limits(), sampler, len(self.endpoints))
        complete: list[int] = []
        if self._saved is not None:
            complete = self._load(dispatch, self._saved)
        if self._first_version is not None:
            if self._first_version < dispatch.version:
                raise ConfigError(
                    f"The saved state has policy version {dispatch.version}, but the policy has version "
                    f"{self._first_version}. Resume both from the same checkpoint."
                )
            dispatch.set_version(self._first_version)
        self._dispatch = dispatch
        self._watch = EndpointWatch(
            dispatch,
            self.endpoints,
            timeout_s=self.config.unreachable_timeout_s,
            spawn=self._spawn,
            on_back=self._fill,
        )
        for endpoint in self.endpoints:
            endpoint.set_version(dispatch.version)
            if endpoint.admin is not None:
                await self._stack.enter_async_context(endpoint.admin)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._last_batch_time = time.monotonic()
        for number in complete:
            self._spawn(self._settle, number)
        self._fill()
        return self

    def _load(self, dispatch: Dispatch, saved: Mapping[str, Any]) -> list[int]:
        if saved.get("format") != STATE_FORMAT:
            raise ConfigError(
                f"The saved state has format {saved.get('format')!r}; this version reads {STATE_FORMAT}."
            )
        self._evaluations.load_state_dict(saved.get("evaluations", []))
        return dispatch.load_state_dict(saved["dispatch"], decoded)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel running tasks and wait until they have cleaned up."""
        self._stopped.set()
        self._open_dispatch.close()
        for task in list(self._spawned):
            task.cancel()
        await self._stack.aclose()
        self._report_cancellations()

    @property
    def _open_dispatch(self) -> Dispatch:
        if self._dispatch is None:
            raise RuntimeError("The source is not open; use it with `async with`.")
        return self._dispatch

    @property
    def version(self) -> int:
        """Policy version with which new groups are started."""
        return self._open_dispatch.version

    @property
    def step(self) -> int:
        """Step of the last batch, including those before a resume; 0 before the first."""
        return self._open_dispatch.tally.batches

    @property
    def in_flight(self) -> int:
        """Number of rollouts being played."""
        return self._open_dispatch.in_flight

    def _env_name(self, row: Mapping[str, Any]) -> str:
        if isinstance(self.env, EnvGroup):
            return routed_name(row, self.env.env_map)
        return self.env.env_id

    # ------------------------------------------------------------------------------------------ playing

    def _fill(self) -> None:
        """Start rollouts while there are free slots."""
        dispatch = self._open_dispatch
        if self._stopped.is_set():
            return
        while (start := dispatch.next_start()) is not None:
            task = self._running[start.ticket] = self._spawn(self._play, start)
            task.add_done_callback(partial(self._ended, start.ticket))

    def _ended(self, ticket: int, _: asyncio.Task[None]) -> None:
        """Count a stopped rollout here, because a task cancelled before its first step runs no code."""
        if self._running.pop(ticket, None) is not None:
            self._open_dispatch.aborted(ticket)
            self._fill()

    def _spawn(
        self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> asyncio.Task[None]:
        """Run a coroutine beside the trainer. Its exception stops the source, not the trainer's task group."""

        async def guarded() -> None:
            try:
                await work(*args)
            except Exception as error:  # noqa: BLE001 - raised from `next_batch` and `evaluate`
                self._fail(error)
            finally:
                self._changed.set()

        assert self._tasks is not None  # the callers run only while the source is open
        task = self._tasks.create_task(guarded())
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
        return task

    def _fail(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error
        self._stopped.set()

    async def _play(self, start: Start) -> None:
        """Play one rollout to its end, and settle its group if it was the last of it."""
        begun = time.monotonic()
        try:
            result, retry = await self._rollout(start)
        finally:
            self._note_seconds(start, time.monotonic() - begun)
        del self._running[start.ticket]
        number = self._open_dispatch.finished(start.ticket, result, retry=retry)
        self._fill()
        if number is not None:
            await self._settle(number)
            self._fill()

    async def _rollout(self, start: Start) -> tuple[Any, bool]:
        """Play a rollout and score it, unless its group is scored together. Return whether to play it again."""
        await self._early_stop.wait()
        begun = time.monotonic()
        evaluation = None if start.evaluation is None else self._evaluations[start.evaluation]
        row = self._rows[start.example] if evaluation is None else evaluation.rows[start.example]
        with run_limits(self._limits):
            state = await play(
                self.env,
                row,
                self.endpoints[start.endpoint].client,
                self._model,
                self._sampling_args if evaluation is None else evaluation.sampling_args,
            )
        state.error = state.error or hang_of(state, time.monotonic() - begun)
        self._early_stop.played(state)
        retry = is_retryable(state.error)
        if retry:
            self._watch.note(start.endpoint, state.error)
        self._durations_s.append(time.monotonic() - begun)
        if self.env.requires_group_rollouts:
            return state, retry
        await score(self.env, [state], alone=True)
        self._early_stop.scored(state)
        return (state if evaluation is not None else self._reduced(state, start.group)), retry

    def _reduced(self, state: State, group: int) -> RolloutResult:
        if self._on_rollout is not None:
            self._on_rollout(state)
        return result_of(
            state,
            group_id=str(group),
            env_id=self._env_name(state),
            on_drift=self.config.on_drift,
        )

    # ------------------------------------------------------------------------------------------ settling

    async def _settle(self, number: int) -> None:
        """Score a complete group if necessary, and settle it."""
        dispatch = self._open_dispatch
        results = dispatch.results_of(number)
        if results is None:
            return
        if self.env.requires_group_rollouts and isinstance(results[0], State):
            await score(self.env, results, alone=False)
            for state in results:
                self._early_stop.scored(state)
            if dispatch.results_of(number) is None:  # cancelled while it was scored
                return
        if dispatch.evaluation_of(number) is not None:
            end = dispatch.settle(number, None)
            if end is not None:
                self._evaluations.take(end)
            return
        reduced = [self._reduced(r, number) if isinstance(r, State) else r for r in results]
        env_name = self._env_name(self._rows[dispatch.example_of(number)])
        outcome = outcome_of(reduced, self._estimator, env_name)
        cancel = self._verdict(outcome)
        mean = outcome.mean_reward if outcome.rewards else None
        dispatch.settle(number, outcome, mean_reward=mean, cancel=cancel)
        self._in_a_row = 0 if cancel is None else self._in_a_row + 1
        self._note_signal(outcome)
        self._report_cancellations()

    def _verdict(self, outcome: GroupOutcome) -> tuple[CancelReason, str] | None:
        if len(outcome.rewards) < self._min_healthy:
            first = outcome.failures[0] if outcome.failures else "no rollouts"
            return CancelReason.FAILED, f"{len(outcome.failures)} rollouts failed: {first}"
        if not outcome.samples:
            return CancelReason.FAILED, "its rollouts sampled no tokens"
        if not self.config.keep_without_signal and not has_signal(outcome):
            return CancelReason.NO_SIGNAL, f"every reward is {outcome.rewards[0]:g}"
        return None

    def _note_seconds(self, start: Start, seconds: float) -> None:
        if start.evaluation is not None:
            return
        if (
            self._open_dispatch.results_of(start.group) is None
        ):  # stopped, because its group is too old
            self._stale_s.append(seconds)
        else:
            self._played_s.setdefault(start.group, []).append(seconds)

    def _note_signal(self, outcome: GroupOutcome) -> None:
        """Warn after two batches without a gradient, and again whenever the number has doubled."""
        if not outcome.samples:
            return  # a failed group is reported separately
        self._without_signal = 0 if has_signal(outcome) else self._without_signal + 1
        batches, rest = divmod(self._without_signal, self.config.groups_per_batch)
        if not rest and batches >= 2 and batches & (batches - 1) == 0:
            logger.warning(
                "In each of the last %d groups all rollouts have the same reward (%g in the last group), so the policy "
                "learns nothing. The task is too easy or too hard for the model, or the reward function is wrong.",
                self._without_signal,
                outcome.mean_reward,
            )

    def _report_cancellations(self) -> None:
        for cancelled in self._open_dispatch.take_cancellations():
            self._cancelled_since.append(cancelled)
            played_s = self._played_s.pop(cancelled.group, [])
            if cancelled.reason is CancelReason.STALE:
                self._stale_s += played_s
            if cancelled.reason in (CancelReason.FAILED, CancelReason.NO_SIGNAL):
                self._last_cancelled = cancelled
            if self._on_cancellation is not None:
                self._on_cancellation(cancelled)

    # ------------------------------------------------------------------------------------------ batches

    async def next_batch(self) -> Batch:
        """Return the next batch, as soon as enough groups are ready.

        Raise SourceStalled when `give_up_after` consecutive groups had no usable result or no endpoint answers, and
        the exception that stopped the source: wrong credentials, a mistake in the environment's code outside of a
        rollout.
        """
        dispatch = self._open_dispatch
        while True:
            self._changed.clear()
            self._raise_failure()
            entries = dispatch.take_batch(self._young)
            self._report_cancellations()
            self._fill()
            if entries is not None:
                return self._batch(entries)
            await self._changed.wait()

    def _young(self, outcome: GroupOutcome, begun_by: int) -> GroupOutcome | None:
        return young_part(outcome, begun_by, self._open_dispatch.oldest_allowed)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        last = self._last_cancelled
        if self._in_a_row >= self.config.give_up_after and last is not None:
            raise SourceStalled(
                f"{self._in_a_row} consecutive groups had no usable result; the last, of example {last.example}: "
                f"{last.detail}. "
                "If all rewards are equal, the task is too easy or too hard for the model, or the rubric is wrong."
            )

    def _batch(self, entries: list[Entry]) -> Batch:
        dispatch = self._open_dispatch
        now = time.monotonic()
        metrics = batch_metrics(
            entries,
            version=dispatch.version,
            cancelled=self._cancelled_since,
            durations_s=self._durations_s,
            batch_s=[s for entry in entries for s in self._played_s.pop(entry.group, [])],
            stale_s=self._stale_s,
            wall_s=now - self._last_batch_time,
        )
        metrics |= {
            "queue/ready_groups": float(dispatch.ready_groups),
            "queue/open_groups": float(dispatch.open_groups),
            "queue/in_flight": float(dispatch.in_flight),
        }
        for pool, size in dispatch.sampler.pool_sizes().items():
            metrics[f"difficulty/{pool}"] = float(size)
        self._last_batch_time = now
        self._cancelled_since = []
        self._durations_s = []
        self._stale_s = []
        samples = [sample for entry in entries for sample in entry.outcome.samples]
        return Batch(dispatch.tally.batches, dispatch.version, samples, entries, metrics)

    # ------------------------------------------------------------------------------------------ the policy

    async def update_weights(self, weights: Weights, version: int, *, pause: bool = True) -> None:
        """Send new weights to every endpoint while rollouts are in flight, then count from the new version.

        Groups that become too old are stopped first, while the engines still run. Raise UpdateFailed when an endpoint
        did not load them: it is not used until a later update reaches it, and the others continue with the new
        weights. If all endpoints fail, all continue with the old ones. Updates run one after another.
        """
        admins = [endpoint.admin for endpoint in self.endpoints if endpoint.admin is not None]
        if len(admins) != len(self.endpoints):
            raise ConfigError(
                "An endpoint has no administration. Send the weights yourself, then call set_version."
            )
        dispatch = self._open_dispatch
        async with self._updating:
            self._check_version(version)  # before any server has the weights
            await self._abort(dispatch.drop_stale(version))
            results = await update_all(admins, weights, version, pause=pause)
            failure = self._watch.take_update(results, version)
            if failure is None or failure.updated:
                await self._advance(version)
        if failure is not None:
            raise failure

    async def set_version(self, version: int) -> None:
        """Record that another program has sent a new policy to all endpoints."""
        async with self._updating:
            self._check_version(version)
            self._watch.take_version(version)
            await self._advance(version)

    def _check_version(self, version: int) -> None:
        if version < self.version:
            raise ConfigError(f"The policy version went back from {self.version} to {version}.")

    async def _advance(self, version: int) -> None:
        await self._abort(self._open_dispatch.set_version(version))
        self._fill()
        self._changed.set()

    async def _abort(self, tickets: Sequence[int]) -> None:
        """Stop rollouts and wait until they have cleaned up."""
        tasks = [self._running[ticket] for ticket in tickets if ticket in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._report_cancellations()

    # ------------------------------------------------------------------------------------------ evaluation

    async def evaluate(
        self,
        num_examples: int = -1,
        rollouts_per_example: int = 1,
        *,
        sampling_args: SamplingArgs | None = None,
        state_columns: Sequence[str] = (),
    ) -> Evaluation:
        """Evaluate the policy on the evaluation rows, on the same endpoints, while training rollouts continue.

        Cancelling the call ends the evaluation. The same call continues an evaluation that was in progress in the
        state that the source resumes from. Raise the exception that stopped the source.
        """
        dispatch = self._open_dispatch
        rows = await asyncio.to_thread(self.env.source("eval").inputs, num_examples)
        sampling = {**self._sampling_args, **(sampling_args or {})}
        running = RunningEvaluation(
            rows, rollouts_per_example, sampling, state_columns, dispatch.version
        )
        number = self._evaluations.begin(running)
        try:
            dispatch.add_evaluation(number, running.left())
            self._fill()
            await running.wait(self._stopped)
            if not running.done.is_set():
                raise self._failure or RuntimeError("The source was closed during an evaluation.")
        finally:
            await self._abort(dispatch.drop_evaluation(number))
            self._evaluations.end(number)
        return running.result(dispatch.version)

    # ------------------------------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue later, as JSON values: examples drawn, groups started, samples not yet
        trained on, results of evaluations in progress.

        Rollouts in flight start again after a resume; for environments that score groups together, incomplete groups
        do. Call it between two batches, together with the trainer's own checkpoint.
        """
        dispatch = self._open_dispatch
        # A group that is scored together has no result before it is complete.
        partial = {} if self.env.requires_group_rollouts else dispatch.evaluation_results()
        return {
            "format": STATE_FORMAT,
            "dispatch": dispatch.state_dict(
                lambda value: None if isinstance(value, State) else encoded(value)
            ),
            "evaluations": self._evaluations.state_dict(partial),
        }


__all__ = ["Batch", "Evaluation", "RolloutSource", "SourceConfig", "SourceStalled"]
