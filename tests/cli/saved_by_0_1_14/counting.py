"""The environment of the saved run beside this file: a model counts with a tool. Written for verifiers 0.1.14."""

from typing import Any

from datasets import Dataset

import verifiers as vf


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first number
        b: the second number
    """
    return a + b


def right(completion: Any, answer: str) -> float:
    text = completion[-1]["content"].removeprefix("<answer>").removesuffix("</answer>")
    return float(text == answer)


def load_environment(examples: int = 3) -> vf.Environment:
    rows = [
        {"question": f"What is {n} + {n}?", "answer": str(2 * n), "info": {"n": n}}
        for n in range(1, examples + 1)
    ]
    return vf.ToolEnv(
        tools=[add],
        dataset=Dataset.from_list(rows),
        system_prompt="Use the tool.",
        rubric=vf.Rubric(funcs=[right]),
        max_turns=3,
    )
