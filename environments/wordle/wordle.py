"""Guess a secret five-letter word in six tries.

A row: {"question": "Guess the word.", "answer": "crane"}
"""

import math
import random
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import verifiers as vf

MAX_GUESSES = 6
WORD_LENGTH = 5
EVALUATION_SHARE = 5
"""One word in this many is reserved for evaluation, for any seed."""
SYSTEM_PROMPT = f"""\
You are playing Wordle: find a secret English word of {WORD_LENGTH} letters in {MAX_GUESSES} guesses.
Each turn, think, then write one word inside <guess> and </guess>, e.g. <guess>crane</guess>.
You are then told for each letter: G if it is in the right place, Y if the word has it elsewhere, - if it has not."""
QUESTION = "Make your first guess."


@cache
def words() -> tuple[str, ...]:
    """Return the words that can be secrets and guesses."""
    return tuple(Path(__file__).with_name("wordle_words.txt").read_text(encoding="utf-8").split())


def is_for_evaluation(word: str) -> bool:
    """Return whether a secret is for evaluation. This depends on the word only."""
    return zlib.crc32(word.encode()) % EVALUATION_SHARE == 0


def rows(split: str, count: int, seed: int) -> list[dict]:
    """Return `count` secrets of one split in an order set by the seed. They repeat if the split has fewer."""
    secrets = [word for word in words() if is_for_evaluation(word) == (split == "eval")]
    random.Random(f"{split} {seed}").shuffle(secrets)
    return [{"question": QUESTION, "answer": secrets[i % len(secrets)]} for i in range(count)]


def marks_of(guess: str, secret: str) -> str:
    """Return one of G, Y and - for each letter of the guess. A letter is marked at most once per occurrence in the
    secret.
    """
    left = Counter(s for g, s in zip(guess, secret, strict=True) if g != s)
    marks = []
    for g, s in zip(guess, secret, strict=True):
        if g == s:
            marks.append("G")
        elif left[g] > 0:
            left[g] -= 1
            marks.append("Y")
        else:
            marks.append("-")
    return "".join(marks)


def candidates(guesses: list[str], secret: str) -> list[str]:
    """Return the words that would have received the same marks for all these guesses."""
    seen = [(guess, marks_of(guess, secret)) for guess in guesses]
    return [word for word in words() if all(marks_of(g, word) == marks for g, marks in seen)]


def is_solved(state) -> float:
    """Return 1.0 if the secret was guessed."""
    return float(state["answer"] in state.get("guesses", []))


def information(state) -> float:
    """Return the share of the necessary information, in bits, that the guesses have gained; 1.0 if one word is left."""
    left = len(candidates(state.get("guesses", []), state["answer"]))
    return 1.0 - math.log2(left) / math.log2(len(words()))


def speed(state) -> float:
    """Return 1.0 if solved with the first guess, one sixth less for each further guess, and 0.0 if not solved."""
    return is_solved(state) * (1.0 - (len(state["trajectory"]) - 1) / MAX_GUESSES)


def invalid_guesses(state) -> float:
    """Return the number of turns spent on anything but a new word of the list."""
    return float(len(state["trajectory"]) - len(state.get("guesses", [])))


class WordleEnv(vf.MultiTurnEnv):
    """One guess per turn. A guess that does not count still uses its turn."""

    def __init__(self, hard_mode: bool = False, **kwargs) -> None:
        super().__init__(max_turns=MAX_GUESSES, **kwargs)
        self.hard_mode = hard_mode

    async def setup_state(self, state, **kwargs):
        state["guesses"] = []
        return state

    def fault_of(self, guess: str, state) -> str | None:
        """Return the reason why a guess does not count, or None."""
        if len(guess) != WORD_LENGTH or not guess.isascii() or not guess.isalpha():
            return f"Write one word of {WORD_LENGTH} letters inside <guess> and </guess>."
        if guess in state["guesses"]:
            return f"You have guessed {guess} before."
        if guess not in words():
            return f"{guess} is not in the word list."
        if self.hard_mode and guess not in candidates(state["guesses"], state["answer"]):
            return f"{guess} does not fit what you have been told."
        return None

    def take_guess(self, messages, state) -> str:
        """Return the answer to the guess in the last message. A guess that counts is recorded."""
        guess = str(self.parser.parse_answer(messages[-1:]) or "").strip().lower()
        if fault := self.fault_of(guess, state):
            return fault
        state["guesses"].append(guess)
        return f"{guess}: {' '.join(marks_of(guess, state['answer']))}"

    async def env_response(self, messages, state, **kwargs):
        told = self.take_guess(messages, state)
        left = MAX_GUESSES - len(state["trajectory"])
        if state["answer"] in state["guesses"]:
            text = f"Yes, the word is {state['answer']}."
        elif left == 0:
            text = f"{told}\nNo guesses left. The word was {state['answer']}."
        else:
            return [{"role": "user", "content": f"{told}\n{left} guesses left."}]
        state["final_env_response"] = [{"role": "user", "content": text}]
        return state["final_env_response"]

    @vf.stop
    async def max_turns_reached(self, state) -> bool:
        """Never stop here. The last guess counts, too, so it is answered before the game ends."""
        return len(state["trajectory"]) > MAX_GUESSES


def gold_completion(row) -> str:
    """Return the reply that gets the full score for a row."""
    return f"<guess>{row['answer']}</guess>"


def load_environment(
    num_train_examples: int = 1000,
    num_eval_examples: int = 100,
    hard_mode: bool = False,
    seed: int = 0,
) -> vf.Environment:
    """The two splits share no secret. In `hard_mode` a guess must fit all previous marks."""
    parser = vf.XMLParser(["guess"], answer_field="guess")
    rubric = vf.Rubric(
        funcs=[is_solved, information, speed], weights=[0.7, 0.2, 0.1], parser=parser
    )
    rubric.add_metric(invalid_guesses)
    return WordleEnv(
        hard_mode=hard_mode,
        dataset=rows("train", num_train_examples, seed),
        eval_dataset=rows("eval", num_eval_examples, seed),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
    )
