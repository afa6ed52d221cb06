"""Forms from before 0.1.8: `check_done`, a returned state, `is_completed(messages, state)`, `state["responses"]`."""

from typing import Any

import verifiers as vf
from verifiers.types import Messages, State

REPLIES = ["one", "two", "three"]
REWARDS = [3.0]
CALLED: list[str] = []


class Oldest(vf.MultiTurnEnv):
    def check_done(self, state: State) -> bool:
        CALLED.append("check_done")
        return len(state["responses"]) == 5

    def is_completed(self, messages: Messages, state: State, **kwargs: Any) -> bool:
        CALLED.append("is_completed")
        return len(state["responses"]) >= 3

    def env_response(
        self, messages: Messages, state: State, **kwargs: Any
    ) -> tuple[Messages, State]:
        CALLED.append("env_response")
        state["step_count"] = state.get("step_count", 0) + 1
        return [{"role": "user", "content": "go on"}], state


def turns(state: State, **kwargs: Any) -> float:
    CALLED.append("turns")
    assert state["step_count"] == 2
    return float(state["turn"])


def load_environment() -> vf.Environment:
    rubric = vf.Rubric(funcs=[turns], weights=[1.0], parallelize_scoring=False)
    return Oldest(dataset=[{"question": "q", "answer": "a"}], rubric=rubric)
