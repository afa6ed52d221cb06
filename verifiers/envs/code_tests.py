"""Run one program against its tests: the cases, the comparison of answers, and the host's part of the run.

The other part, inside the sandbox, is `verifiers.sandboxes.guest.case_runner`. Only inputs enter the sandbox,
because the program could read the expected answers there. Its answers are judged here.
"""

from __future__ import annotations

import json
import marshal
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from verifiers.errors import DatasetError, SandboxError
from verifiers.sandboxes import ExecResult, Sandbox, SandboxDead

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*$")
PYTHON_LANGUAGES = frozenset({"", "python", "python3", "py", "py3"})


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Return (language in lower case, content) of each closed fenced block of Markdown, in order."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in text.splitlines():
        match = _FENCE.match(line)
        if not fence:
            if match:
                fence, language, lines = match[1], match[2].lower(), []
        elif match and match[1].startswith(fence) and not match[2]:
            blocks.append((language, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line)
    return blocks


def extract_code(text: str) -> str:
    """Return the last closed fenced block that is Python or has no language, else the last block of any language, else
    "".
    """
    blocks = fenced_blocks(text)
    for language, content in reversed(blocks):
        if language in PYTHON_LANGUAGES:
            return content
    return blocks[-1][1] if blocks else ""


Whitespace = Literal["exact", "lines", "tokens"]
"""How printed text is compared: "exact" compares every character, "lines" ignores blanks at the end of lines and empty
lines at the end, "tokens" compares words only.
"""


@dataclass(frozen=True, slots=True)
class TestCase:
    """One test: a stdin and the expected stdout, or a call and the expected value."""

    __test__ = False  # not a test class for pytest

    expected: Any
    """Text to print, or a JSON value to return."""
    stdin: str = ""
    function: str | None = None
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """The rule by which an answer equals the expected one."""

    whitespace: Whitespace = "lines"
    float_tolerance: float | None = None
    """Numbers whose absolute or relative difference is at most this value are equal. None compares them exactly."""

    def printed(self, got: str, expected: str) -> bool:
        """Return whether printed text is correct."""
        if self.whitespace == "exact":
            same = got == expected
        elif self.whitespace == "lines":
            same = _lines(got) == _lines(expected)
        else:
            same = got.split() == expected.split()
        if same or self.float_tolerance is None or self.whitespace == "exact":
            return same
        if self.whitespace == "lines":
            got_rows = [line.split() for line in _lines(got)]
            expected_rows = [line.split() for line in _lines(expected)]
        else:
            got_rows, expected_rows = [got.split()], [expected.split()]
        return [len(row) for row in got_rows] == [len(row) for row in expected_rows] and all(
            self._same_word(a, b)
            for got_row, expected_row in zip(got_rows, expected_rows, strict=True)
            for a, b in zip(got_row, expected_row, strict=True)
        )

    def _same_word(self, got: str, expected: str) -> bool:
        if got == expected:
            return True
        try:
            return self._close(_number(got), _number(expected))
        except ValueError:
            return False  # a word that is not a number

    def returned(self, text: str, expected: Any) -> bool:
        """Return whether a returned value, given as JSON text, is correct: equal in Python, with tuples as lists."""
        try:
            return self._same(json.loads(text), expected)
        except (ValueError, RecursionError):
            return False

    def _same(self, got: Any, expected: Any) -> bool:
        if isinstance(expected, Mapping):
            return (
                isinstance(got, Mapping)
                and got.keys() == {str(key) for key in expected}
                and all(self._same(got[str(key)], value) for key, value in expected.items())
            )
        if isinstance(expected, Sequence) and not isinstance(expected, str):
            return (
                isinstance(got, list)
                and len(got) == len(expected)
                and all(map(self._same, got, expected))
            )
        if isinstance(expected, float | int) and isinstance(got, float | int):
            return got == expected or self._close(got, expected)
        return bool(got == expected)

    def _close(self, got: float, expected: float) -> bool:
        """Return whether two numbers are equal within the tolerance. An `int` may be too large for a `float`."""
        if expected != expected:
            return got != got
        if self.float_tolerance is None:
            return got == expected
        try:
            return math.isclose(
                got, expected, rel_tol=self.float_tolerance, abs_tol=self.float_tolerance
            )
        except OverflowError:
            if not all(isinstance(n, int) or math.isfinite(n) for n in (got, expected)):
                return False
            exact_got, exact_expected = Fraction(got), Fraction(expected)
            largest = max(abs(exact_got), abs(exact_expected))
            return abs(exact_got - exact_expected) <= largest * Fraction(self.float_tolerance)


def _number(word: str) -> float:
    """Return the number in a word. An integer too large for a float stays an integer: as floats, all of them are
    equal.
    """
    value = float(word)
    return int(word) if math.isinf(value) and "inf" not in word.lower() else value


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def test_cases(tests: Any) -> list[TestCase]:
    """Return the tests of a dataset row; JSON text is accepted, too.

    They are either a list of {"input": stdin, "output": stdout} and {"function": name, "arguments": list,
    "expected": value}, or the columns {"inputs": list, "outputs": list} with "fn_name" for calls. Raises
    DatasetError for anything else.
    """
    if isinstance(tests, str):
        try:
            tests = json.loads(tests)
        except ValueError as error:
            raise DatasetError(f"The tests are not valid JSON: {error}") from error
    if isinstance(tests, Mapping) and "inputs" in tests and "outputs" in tests:
        tests = _rows(tests)
    if isinstance(tests, Mapping) or not isinstance(tests, Sequence) or not tests:
        raise DatasetError(
            f"Tests must be a list with at least one test, or {{'inputs': …, 'outputs': …}}; got {tests!r:.200}"
        )
    return [_test_case(number, one) for number, one in enumerate(tests)]


test_cases.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    inputs, outputs, name = columns["inputs"], columns["outputs"], columns.get("fn_name")
    if len(inputs) != len(outputs):
        raise DatasetError(
            f"The number of 'inputs' ({len(inputs)}) differs from the number of 'outputs' ({len(outputs)})."
        )
    pairs = zip(inputs, outputs, strict=True)
    if name:
        return [{"function": name, "arguments": a, "expected": b} for a, b in pairs]
    return [{"input": _joined(a), "output": _joined(b)} for a, b in pairs]


def _joined(text: Any) -> Any:
    """Join a list of lines, which some datasets use instead of text."""
    return "\n".join(map(str, text)) if isinstance(text, list) else text


def _test_case(number: int, test: Any) -> TestCase:
    if isinstance(test, TestCase):
        return test
    if isinstance(test, Mapping):
        if test.get("function") is not None and isinstance(test.get("arguments"), list | tuple):
            return TestCase(
                test.get("expected"),
                function=str(test["function"]),
                arguments=tuple(test["arguments"]),
            )
        stdin, printed = test.get("input"), test.get("output")
        if isinstance(stdin, str) and isinstance(printed, str):
            return TestCase(printed, stdin=stdin)
    raise DatasetError(
        f"Test {number} has neither the texts 'input' and 'output' nor 'function', 'arguments' and 'expected': "
        f"{test!r:.200}"
    )


Verdict = Literal["passed", "wrong", "error", "timeout", "output_limit", "ended_worker", "not_run"]
"""The result of a test. "error": the program raised or exited with a code. "output_limit": it printed too much.
"ended_worker": it ended the process that runs it, or used up the memory of the sandbox. "not_run": an earlier test
failed.
"""

WORKER_IS_READY = b'{"worker": "ready"}'
NO_WORKER = "no worker"
STARTUP_S = 20.0
"""Seconds that the worker may use in addition to the limits of the tests, before it counts as stuck."""
LARGEST_IN_CODE_BYTES = 16 << 10
"""A batch up to this size is part of the worker's code, which saves a stream. A larger batch is sent by stdin."""
_FIELDS = {
    "status": str,
    "wait_status": int,
    "cpu_s": float,
    "stdout": str,
    "value": str,
    "error": str,
}
"""Fields and types of a test's outcome, as the worker reports it."""
SHOWN_CHARS = 500
"""Maximum length of an answer or error in an outcome."""


class TestLimits(BaseModel):
    """Limits of one test, and the number of tests."""

    __test__ = False  # not a test class for pytest
    model_config = ConfigDict(frozen=True, extra="forbid")

    time_s: float = Field(default=5.0, gt=0)
    """Processor time of a test, in seconds. A busy machine does not make a test fail."""
    wall_time_s: float | None = Field(default=None, gt=0)
    """Maximum wall time of a test, in seconds. None means three times `time_s` plus one second."""
    memory_mb: int = Field(default=256, ge=16)
    """Address space of a test in addition to that of the bare interpreter, in MiB."""
    max_file_mb: int = Field(default=64, ge=1)
    """Maximum size of a file that a test writes, in MiB."""
    max_tests: int = Field(default=15, ge=1)
    """Maximum number of tests per problem: the first ones are used."""

    @property
    def clock_s(self) -> float:
        """Maximum wall time of a test, in seconds."""
        return 3 * self.time_s + 1 if self.wall_time_s is None else self.wall_time_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test."""

    verdict: Verdict
    detail: str = ""
    """The answer or the exception of the program, cut to a few hundred characters."""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """The results of a program."""

    outcomes: tuple[Outcome, ...]
    """One outcome per test, in order."""
    worker_failure: str = ""
    """Failure that the worker reported after its start. It counts as the program's, unless a worker also fails with an
    empty program (`CodeEnv` tests that).
    """

    @property
    def passed(self) -> int:
        """Number of passed tests."""
        return sum(outcome.verdict == "passed" for outcome in self.outcomes)

    @property
    def fraction(self) -> float:
        """Share of passed tests."""
        return self.passed / len(self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain values, for the rollout's state."""
        return {
            "passed": self.passed,
            "total": len(self.outcomes),
            "run": sum(outcome.verdict != "not_run" for outcome in self.outcomes),
            "outcomes": [
                {"verdict": outcome.verdict, "detail": outcome.detail, "cpu_s": outcome.cpu_s}
                for outcome in self.outcomes
            ],
        }


@cache
def worker_source() -> str:
    """Source of the part that runs inside."""
    return files("verifiers.sandboxes.guest").joinpath("case_runner.py").read_text("utf-8")


def worker_code(batch: bytes | None, *, as_source: bool = False) -> str:
    """Return the Python code of the worker. The worker reads the batch from stdin if `batch` is None.

    The interpreter of our guest has imported the worker already. Any other interpreter needs its source, and prints
    `NO_WORKER` without it.
    """
    call = f"main({'' if batch is None else repr(batch)})\n"
    if as_source:
        return f"exec(compile({worker_source()!r}, '<worker>', 'exec'))\n{call}"
    return (
        "try: from sandbox_guest.case_runner import main\n"
        f"except ImportError: print({NO_WORKER!r})\n"
        f"else: {call}"
    )


async def run_program(
    sandbox: Sandbox,
    program: str,
    tests: Sequence[TestCase],
    *,
    limits: TestLimits | None = None,
    comparison: AnswerComparison | None = None,
    stop_at_first_failure: bool = False,
) -> ProgramReport:
    """Run a program against tests in one sandbox. Use a new sandbox: the program may leave it in any state.

    With `stop_at_first_failure`, tests run in waves of 1, 2, 4, …, so that at most one wave is wasted.

    Every event after the worker is ready is caused by the program and becomes an outcome, including the end of its
    worker or sandbox. Raises SandboxError if the sandbox itself failed.
    """
    runner = _Runner(sandbox, tests, limits or TestLimits(), comparison or AnswerComparison())
    try:
        return await runner.run(program, stop_at_first_failure)
    except SandboxDead as error:
        if not error.by_program:
            raise
        return runner.report(Outcome("ended_worker", _shown(str(error))))


class _Runner:
    def __init__(
        self,
        sandbox: Sandbox,
        tests: Sequence[TestCase],
        limits: TestLimits,
        comparison: AnswerComparison,
    ) -> None:
        self.sandbox = sandbox
        self.tests = list(tests)[: limits.max_tests]
        self.limits = limits
        self.comparison = comparison
        self.outcomes: list[Outcome] = []
        self.worker_failure = ""
        # A power of two, so that the number reveals little about the expected answers.
        longest = max((len(str(test.expected)) for test in self.tests), default=0)
        self.max_output_bytes = 1 << max(16, (4 * longest).bit_length())

    async def run(self, program: str, stop_at_first_failure: bool) -> ProgramReport:
        wave = 1 if stop_at_first_failure else len(self.tests)
        while not self._is_over(stop_at_first_failure):
            start = len(self.outcomes)
            problem = await self._run_wave(
                program, self.tests[start : start + wave], stop_at_first_failure
            )
            if problem:
                return self.report(Outcome("error", _shown(problem[-SHOWN_CHARS:])))
            wave *= 2
        return self.report(Outcome("not_run"))

    def _is_over(self, stop_at_first_failure: bool) -> bool:
        verdicts = {outcome.verdict for outcome in self.outcomes}
        return (
            len(self.outcomes) == len(self.tests)
            or "ended_worker" in verdicts
            or (stop_at_first_failure and bool(verdicts - {"passed"}))
        )

    def report(self, rest: Outcome) -> ProgramReport:
        """Return the outcomes so far, with `rest` for the tests that have none."""
        missing = len(self.tests) - len(self.outcomes)
        return ProgramReport((*self.outcomes, *[rest] * missing), self.worker_failure)

    async def _run_wave(
        self, program: str, tests: Sequence[TestCase], stop_at_error: bool
    ) -> str | None:
        """Run some tests in a worker and judge the answers. Return the failure of the worker, if there was one."""
        requests = [_request(test) for test in tests]
        batch = _marshaled((program, self._limits(), requests, stop_at_error))
        result = await self._run_worker(batch, len(tests))
        if result.stdout.strip() == NO_WORKER.encode():
            result = await self._run_worker(batch, len(tests), as_source=True)
        ready, _, said = result.stdout.partition(b"\n")
        if ready != WORKER_IS_READY and not result.oom:
            raise SandboxError(f"The test worker did not start: {_why(result)}")
        answer = _answer(said) if result.exit_code == 0 else {}
        if "failed" in answer:
            self.worker_failure = _shown(str(answer["failed"]))
            self.outcomes.append(Outcome("ended_worker", self.worker_failure))
        elif answer.get("error"):
            return str(answer["error"])
        elif (outcomes := _outcomes(answer.get("outcomes"))) is None:
            self.outcomes.append(Outcome("ended_worker", _why(result)))
        else:
            for test, outcome in zip(tests, outcomes, strict=False):
                self.outcomes.append(self._judge(test, outcome))
        return None

    async def _run_worker(self, batch: bytes, tests: int, *, as_source: bool = False) -> ExecResult:
        in_code = len(batch) <= LARGEST_IN_CODE_BYTES
        return await self.sandbox.run_python(
            worker_code(batch if in_code else None, as_source=as_source),
            stdin=None if in_code else batch,
            timeout_s=tests * self.limits.clock_s + STARTUP_S,
            # Escaped as JSON, one byte of output can take six.
            max_output_bytes=(tests + 1) * (6 * self.max_output_bytes + 32_768),
        )

    def _limits(self) -> dict[str, float]:
        return {
            "cpu_limit_s": self.limits.time_s,
            "wall_limit_s": self.limits.clock_s,
            "memory_bytes": self.limits.memory_mb << 20,
            "max_file_bytes": max(self.limits.max_file_mb << 20, 2 * self.max_output_bytes),
            "max_output_bytes": self.max_output_bytes,
        }

    def _judge(self, test: TestCase, answer: dict[str, Any]) -> Outcome:
        status, cpu_s = answer["status"], answer["cpu_s"]
        if status == "error":
            error = answer["error"].strip() or f"exit code {_exit_code(answer)}"
            return Outcome("error", _shown(error[-SHOWN_CHARS:]), cpu_s)
        if status in ("timeout", "output_limit"):
            return Outcome(status, "", cpu_s)
        if test.function is None:
            got = answer["stdout"]
            is_right = self.comparison.printed(got, test.expected)
        else:
            got = answer["value"]
            is_right = self.comparison.returned(got, test.expected)
        return Outcome("passed" if is_right else "wrong", "" if is_right else _shown(got), cpu_s)


def _request(test: TestCase) -> dict[str, Any]:
    """Return a test as the worker needs it, without the expected answer."""
    if test.function is None:
        return {"stdin": str(test.stdin)}
    return {"function": test.function, "arguments": list(test.arguments)}


def _marshaled(batch: tuple[str, dict[str, float], list[dict[str, Any]], bool]) -> bytes:
    """Serialize in an old format that supports all types, since the interpreter inside may have another version."""
    try:
        return marshal.dumps(batch, 2)
    except ValueError:
        pass  # it accepts the built-in types only
    program, limits, requests, stop_at_error = batch
    try:
        plain = json.loads(json.dumps(requests))
    except (TypeError, ValueError) as error:
        raise DatasetError(f"The arguments of a test are not plain values: {error}") from error
    return marshal.dumps((program, limits, plain, stop_at_error), 2)


def _answer(line: bytes) -> dict[str, Any]:
    """Return the worker's answer, or an empty one if it is malformed, which the program must have caused."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _outcomes(answers: object) -> list[dict[str, Any]] | None:
    if not isinstance(answers, list) or not answers:
        return None
    for answer in answers:
        if not isinstance(answer, dict) or any(
            not isinstance(answer.get(name), kind) for name, kind in _FIELDS.items()
        ):
            return None
    return answers


def _shown(text: str) -> str:
    """Return the beginning of the text without lone surrogates, which files and requests cannot hold."""
    return text[:SHOWN_CHARS].encode("utf-8", "replace").decode()


def _exit_code(answer: dict[str, Any]) -> object:
    try:
        code = os.waitstatus_to_exitcode(answer["wait_status"])
    except (TypeError, ValueError, OverflowError):
        return "unknown"
    return 128 - code if code < 0 else code


def _why(result: ExecResult) -> str:
    if result.timed_out:
        return "The program prevented its worker from answering in time."
    if result.oom:
        return "The program used up the memory of the sandbox."
    said = result.stderr.decode("utf-8", "replace").strip()
    return _shown(said[-SHOWN_CHARS:]) if said else "The program ended its worker."
