"""Several turns: responses of the environment, state, stop conditions and clean-up."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import case


def games(count: int = 2) -> Dataset:
    return Dataset.from_list(
        [{"question": f"Game {n}: guess.", "answer": str(n)} for n in range(count)]
    )


def turns(state: Any) -> float:
    return float(len(state["trajectory"]))


def solved(state: Any) -> float:
    return float(state.get("solved", False))


class Guess(vf.MultiTurnEnv):
    """The model guesses until the guess is the answer."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
        state["guesses"] = []
        return await super().setup_state(state)

    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        guess = messages[-1]["content"]
        state["guesses"].append(guess)
        state["solved"] = guess == state["answer"]
        return [
            {"role": "user", "content": f"{guess} is {'right' if state['solved'] else 'wrong'}"}
        ]

    @vf.stop
    async def is_solved(self, state: vf.State) -> bool:
        return state.get("solved", False)


@case(["1", "0", "done"], ["5"], rollouts=2, columns=["guesses", "solved"])
def guess_with_stop() -> vf.Environment:
    return Guess(dataset=games(), rubric=vf.Rubric(funcs=[solved, turns]), max_turns=3)


@case(["1", "2", "3", "4"], columns=["guesses"])
def turn_limit() -> vf.Environment:
    return Guess(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=2)


@case(["5", {"content": "0", "finish_reason": "length"}, "end"])
def cut_reply_in_the_middle() -> vf.Environment:
    return Guess(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=4)


class Typed(Guess):
    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        state["solved"] = "0" in str(messages[-1].content)
        return [
            vf.SystemMessage(content="note"),
            vf.UserMessage(content=[{"type": "text", "text": "again"}]),
        ]


@case(["a", "0", "b"])
def typed_messages() -> vf.Environment:
    return Typed(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=3)


class EndsItself(vf.MultiTurnEnv):
    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        reply = [{"role": "user", "content": "the end"}]
        if len(state["trajectory"]) == 2:
            state["final_env_response"] = reply
        return reply


@case(["a", "b", "c"], columns=["final_env_response"])
def final_response() -> vf.Environment:
    return EndsItself(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=5)


class Hooks(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State) -> vf.State:
        state["log"] = ["setup"]
        return state

    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        state["log"].append("response")
        return [vf.UserMessage(content="go on")]

    @vf.stop(priority=10)
    async def early(self, state: vf.State) -> bool:
        state["log"].append("early")
        return len(state["trajectory"]) >= 2

    @vf.stop(priority=-10)
    async def late(self, state: vf.State) -> bool:
        state["log"].append("late")
        return False

    @vf.cleanup(priority=1)
    async def first(self, state: vf.State) -> None:
        state["log"].append("first clean-up")

    @vf.cleanup
    async def second(self, state: vf.State) -> None:
        state["log"].append("second clean-up")


def logged(state: Any) -> float:
    return float(len(state["log"]))


@case(["a", "b", "c"], columns=["log"])
def hooks_in_order() -> vf.Environment:
    return Hooks(dataset=games(1), rubric=vf.Rubric(funcs=[logged]), max_turns=5)


class OwnPrompts(vf.MultiTurnEnv):
    """The environment builds the next prompt itself."""

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        number = len(state["trajectory"])
        return [vf.UserMessage(content=f"prompt {number}")]

    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        return []


@case(["a", "b", "c"])
def own_prompts() -> vf.Environment:
    return OwnPrompts(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=3)


class StepRewards(vf.MultiTurnEnv):
    async def add_trajectory_step(self, state: vf.State, trajectory_step: Any) -> None:
        trajectory_step["reward"] = 0.5
        trajectory_step["extras"]["number"] = len(state["trajectory"])
        await super().add_trajectory_step(state, trajectory_step)

    async def env_response(
        self, messages: vf.Messages, state: vf.State, **kwargs: Any
    ) -> vf.Messages:
        return [vf.UserMessage(content="next")]


def step_sum(state: Any) -> float:
    return sum(step["reward"] for step in state["trajectory"])


def extras(state: Any) -> float:
    return float(sum(step["extras"]["number"] for step in state["trajectory"]))


@case(["a", "b", "c"])
def step_rewards() -> vf.Environment:
    return StepRewards(
        dataset=games(1), rubric=vf.Rubric(funcs=[step_sum, extras], weights=[1, 0]), max_turns=3
    )


