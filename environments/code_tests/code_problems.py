"""Programming problems, assembled from parts: a statement, a reference solution, and inputs for the tests.

Level 1 is a pipeline over a list of numbers, level 2 works on words and tables, level 3 needs an algorithm. Each
template draws parameters, which the statement spells out. The reference solution is written for obvious correctness
and produces the expected output of every test.
"""

import contextlib
import io
import random
import sys
from collections.abc import Callable
from typing import NamedTuple

NUM_TESTS = 12


class Problem(NamedTuple):
    statement: str
    solution: str
    """A program from stdin to stdout."""
    inputs: list[str]
    """Stdin of each test; the first one is the example in the statement."""


def run_reference(solution: str, stdin: str) -> str:
    """The output of the reference solution."""
    printed = io.StringIO()
    before = sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with contextlib.redirect_stdout(printed):
            exec(solution, {"__name__": "__main__"})
    finally:
        sys.stdin = before
    return printed.getvalue()


# ---------------------------------------------------------------------------------------- level 1: pipelines

FILTERS = [
    ("are even", "x % 2 == 0"),
    ("are odd", "x % 2 != 0"),
    ("are negative", "x < 0"),
    ("are positive", "x > 0"),
    ("are divisible by {k}", "x % {k} == 0"),
    ("are not divisible by {k}", "x % {k} != 0"),
    ("are greater than {k}", "x > {k}"),
    ("are at most {k}", "x <= {k}"),
    ("have {k} as the last digit of their absolute value", "abs(x) % 10 == {k} % 10"),
]
MAPS = [
    ("their squares", "x * x"),
    ("their absolute values", "abs(x)"),
    ("their values plus {c}", "x + {c}"),
    ("{c} times their values", "{c} * x"),
    ("the digit sums of their absolute values", "sum(map(int, str(abs(x))))"),
    ("the remainders of their absolute values divided by {c}", "abs(x) % {c}"),
]
REDUCTIONS = [
    ("the sum of {what}", "sum(values)"),
    ("the number of different values among {what}", "len(set(values))"),
    ("the largest of {what}, or NONE if there is none", "max(values) if values else 'NONE'"),
    ("the smallest of {what}, or NONE if there is none", "min(values) if values else 'NONE'"),
    (
        "{what} in ascending order, separated by spaces, or NONE if there is none",
        "' '.join(map(str, sorted(values))) or 'NONE'",
    ),
    (
        "{what} in the opposite order of the input, separated by spaces, or NONE if there is none",
        "' '.join(map(str, reversed(values))) or 'NONE'",
    ),
    (
        "the difference between the largest and the smallest of {what}, or NONE if there is none",
        "max(values) - min(values) if values else 'NONE'",
    ),
]


def number_list(numbers: random.Random, count: int, bound: int) -> str:
    values = [numbers.randint(-bound, bound) for _ in range(count)]
    return f"{count}\n{' '.join(map(str, values))}\n"


def pipeline(numbers: random.Random) -> Problem:
    k, c = numbers.randint(2, 9), numbers.randint(2, 9)
    which, condition = numbers.choice(FILTERS)
    what, expression = numbers.choice(MAPS)
    asked, reduction = numbers.choice(REDUCTIONS)
    parts = {"k": k, "c": c}
    what = f"{what.format(**parts)}"
    statement = (
        "The first line holds a number n, the second line n whole numbers. Take those of the numbers that "
        f"{which.format(**parts)}, and of these {what}. Print {asked.format(what='the results')}."
    )
    solution = (
        "input()\n"
        "numbers = list(map(int, input().split()))\n"
        f"values = [{expression.format(**parts)} for x in numbers if {condition.format(**parts)}]\n"
        f"print({reduction})\n"
    )
    sizes = [6, 1, 2, 5, 10, 20, 50, 100, 100, 30, 7, 3]
    inputs = [number_list(numbers, size, 12 if size < 8 else 1000) for size in sizes]
    return Problem(statement, solution, inputs)


# ------------------------------------------------------------------------------------ level 2: words and tables

WORDS = [
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "harbor",
    "island",
    "jetty",
    "kelp",
    "lagoon",
    "meadow",
    "north",
    "opal",
    "pine",
]


def word_line(numbers: random.Random, count: int, kinds: int = 16) -> str:
    return " ".join(numbers.choice(WORDS[:kinds]) for _ in range(count)) + "\n"


