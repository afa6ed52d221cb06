"""A reply of one letter, scored as right or wrong."""

import random

import verifiers as vf

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def exact(completion, answer) -> float:
    return float((completion[-1]["content"] or "").strip() == answer)


def load_environment():
    rng = random.Random(1)
    words = ["".join(rng.choices(LETTERS, k=rng.randint(3, 7))) for _ in range(2000)]
    rows = [{"question": f"Last letter of {word}?", "answer": word[-1]} for word in words]
    return vf.SingleTurnEnv(
        dataset=rows[:1800], eval_dataset=rows[1800:], rubric=vf.Rubric(funcs=[exact])
    )
