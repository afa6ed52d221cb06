"""Fields between tags, a graded format, and a parser that overrides the reward."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.parsers.xml_parser import XMLParser
from verifiers.types import Messages, State

REPLIES = ["<think>x</think>\n<answer>4</answer>", "4"]
REWARDS = [1.2, 0.04]
CALLED: list[str] = []


class Tagged(XMLParser):
    def __init__(self) -> None:
        super().__init__(fields=["think", ("answer", "result")], answer_field="answer")

    def parse(self, text: str, strip: bool = True, last: bool = False) -> Any:
        CALLED.append("parse")
        return super().parse(text, strip=strip, last=last)

    def get_format_str(self) -> str:
        CALLED.append("get_format_str")
        return super().get_format_str()


class Monitor(vf.Rubric):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.num_errors)
        self.add_metric(self.num_assistant_tool_calls)

    async def num_errors(self, state: State) -> float:
        CALLED.append("num_errors")
        return float(state.get("error") is not None)

    async def num_assistant_tool_calls(self, completion: Messages) -> float:
        CALLED.append("num_assistant_tool_calls")
        return float(sum(len(message.get("tool_calls") or []) for message in completion))


def right(completion: Messages, answer: str, parser: vf.Parser, **kwargs: Any) -> float:
    CALLED.append("right")
    return 1.0 if parser.parse_answer(completion) == answer else 0.0


def load_environment() -> vf.Environment:
    parser = Tagged()
    rubric = vf.RubricGroup(
        rubrics=[
            vf.Rubric(
                funcs=[right, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser
            ),
            Monitor(),
        ]
    )
    rows = [{"question": "2 + 2?", "answer": "4"}] * 2
    prompt = f"Answer so:\n{parser.get_format_str()}"
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), parser=parser, rubric=rubric, system_prompt=prompt
    )
