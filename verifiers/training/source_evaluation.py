"""Evaluations that run on the endpoints of a source while it trains."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from verifiers.errors import is_void
from verifiers.runs.output import decode_line, encode_line, jsonable, output_from_state
from verifiers.state import State
from verifiers.training.dispatch_events import EvaluationEnd
from verifiers.types import RolloutOutput, SamplingArgs


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
