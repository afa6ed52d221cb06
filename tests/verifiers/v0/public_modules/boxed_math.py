"""Mathematics in a box, with a parser of the author's own."""

from typing import Any

from datasets import Dataset

from verifiers.envs.environment import Environment
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.parsers.parser import Parser
from verifiers.rubrics.rubric import Rubric
from verifiers.types import Info, Messages, State
from verifiers.utils.data_utils import BOXED_SYSTEM_PROMPT, extract_boxed_answer

REPLIES = ["The sum is \\boxed{4}.", "\\boxed{5}"]
REWARDS = [1.5, 0.5]
CALLED: list[str] = []


class BoxParser(Parser):
    def __init__(self) -> None:
        super().__init__(extract_fn=extract_boxed_answer)

    def parse(self, text: str) -> str:
        CALLED.append("parse")
        return self.extract_fn(text)

    def parse_answer(self, completion: Messages) -> str | None:
        CALLED.append("parse_answer")
        return self.parse(completion[-1]["content"])

    def get_format_reward_func(self) -> Any:
        CALLED.append("get_format_reward_func")

        def has_box(completion: Messages, **kwargs: Any) -> float:
            return float("\\boxed" in completion[-1]["content"])

        return has_box


def correct(parser: Parser, completion: Messages, answer: str, info: Info, state: State) -> float:
    CALLED.append("correct")
    assert info == {"level": 1}
    assert state["info"]["level"] == 1
    return float(parser.parse_answer(completion) == answer)


def load_environment(**kwargs: Any) -> Environment:
    rows = [{"question": f"2 + {n}?", "answer": "4", "info": '{"level": 1}'} for n in (2, 3)]
    parser = BoxParser()
    rubric = Rubric(funcs=[correct], weights=[1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.5)
    return SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
        system_prompt=BOXED_SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        **kwargs,
    )