def frequent_words(numbers: random.Random) -> Problem:
    top, shortest = numbers.randint(1, 4), numbers.randint(1, 5)
    order, key = numbers.choice([("alphabetical", "w"), ("reverse alphabetical", "rev(w)")])
    statement = (
        f"The only line holds words separated by spaces. Count the words of at least {shortest} letters, and print the "
        f"{top} most frequent of them (all, if there are fewer), each on a line of its own with its count after "
        f"a space. "
        f"The most frequent come first; equally frequent ones are in {order} order. Print NONE if there is no "
        f"such word."
    )
    solution = (
        "from collections import Counter\n"
        "def rev(word):\n    return [-ord(letter) for letter in word] + [1]\n"
        f"counts = Counter(word for word in input().split() if len(word) >= {shortest})\n"
        f"ranked = sorted(counts, key=lambda w: (-counts[w], {key}))[:{top}]\n"
        "for word in ranked:\n    print(word, counts[word])\n"
        "if not ranked:\n    print('NONE')\n"
    )
    sizes = [8, 1, 2, 4, 16, 30, 60, 100, 200, 12, 20, 40]
    return Problem(statement, solution, [word_line(numbers, size) for size in sizes])


def run_lengths(numbers: random.Random) -> Problem:
    longest = numbers.randint(2, 9)
    separator = numbers.choice(["-", ":", "/", "."])
    order, pattern = numbers.choice(
        [("the letter and then the count", "{l}{c}"), ("the count and then the letter", "{c}{l}")]
    )
    statement = (
        "The only line holds a word. Replace every run of equal letters by "
        f"{order}; runs longer than {longest} are split into runs of {longest} and a rest. Join the pieces with "
        f"'{separator}' and print the result."
    )
    solution = (
        "word = input().strip()\npieces = []\ni = 0\n"
        "while i < len(word):\n"
        "    j = i\n"
        f"    while j < len(word) and word[j] == word[i] and j - i < {longest}:\n"
        "        j += 1\n"
        f"    pieces.append({pattern!r}.format(l=word[i], c=j - i))\n"
        "    i = j\n"
        f"print({separator!r}.join(pieces))\n"
    )
    inputs = []
    for runs in [4, 1, 2, 3, 5, 8, 12, 20, 30, 6, 7, 9]:
        letters = [numbers.choice("abc") * numbers.randint(1, 14) for _ in range(runs)]
        inputs.append("".join(letters) + "\n")
    return Problem(statement, solution, inputs)


def shifted_text(numbers: random.Random) -> Problem:
    shift, step = numbers.randint(1, 25), numbers.randint(0, 3)
    keep = numbers.choice(["aeiou", "xyz", "", "abc"])
    keeps = f" The letters {', '.join(keep)} stay as they are." if keep else ""
    statement = (
        "The only line holds words in small letters. Shift every letter forward in the alphabet, from z on to "
        "a: in the "
        f"first word by {shift} places, and in each further word by {step} places more than in the word before.{keeps} "
        "Print the line that results."
    )
    solution = (
        "result = []\n"
        "for number, word in enumerate(input().split()):\n"
        f"    by = {shift} + {step} * number\n"
        "    result.append(''.join(\n"
        f"        letter if letter in {keep!r} else chr((ord(letter) - 97 + by) % 26 + 97) for letter in word\n"
        "    ))\n"
        "print(' '.join(result))\n"
    )
    sizes = [3, 1, 2, 4, 5, 6, 8, 10, 15, 20, 25, 12]
    return Problem(statement, solution, [word_line(numbers, size) for size in sizes])


