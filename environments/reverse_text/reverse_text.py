"""Reverse a text character by character.

A row: {"question": "the cat sat", "answer": "tas tac eht"}

Uses only names that every release of the v0 API has, so it also runs on `verifiers` 0.1.8.
"""

import random
import zlib

from datasets import Dataset

import verifiers as vf

SYSTEM_PROMPT = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
LETTERS = "abcdefghijklmnopqrstuvwxyz"
COMMON_LETTERS = "eeeeeettttaaaaooooiiinnnssshhhrrrdddlllccuummwwffggyyppbbvkjxqz"
EVALUATION_SHARE = 8
"""One text in this many is reserved for evaluation, for any seed."""


def is_for_evaluation(text: str) -> bool:
    """Return whether a text is for evaluation. This depends on the text only, so splits never share one."""
    return zlib.crc32(text.encode()) % EVALUATION_SHARE == 0


def random_text(numbers: random.Random, length: int) -> str:
    """Return lower-case words; half of the texts use letters with the frequencies of English."""
    letters = COMMON_LETTERS if numbers.random() < 0.5 else LETTERS
    characters = numbers.choices(letters, k=length)
    position = numbers.randint(2, 8)
    while position < length - 1:
        characters[position] = " "
        position += numbers.randint(2, 8)
    return "".join(characters)


def rows(split: str, count: int, min_length: int, max_length: int, seed: int) -> list[dict]:
    """Return `count` texts of one split; the first ones are the same for every count."""
    numbers = random.Random(f"{split} {seed}")
    found = []
    while len(found) < count:
        text = random_text(numbers, numbers.randint(min_length, max_length))
        if is_for_evaluation(text) == (split == "eval"):
            found.append({"question": text, "answer": text[::-1]})
    return found


def common_subsequence_length(first: str, second: str) -> int:
    """Return the length of the longest sequence of characters that both texts contain in this order."""
    row = [0] * (len(second) + 1)
    for a in first:
        diagonal = 0
        for column, b in enumerate(second, start=1):
            above = row[column]
            row[column] = diagonal + 1 if a == b else max(above, row[column - 1])
            diagonal = above
    return row[-1]


def similarity(completion, answer, parser) -> float:
    """Return the longest common subsequence of the tagged text and the answer, divided by the longer of the two."""
    written = parser.parse_answer(completion) or ""
    longest = max(len(written), len(answer))
    return common_subsequence_length(written, answer) / longest if longest else 0.0


def exact_match(completion, answer, parser) -> float:
    """Return 1.0 if the tagged text is the answer."""
    return float(parser.parse_answer(completion) == answer)


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    min_length: int = 4,
    max_length: int = 16,
    seed: int = 0,
) -> vf.Environment:
    """Texts of `min_length` to `max_length` characters."""
    if not 2 <= min_length <= max_length:
        raise ValueError(
            f"Texts need 2 <= min_length <= max_length; got {min_length} and {max_length}."
        )
    parser = vf.XMLParser(["reversed_text"], answer_field="reversed_text")
    rubric = vf.Rubric(
        funcs=[similarity, exact_match, parser.get_format_reward_func()],
        weights=[1.0, 0.0, 0.0],
        parser=parser,
    )
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows("train", num_train_examples, min_length, max_length, seed)),
        eval_dataset=Dataset.from_list(
            rows("eval", num_eval_examples, min_length, max_length, seed)
        ),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
