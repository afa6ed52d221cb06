"""Evaluations that run on the endpoints of a source while it trains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from verifiers.runs.output import output_from_state
from verifiers.state import State
from verifiers.training.dispatch_events import EvaluationEnd
from verifiers.types import RolloutOutput, SamplingArgs


class Evaluation(NamedTuple):
    """The result of `RolloutSource.evaluate`."""

    outputs: list[RolloutOutput]
    """In the order of the examples."""
    mean_reward: float
    """Failed rollouts count 0."""
    versions: tuple[int, int]
    """Policy version when it began and when it ended."""


class RunningEvaluation:
    """One evaluation under way: its rows, and the groups that have ended."""

    def __init__(self, rows: list[dict[str, Any]], sampling_args: SamplingArgs) -> None:
        self.rows = rows
        self.sampling_args = sampling_args
        self.done = asyncio.Event()
        self._states: dict[int, list[State]] = {}
        if not rows:
            self.done.set()

    def take(self, end: EvaluationEnd) -> None:
        """A group has ended."""
        self._states[end.example] = end.results
        if len(self._states) == len(self.rows):
            self.done.set()

    def result(self, state_columns: Sequence[str], versions: tuple[int, int]) -> Evaluation:
        """The outputs of all groups."""
        states = [state for example in range(len(self.rows)) for state in self._states[example]]
        outputs = [output_from_state(state, list(state_columns)) for state in states]
        rewards = [output["reward"] if output["error"] is None else 0.0 for output in outputs]
        return Evaluation(outputs, sum(rewards) / max(len(rewards), 1), versions)