def table_query(numbers: random.Random) -> Problem:
    least = numbers.randint(1, 60)
    what, value = numbers.choice(
        [("sum", "sum(group)"), ("largest", "max(group)"), ("number", "len(group)")]
    )
    order, key = numbers.choice(
        [
            ("by name", "name"),
            (f"by {what}, the largest first, and equal ones by name", "(-results[name], name)"),
        ]
    )
    statement = (
        "The first line holds n; then come n lines, each with a name and a whole number separated by a space. Use only "
        f"lines whose number is at least {least}. For every name that has such lines print the name and the "
        f"{what} of its "
        f"numbers, one name on a line, sorted {order}. Print EMPTY if there is nothing to print."
    )
    solution = (
        "groups = {}\n"
        "for _ in range(int(input())):\n"
        "    name, number = input().split()\n"
        f"    if int(number) >= {least}:\n"
        "        groups.setdefault(name, []).append(int(number))\n"
        f"results = {{name: {value} for name, group in groups.items()}}\n"
        f"for name in sorted(results, key=lambda name: {key}):\n"
        "    print(name, results[name])\n"
        "if not results:\n    print('EMPTY')\n"
    )
    inputs = []
    for size in [5, 1, 2, 3, 8, 12, 20, 40, 60, 100, 15, 30]:
        lines = [f"{numbers.choice(WORDS[:6])} {numbers.randint(-20, 99)}" for _ in range(size)]
        inputs.append("\n".join([str(size), *lines]) + "\n")
    return Problem(statement, solution, inputs)


# ---------------------------------------------------------------------------------------- level 3: algorithms


def grid_paths(numbers: random.Random) -> Problem:
    wall = numbers.choice("#X@")
    diagonal = numbers.random() < 0.5
    cost = numbers.randint(2, 5)
    moves = "up, down, left, right" + (" or diagonally" if diagonal else "")
    steps = "[(-1, 0), (1, 0), (0, -1), (0, 1)]"
    if diagonal:
        steps = "[(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if a or b]"
    statement = (
        "The first line holds the numbers of rows and columns of a grid, and the lines after it the grid: '.' is open "
        f"ground, '~' is mud, '{wall}' a wall. Moving onto open ground costs 1, onto mud {cost}; walls cannot "
        f"be entered. "
        f"One moves {moves}, inside the grid. Print the least cost of getting from the top left cell to the "
        f"bottom right "
        "cell, both of which are open ground, or -1 if there is no way."
    )
    solution = (
        "import heapq\n"
        "rows, columns = map(int, input().split())\n"
        "grid = [input() for _ in range(rows)]\n"
        "best = {(0, 0): 0}\nqueue = [(0, 0, 0)]\n"
        "while queue:\n"
        "    spent, r, c = heapq.heappop(queue)\n"
        "    if spent > best[r, c]:\n        continue\n"
        f"    for a, b in {steps}:\n"
        "        y, x = r + a, c + b\n"
        f"        if 0 <= y < rows and 0 <= x < columns and grid[y][x] != {wall!r}:\n"
        f"            total = spent + ({cost} if grid[y][x] == '~' else 1)\n"
        "            if total < best.get((y, x), 1 << 60):\n"
        "                best[y, x] = total\n"
        "                heapq.heappush(queue, (total, y, x))\n"
        "print(best.get((rows - 1, columns - 1), -1))\n"
    )
    inputs = []
    for size in [4, 1, 2, 3, 5, 6, 8, 10, 15, 20, 25, 12]:
        rows, columns = size, max(1, size + numbers.randint(-1, 2))
        cells = [[numbers.choice("....~~" + 2 * wall) for _ in range(columns)] for _ in range(rows)]
        cells[0][0] = cells[-1][-1] = "."
        lines = ["".join(row) for row in cells]
        inputs.append("\n".join([f"{rows} {columns}", *lines]) + "\n")
    return Problem(statement, solution, inputs)


def knapsack(numbers: random.Random) -> Problem:
    often = numbers.choice([1, 2, 3])
    bonus = numbers.randint(0, 9)
    times = {1: "at most once", 2: "at most twice", 3: "at most three times"}[often]
    extra = f" A choice that fills the whole capacity is worth {bonus} more." if bonus else ""
    statement = (
        "The first line holds the number n of things and a capacity; then come n lines with the weight and the "
        "value of a "
        f"thing. Every thing may be taken {times}, and the weights taken may not be more than the capacity together."
        f"{extra} Print the greatest value possible."
    )
    solution = (
        "count, capacity = map(int, input().split())\n"
        "best = [0] + [None] * capacity\n"
        "for _ in range(count):\n"
        "    weight, value = map(int, input().split())\n"
        f"    for _ in range({often}):\n"
        "        for used in range(capacity, weight - 1, -1):\n"
        "            if best[used - weight] is not None:\n"
        "                worth = best[used - weight] + value\n"
        "                if best[used] is None or worth > best[used]:\n"
        "                    best[used] = worth\n"
        "if best[capacity] is not None:\n"
        f"    best[capacity] += {bonus}\n"
        "print(max(worth for worth in best if worth is not None))\n"
    )
    inputs = []
    for size in [3, 1, 2, 4, 5, 8, 12, 20, 30, 25, 6, 10]:
        things = [f"{numbers.randint(1, 20)} {numbers.randint(1, 50)}" for _ in range(size)]
        inputs.append("\n".join([f"{size} {numbers.randint(5, 15 * size)}", *things]) + "\n")
    return Problem(statement, solution, inputs)


