"""A game of several turns with hooks for setup, stopping and clean-up."""

import random
from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.types import Messages, State

REPLIES = ["5", "9", "7"]
REWARDS = [1.0]
CALLED: list[str] = []


class GuessingGame(MultiTurnEnv):
    def __init__(self, secret: int, max_turns: int = 6, **kwargs: Any) -> None:
        super().__init__(max_turns=max_turns, **kwargs)
        self.secret = secret
        self.rng = random.Random(0)

    async def setup_state(self, state: State) -> State:
        CALLED.append("setup_state")
        state["guesses"], state["victory"] = [], False
        return await super().setup_state(state)

    def _format_game_state(self, state: State) -> str:
        return f"guesses so far: {state['guesses']}"

    async def env_response(self, messages: Messages, state: State, **kwargs: Any) -> Messages:
        CALLED.append("env_response")
        guess = int(messages[-1]["content"])
        state["guesses"].append(guess)
        if guess == self.secret:
            state["victory"] = True
            state["final_env_response"] = [{"role": "user", "content": "You won."}]
            return state["final_env_response"]
        hint = "higher" if guess < self.secret else "lower"
        return [{"role": "user", "content": f"{hint}; {self._format_game_state(state)}"}]

    @vf.stop
    async def gave_up(self, state: State) -> bool:
        CALLED.append("gave_up")
        return (
            bool(state["trajectory"])
            and "quit" in state["trajectory"][-1]["completion"][-1]["content"]
        )

    @vf.cleanup
    async def forget(self, state: State) -> None:
        CALLED.append("forget")
        state.pop("handle", None)

    @vf.teardown
    async def close_table(self) -> None:
        CALLED.append("close_table")


def won(state: State, completion: Messages) -> float:
    CALLED.append("won")
    assert completion[-1]["content"] == "You won."
    assert [step["completion"][0]["content"] for step in state["trajectory"]] == REPLIES
    return float(state["victory"])


def load_environment(secret: int = 7) -> vf.Environment:
    rows = [{"prompt": [{"role": "user", "content": "Guess."}], "answer": str(secret)}]
    return GuessingGame(
        secret, dataset=lambda: Dataset.from_list(rows), rubric=vf.Rubric(funcs=[won])
    )
