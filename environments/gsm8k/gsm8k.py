"""Grade-school word problems: the public GSM8K, or generated problems that need no network.

A row: {"question": "A baker fills 3 trays with 12 rolls each. How many rolls is that?", "answer": "36"}
GSM8K: https://huggingface.co/datasets/openai/gsm8k, https://arxiv.org/abs/2110.14168
"""

import re
from itertools import islice
from typing import Any, Literal

from gsm8k_problems import MAX_STEPS, problems

import verifiers as vf

SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def as_number(text: str) -> str:
    """Return the last number in a text such as "$1,200.00", in a standard form ("1200"); "" if there is none."""
    found = NUMBER.findall(text.replace(",", ""))
    if not found:
        return ""
    whole, _, decimals = found[-1].partition(".")
    decimals = decimals.rstrip("0")
    return str(int(whole)) + (f".{decimals}" if decimals else "")


def boxed_number(text: str) -> str:
    """Return the number in the last \\boxed{} after the reasoning; "" if there is none."""
    return as_number(vf.extract_boxed_answer(text.rpartition("</think>")[2], strict=True))


def is_right(completion, answer, parser) -> float:
    """Return 1.0 if the boxed number is the answer."""
    return float(parser.parse_answer(completion) == answer)


def is_boxed(completion, parser) -> float:
    """Return 1.0 if a box contains a number, right or wrong."""
    return float(bool(parser.parse_answer(completion)))


def openai_rows(split: str) -> Any:
    """Return a split of the public data set, downloaded on first use. Its solutions end with "#### 1,200"."""
    from datasets import load_dataset

    def as_row(example: dict) -> dict:
        return {
            "question": example["question"],
            "answer": as_number(example["answer"].split("####")[1]),
        }

    dataset: Any = load_dataset("openai/gsm8k", "main", split=split)
    return dataset.map(as_row)


def first(dataset: Any, count: int) -> Any:
    """Return the first `count` rows; all rows for -1."""
    return dataset if count < 0 else dataset.select(range(min(count, len(dataset))))


def load_environment(
    source: Literal["own", "openai"] = "own",
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    min_steps: int = 1,
    max_steps: int = MAX_STEPS,
    seed: int = 0,
) -> vf.Environment:
    """`source="openai"` is GSM8K (7,473 and 1,319 rows; -1 means all). "own" generates problems of this many steps."""
    if source not in ("own", "openai"):
        raise ValueError(f"source must be 'own' or 'openai'; got {source!r}.")
    if not 1 <= min_steps <= max_steps <= MAX_STEPS:
        raise ValueError(f"Steps must be from 1 to {MAX_STEPS}; got {min_steps} to {max_steps}.")
    parser = vf.Parser(extract_fn=boxed_number)
    rubric = vf.Rubric(funcs=[is_right], parser=parser)
    rubric.add_metric(is_boxed)

    def own(split: str) -> Any:
        return problems(split, min_steps, max_steps, seed)

    def train() -> Any:
        if source == "openai":
            return first(openai_rows("train"), num_train_examples)
        return (
            own("train")
            if num_train_examples < 0
            else list(islice(own("train"), num_train_examples))
        )

    def evaluation() -> Any:
        if source == "openai":
            return first(openai_rows("test"), num_eval_examples)
        return (
            own("eval") if num_eval_examples < 0 else list(islice(own("eval"), num_eval_examples))
        )

    return vf.SingleTurnEnv(
        dataset=train,
        eval_dataset=evaluation,
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
