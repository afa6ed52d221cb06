"""`CodeEnv`: the imports a program begins with are done once for all its tests, and no program can tell."""

import pytest
from code_programs import RIGHT, made, played

from verifiers.envs.code_env import CodeEnv

LEADING = [
    "import sys\nfrom sys import stdin, argv as words\nn = int(stdin.readline())\n"
    "assert stdin is sys.stdin\nassert words == ['program.py']\nprint(n * n)\n",
    "from math import *\nfrom typing import *\nimport heapq as h, bisect  # two\n\n"
    "xs: List[int] = [int(input())]\nprint(h.heappop(xs) ** 2 + floor(0.5))\n",
    "import collections\r\nimport re\r\nn = int(input())\r\nprint(n * n)\r\n",
    "# no imports\n" + RIGHT,
    "import math\n'''is not the docstring'''\nassert __doc__ is None\n" + RIGHT,
    "# first\n'''is it'''\nimport math\nassert __doc__ == 'is it'\n" + RIGHT,
    "# first\nfrom __future__ import annotations\nimport math\nx: nowhere = 1\n" + RIGHT,
    "from os import *\nimport os\nimport random; import time\nfrom time import time\nassert time() > 1\n"
    + RIGHT,
    "import math\n" * 300 + RIGHT,
]


@pytest.mark.parametrize("program", LEADING)
async def test_programs_with_leading_imports_do_what_they_say(env: CodeEnv, program: str):
    output, verdicts = await played(env, program)
    assert verdicts == ["passed"] * 5, output.get("test_report")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import math\n\nfrom heapq import *\n\nn = 1 // 0\n", 'File "<program>", line 5'),
        ("import math\nfrom math import no_such_name\n" + RIGHT, "no_such_name"),
        ("import math\nimport re\nfrom re import match as 5\n", "SyntaxError"),
        ("import math\nn = (\n", 'File "<program>", line 2'),
    ],
)
async def test_errors_stand_in_the_line_where_the_author_wrote_them(
    env: CodeEnv, program: str, message: str
):
    output, verdicts = await played(env, program)
    assert verdicts[0] == "error"
    assert message in str(output["test_report"])


async def test_what_a_test_does_to_an_imported_module_is_not_there_for_the_next():
    program = (
        "import math\nimport sys\nfrom collections import deque\n"
        "assert not hasattr(math, 'seen')\nmath.seen = True\nsys.setrecursionlimit(2000 + sys.getrecursionlimit())\n"
        "assert sys.getrecursionlimit() < 5000\ndeque = None\n" + RIGHT
    )
    async with made() as env:
        _, verdicts = await played(env, program)
    assert verdicts == ["passed"] * 5


async def test_chance_is_not_the_same_in_each_test(env: CodeEnv):
    program = (
        "import random\nfrom random import random as chance\nraise SystemExit(str(chance()))\n"
    )
    output, _ = await played(env, program)
    details = {one["detail"] for one in output["test_report"]["outcomes"]}
    assert len(details) == 5, details
