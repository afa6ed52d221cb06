"""`SingleTurnEnv`: one question, one answer."""

from __future__ import annotations

from typing import Any

from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.state import State
from verifiers.types import Messages


class SingleTurnEnv(MultiTurnEnv):
    """The model answers once."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"max_turns": 1, **kwargs})

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        """Never called: the rollout is over after the first answer."""
        raise NotImplementedError("SingleTurnEnv has no second turn")

    async def render_completion(self, state: State) -> None:
        """The completion is the one answer."""
        state.completion = state.trajectory[-1]["completion"] if state.trajectory else []
