"""`CPTaskSet`: competitive programming. The agent writes a Python program to a file, and tests score it."""

from __future__ import annotations

import base64
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verifiers.envs.agents.task_sets import SandboxSpec, SandboxTaskSet, info_of
from verifiers.envs.agents.tasksets.common import (
    TaskRubric,
    between,
    load_rows,
    read_text,
    rows_from,
)
from verifiers.envs.code_tests import (
    AnswerComparison,
    TestCase,
    TestLimits,
    run_program,
    test_cases,
)
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.rubrics.sandbox_rubric import note_lost_sandbox

TOLERANCE = 1e-3
"""Printed numbers are equal if they differ by at most this value."""
_TEST_MEMORY_MB = 2048
_CALL = """
import json, sys
scope = {"__name__": "solution"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), scope)
function = scope.get(sys.argv[2]) or getattr(scope["Solution"](), sys.argv[2])
print("\\n" + json.dumps(function(*json.loads(sys.stdin.read()))))
"""
"""Calls a function of a program with the arguments on stdin, and prints the result as the last line."""


class CPTaskSet(SandboxTaskSet):
    """Programming problems with tests, scored by `CPRubric`.

    A row has a `question`, and an `info` (JSON text or a dict) with `tests` (`inputs`, `outputs`, for functions
    `fn_name`) and `source`. `dataset_name` is a name on the Hugging Face hub or a folder of this machine; it is loaded
    on first use. Of more than `max_num_tests` tests a random sample is kept. `timeout_per_test` is in seconds.
    `difficulty_key` is a column with a solve rate; rows outside of `min_solve_rate` to `max_solve_rate` are left out.
    """

    default_workdir = "/app"

    def __init__(
        self,
        dataset_name: str = "PrimeIntellect/INTELLECT-3-RL",
        dataset_subset: str | None = "code",
        dataset_split: str = "train",
        filter_fn: str | None = None,
        instruction_prompt: str = (
            "Solve the following programming problem in Python. Available packages: Python standard library, numpy, "
            "pandas."
        ),
        max_num_tests: int | None = 15,
        timeout_per_test: int = 60,
        answer_path: str = "/app/answer.py",
        docker_image: str = "python:3.11-slim",
        difficulty_key: str | None = None,
        min_solve_rate: float = 0.0,
        max_solve_rate: float = 1.0,
        ds_num_proc: int | None = 8,
        ds_keep_in_memory: bool = True,
    ) -> None:
        self.instruction_prompt = instruction_prompt
        self.max_num_tests = max_num_tests
        self.timeout_per_test = timeout_per_test
        self.answer_path = answer_path
        self.docker_image = docker_image

        def load() -> list[dict[str, Any]]:
            rows = load_rows(
                dataset_name, dataset_subset, dataset_split, ds_num_proc, ds_keep_in_memory
            )
            rows = between(rows, difficulty_key, min_solve_rate, max_solve_rate)
            return rows_from(rows, self._row, ("question", "info"))

        super().__init__(load, name=f"cp/{dataset_name}", filter_fn=filter_fn)

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        info = info_of(row)
        tests = info.get("tests")
        tests = json.loads(tests) if isinstance(tests, str) else (tests or {})
        pairs = list(zip(tests.get("inputs") or [], tests.get("outputs") or [], strict=True))
        if self.max_num_tests is not None and len(pairs) > self.max_num_tests:
            pairs = random.Random(row["question"]).sample(pairs, self.max_num_tests)
        name = tests.get("fn_name")
        parts = [self.instruction_prompt]
        if name:
            parts.append(f"Your solution must define the function `{name}`.")
        parts += [row["question"], f"Save your final solution to `{self.answer_path}`."]
        return {
            "info": {
                "instruction": "\n\n".join(parts),
                "verification_info": {
                    "fn_name": name,
                    "test_case_inputs": [json.dumps(given) for given, _ in pairs],
                    "test_case_outputs": [json.dumps(expected) for _, expected in pairs],
                    "timeout": self.timeout_per_test,
                },
                "num_test_cases": len(pairs),
                "source": info.get("source"),
            },
            "answer": "",
        }

    def get_instruction(self, info: dict[str, Any]) -> str:
        """Return the problem, and where to write the program."""
        return info["instruction"]

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return a sandbox with room for one test at a time."""
        return SandboxSpec(self.docker_image, cpu_cores=2, memory_gb=4, disk_size_gb=4)

    def get_rubric(self) -> CPRubric:
        """Return the rubric that runs the tests."""
        return CPRubric(self)


@dataclass(frozen=True, slots=True)
class _Comparison(AnswerComparison):
    """Text is equal word by word, or number by number within `TOLERANCE`; a value may be the first of a list."""

    def printed(self, got: str, expected: str) -> bool:
        words, wanted = got.split(), expected.split()
        if words == wanted:
            return True
        try:
            pairs = [(float(a), float(b)) for a, b in zip(words, wanted, strict=True)]
        except ValueError:  # another number of words, or a word that is not a number
            return False
        return all(math.isclose(a, b, rel_tol=0.0, abs_tol=TOLERANCE) for a, b in pairs)

    def returned(self, text: str, expected: Any) -> bool:
        base = AnswerComparison()
        first = expected[0] if isinstance(expected, list) and expected else expected
        return base.returned(text, expected) or base.returned(text, first)


class CPRubric(TaskRubric):
    """Reward `passed`: 1.0 if the program passes all tests. Metrics: `pass_rate`, `num_test_cases`."""

    def _add_rewards(self) -> None:
        self.add_reward_func(self.pass_rate, weight=0.0)
        self.add_reward_func(self.passed, weight=1.0)
        self.add_reward_func(self.num_test_cases, weight=0.0)

    async def pass_rate(self, state: Any, info: Any = None, **kwargs: Any) -> float:
        """Return the share of passed tests. A test that the infrastructure failed is left out."""
        state["pass_rate"] = await self.solved(state, info)
        return state["pass_rate"]

    async def passed(self, state: Any, **kwargs: Any) -> float:
        """Return 1.0 if all tests passed."""
        return float(state.get("pass_rate") == 1.0)

    async def num_test_cases(self, info: dict[str, Any], **kwargs: Any) -> int:
        """Return the number of tests."""
        return int(info_of({"info": info}).get("num_test_cases") or 0)

    async def verdict(self, state: Any, info: dict[str, Any]) -> float:
        """Return the share of passed tests; 0.0 without a program."""
        client, sandbox_id = state["sandbox_client"], state["sandbox_id"]
        program = await read_text(client, sandbox_id, self.taskset.answer_path)
        if not program or not program.strip():
            return 0.0
        known = info_of({"info": info})["verification_info"]
        cases = _cases(known)
        limit_s = float(known.get("timeout") or self.taskset.timeout_per_test)
        if not cases:
            return 0.0
        if isinstance(client, SandboxClient):
            limits = TestLimits(
                time_s=limit_s,
                wall_time_s=limit_s,
                memory_mb=_TEST_MEMORY_MB,
                max_tests=len(cases),
            )
            report = await run_program(
                client.sandbox(sandbox_id), program, cases, limits=limits, comparison=_Comparison()
            )
            state["test_report"] = report.as_dict()
            return report.fraction
        return await self._run_by_commands(state, cases, limit_s)

    async def _run_by_commands(
        self, state: Any, cases: Sequence[TestCase], limit_s: float
    ) -> float:
        """Run the tests with the client of a provider, one command per test."""
        results: list[bool] = []
        for case in cases:
            try:
                results.append(await self._passes(state, case, limit_s))
            except timeout_errors():
                results.append(False)
            except Exception as error:  # noqa: BLE001 - the test is left out
                self.logger.warning("A test could not be run: %r", error)
                note_lost_sandbox(state, error)
        return sum(results) / len(results) if results else 0.0

    async def _passes(self, state: Any, case: TestCase, limit_s: float) -> bool:
        path = self.taskset.answer_path
        given = case.stdin if case.function is None else json.dumps(case.arguments)
        encoded = base64.b64encode(given.encode()).decode()
        program = f"python3 '{path}'"
        if case.function is not None:
            code = base64.b64encode(_CALL.encode()).decode()
            call = f'exec(__import__("base64").b64decode("{code}"))'
            program = f"python3 -c '{call}' '{path}' '{case.function}'"
        done = await state["sandbox_client"].execute_command(
            state["sandbox_id"],
            f"base64 -d << 'EOF' | {program}\n{encoded}\nEOF",
            timeout=int(limit_s) + 1,
        )
        if done.exit_code != 0:
            return False
        if case.function is None:
            return _Comparison().printed(done.stdout, case.expected)
        return _Comparison().returned(done.stdout.strip().rpartition("\n")[2], case.expected)


def _cases(known: Mapping[str, Any]) -> list[TestCase]:
    """Return the tests of a `verification_info`, whose inputs and outputs are JSON texts."""
    inputs = [json.loads(text) for text in known["test_case_inputs"]]
    outputs = [json.loads(text) for text in known["test_case_outputs"]]
    if not inputs:
        return []
    if not known.get("fn_name"):
        inputs, outputs = [_text(each) for each in inputs], [_text(each) for each in outputs]
    return test_cases({"inputs": inputs, "outputs": outputs, "fn_name": known.get("fn_name")})


def _text(value: Any) -> Any:
    return value if isinstance(value, str | list) else json.dumps(value)


__all__ = ["CPRubric", "CPTaskSet"]
