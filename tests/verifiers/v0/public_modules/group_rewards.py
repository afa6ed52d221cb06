"""Rewards of a whole group, several rubrics, and the advantages that follow."""

from typing import Any

from datasets import Dataset

import verifiers as vf
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.types import Messages, RolloutScore, State

ROLLOUTS = 3
REPLIES = ["\\boxed{1/2}", "\\boxed{1/2}", "\\boxed{2}, after a long derivation"]
REWARDS = [1.5, 1.5, 1.0]
CALLED: list[str] = []
SCORE = RolloutScore


def longest(completions: list[Messages], answers: list[str], **kwargs: Any) -> list[float]:
    CALLED.append("longest")
    assert answers == ["1/2"] * 3
    lengths = [len(completion[-1]["content"]) for completion in completions]
    return [float(length == max(lengths)) for length in lengths]


def equal(completion: Messages, answer: str, parser: vf.Parser) -> float:
    CALLED.append("equal")
    return float(parser.parse_answer(completion) == answer)


async def agree(states: list[State], prompts: list[Messages], infos: list[dict]) -> list[float]:
    CALLED.append("agree")
    texts = [state["completion"][-1]["content"] for state in states]
    return [0.5 * (len(text) < 20) for text in texts]


def load_environment() -> vf.Environment:
    parser = vf.Parser(extract_fn=vf.extract_boxed_answer)
    rubric = RubricGroup(
        [vf.Rubric(funcs=[equal], parser=parser), vf.Rubric(funcs=[longest, agree])]
    )
    rows = Dataset.from_list([{"question": "1 / 2?", "answer": "1/2"}])
    return vf.SingleTurnEnv(dataset=rows, parser=parser, rubric=rubric)
