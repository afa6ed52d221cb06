"""Find a number by guessing; the environment answers each guess with higher or lower.

A row: {"question": "It is from 120 to 134. 4 guesses.", "answer": "131", "info": {"low": 120, "high": 134}}
"""

import math
import random
import re
import zlib
from collections.abc import Iterator
from itertools import islice

import verifiers as vf

SYSTEM_PROMPT = "Find the number. Write a guess inside <try> tags."
EVALUATION_SHARE = 8
"""One game in this many is reserved for evaluation, for any seed."""
WHOLE_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def is_for_evaluation(low: int, secret: int) -> bool:
    """Return whether a game is for evaluation. This depends on the range and the number only."""
    return zlib.crc32(f"{low} {secret}".encode()) % EVALUATION_SHARE == 0


def games(split: str, lows: range, size: int, guesses: int, seed: int) -> Iterator[dict]:
    """Yield the games of one split, endlessly, with repetitions. Raises ValueError if the split has none."""
    every = ((low, secret) for low in lows for secret in range(low, low + size))
    if not any(is_for_evaluation(*game) == (split == "eval") for game in every):
        raise ValueError(
            f"None of the {len(lows) * size} games is for the split {split!r}: raise largest."
        )
    numbers = random.Random(f"{split} {seed}")
    while True:
        low = numbers.choice(lows)
        high = low + size - 1
        secret = numbers.randint(low, high)
        if is_for_evaluation(low, secret) == (split == "eval"):
            yield {
                "question": f"It is from {low} to {high}. {guesses} guesses.",
                "answer": str(secret),
                "info": {"low": low, "high": high},
            }


def is_found(state) -> float:
    """Return 1.0 if the number was guessed."""
    return float(state.get("is_found", False))


def information(state) -> float:
    """Return the share of the necessary information, in bits, that the guesses have gained."""
    size, left = (high - low + 1 for low, high in (bounds(state["info"]), bounds(state)))
    return 1.0 if is_found(state) else 1.0 - math.log2(left) / math.log2(size)


def wasted_guesses(state) -> float:
    """Return the number of turns spent on guesses that could not be the number."""
    return float(state.get("wasted_guesses", 0))


def bounds(known) -> tuple[int, int]:
    """Return the minimum and maximum of the number; before any guess, from the row's info."""
    return known["low"], known["high"]


class HigherLowerEnv(vf.MultiTurnEnv):
    """One guess per turn. A guess that cannot be right gains nothing and still uses its turn."""

    def __init__(self, guesses: int, **kwargs) -> None:
        # One more than can be used: the last guess is answered, too, which ends the game.
        super().__init__(max_turns=guesses + 1, **kwargs)
        self.guesses = guesses

    async def setup_state(self, state, **kwargs):
        state["low"], state["high"] = bounds(state["info"])
        state["is_found"], state["wasted_guesses"] = False, 0
        return state

    def take_guess(self, guess: str, state) -> str:
        """Return the answer to a guess. The state holds the range that remains."""
        number = int(guess) if WHOLE_NUMBER.fullmatch(guess) else None
        secret = int(state["answer"])
        if number is None or not state["low"] <= number <= state["high"]:
            state["wasted_guesses"] += 1
            return "No" if number is not None else "Write a number inside <try> and </try>"
        if number < secret:
            state["low"] = number + 1
            return "Higher"
        if number > secret:
            state["high"] = number - 1
            return "Lower"
        state["is_found"] = True
        return "Yes"

    async def env_response(self, messages, state, **kwargs):
        guess = str(self.parser.parse_answer(messages[-1:]) or "").strip()
        told = self.take_guess(guess, state)
        if not state["is_found"] and len(state["trajectory"]) < self.guesses:
            text = f"{told}. It is from {state['low']} to {state['high']}."
            return [vf.UserMessage(content=text)]
        text = f"{told}. It is {state['answer']}."
        state["final_env_response"] = [vf.UserMessage(content=text)]
        return state["final_env_response"]


def guess_of(number: int) -> str:
    """Return a guess in the form that the parser reads."""
    return f"<try>{number}</try>"


def gold_reply(state) -> str:
    """Return the best next guess after any other guesses: the middle of each remaining side."""
    low, high = bounds(state)
    return guess_of((low + high) // 2)


def gold_completion(row) -> list[str]:
    """Return the guesses that find a row's number by halving."""
    (low, high), secret, replies = bounds(row["info"]), int(row["answer"]), []
    while True:
        guess = (low + high) // 2
        replies.append(guess_of(guess))
        if guess == secret:
            return replies
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    size: int = 100,
    smallest: int = 1,
    largest: int = 1000,
    guesses: int | None = None,
    seed: int = 0,
) -> vf.Environment:
    """One of `size` numbers between `smallest` and `largest`. `guesses=None` allows the number that halving needs."""
    if not (2 <= size <= largest - smallest + 1 and smallest >= 0):
        raise ValueError(
            f"size={size} numbers must fit between smallest={smallest} and largest={largest}."
        )
    lows = range(smallest, largest - size + 2)
    guesses = size.bit_length() if guesses is None else guesses
    parser = vf.XMLParser(["try"], answer_field="try")
    rubric = vf.Rubric(funcs=[is_found, information], weights=[0.5, 0.5], parser=parser)
    rubric.add_metric(wasted_guesses)
    return HigherLowerEnv(
        guesses,
        dataset=list(islice(games("train", lows, size, guesses, seed), num_train_examples)),
        eval_dataset=list(islice(games("eval", lows, size, guesses, seed), num_eval_examples)),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
