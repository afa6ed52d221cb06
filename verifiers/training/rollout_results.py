"""The parts of finished rollouts that the source keeps, in memory and in checkpoints: samples and numbers.

`Evaluations` are those that run on the endpoints of a source while it trains.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import orjson

from verifiers.errors import EndpointUnavailable, Error, InfraError, is_void
from verifiers.runs.output import decode_line, encode_line, jsonable, output_from_state
from verifiers.state import State
from verifiers.training.advantages import Estimator, given_advantages
from verifiers.training.dispatch import EvaluationEnd
from verifiers.training.samples import (
    UNKNOWN_VERSION,
    OnDrift,
    Span,
    TokenSample,
    failure_of,
    reward_of,
    rollout_advantage,
    samples_of,
)
from verifiers.types import RolloutOutput, SamplingArgs

_STREAMS = ("token_ids", "mask", "logprobs", "advantages", "versions")
_SCALARS = (
    "prompt_len",
    "reward",
    "advantage",
    "temperature",
    "example_id",
    "group_id",
    "rollout_id",
    "env_id",
    "is_truncated",
    "multi_modal_data",
)


@dataclass(frozen=True, eq=False)
class RolloutResult:
    """One finished, scored rollout."""

    reward: float
    """NaN for a crashed rollout."""
    failure: str | None
    """Reason why the rollout is not trained on, None if it is."""
    samples: list[TokenSample]
    advantage: float | None = None
    """Advantage from scoring or from the environment, if any."""
    metrics: dict[str, float] | None = None
    is_truncated: bool = False


@dataclass(frozen=True, eq=False)
class GroupOutcome:
    """One settled group, as a batch takes it."""

    samples: list[TokenSample]
    rewards: list[float]
    """Rewards of the healthy rollouts."""
    failures: list[str]
    metrics: dict[str, float]
    """Mean metrics of the healthy rollouts."""
    env_id: str = ""
    truncated: float = 0.0
    """Share of the healthy rollouts that were truncated."""

    @property
    def mean_reward(self) -> float:
        """Advantages of the healthy rollouts."""
        return float(np.mean(self.rewards)) if self.rewards else 0.0


def hang_of(state: State, seconds: float) -> Error | None:
    """Return the failure of a rollout that timed out before any token was sampled: not the policy's failure."""
    if not state.get("timed_out") or state.get("trajectory"):
        return None
    if state.timing.model.spans:
        return EndpointUnavailable(
            f"The endpoint gave no response; the rollout ended after {seconds:.1f} s."
        )
    return InfraError(f"The rollout ended after {seconds:.1f} s, before the first model call.")


def result_of(
    state: Mapping[str, Any], *, group_id: str, env_id: str, on_drift: OnDrift
) -> RolloutResult:
    """Return the kept parts of a finished and scored rollout."""
    failure = failure_of(state)
    return RolloutResult(
        reward=reward_of(state),
        failure=failure,
        samples=samples_of(state, on_drift=on_drift, group_id=group_id, env_id=env_id),
        advantage=rollout_advantage(state),
        metrics=dict(state.get("metrics") or {}),
        is_truncated=bool(state.get("is_truncated")),
    )


def outcome_of(results: Sequence[RolloutResult], estimator: Estimator, env_id: str) -> GroupOutcome:
    """Return the group of these results. Failed rollouts give no samples and do not enter the baseline."""
    healthy = [result for result in results if result.failure is None]
    rewards = [result.reward for result in healthy]
    given = given_advantages(
        [result.reward for result in results],
        [result.advantage for result in results],
        [index for index, result in enumerate(results) if result.failure is None],
    )
    if not healthy:
        advantages: list[float] = []
    else:
        advantages = given or [float(own) for own in estimator(rewards)]
    samples = [
        sample.with_advantage(advantage)
        for result, advantage in zip(healthy, advantages, strict=True)
        for sample in result.samples
    ]
    names = {name for result in healthy for name in result.metrics or {}}
    return GroupOutcome(
        samples=samples,
        rewards=rewards,
        failures=[result.failure for result in results if result.failure is not None],
        metrics={
            name: float(np.mean([(r.metrics or {}).get(name, 0.0) for r in healthy]))
            for name in sorted(names)
        },
        env_id=env_id,
        truncated=float(np.mean([r.is_truncated for r in healthy])) if healthy else 0.0,
    )