def intervals(numbers: random.Random) -> Problem:
    gap, ask = numbers.randint(0, 4), numbers.choice(["count", "cover", "longest"])
    asked = {
        "count": "the number of blocks that result",
        "cover": "the sum of the lengths of the blocks that result (end minus start)",
        "longest": "the start and the end of the longest block that results, the first of several",
    }[ask]
    printed = {
        "count": "print(len(blocks))",
        "cover": "print(sum(end - start for start, end in blocks))",
        "longest": "print(*max(blocks, key=lambda block: (block[1] - block[0], -block[0])))",
    }[ask]
    joined = f"overlap, touch, or have a gap of at most {gap}" if gap else "overlap or touch"
    statement = (
        "The first line holds n; then come n lines with the start and the end of an interval, start < end. Join "
        "intervals "
        f"that {joined} into one block, and blocks likewise, until nothing more can be joined. Print {asked}."
    )
    solution = (
        "pairs = sorted(tuple(map(int, input().split())) for _ in range(int(input())))\n"
        "blocks = []\n"
        "for start, end in pairs:\n"
        f"    if blocks and start - blocks[-1][1] <= {gap}:\n"
        "        blocks[-1][1] = max(blocks[-1][1], end)\n"
        "    else:\n        blocks.append([start, end])\n"
        f"{printed}\n"
    )
    inputs = []
    for size in [4, 1, 2, 3, 5, 8, 12, 20, 50, 100, 30, 6]:
        lines = []
        for _ in range(size):
            start = numbers.randint(0, 12 * size)
            lines.append(f"{start} {start + numbers.randint(1, 9)}")
        inputs.append("\n".join([str(size), *lines]) + "\n")
    return Problem(statement, solution, inputs)


def calculator(numbers: random.Random) -> Problem:
    first, second = numbers.sample(["+", "-", "*"], 2)
    modulus = numbers.randint(50, 9999)
    statement = (
        f"The only line holds an expression of whole numbers, parentheses and the operators {first} and {second}, with "
        f"spaces between all of them. Here '{first}' binds more tightly than '{second}', whatever you are used "
        f"to; operators "
        "of the same kind are applied from left to right. Print the remainder of its value divided by "
        f"{modulus}, which is never negative."
    )
    solution = (
        "words = input().split()[::-1]\n"
        "apply = {'+': lambda a, b: a + b, '-': lambda a, b: a - b, '*': lambda a, b: a * b}\n"
        "def atom():\n"
        "    word = words.pop()\n"
        "    if word != '(':\n        return int(word)\n"
        "    value = level(1)\n    words.pop()\n    return value\n"
        "def level(depth):\n"
        f"    sign = {[first, second]!r}[depth]\n"
        "    value = level(0) if depth else atom()\n"
        "    while words and words[-1] == sign:\n"
        "        words.pop()\n"
        "        value = apply[sign](value, level(0) if depth else atom())\n"
        "    return value\n"
        f"print(level(1) % {modulus})\n"
    )

    def expression(size: int) -> str:
        if size == 0:
            return str(numbers.randint(0, 20))
        left = numbers.randint(0, size - 1)
        sides = [expression(left), expression(size - 1 - left)]
        sides = [f"( {s} )" if " " in s and numbers.random() < 0.4 else s for s in sides]
        return f" {numbers.choice([first, second])} ".join(sides)

    sizes = [4, 0, 1, 2, 3, 5, 6, 8, 10, 15, 20, 12]
    return Problem(statement, solution, [expression(size) + "\n" for size in sizes])


LEVELS: dict[int, list[Callable[[random.Random], Problem]]] = {
    1: [pipeline],
    2: [frequent_words, run_lengths, shifted_text, table_query],
    3: [grid_paths, knapsack, intervals, calculator],
}
