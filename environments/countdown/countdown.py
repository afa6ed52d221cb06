"""Reach a target with given numbers, each used at most once, and + - * / and parentheses.

A row: {"question": "Numbers: 3, 7, 25, 50. Target: 146.", "answer": "(50 + 25 - 2) * 2",
        "info": {"numbers": [3, 7, 25, 50], "target": 146}}; the answer is one solution of several.
"""

import ast
import operator
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import verifiers as vf

SYSTEM_PROMPT = (
    "Write an expression that equals the target. Use only the given numbers, each at most once, the operations "
    "+ - * / and parentheses. Think first, then put only the expression inside <answer> and </answer>."
)
SMALL_NUMBERS = range(1, 11)
LARGE_NUMBERS = (25, 50, 75, 100)
MAX_TARGET = 999
MAX_LENGTH = 200
"""Maximum length of an expression, in characters."""
EVALUATION_SHARE = 8
"""One problem in this many is reserved for evaluation, for any seed."""
VALID_REWARD = 0.1
"""Minimum reward of a valid expression that misses the target."""
CLOSENESS_REWARD = 0.3
"""Maximum additional reward for closeness: this value divided by one plus the distance."""


class InvalidExpression(ValueError):
    """The text is not an expression of the allowed form."""


SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
OPERATIONS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def evaluated(text: str) -> tuple[Fraction, list[int]]:
    """Return the exact value of an expression and the numbers in it. Raises InvalidExpression."""
    if len(text) > MAX_LENGTH:
        raise InvalidExpression(f"longer than {MAX_LENGTH} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise InvalidExpression(str(error)) from error
    used: list[int] = []

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            used.append(node.value)
            return Fraction(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
            left, right = value(node.left), value(node.right)
            if isinstance(node.op, ast.Div) and right == 0:
                raise InvalidExpression("division by zero")
            return SIGNS[OPERATIONS[type(node.op)]](left, right)
        raise InvalidExpression(f"{type(node).__name__} is not allowed")

    return value(tree), used


def solution_value(text: str, numbers: list[int]) -> Fraction:
    """Return the value of an expression that uses only these numbers. Raises InvalidExpression."""
    result, used = evaluated(text)
    if too_many := Counter(used) - Counter(numbers):
        raise InvalidExpression(f"{sorted(too_many)} are not given, or used too often")
    return result


def reached(completion, info, parser) -> float:
    """Return 1.0 for the target; 0.1 to 0.25 by distance for a valid expression that misses it; otherwise 0.0."""
    try:
        result = solution_value(parser.parse_answer(completion) or "", info["numbers"])
    except InvalidExpression:
        return 0.0
    distance = abs(result - info["target"])
    if distance == 0:
        return 1.0
    return VALID_REWARD + float(CLOSENESS_REWARD / (1 + distance))


def is_solved(completion, info, parser) -> float:
    """Return 1.0 if the target is reached."""
    return float(reached(completion, info, parser) == 1.0)


def is_valid(completion, info, parser) -> float:
    """Return 1.0 if the answer is an expression of the allowed form with allowed numbers."""
    return float(reached(completion, info, parser) > 0.0)


def random_problem(numbers: random.Random, count: int) -> tuple[list[int], int, str] | None:
    """Return numbers, a target and one expression that reaches it; None if this draw has no suitable target."""
    large = numbers.randint(0, min(2, count - 1))
    given = numbers.sample(LARGE_NUMBERS, large) + numbers.choices(SMALL_NUMBERS, k=count - large)
    parts = [(Fraction(number), str(number)) for number in given]
    numbers.shuffle(parts)
    while len(parts) > 1:
        (a, first), (b, second) = parts.pop(), parts.pop()
        sign = numbers.choice("+-*/")
        if sign == "/" and (b == 0 or (a / b).denominator != 1):
            sign = "+"
        value = SIGNS[sign](a, b)
        parts.insert(numbers.randint(0, len(parts)), (value, f"({first} {sign} {second})"))
    [(value, expression)] = parts
    if not 10 <= value <= MAX_TARGET or value in given:
        return None
    return sorted(given), int(value), expression[1:-1]


def problems(split: str, count: int, seed: int) -> Iterator[dict]:
    """Yield the problems of one split with `count` numbers each, endlessly."""
    numbers = random.Random(f"{split} {seed}")
    while True:
        drawn = random_problem(numbers, count)
        if drawn is None:
            continue
        given, target, expression = drawn
        question = f"Numbers: {', '.join(map(str, given))}. Target: {target}."
        if (zlib.crc32(question.encode()) % EVALUATION_SHARE == 0) == (split == "eval"):
            info = {"numbers": given, "target": target}
            yield {"question": question, "answer": expression, "info": info}


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    num_numbers: int = 4,
    seed: int = 0,
) -> vf.Environment:
    """Problems with `num_numbers` numbers. `num_train_examples=-1` trains on an endless stream of problems."""
    if not 2 <= num_numbers <= 8:
        raise ValueError(f"num_numbers must be from 2 to 8; got {num_numbers}.")
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(funcs=[reached], parser=parser)
    rubric.add_metric(is_solved)
    rubric.add_metric(is_valid)

    def endless() -> Iterator[dict]:
        return problems("train", num_numbers, seed)

    return vf.SingleTurnEnv(
        dataset=endless
        if num_train_examples == -1
        else list(islice(endless(), num_train_examples)),
        eval_dataset=list(islice(problems("eval", num_numbers, seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
