"""Problems with one integer as the answer, each with a program that computes it.

The program of a template defines `answer`. It computes the answer of the dataset row, and the gold completion runs
it.
"""

import random
from collections.abc import Callable
from typing import NamedTuple


class Problem(NamedTuple):
    question: str
    program: str


def divisible(numbers: random.Random, size: int) -> Problem:
    limit = numbers.randint(10**4, 10**4 * 4**size)
    a, b, c = numbers.sample([3, 4, 5, 6, 7, 8, 9, 11, 13, 17], 3)
    return Problem(
        f"How many whole numbers from 1 to {limit} are divisible by {a} or by {b}, but not by {c}?",
        f"answer = sum((n % {a} == 0 or n % {b} == 0) and n % {c} != 0 for n in range(1, {limit} + 1))",
    )


def primes(numbers: random.Random, size: int) -> Problem:
    low = numbers.randint(100, 1000 * 2**size)
    high = low + numbers.randint(200, 500 * 2**size)
    return Problem(
        f"What is the sum of all prime numbers p with {low} <= p <= {high}?",
        "def is_prime(n):\n"
        "    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))\n"
        f"answer = sum(n for n in range({low}, {high} + 1) if is_prime(n))",
    )


def recurrence(numbers: random.Random, size: int) -> Problem:
    a, b = numbers.randint(2, 9), numbers.randint(2, 9)
    first, second = numbers.randint(0, 9), numbers.randint(1, 9)
    index, modulus = numbers.randint(30, 60 * 3**size), numbers.randint(1000, 99999)
    return Problem(
        f"A sequence begins with x(1) = {first} and x(2) = {second}, and goes on with "
        f"x(n) = {a}*x(n-1) + {b}*x(n-2). What is the remainder of x({index}) divided by {modulus}?",
        f"x, y = {first}, {second}\n"
        f"for _ in range({index} - 2):\n"
        f"    x, y = y, {a} * y + {b} * x\n"
        f"answer = y % {modulus}",
    )


def lattice(numbers: random.Random, size: int) -> Problem:
    width, height = numbers.randint(5, 6 + 2 * size), numbers.randint(5, 6 + 2 * size)
    inner = [(x, y) for x in range(1, width) for y in range(1, height)]
    blocked = sorted(numbers.sample(inner, 3))
    return Problem(
        f"A path leads from (0, 0) to ({width}, {height}) in steps of one to the right or one up, and never visits "
        f"the points {', '.join(map(str, blocked))}. How many such paths are there?",
        f"blocked = {set(blocked)}\n"
        f"ways = {{(0, 0): 1}}\n"
        f"for x in range({width} + 1):\n"
        f"    for y in range({height} + 1):\n"
        "        if (x, y) != (0, 0):\n"
        "            ways[x, y] = 0 if (x, y) in blocked else ways.get((x - 1, y), 0) + ways.get((x, y - 1), 0)\n"
        f"answer = ways[{width}, {height}]",
    )


def coins(numbers: random.Random, size: int) -> Problem:
    values = sorted(numbers.sample(range(2, 30), 3 + size))
    amount = numbers.randint(100, 200 * 2**size)
    return Problem(
        f"In how many ways can an amount of {amount} be paid with coins of {', '.join(map(str, values))}, "
        "when there is no end of each and their order does not matter?",
        f"ways = [1] + [0] * {amount}\n"
        f"for coin in {values}:\n"
        f"    for total in range(coin, {amount} + 1):\n"
        "        ways[total] += ways[total - coin]\n"
        f"answer = ways[{amount}]",
    )


def digits(numbers: random.Random, size: int) -> Problem:
    base, exponent = numbers.randint(3, 99), numbers.randint(20, 60 * 3**size)
    return Problem(
        f"What is the sum of the decimal digits of {base}^{exponent}?",
        f"answer = sum(map(int, str({base} ** {exponent})))",
    )


def remainders(numbers: random.Random, size: int) -> Problem:
    moduli = sorted(numbers.sample([7, 8, 9, 11, 13, 17, 19, 23, 25][: 6 + size], 3))
    wanted = [numbers.randrange(modulus) for modulus in moduli]
    says = " and ".join(f"{r} when divided by {m}" for r, m in zip(wanted, moduli, strict=True))
    pairs = list(zip(moduli, wanted, strict=True))
    return Problem(
        f"What is the smallest positive whole number that leaves the remainders {says}?",
        "answer = 1\n"
        f"while any(answer % modulus != remainder for modulus, remainder in {pairs}):\n"
        "    answer += 1",
    )


def determinant(numbers: random.Random, size: int) -> Problem:
    order = 3 + size
    rows = [[numbers.randint(-9, 9) for _ in range(order)] for _ in range(order)]
    return Problem(
        f"What is the determinant of the matrix with the rows {rows}?",
        "from fractions import Fraction\n"
        "from itertools import permutations\n"
        f"rows = {rows}\n"
        "answer = 0\n"
        "for order in permutations(range(len(rows))):\n"
        "    sign = 1\n"
        "    for i in range(len(order)):\n"
        "        for j in range(i):\n"
        "            sign = -sign if order[j] > order[i] else sign\n"
        "    product = sign\n"
        "    for i, j in enumerate(order):\n"
        "        product *= rows[i][j]\n"
        "    answer += product",
    )


def collatz(numbers: random.Random, size: int) -> Problem:
    low = numbers.randint(2, 500)
    high = low + numbers.randint(300, 500 * 2**size)
    return Problem(
        "Halve a number if it is even, else take three times it plus one, and so on until 1 is reached. Among the "
        f"starting numbers from {low} to {high}, how many steps does the one that needs most take?",
        "def steps(n):\n"
        "    count = 0\n"
        "    while n != 1:\n"
        "        n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1\n"
        "    return count\n"
        f"answer = max(map(steps, range({low}, {high} + 1)))",
    )


def partitions(numbers: random.Random, size: int) -> Problem:
    total, largest = numbers.randint(30, 50 + 25 * size), numbers.randint(12, 25)
    return Problem(
        f"In how many ways can {total} be written as a sum of different positive whole numbers that are at most "
        f"{largest}? The order does not matter.",
        f"ways = [1] + [0] * {total}\n"
        f"for part in range(1, {largest} + 1):\n"
        f"    for total in range({total}, part - 1, -1):\n"
        "        ways[total] += ways[total - part]\n"
        f"answer = ways[{total}]",
    )


TEMPLATES: list[Callable[[random.Random, int], Problem]] = [
    divisible,
    primes,
    recurrence,
    lattice,
    coins,
    digits,
    remainders,
    determinant,
    collatz,
    partitions,
]


def solved(problem: Problem) -> str:
    """Return the answer by running the template's program."""
    names: dict = {}
    exec(problem.program, names)
    return str(names["answer"])
