"""Extract final answers from free text: `\\boxed{…}`, `#### …`, bare numbers. v0 exports these names."""

from __future__ import annotations

import re

BOXED_SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
# Five spaces, as in 0.1.8 to 0.3.1: a prompt that differs in one byte is a different prompt.
THINK_BOXED_SYSTEM_PROMPT = (
    "Think step-by-step inside <think>...</think> tags.     "
    "Then, give your final answer inside \\boxed{}."
)

_NOT_NUMERIC = re.compile(r"[^\d.]")


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    """Return the content of the last complete `\\boxed{…}`, inner braces included.

    Without a box: the text itself, or "" when `strict`.
    """
    end = len(text)
    while (start := text.rfind("\\boxed{", 0, end)) >= 0:
        depth = 0
        for position in range(start + 6, len(text)):
            if text[position] == "{":
                depth += 1
            elif text[position] == "}":
                depth -= 1
                if depth == 0:
                    return text[start + 7 : position]
        end = start
    return "" if strict else text


def extract_hash_answer(text: str) -> str:
    """Return the text between the first `####` and the next one; the text itself without one."""
    if "####" not in text:
        return text
    return text.split("####")[1].strip()


def strip_non_numeric(text: str) -> str:
    """Return only the digits and points of the text."""
    return _NOT_NUMERIC.sub("", text)
