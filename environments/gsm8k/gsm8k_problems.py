"""Generated word problems: templates with numbers drawn from a seed and an exact integer answer."""

import random
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

NAMES = (
    *("Ada", "Ben", "Carla", "Deniz", "Emil", "Fatou", "Goran", "Hana"),
    *("Ines", "Jamal", "Kofi", "Lena", "Mira", "Noor", "Oleg", "Priya"),
)
EVALUATION_SHARE = 5
"""One problem in this many is reserved for evaluation, for any seed."""
MAX_STEPS = 4


class Template(NamedTuple):
    """A problem with blanks: `{n}` is a name, `{a}` to `{e}` are numbers."""

    steps: int
    """Number of operations of the solution."""
    text: str
    ranges: tuple[tuple[int, int], ...]
    """Minimum and maximum of the number for each blank, in the order of the letters."""
    answer: Callable[..., int]
    """Computes the answer from the numbers."""


TEMPLATES = (
    Template(
        1,
        "{n} has {a} stamps and gives {b} of them to a friend. How many stamps are left?",
        ((12, 90), (3, 11)),
        lambda a, b: a - b,
    ),
    Template(
        1,
        "A baker fills {a} trays with {b} rolls each. How many rolls is that?",
        ((3, 12), (6, 24)),
        lambda a, b: a * b,
    ),
    Template(
        1,
        "There are {a} blue and {b} red bicycles in a rack. How many bicycles are there?",
        ((15, 80), (15, 80)),
        lambda a, b: a + b,
    ),
    Template(
        1,
        "{n} shares out marbles: each of {a} children gets {b}, and none are left over. How many were there?",
        ((4, 9), (5, 15)),
        lambda a, b: a * b,
    ),
    Template(
        1,
        "A rope of {a} metres is cut off a roll of {b} metres. How many metres stay on the roll?",
        ((5, 40), (50, 120)),
        lambda a, b: b - a,
    ),
    Template(
        2,
        "{n} buys {a} notebooks for {b} euros each and a bag for {c} euros. How many euros is that altogether?",
        ((4, 12), (3, 9), (5, 20)),
        lambda a, b, c: a * b + c,
    ),
    Template(
        2,
        "A school orders {a} boxes of {b} footballs and gives {c} of the balls away. How many are left?",
        ((6, 15), (5, 9), (4, 25)),
        lambda a, b, c: a * b - c,
    ),
    Template(
        2,
        "A train leaves with {a} passengers. At the first stop {b} get on, at the second {c} get off. "
        "How many are on the train now?",
        ((20, 60), (10, 30), (5, 9)),
        lambda a, b, c: a + b - c,
    ),
    Template(
        2,
        "A book has {a} pages. {n} reads {b} pages a day for {c} days. How many pages remain?",
        ((150, 400), (10, 20), (3, 7)),
        lambda a, b, c: a - b * c,
    ),
    Template(
        2,
        "A garden has {a} beds. Each bed has {b} rows of {c} plants. How many plants are there?",
        ((2, 6), (4, 9), (3, 7)),
        lambda a, b, c: a * b * c,
    ),
    Template(
        2,
        "{n} is {a} years old. An aunt is {b} times as old, and an uncle is {c} years older than the aunt. "
        "How old is the uncle?",
        ((7, 15), (2, 4), (3, 9)),
        lambda a, b, c: a * b + c,
    ),
    Template(
        2,
        "A tank holds {a} litres of water. {b} buckets of {c} litres are taken out. How many litres are left?",
        ((60, 90), (2, 6), (3, 9)),
        lambda a, b, c: a - b * c,
    ),
    Template(
        2,
        "One bus carries {a} people and another {b}, and both make {c} trips. How many people ride altogether?",
        ((12, 40), (12, 40), (2, 5)),
        lambda a, b, c: (a + b) * c,
    ),
    Template(
        3,
        "At a market {n} sells {a} jars of honey at {b} euros and {c} jars of jam at {d} euros. "
        "How many euros does that bring?",
        ((3, 9), (2, 8), (2, 6), (3, 9)),
        lambda a, b, c, d: a * b + c * d,
    ),
    Template(
        3,
        "{n} bakes {a} trays of {b} biscuits. {c} friends eat {d} biscuits each. How many are left?",
        ((4, 9), (6, 12), (2, 4), (3, 5)),
        lambda a, b, c, d: a * b - c * d,
    ),
    Template(
        3,
        "{n} earns {a} euros an hour, works {b} hours a day for {c} days, and then spends {d} euros. "
        "How many euros remain?",
        ((8, 15), (3, 7), (2, 5), (10, 40)),
        lambda a, b, c, d: a * b * c - d,
    ),
    Template(
        3,
        "A choir of {a} singers is joined by {b} guests, but {c} people are ill. Each of the others needs {d} sheets. "
        "How many sheets are needed?",
        ((15, 30), (5, 15), (2, 6), (2, 5)),
        lambda a, b, c, d: (a + b - c) * d,
    ),
    Template(
        3,
        "A shop has {a} lamps. It sells {b} a day for {c} days and then receives {d} new ones. "
        "How many has it now?",
        ((50, 80), (3, 9), (2, 5), (4, 9)),
        lambda a, b, c, d: a - b * c + d,
    ),
    Template(
        3,
        "{n} walks {a} kilometres on each of {b} days and cycles {c} kilometres on each of {d} days. "
        "How many kilometres is that in all?",
        ((3, 8), (4, 9), (10, 30), (2, 9)),
        lambda a, b, c, d: a * b + c * d,
    ),
    Template(
        3,
        "A library has {a} shelves with {b} atlases each and {c} shelves with {d} maps each. "
        "How many atlases and maps is that together?",
        ((2, 6), (5, 12), (3, 8), (2, 5)),
        lambda a, b, c, d: a * b + c * d,
    ),
    Template(
        3,
        "A theatre with {a} seats adds {b} more and then removes {c} rows of {d} seats. "
        "How many seats does it have?",
        ((60, 95), (5, 15), (2, 6), (3, 6)),
        lambda a, b, c, d: a + b - c * d,
    ),
    Template(
        4,
        "{n} picks {a} baskets of {b} apples and {c} baskets of {d} pears, and {e} of the fruits are eaten. "
        "How many fruits are left?",
        ((3, 8), (6, 12), (2, 5), (5, 9), (3, 20)),
        lambda a, b, c, d, e: a * b + c * d - e,
    ),
    Template(
        4,
        "A club buys {a} tents at {b} euros and {c} lanterns at {d} euros, and {e} euros are left of its money. "
        "How many euros did it have at first?",
        ((2, 6), (60, 95), (2, 6), (11, 29), (10, 40)),
        lambda a, b, c, d, e: a * b + c * d + e,
    ),
    Template(
        4,
        "A printer makes {a} pages a minute for {b} minutes and then {c} pages a minute for {d} minutes. "
        "{e} pages are smudged. How many good pages are there?",
        ((10, 30), (2, 5), (31, 45), (2, 4), (4, 19)),
        lambda a, b, c, d, e: a * b + c * d - e,
    ),
    Template(
        4,
        "A farmer has {a} hens that each lay {b} eggs a week. After {c} weeks, {d} boxes of {e} eggs are sold. "
        "How many eggs are left?",
        ((6, 12), (4, 6), (3, 5), (2, 6), (6, 10)),
        lambda a, b, c, d, e: a * b * c - d * e,
    ),
    Template(
        4,
        "{n} has {a} boxes with {b} pencils in each, takes {c} pencils out of each box, gives {d} of the pencils "
        "that are still in boxes away, and puts {e} new ones in. How many pencils are in the boxes now?",
        ((4, 9), (10, 20), (2, 5), (3, 12), (2, 9)),
        lambda a, b, c, d, e: a * (b - c) - d + e,
    ),
    Template(
        4,
        "A ferry makes {a} trips with {b} cars and {c} trips with {d} cars. On every car ride {e} people. "
        "How many people does it carry?",
        ((2, 6), (10, 20), (2, 6), (5, 9), (2, 4)),
        lambda a, b, c, d, e: (a * b + c * d) * e,
    ),
    Template(
        4,
        "A team scores {a} points in each of {b} games, {c} points in each of {d} games, and loses {e} points as a "
        "penalty. How many points does it have?",
        ((20, 40), (2, 5), (41, 60), (2, 4), (3, 15)),
        lambda a, b, c, d, e: a * b + c * d - e,
    ),
)


def problems(split: str, min_steps: int, max_steps: int, seed: int) -> Iterator[dict]:
    """Yield the problems of one split ("train" or "eval"), endlessly. Only its text decides the split of a problem."""
    numbers = random.Random(f"{split} {seed}")
    fitting = [template for template in TEMPLATES if min_steps <= template.steps <= max_steps]
    while True:
        template = numbers.choice(fitting)
        drawn = [numbers.randint(low, high) for low, high in template.ranges]
        blanks = dict(zip("abcde", drawn, strict=False))
        question = template.text.format(n=numbers.choice(NAMES), **blanks)
        if (zlib.crc32(question.encode()) % EVALUATION_SHARE == 0) == (split == "eval"):
            yield {
                "question": question,
                "answer": str(template.answer(**blanks)),
                "info": {"steps": template.steps},
            }
