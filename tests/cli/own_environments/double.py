"""A reply in tags, scored as right or wrong; few rows."""

import random

import verifiers as vf


def exact(completion, answer, parser) -> float:
    return float(parser.parse_answer(completion) == answer)


def load_environment():
    numbers = list(range(10, 400))
    random.Random(1).shuffle(numbers)
    rows = [{"question": f"Double {number}", "answer": str(2 * number)} for number in numbers]
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=rows[:330],
        eval_dataset=rows[330:],
        parser=parser,
        rubric=vf.Rubric(funcs=[exact], parser=parser),
    )
