"""Replies with thoughts: the parsers of v0, with functions of the author's own."""

import re
from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.parsers.think_parser import ThinkParser
from verifiers.types import Messages
from verifiers.utils.data_utils import THINK_BOXED_SYSTEM_PROMPT, extract_boxed_answer

REPLIES = ["<think>2 and 2</think>\\boxed{4}", "<think>never ends \\boxed{4}"]
REWARDS = [3.0, 0.0]
CALLED: list[str] = []


class MaybeStrict(vf.MaybeThinkParser):
    def __init__(self, extract_fn: Any = lambda text: text) -> None:
        super().__init__(extract_fn=extract_fn)

    def parse(self, text: str) -> str:
        CALLED.append("parse")
        if "<think>" in text and "</think>" not in text:
            return ""
        return super().parse(text)


STRICT = MaybeStrict(extract_fn=extract_boxed_answer)
THINK = ThinkParser(extract_fn=extract_boxed_answer)


async def strict(completion: Messages, answer: str, **kwargs: Any) -> float:
    CALLED.append("strict")
    return 1.0 if STRICT.parse_answer(completion) == answer else 0.0


def think(completion: Messages, answer: str, parser: vf.Parser) -> float:
    CALLED.append("think")
    assert parser is THINK
    return 1.0 if re.fullmatch(answer, parser.parse_answer(completion) or "") else 0.0


def load_environment() -> vf.Environment:
    rows = [{"question": "2 + 2?", "answer": "4"}] * 2
    rubric = vf.Rubric(funcs=[strict, think, THINK.get_format_reward_func()], parser=THINK)
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        system_prompt=THINK_BOXED_SYSTEM_PROMPT,
        parser=THINK,
        rubric=rubric,
    )
