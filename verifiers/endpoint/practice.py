"""The problems that the shipped model was trained on: prompts and right answers, generated from a seed.

    reverse-text   system (optional): Reverse the text character-by-character. Put your answer in <reversed_text> tags.
                   user:              hello you                       4 to 16 lower-case letters, single inner spaces
                   assistant:         <reversed_text>uoy olleh</reversed_text>

    addition       system (optional): Solve the problem. Put the final answer in \\boxed{}.
                   user:              What is 47 + 85?                1 to 3 digits each, not negative
                   assistant:         7+5=12, 4+8+1=13. \\boxed{132}

    calculator     tools:             one, named like add, calculator or evaluate; two numbers or one expression
                   user:              What is 47 + 85?                with or without the system prompt of addition
                   assistant:         <tool_call>{"name": "add", "arguments": {"a": 47, "b": 85}}</tool_call>
                   tool:              132
                   assistant:         \\boxed{132}

The bundled environments use exactly these formats; the model does not understand other wording. The training script
uses this module, and so do the tests that measure the shipped weights on fresh problems.
"""

from __future__ import annotations

import dataclasses
import random
import re
from typing import Any

REVERSE_SYSTEM_PROMPT = (
    "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
)
ADDITION_SYSTEM_PROMPT = "Solve the problem. Put the final answer in \\boxed{}."

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_COMMON_LETTERS = "eeeeeettttaaaaooooiiinnnssshhhrrrdddlllccuummwwffggyyppbbvkjxqz"
_TOOL_NAMES = (
    "add",
    "calculator",
    "calculate",
    "sum",
    "plus",
    "add_numbers",
    "evaluate",
    "compute",
)
_TWO_NUMBER_PARAMETERS = (("a", "b"), ("x", "y"), ("left", "right"), ("first", "second"))
_EXPRESSION_PARAMETERS = ("expression", "expr", "input", "query", "formula")


@dataclasses.dataclass(frozen=True, slots=True)
class PracticeProblem:
    """A conversation up to the model's turn, and the expected turn."""

    messages: list[dict[str, Any]]
    completion: str
    """The expected text of the model, without the end token."""
    answer: str
    """The part that a reward function compares: the reversed text, the sum, or the tool call."""
    tools: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def reverse_problem(
    rng: random.Random, *, length: int, system_prompt: bool = True
) -> PracticeProblem:
    """Return a text of `length` lower-case letters and single inner spaces, to be reversed."""
    text = random_text(rng, length)
    answer = text[::-1]
    return PracticeProblem(
        _messages(REVERSE_SYSTEM_PROMPT if system_prompt else None, text),
        f"<reversed_text>{answer}</reversed_text>",
        answer,
    )


def random_text(rng: random.Random, length: int) -> str:
    """Letters in words. Half of the texts use the letter frequencies of English."""
    letters = _COMMON_LETTERS if rng.random() < 0.5 else _LETTERS
    characters = rng.choices(letters, k=length)
    position = rng.randint(2, 8)
    while position < length - 1:
        characters[position] = " "
        position += rng.randint(2, 8)
    return "".join(characters)


def addition_problem(
    rng: random.Random, *, digits: tuple[int, int], system_prompt: bool = True
) -> PracticeProblem:
    """Return `What is A + B?` with A and B of the given numbers of digits, solved digit by digit."""
    left, right = (random_number(rng, count) for count in digits)
    return PracticeProblem(
        _messages(ADDITION_SYSTEM_PROMPT if system_prompt else None, f"What is {left} + {right}?"),
        f"{addition_steps(left, right)} \\boxed{{{left + right}}}",
        str(left + right),
    )


def random_number(rng: random.Random, digits: int) -> int:
    """Return a number with exactly this many digits (0-9 for one)."""
    return rng.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def addition_steps(left: int, right: int) -> str:
    """Return the column sums from the right with their carries: 47 and 85 give "7+5=12, 4+8+1=13."."""
    width = max(len(str(left)), len(str(right)))
    pairs = zip(reversed(str(left).zfill(width)), reversed(str(right).zfill(width)), strict=True)
    steps, carry = [], 0
    for a, b in pairs:
        total = int(a) + int(b) + carry
        steps.append(f"{a}+{b}{'+1' if carry else ''}={total}")
        carry = total // 10
    return ", ".join(steps) + "."


def tool_problem(rng: random.Random, *, digits: tuple[int, int], answered: bool) -> PracticeProblem:
    """Return a sum with a calculator tool: the call itself, or the turn after the tool's answer."""
    left, right = (random_number(rng, count) for count in digits)
    name = rng.choice(_TOOL_NAMES)
    if rng.random() < 0.5:
        names = rng.choice(_TWO_NUMBER_PARAMETERS)
        arguments = f'{{"{names[0]}": {left}, "{names[1]}": {right}}}'
    else:
        names = (rng.choice(_EXPRESSION_PARAMETERS),)
        arguments = f'{{"{names[0]}": "{left} + {right}"}}'
    tool = {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {n: {"type": "string"} for n in names}},
        },
    }
    system = rng.choice((None, ADDITION_SYSTEM_PROMPT))
    messages = _messages(system, f"What is {left} + {right}?")
    call = f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'
    if not answered:
        return PracticeProblem(messages, call, call, [tool])
    function = {"name": name, "arguments": arguments}
    call_message = {"id": "call_0", "type": "function", "function": function}
    messages.append({"role": "assistant", "content": None, "tool_calls": [call_message]})
    messages.append({"role": "tool", "tool_call_id": "call_0", "content": str(left + right)})
    return PracticeProblem(messages, f"\\boxed{{{left + right}}}", str(left + right), [tool])


def reverse_reward(problem: PracticeProblem, completion: str) -> float:
    """Return the length of the longest common subsequence of text and answer over the longer of the two lengths."""
    match = re.search(r"<reversed_text>(.*?)</reversed_text>", completion, re.DOTALL)
    written = match[1].strip() if match else ""
    longest = max(len(written), len(problem.answer))
    return _common_subsequence_length(written, problem.answer) / longest if longest else 0.0


def addition_reward(problem: PracticeProblem, completion: str) -> float:
    """Return 1.0 if the last boxed number is the sum, else 0.0."""
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", completion)
    return float(bool(boxed) and boxed[-1].strip() == problem.answer)


def _common_subsequence_length(first: str, second: str) -> int:
    row = [0] * (len(second) + 1)
    for a in first:
        diagonal = 0
        for column, b in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if a == b else max(above, row[column - 1])
            diagonal = above
    return row[-1]


def _messages(system_prompt: str | None, user: str) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system_prompt is not None:
        messages.append({"role": "system", "content": system_prompt})
    messages.append({"role": "user", "content": user})
    return messages
