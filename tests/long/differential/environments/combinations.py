"""Several idioms in one environment."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

import verifiers as vf
from differential.cases import call, calls, case


def rows(*questions: str, **fields: Any) -> Dataset:
    return Dataset.from_list([{"question": one, "answer": "7", **fields} for one in questions])


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fails(path: str) -> str:
    """Read a file."""
    raise FileNotFoundError(path)


class Ledger(vf.StatefulToolEnv):
    """Hidden arguments, a stop condition, clean-up, and a message after each tool message."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(tools=[add, fails], **kwargs)
        self.add_tool(self.book, args_to_skip=["ledger"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
        state["ledger"] = []
        return await super().setup_state(state, **kwargs)

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: Any, **kwargs: Any
    ) -> dict[str, Any]:
        return {**tool_args, "ledger": state["ledger"]} if tool_name == "book" else tool_args

    async def book(self, amount: int, ledger: list[int]) -> str:
        """Book an amount."""
        ledger.append(amount)
        return f"{len(ledger)} bookings"

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        responses = await super().env_response(messages, state, **kwargs)
        return [*responses, {"role": "user", "content": f"sum {sum(state['ledger'])}"}]

    @vf.stop(priority=5)
    async def is_full(self, state: vf.State) -> bool:
        return len(state["ledger"]) >= 2

    @vf.cleanup
    async def close(self, state: vf.State) -> None:
        state["closed"] = len(state["ledger"])


def total(state: Any) -> float:
    return float(sum(state["ledger"]))


BOOKINGS = [
    calls(call("book", amount=3), call("add", a=1, b=1)),
    calls(call("fails", path="x")),
    calls(call("book", amount=4)),
    "7",
]


@case(BOOKINGS, columns=["ledger", "closed"])
def stateful_tools_with_stop() -> vf.Environment:
    return Ledger(dataset=rows("Book."), rubric=vf.Rubric(funcs=[total]), max_turns=8)


@case(BOOKINGS, columns=["ledger"])
def stateful_tools_with_stop_errors() -> vf.Environment:
    return Ledger(
        dataset=rows("Book."),
        rubric=vf.Rubric(funcs=[total]),
        max_turns=8,
        stop_errors=[FileNotFoundError],
    )


@case(rows={"Book": [BOOKINGS], "": [["7"]]}, columns=["ledger"])
def stateful_tools_in_a_group() -> vf.Environment:
    async def seven(completion: Any) -> float:
        return float(completion[-1]["content"] == "7")

    plain = vf.SingleTurnEnv(
        dataset=rows("Seven?"), rubric=vf.Rubric(funcs=[seven]), system_prompt="Short."
    )
    ledger = Ledger(dataset=rows("Book."), rubric=vf.Rubric(funcs=[total]), max_turns=8)
    return vf.EnvGroup([plain, ledger], env_names=["plain", "ledger"])


class Dialogue(vf.MultiTurnEnv):
    """A parser in the response of the environment, and an answer that the state gives."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        parsed = self.parser.parse_answer(messages)
        state["parsed"] = [*state.get("parsed", []), parsed]
        if parsed == state["info"]["goal"]:
            state["final_env_response"] = [vf.UserMessage(content="done")]
        return [vf.UserMessage(content=f"not {parsed}")]


@case(
    ["<think>a</think><answer>3</answer>", "no tags", "<think>b</think><answer>5</answer>"],
    ["<answer>5</answer>"],
    rollouts=2,
    columns=["parsed"],
)
def parser_in_several_turns() -> vf.Environment:
    parser = vf.XMLParser(["think", "answer"])

    def goal(completion: Any, info: Any, parser: Any) -> float:
        return float(parser.parse_answer(completion) == info["goal"])

    def best(completions: Any, states: Any) -> list[float]:
        shortest = min(len(state["trajectory"]) for state in states)
        return [float(len(state["trajectory"]) == shortest) for state in states]

    return Dialogue(
        dataset=rows("Guess.", info={"goal": "5"}),
        parser=parser,
        rubric=vf.RubricGroup(
            [
                vf.Rubric(funcs=[goal, parser.get_format_reward_func()], parser=parser),
                vf.Rubric(funcs=[best], weights=[0.25]),
            ]
        ),
        max_turns=4,
    )


class OwnEnd(vf.MultiTurnEnv):
    """`is_completed` calls the method of the base class."""

    async def is_completed(self, state: vf.State, **kwargs: Any) -> bool:
        if await super().is_completed(state, **kwargs):
            return True
        return len(state["trajectory"]) >= 2

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [{"role": "user", "content": "more"}]


def count(state: Any) -> float:
    return float(len(state["trajectory"]))


@case(["a"])
def own_is_completed() -> vf.Environment:
    return OwnEnd(dataset=rows("Go."), rubric=vf.Rubric(funcs=[count]), max_turns=9)


@case(["a"])
def response_with_a_tool_message_and_a_list() -> vf.Environment:
    class Parts(vf.MultiTurnEnv):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            content = [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ]
            return [{"role": "user", "content": content}]

    return Parts(dataset=rows("Go."), rubric=vf.Rubric(funcs=[count]), max_turns=2)


@case(
    [{"content": "a", "reasoning_content": "r"}],
    ["b"],
    rollouts=2,
    sampling={"n": 1, "stop": ["x"]},
)
def sampling_arguments_in_the_state() -> vf.Environment:
    def stop_words(state: Any) -> float:
        return float(state["sampling_args"]["stop"] == ["x"])

    def reasons(completion: Any) -> float:
        return float(bool(completion[-1].get("reasoning_content")))

    return vf.SingleTurnEnv(
        dataset=rows("Go."),
        rubric=vf.Rubric(funcs=[stop_words, reasons]),
        sampling_args={"temperature": 0.3, "extra_body": {"top_k": 5}},
    )


@case(["7"])
def rubric_with_its_own_parser() -> vf.Environment:
    """The rubric's parser and that of the environment have one class."""

    def answered(parser: Any, completion: Any, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    return vf.SingleTurnEnv(
        dataset=rows("Seven?"),
        parser=vf.Parser(),
        rubric=vf.Rubric(funcs=[answered], parser=vf.Parser(extract_fn=lambda text: text.strip())),
    )
