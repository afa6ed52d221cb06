"""Nested arithmetic, with a calculator as a tool.

A row: {"question": "What is (412 - 77) * 9318?", "answer": "3121530", "info": {"expression": "(412 - 77) * 9318"}}
"""

import ast
import random
import zlib
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import verifiers as vf

SYSTEM_PROMPT = (
    "Compute the value. Use the calculator rather than your head. "
    "Put the final answer in \\boxed{}, as a whole number."
)
MAX_EXPRESSION_LENGTH = 500
"""Maximum length of an expression for the calculator, in characters."""
MAX_DIGITS = 200
"""Maximum size of a number in the calculator, in decimal digits."""
MAX_EXPONENT = 64
EVALUATION_SHARE = 8
"""One problem in this many is reserved for evaluation, for any seed."""


class Refused(ValueError):
    """The calculator refuses this expression; the message gives the reason."""


def checked(value: Fraction) -> Fraction:
    """Return the value, unless it is too large for further steps."""
    if max(abs(value.numerator), value.denominator).bit_length() > MAX_DIGITS * 3.33:
        raise Refused(f"The result has more than {MAX_DIGITS} digits.")
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Return `base ** exponent` for small integer exponents; a huge power would use up the memory."""
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise Refused(f"Exponents must be whole numbers from -{MAX_EXPONENT} to {MAX_EXPONENT}.")
    if base == 0 and exponent < 0:
        raise Refused("Division by zero.")
    size = max(abs(base.numerator), base.denominator).bit_length()
    if size * abs(int(exponent)) > MAX_DIGITS * 3.33:
        raise Refused(f"The result has more than {MAX_DIGITS} digits.")
    return base ** int(exponent)


def divided(left: Fraction, right: Fraction) -> Fraction:
    """Return `left / right`, exactly."""
    if right == 0:
        raise Refused("Division by zero.")
    return left / right


def computed(node: ast.expr) -> Fraction:
    """Return the exact value of an expression tree. Raises Refused for anything but arithmetic."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return checked(Fraction(str(node.value)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = computed(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = computed(node.left), computed(node.right)
        match node.op:
            case ast.Add():
                return checked(left + right)
            case ast.Sub():
                return checked(left - right)
            case ast.Mult():
                return checked(left * right)
            case ast.Div():
                return checked(divided(left, right))
            case ast.FloorDiv():
                return Fraction(divided(left, right).__floor__())
            case ast.Mod():
                return checked(left - right * divided(left, right).__floor__())
            case ast.Pow():
                return checked(power(left, right))
    raise Refused("Only numbers, + - * / // % ** and parentheses are understood.")


def calculate(expression: str) -> str:
    """Compute an arithmetic expression exactly.

    Args:
        expression: Numbers, + - * / // % ** and parentheses, e.g. "(3 + 4) * 12 / 7".
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise Refused(f"Expressions may have up to {MAX_EXPRESSION_LENGTH} characters.")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = computed(tree.body)
    except Refused:
        raise
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Refused(f"{expression!r} is not an arithmetic expression.") from error
    if value.denominator == 1:
        return str(value.numerator)
    try:
        return f"{value.numerator}/{value.denominator} (about {float(value):.12g})"
    except OverflowError:
        return f"{value.numerator}/{value.denominator}"


def random_expression(numbers: random.Random, operations: int) -> str:
    """Return an expression with this many operations and an integer value."""
    if operations == 0:
        return str(numbers.randint(2, 9999))
    left = numbers.randint(0, operations - 1)
    parts = [random_expression(numbers, count) for count in (left, operations - 1 - left)]
    first, second = (f"({part})" if " " in part else part for part in parts)
    return f"{first} {numbers.choice('+-*')} {second}"


def problems(split: str, operations: int, seed: int) -> Iterator[dict]:
    """Yield the problems of one split, endlessly."""
    numbers = random.Random(f"{split} {seed}")
    while True:
        expression = random_expression(numbers, operations)
        question = f"What is {expression}?"
        if (zlib.crc32(question.encode()) % EVALUATION_SHARE == 0) == (split == "eval"):
            answer = calculate(expression)
            yield {"question": question, "answer": answer, "info": {"expression": expression}}


def boxed_number(text: str) -> str:
    """Return the content of the last \\boxed{}, without spaces and separators; "" if there is none."""
    boxed = vf.extract_boxed_answer(text, strict=True)
    return "".join(character for character in boxed if character not in " ,_")


def is_right(completion, answer, parser) -> float:
    """Return 1.0 if the boxed number is the value."""
    return float(parser.parse_answer(completion) == answer)


def used_calculator(completion) -> float:
    """Return 1.0 if the calculator was called."""
    return float(any(message.get("tool_calls") for message in completion))


def gold_completion(row) -> list:
    """Return the replies that get the full score for a row: one call, then the answer."""
    call = vf.ToolCall(
        id="call_0",
        name="calculate",
        arguments=f'{{"expression": "{row["info"]["expression"]}"}}',
    )
    return [[call], f"\\boxed{{{row['answer']}}}"]


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    num_operations: int = 3,
    max_turns: int = 6,
    seed: int = 0,
) -> vf.Environment:
    """Expressions with `num_operations` operations. `num_train_examples=-1` trains on an endless stream of problems."""
    if not 1 <= num_operations <= 20:
        raise ValueError(f"num_operations must be from 1 to 20; got {num_operations}.")
    parser = vf.Parser(extract_fn=boxed_number)
    rubric = vf.Rubric(funcs=[is_right], parser=parser)
    rubric.add_metric(used_calculator)

    def endless() -> Iterator[dict]:
        return problems("train", num_operations, seed)

    return vf.ToolEnv(
        tools=[calculate],
        max_turns=max_turns,
        dataset=endless
        if num_train_examples == -1
        else list(islice(endless(), num_train_examples)),
        eval_dataset=list(islice(problems("eval", num_operations, seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
