"""Three kinds of arithmetic in one environment: sums, word problems, and reaching a target.

A row of each: {"question": "What is 47 + 85?", "answer": "132", "task": "sums"}
               {"question": "A crate holds 12 pears. How many pears are in 5 crates?", "answer": "60", "task": "words"}
               {"question": "Reach 24 with 2, 3, 4.", "answer": "2 * 3 * 4", "task": "target"}
"""

import ast
import operator
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice

import verifiers as vf

BOXED_PROMPT = "Solve the problem. Put the final answer in \\boxed{}."
EVALUATION_SHARE = 8
"""One problem in this many is reserved for evaluation, for any seed."""
STORIES = (
    ("A crate holds {a} pears. How many pears are in {b} crates?", operator.mul),
    ("{a} people are on a boat and {b} more come aboard. How many are there?", operator.add),
    ("Of {a} candles, {b} are lit. How many are not?", operator.sub),
    ("A field has {a} rows of {b} cabbages. How many cabbages grow in it?", operator.mul),
    (
        "A jug of {a} decilitres is filled up by {b}. How many decilitres are in it now?",
        operator.add,
    ),
)
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def sums(numbers: random.Random) -> dict:
    left, right = numbers.randint(0, 999), numbers.randint(0, 999)
    return {"question": f"What is {left} + {right}?", "answer": str(left + right)}


def words(numbers: random.Random) -> dict:
    text, operation = numbers.choice(STORIES)
    a, b = numbers.randint(20, 90), numbers.randint(2, 19)
    return {"question": text.format(a=a, b=b), "answer": str(operation(a, b))}


def target(numbers: random.Random) -> dict:
    given = [numbers.randint(2, 9) for _ in range(3)]
    expression = f"{given[0]} {numbers.choice('+*')} {given[1]} {numbers.choice('+-*')} {given[2]}"
    shown = ", ".join(map(str, sorted(given)))
    question = (
        f"Reach {value_of(expression)[0]} with {shown}, each used once, and + - * and parentheses."
    )
    return {"question": question, "answer": expression, "info": {"numbers": given}}


def rows(make: Callable[[random.Random], dict], split: str, seed: int) -> Iterator[dict]:
    """Yield the problems of one kind and split, endlessly. The split of a problem depends on its text only."""
    numbers = random.Random(f"{make.__name__} {split} {seed}")
    while True:
        row = make(numbers)
        if (zlib.crc32(row["question"].encode()) % EVALUATION_SHARE == 0) == (split == "eval"):
            yield row


def value_of(text: str) -> tuple[int, list[int]]:
    """Return the value of an expression of integers, + - * and parentheses, and its numbers. Raises ValueError."""
    used: list[int] = []

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
            return SIGNS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"{type(node).__name__} is not allowed")

    if len(text) > 100:
        raise ValueError("longer than 100 characters")
    try:
        return value(ast.parse(text.strip(), mode="eval").body), used
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from error


def is_right(completion, answer, parser) -> float:
    """Return 1.0 if the boxed text is the answer."""
    return float(parser.parse_answer(completion) == answer)


def target_reached(completion, answer, info, parser) -> float:
    """Return 1.0 if the boxed expression uses each of the numbers once and has the right value."""
    try:
        value, used = value_of(parser.parse_answer(completion) or "")
    except ValueError:
        return 0.0
    return float(value == value_of(answer)[0] and Counter(used) == Counter(info["numbers"]))


def boxed(text: str) -> str:
    return vf.extract_boxed_answer(text, strict=True).strip()


def single_turn(
    make: Callable[[random.Random], dict], reward, num_train: int, num_eval: int, seed: int
) -> vf.Environment:
    parser = vf.Parser(extract_fn=boxed)
    return vf.SingleTurnEnv(
        dataset=list(islice(rows(make, "train", seed), num_train)),
        eval_dataset=list(islice(rows(make, "eval", seed), num_eval)),
        system_prompt=BOXED_PROMPT,
        parser=parser,
        rubric=vf.Rubric(funcs=[reward], parser=parser),
    )


def load_environment(
    num_train_examples: int = 300, num_eval_examples: int = 30, seed: int = 0
) -> vf.Environment:
    """This many problems of each of the three kinds."""
    kinds = {
        "sums": (sums, is_right),
        "words": (words, is_right),
        "target": (target, target_reached),
    }
    return vf.EnvGroup(
        envs=[
            single_turn(make, reward, num_train_examples, num_eval_examples, seed)
            for make, reward in kinds.values()
        ],
        env_names=list(kinds),
    )
