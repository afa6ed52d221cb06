"""Programs for `CodeEnv`, their tests and how they are played."""

import json
from typing import Any

from verifiers.envs.code_env import CodeEnv
from verifiers.testing import ScriptedClient, run

SQUARES = [{"input": f"{n}\n", "output": f"{n * n}\n"} for n in range(5)]
RIGHT = "n = int(input())\nprint(n * n)\n"


def rows(tests: Any = SQUARES, count: int = 1) -> list[dict[str, Any]]:
    return [
        {"question": f"Square {n}?", "answer": "", "info": {"tests": json.dumps(tests)}}
        for n in range(count)
    ]


def made(tests: Any = SQUARES, **options: Any) -> CodeEnv:
    limits = {"time_s": 0.5, "wall_time_s": 1.0, "memory_mb": 64, **options.pop("test_limits", {})}
    return CodeEnv(dataset=rows(tests), test_limits=limits, **options)


def block(program: str) -> str:
    return f"Here it is.\n```python\n{program}\n```\n"


async def played(env: CodeEnv, program: str) -> tuple[Any, list[str]]:
    """The output and the verdicts of its tests."""
    [output] = await run(env, ScriptedClient([block(program)]), state_columns=["test_report"])
    report = output.get("test_report")
    return output, [one["verdict"] for one in report["outcomes"]] if report else []