@case(["a", "b"])
def empty_response_of_the_environment() -> vf.Environment:
    class Silent(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return []

    return Silent(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=2)


@case(["a"], columns=["seen"])
def state_in_setup() -> vf.Environment:
    """Keys that `setup_state` can read."""

    class Reads(vf.SingleTurnEnv):
        async def setup_state(self, state: vf.State) -> vf.State:
            names = (
                "prompt answer info example_id model sampling_args trajectory is_completed is_truncated "
                "stop_condition reward completion error timing client tool_defs trajectory_id task input metrics"
            )
            state["seen"] = {name: state.get(name, "absent") is not None for name in names.split()}
            state["seen"]["model is"] = state["model"]
            return state

    return Reads(dataset=games(1), rubric=vf.Rubric(funcs=[turns]))


@case(["one two three four five six"], columns=["usage"])
def completion_token_limit() -> vf.Environment:
    return Guess(
        dataset=games(1),
        rubric=vf.Rubric(funcs=[turns]),
        max_turns=6,
        max_total_completion_tokens=12,
    )


@case(["x"])
def unknown_keyword_becomes_attribute() -> vf.Environment:
    class Reads(vf.SingleTurnEnv):
        pass

    def level(state: Any) -> float:
        return float(env.difficulty_level)

    env = Reads(dataset=games(1), rubric=vf.Rubric(funcs=[level]), difficulty_level=3)
    return env


@case(
    [{"content": "1", "reasoning_content": "hm"}, {"content": "0", "reasoning_content": "ah"}, "x"],
    columns=["trajectory"],
)
def reasoning_in_several_turns() -> vf.Environment:
    return Guess(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=3)


@case([" and", " then", " end"])
def several_turns_of_text() -> vf.Environment:
    """The completions API in several turns."""

    class Text(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            return " ..."

    rows = [{"prompt": "Once", "answer": "x"}]
    return Text(
        dataset=Dataset.from_list(rows),
        message_type="completion",
        rubric=vf.Rubric(funcs=[turns]),
        max_turns=3,
    )


class PlainHooks(vf.MultiTurnEnv):
    """Stop conditions and clean-up that are not asynchronous; no limit of turns."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "more"}]

    @vf.stop
    async def enough(self, state: vf.State) -> bool:
        return len(state["trajectory"]) > 1

    @vf.teardown
    async def close(self) -> None:
        self.closed = True


@case(["a"])
def stop_without_limit() -> vf.Environment:
    return PlainHooks(dataset=games(1), rubric=vf.Rubric(funcs=[turns]))


@case(["a", "b"], columns=["turn_texts"])
def texts_of_the_trajectory() -> vf.Environment:
    """What a reward function reads of each step."""

    def read(state: Any) -> float:
        state["turn_texts"] = [
            [
                step["prompt"][-1].content,
                step["completion"][-1].content,
                step["response"].message.content,
                step["is_truncated"],
                step["reward"],
                step["advantage"],
                step["tokens"],
                step["trajectory_id"] == state["trajectory_id"],
            ]
            for step in state["trajectory"]
        ]
        return 1.0

    return Guess(dataset=games(1), rubric=vf.Rubric(funcs=[read]), max_turns=2)


@case(["a", "b"], columns=["prompt", "completion", "reward"])
def columns_that_exist_already() -> vf.Environment:
    return Guess(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=2)


@case(["a"], columns=["timing_keys"])
def timing_in_rewards() -> vf.Environment:
    def timed(state: Any) -> float:
        state["timing_keys"] = state["timing"].generation.duration >= 0
        return float(state["is_completed"])

    return vf.SingleTurnEnv(dataset=games(1), rubric=vf.Rubric(funcs=[timed]))


@case(["a", "b", "c"])
def monitor_rubric() -> vf.Environment:
    """A metric rubric that the environment adds itself."""

    class Monitor(vf.Rubric):
        def __init__(self) -> None:
            super().__init__()
            self.add_metric(self.words)

        async def words(self, state: Any) -> float:
            return float(sum(len(step["completion"]) for step in state["trajectory"]))

    class Monitored(Guess):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.add_rubric(Monitor())

    return Monitored(dataset=games(1), rubric=vf.Rubric(funcs=[turns]), max_turns=3)