def has_signal(outcome: GroupOutcome) -> bool:
    """Whether any token of the group has an advantage."""
    return any(sample.token_advantages().any() for sample in outcome.samples)


def young_part(outcome: GroupOutcome, begun_by: int, oldest_version: int) -> GroupOutcome | None:
    """Return the group without tokens older than a version; None when no token remains.

    A sample without versions is as old as its group.
    """
    samples = [
        sample
        if sample.versions is not None
        else replace(
            sample, versions=np.where(sample.mask, begun_by, UNKNOWN_VERSION).astype(np.int32)
        )
        for sample in outcome.samples
    ]
    samples = [s for sample in samples if (s := sample.masked_before(oldest_version)).trained_count]
    return replace(outcome, samples=samples) if samples else None


# ------------------------------------------------------------------------------------------------ as JSON values


def encoded(value: Any) -> dict[str, Any]:
    """Return a result or an outcome as JSON values; arrays are base64 of their bytes."""
    fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
    fields["samples"] = [_encoded_sample(sample) for sample in value.samples]
    if value.metrics is not None:
        # JSON has no NaN: some encoders write null, others write invalid JSON
        fields["metrics"] = {k: v if math.isfinite(v) else None for k, v in value.metrics.items()}
    if isinstance(value, RolloutResult):
        for name in ("reward", "advantage"):
            number = fields[name]
            fields[name] = number if number is None or math.isfinite(number) else None
    return {"kind": type(value).__name__, **fields}


def decoded(fields: Mapping[str, Any]) -> RolloutResult | GroupOutcome:
    """Return the value that `encoded` converted."""
    kind = {"RolloutResult": RolloutResult, "GroupOutcome": GroupOutcome}[fields["kind"]]
    own = {name: value for name, value in fields.items() if name != "kind"}
    if own["metrics"] is not None:
        own["metrics"] = {k: math.nan if v is None else v for k, v in own["metrics"].items()}
    if kind is RolloutResult and own["reward"] is None:
        own["reward"] = math.nan
    return kind(**{**own, "samples": [_decoded_sample(sample) for sample in fields["samples"]]})


def _encoded_sample(sample: TokenSample) -> dict[str, Any]:
    fields = {name: getattr(sample, name) for name in _SCALARS}
    fields |= {name: _encoded_array(getattr(sample, name)) for name in _STREAMS}
    experts = sample.routed_experts
    fields["routed_experts"] = None if experts is None else _encoded_array(np.asarray(experts))
    return fields | {"spans": [list(span) for span in sample.spans]}


def _decoded_sample(fields: Mapping[str, Any]) -> TokenSample:
    arrays = {name: _decoded_array(fields[name]) for name in (*_STREAMS, "routed_experts")}
    scalars = {name: fields[name] for name in _SCALARS}
    return TokenSample(**scalars, **arrays, spans=tuple(Span(*span) for span in fields["spans"]))


def _encoded_array(array: Any) -> list[Any] | None:
    if array is None:
        return None
    content = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return [array.dtype.str, list(array.shape), content]


def _decoded_array(saved: Any) -> Any:
    if saved is None:
        return None
    kind, shape, content = saved
    return np.frombuffer(base64.b64decode(content), np.dtype(kind)).reshape(shape)


class Evaluation(NamedTuple):
    """The result of `RolloutSource.evaluate`."""

    outputs: list[RolloutOutput]
    """In the order of the examples."""
    mean_reward: float
    """As in the headline of `vf-eval`: crashed rollouts count 0."""
    versions: tuple[int, int]
    """Policy versions at the beginning and at the end."""


