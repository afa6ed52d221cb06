"""What `Environment` offers about the tokens of a rollout: counted call by call, read as a total."""

from __future__ import annotations

from typing import Any

from verifiers.state import State, StateUsageTracker
from verifiers.types import TokenUsage


class HasTokenCounts:
    """Keeps a `StateUsageTracker` in each state; an environment that calls models itself adds to it."""

    def _get_usage_tracker(
        self, state: State, create_if_missing: bool = True
    ) -> StateUsageTracker | None:
        if dict.get(state, "usage") is None and create_if_missing:
            state.usage = StateUsageTracker()
        return dict.get(state, "usage")

    def increment_state_usage(
        self, state: State, input_tokens: float = 0, output_tokens: float = 0
    ) -> None:
        """Count tokens of a model call that the environment made itself."""
        state.usage.increment(input_tokens, output_tokens)

    def increment_state_usage_from_response(self, state: State, response: Any) -> None:
        """Count the tokens that a response reports."""
        tracker = self._get_usage_tracker(state)
        if tracker is not None:
            tracker.increment_from_response(response)

    def get_state_usage(self, state: State) -> TokenUsage | None:
        """Tokens of the rollout so far; None when nothing was counted."""
        tracker = self._get_usage_tracker(state, create_if_missing=False)
        return None if tracker is None else tracker.snapshot()
