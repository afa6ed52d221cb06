"""Programming problems of three levels, checked by tests in a sandbox.

A row: {"question": "<statement>\n\nExample input: …", "answer": "<a reference solution>",
        "info": {"level": 2, "tests": "[{\"input\": \"3\\n1 2 3\\n\", \"output\": \"6\\n\"}, …]"}}
"""

import json
import random
import zlib
from collections.abc import Iterator
from itertools import cycle, islice

from code_problems import LEVELS, NUM_TESTS, Problem, run_reference

import verifiers as vf

SYSTEM_PROMPT = (
    "Write a Python program that solves the problem. It reads from standard input and prints to standard "
    "output, and may "
    "use the standard library. Put the whole program into one ```python block; the last one counts."
)
EVALUATION_SHARE = 8
"""One problem in this many is reserved for evaluation, for any seed."""


def row_of(problem: Problem, level: int) -> dict:
    """Return the dataset row: statement with an example, reference solution, tests."""
    tests = [
        {"input": text, "output": run_reference(problem.solution, text)}
        for text in problem.inputs[:NUM_TESTS]
    ]
    example = tests[0]
    question = f"{problem.statement}\n\nExample input:\n{example['input']}\nExample output:\n{example['output']}"
    # As text, because the tests of a dataset may differ in form.
    info = {"level": level, "tests": json.dumps(tests)}
    return {"question": question, "answer": problem.solution, "info": info}


def problems(split: str, levels: tuple[int, ...], seed: int) -> Iterator[dict]:
    """Yield different problems of one split, endlessly; the levels take turns."""
    numbers = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    for level in cycle(levels):
        while True:
            problem = numbers.choice(LEVELS[level])(numbers)
            is_eval = zlib.crc32(problem.statement.encode()) % EVALUATION_SHARE == 0
            fresh = (problem.statement, problem.inputs[0])
            if is_eval == (split == "eval") and str(fresh) not in seen:
                break
        seen.add(str(fresh))
        yield row_of(problem, level)


def gold_completion(row) -> str:
    """Return the reply that gets the full score for a row."""
    return f"```python\n{row['answer']}```"


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 120,
    level: int = 0,
    reward: str = "fraction",
    seconds_per_test: float = 2.0,
    memory_mb: int = 256,
    seed: int = 0,
) -> vf.Environment:
    """Problems of one `level`, or of all three in turn for 0. `num_train_examples=-1` trains on an endless stream."""
    if level not in (0, *LEVELS):
        raise ValueError(f"level must be 1, 2, 3, or 0 for all; got {level}.")
    levels = (level,) if level else tuple(LEVELS)

    def endless() -> Iterator[dict]:
        return problems("train", levels, seed)

    return vf.CodeEnv(
        reward=reward,
        test_limits={"time_s": seconds_per_test, "memory_mb": memory_mb},
        dataset=endless
        if num_train_examples == -1
        else lambda: list(islice(endless(), num_train_examples)),
        eval_dataset=lambda: list(islice(problems("eval", levels, seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
    )
