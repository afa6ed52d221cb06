"""Problems that need a computation, solved with a Python tool in a sandbox.

A row: {"question": "What is the sum of the decimal digits of 17^92?", "answer": "511",
        "info": {"program": "answer = sum(map(int, str(17 ** 92)))"}}
"""

import json
import random
import zlib
from collections.abc import Iterator
from itertools import islice

from python_tool_problems import TEMPLATES, solved

import verifiers as vf

SYSTEM_PROMPT = (
    "Solve the problem. Use the tool `python` rather than your head: it keeps its variables between calls and has the "
    "standard library. Put the final answer in \\boxed{}, as a whole number."
)
EVALUATION_SHARE = 8
"""One problem in this many is reserved for evaluation, for any seed."""


def problems(split: str, difficulty: int, seed: int) -> Iterator[dict]:
    """Yield different problems of one split, endlessly."""
    numbers = random.Random(f"{split} {seed}")
    seen: set[str] = set()
    while True:
        problem = numbers.choice(TEMPLATES)(numbers, difficulty)
        is_eval = zlib.crc32(problem.question.encode()) % EVALUATION_SHARE == 0
        if is_eval == (split == "eval") and problem.question not in seen:
            seen.add(problem.question)
            info = {"program": problem.program}
            yield {"question": problem.question, "answer": solved(problem), "info": info}


def boxed_number(text: str) -> str:
    """Return the content of the last \\boxed{}, without spaces and separators; "" if there is none."""
    boxed = vf.extract_boxed_answer(text, strict=True)
    return "".join(character for character in boxed if character not in " ,_")


def is_right(completion, answer, parser) -> float:
    """Return 1.0 if the boxed number is the answer."""
    return float(parser.parse_answer(completion) == answer)


def used_python(completion) -> float:
    """Return 1.0 if the tool was called."""
    return float(any(message.get("tool_calls") for message in completion))


def gold_completion(row) -> list:
    """Return the replies that get the full score for a row: one call, then the answer."""
    code = f"{row['info']['program']}\nanswer"
    call = vf.ToolCall(id="call_0", name="python", arguments=json.dumps({"code": code}))
    return [[call], f"\\boxed{{{row['answer']}}}"]


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    difficulty: int = 1,
    max_turns: int = 8,
    seconds_per_call: float = 10.0,
    pip_install_packages: str = "",
    seed: int = 0,
) -> vf.Environment:
    """Problems of ten kinds. `num_train_examples=-1` trains on an endless stream of problems."""
    if not 0 <= difficulty <= 3:
        raise ValueError(f"difficulty must be from 0 to 3; got {difficulty}.")
    parser = vf.Parser(extract_fn=boxed_number)
    rubric = vf.Rubric(funcs=[is_right], parser=parser)
    rubric.add_metric(used_python)

    def endless() -> Iterator[dict]:
        return problems("train", difficulty, seed)

    return vf.PythonEnv(
        pip_install_packages=pip_install_packages,
        timeout_per_command_seconds=seconds_per_call,
        memory_gb=0.5,
        disk_size_gb=0.125,
        max_turns=max_turns,
        dataset=endless
        if num_train_examples == -1
        else lambda: list(islice(endless(), num_train_examples)),
        eval_dataset=lambda: list(islice(problems("eval", difficulty, seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
