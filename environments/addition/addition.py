"""Add two numbers.

A row: {"question": "What is 47 + 85?", "answer": "132"}
"""

import random
import zlib
from collections.abc import Iterator
from itertools import islice

import verifiers as vf

SYSTEM_PROMPT = "Solve the problem. Put the final answer in \\boxed{}."
EVALUATION_SHARE = 8
"""One problem in this many is reserved for evaluation, for any seed."""


def is_for_evaluation(question: str) -> bool:
    """Return whether a problem is for evaluation. This depends on the problem only, so splits never share one."""
    return zlib.crc32(question.encode()) % EVALUATION_SHARE == 0


def random_number(numbers: random.Random, max_digits: int) -> int:
    """Draw a number; each number of digits is equally likely."""
    digits = numbers.randint(1, max_digits)
    return numbers.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def problems(split: str, max_digits: int, seed: int) -> Iterator[dict]:
    """Yield the problems of one split, endlessly."""
    numbers = random.Random(f"{split} {seed}")
    while True:
        left, right = random_number(numbers, max_digits), random_number(numbers, max_digits)
        question = f"What is {left} + {right}?"
        if is_for_evaluation(question) == (split == "eval"):
            yield {"question": question, "answer": str(left + right)}


def boxed_number(text: str) -> str:
    """Return the number in the last \\boxed{}, without leading zeros or separators; "" if there is none."""
    boxed = vf.extract_boxed_answer(text, strict=True).replace(",", "").strip()
    return str(int(boxed)) if boxed.isascii() and boxed.isdigit() else ""


def is_right(completion, answer, parser) -> float:
    """Return 1.0 if the boxed number is the sum."""
    return float(parser.parse_answer(completion) == answer)


def is_boxed(completion, parser) -> float:
    """Return 1.0 if a box contains a number, right or wrong."""
    return float(bool(parser.parse_answer(completion)))


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    max_digits: int = 3,
    seed: int = 0,
) -> vf.Environment:
    """Sums of numbers of up to `max_digits` digits. `num_train_examples=-1` trains on an endless stream of problems."""
    if max_digits < 1:
        raise ValueError(f"max_digits must be at least 1; got {max_digits}.")
    parser = vf.Parser(extract_fn=boxed_number)
    rubric = vf.Rubric(funcs=[is_right], parser=parser)
    rubric.add_metric(is_boxed)

    def endless() -> Iterator[dict]:
        return problems("train", max_digits, seed)

    return vf.SingleTurnEnv(
        dataset=endless
        if num_train_examples == -1
        else list(islice(endless(), num_train_examples)),
        eval_dataset=list(islice(problems("eval", max_digits, seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