class RunningEvaluation:
    """One evaluation in progress: its rows, and the rollouts that have ended."""

    def __init__(
        self,
        rows: list[dict[str, Any]],
        rollouts_per_example: int,
        sampling_args: SamplingArgs,
        state_columns: Sequence[str],
        version: int,
    ) -> None:
        self.rows = rows
        self.rollouts_per_example = rollouts_per_example
        self.sampling_args = sampling_args
        self.version = version
        """Policy version at the beginning."""
        self.done = asyncio.Event()
        self._state_columns = list(state_columns)
        self._outputs: dict[int, list[RolloutOutput]] = {}
        self._partial: dict[int, list[RolloutOutput | None]] = {}
        self._check_done()

    @property
    def request(self) -> Any:
        """The request, as JSON values: the same request continues a saved evaluation."""
        return jsonable(
            {
                "examples": len(self.rows),
                "rollouts_per_example": self.rollouts_per_example,
                "sampling_args": self.sampling_args,
                "state_columns": self._state_columns,
            }
        )

    def left(self) -> dict[int, list[Any]]:
        """Return the examples to play, each with its results, None for a rollout to play."""
        return {
            example: list(self._partial.get(example) or [None] * self.rollouts_per_example)
            for example in range(len(self.rows))
            if example not in self._outputs
        }

    def take(self, end: EvaluationEnd) -> None:
        """Record the end of a group."""
        self._outputs[end.example] = [self._output(result) for result in end.results]
        self._check_done()

    def _check_done(self) -> None:
        if len(self._outputs) == len(self.rows):
            self.done.set()

    async def wait(self, stopped: asyncio.Event) -> None:
        """Wait until all groups have ended, or the source has stopped."""
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.done, stopped)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _output(self, result: State | RolloutOutput) -> RolloutOutput:
        # A saved and resumed result is an output already.
        if isinstance(result, State):
            return output_from_state(result, self._state_columns)
        return result

    def result(self, version: int) -> Evaluation:
        """Return the outputs of all groups; `version`: the current policy version."""
        outputs = [one for example in range(len(self.rows)) for one in self._outputs[example]]
        rewards = [0.0 if is_void(output) else output["reward"] for output in outputs]
        return Evaluation(outputs, sum(rewards) / max(len(rewards), 1), (self.version, version))

    # ------------------------------------------------------------------------------------------ resuming

    def saved(self, partial: Mapping[int, Sequence[State | None]]) -> dict[str, Any]:
        """Return request and rollouts as JSON values; `partial`: results of groups that have not ended."""
        groups: dict[int, list[Any]] = {
            **self._partial,
            **{
                example: [None if one is None else self._output(one) for one in results]
                for example, results in partial.items()
            },
            **self._outputs,
        }
        return {
            "request": self.request,
            "version": self.version,
            "groups": [
                [example, [None if one is None else orjson.loads(encode_line(one)) for one in own]]
                for example, own in groups.items()
            ],
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore the state of `saved`."""
        self.version = saved["version"]
        for example, own in saved["groups"]:
            outputs = [None if one is None else decode_line(orjson.dumps(one)) for one in own]
            if None in outputs:
                self._partial[example] = outputs
            else:
                self._outputs[example] = [one for one in outputs if one is not None]
        self._check_done()


class Evaluations:
    """The evaluations in progress by number, and those of a saved state that have not been requested again."""

    def __init__(self) -> None:
        self._running: dict[int, RunningEvaluation] = {}
        self._next = 0
        self._saved: list[Mapping[str, Any]] = []

    def __len__(self) -> int:
        return len(self._running)

    def __getitem__(self, number: int) -> RunningEvaluation:
        return self._running[number]

    def begin(self, running: RunningEvaluation) -> int:
        """Number an evaluation. It continues a saved one with the same request."""
        request = running.request
        for index, saved in enumerate(self._saved):
            if saved["request"] == request:
                running.load(self._saved.pop(index))
                break
        number, self._next = self._next, self._next + 1
        self._running[number] = running
        return number

    def take(self, end: EvaluationEnd) -> None:
        """Record the end of a group; groups of an evaluation that was ended early are ignored."""
        if (running := self._running.get(end.evaluation)) is not None:
            running.take(end)

    def end(self, number: int) -> None:
        """Remove an evaluation."""
        del self._running[number]

    def state_dict(self, partial: Mapping[int, Mapping[int, Sequence[Any]]]) -> list[Any]:
        """Return all as JSON values; `partial`: by number and example, results of groups that have not ended."""
        running = [one.saved(partial.get(number, {})) for number, one in self._running.items()]
        return [*running, *self._saved]

    def load_state_dict(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Keep the result of `state_dict` until it is requested again."""
        self._saved = list(saved)
