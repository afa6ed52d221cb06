"""One program against its tests: inputs go into the sandbox, answers come out and are judged here."""

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
    """(language in lower case, content) of every closed fenced block of Markdown, in their order."""
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
    """The last closed fenced block that is Python or names no language, else the last one of all, else ""."""
    blocks = fenced_blocks(text)
    for language, content in reversed(blocks):
        if language in PYTHON_LANGUAGES:
            return content
    return blocks[-1][1] if blocks else ""


Whitespace = Literal["exact", "lines", "tokens"]
"""What counts in printed text: every character; lines without the blanks at their ends and the empty lines at the
end; words alone."""


@dataclass(frozen=True, slots=True)
class TestCase:
    """One test: a stdin and the stdout expected, or a call and the value expected."""

    __test__ = False  # not a class of tests for pytest

    expected: Any
    """Text to be printed, or a JSON value to be returned."""
    stdin: str = ""
    function: str | None = None
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """When an answer counts as the expected one."""

    whitespace: Whitespace = "lines"
    float_tolerance: float | None = None
    """Numbers that are this close, absolutely or relatively, are equal; None compares them exactly."""

    def printed(self, got: str, expected: str) -> bool:
        """Whether printed text is right."""
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
        """Whether a returned value, as JSON text, is right: equal as Python has it, tuples being lists."""
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
        """Whether two numbers are equal within the tolerance. An `int` may be too large for a `float`."""
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
            exact, wanted = Fraction(got), Fraction(expected)
            largest = max(abs(exact), abs(wanted))
            return abs(exact - wanted) <= largest * Fraction(self.float_tolerance)


def _number(word: str) -> float:
    """The number in a word. An integer too large for a float stays an integer: as floats, all of them are equal."""
    value = float(word)
    return int(word) if math.isinf(value) and "inf" not in word.lower() else value


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def test_cases(given: Any) -> list[TestCase]:
    """Tests as a dataset has them, also as JSON text.

    Either a list of {"input": stdin, "output": stdout} and {"function": name, "arguments": list, "expected": value},
    or the columns {"inputs": list, "outputs": list} with "fn_name" for calls. Raises DatasetError for anything else.
    """
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise DatasetError(f"The tests are not JSON: {error}") from error
    if isinstance(given, Mapping) and "inputs" in given and "outputs" in given:
        given = _rows(given)
    if isinstance(given, Mapping) or not isinstance(given, Sequence) or not given:
        raise DatasetError(
            f"Tests are a list with at least one test, or {{'inputs': …, 'outputs': …}}; got {given!r:.200}"
        )
    return [_test_case(number, one) for number, one in enumerate(given)]


test_cases.__test__ = False  # type: ignore[attr-defined]  # not a test for pytest


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    inputs, outputs, name = columns["inputs"], columns["outputs"], columns.get("fn_name")
    if len(inputs) != len(outputs):
        raise DatasetError(f"There are {len(inputs)} inputs of tests and {len(outputs)} outputs.")
    pairs = zip(inputs, outputs, strict=True)
    if name:
        return [{"function": name, "arguments": a, "expected": b} for a, b in pairs]
    return [{"input": _joined(a), "output": _joined(b)} for a, b in pairs]


def _joined(text: Any) -> Any:
    """Some datasets have a list of lines."""
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
        given, printed = test.get("input"), test.get("output")
        if isinstance(given, str) and isinstance(printed, str):
            return TestCase(printed, stdin=given)
    raise DatasetError(
        f"Test {number} has neither the texts 'input' and 'output' nor 'function', 'arguments' and 'expected': "
        f"{test!r:.200}"
    )


Verdict = Literal["passed", "wrong", "error", "timeout", "output_limit", "ended_worker", "not_run"]
"""How a test went: right · wrong answer · the program raised or exited with a code · out of time · printed too much ·
the program ended what was to run it, or used up the memory of the whole sandbox · not run, as an earlier one failed."""

WORKER_IS_READY = b'{"worker": "ready"}'
NO_WORKER = "no worker"
STARTUP_S = 20.0
"""Beyond the tests' own limits: what the worker may take around them before it is taken for stuck."""
LARGEST_IN_CODE_BYTES = 16 << 10
"""A batch up to this size is part of the worker's code, which spares a stream; a larger one comes by stdin."""
_FIELDS = {
    "status": str,
    "wait_status": int,
    "cpu_s": float,
    "stdout": str,
    "value": str,
    "error": str,
}
"""Of a test's outcome, as the worker reports it."""
SHOWN_CHARS = 500
"""Of an answer or error in an outcome."""


class TestLimits(BaseModel):
    """What one test may use, and how many there are."""

    __test__ = False  # not a class of tests for pytest
    model_config = ConfigDict(frozen=True, extra="forbid")

    time_s: float = Field(default=5.0, gt=0)
    """Processor time of a test, in seconds: a busy machine fails nobody."""
    wall_time_s: float | None = Field(default=None, gt=0)
    """Longest run of a test by the clock, in seconds; None: three times `time_s` and a second."""
    memory_mb: int = Field(default=256, ge=16)
    """Address space of a test on top of the bare interpreter's, in MiB."""
    max_file_mb: int = Field(default=64, ge=1)
    """Largest file that a test may write, in MiB."""
    max_tests: int = Field(default=15, ge=1)
    """Tests of a problem that are used: the first ones."""

    @property
    def clock_s(self) -> float:
        """Longest run of a test by the clock."""
        return 3 * self.time_s + 1 if self.wall_time_s is None else self.wall_time_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test went."""

    verdict: Verdict
    detail: str = ""
    """What the program answered or raised, cut to a few hundred characters."""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProgramReport:
    """How a program did."""

    outcomes: tuple[Outcome, ...]
    """One for each test, in their order."""
    worker_failure: str = ""
    """What the worker reported of itself, if it failed after its start: the program's doing, unless a worker also fails
    with an empty program (which `CodeEnv` tries)."""

    @property
    def passed(self) -> int:
        """How many tests it passed."""
        return sum(outcome.verdict == "passed" for outcome in self.outcomes)

    @property
    def fraction(self) -> float:
        """The share of tests it passed."""
        return self.passed / len(self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """For the rollout's state: plain values."""
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
    """The half that runs inside."""
    return files("verifiers.sandboxes.guest").joinpath("case_runner.py").read_text("utf-8")


def worker_code(batch: bytes | None, *, as_source: bool = False) -> str:
    """The program that is the worker, which then reads the batch from stdin if that is None.

    Our own agent has it, imported already. Any other interpreter needs its source, and prints `NO_WORKER` without.
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
    comparison: Comparison | None = None,
    stop_at_first_failure: bool = False,
) -> ProgramReport:
    """Run a program against tests in one sandbox. Give it a sandbox of its own: the program may leave it in any state.

    With `stop_at_first_failure` tests run in waves of 1, 2, 4, …, so that at most one wave is wasted.

    Everything that happens after the worker is ready is the program's doing, and so an outcome: also the end of its
    worker or its sandbox. Raises SandboxError when the machinery failed.
    """
    runner = _Runner(sandbox, tests, limits or TestLimits(), comparison or Comparison())
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
        comparison: Comparison,
    ) -> None:
        self.sandbox = sandbox
        self.tests = list(tests)[: limits.max_tests]
        self.limits = limits
        self.comparison = comparison
        self.outcomes: list[Outcome] = []
        self.worker_failure = ""
        # A power of two, so that it says next to nothing about what is expected.
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
        """The outcomes so far, with `rest` for the tests that have none."""
        missing = len(self.tests) - len(self.outcomes)
        return ProgramReport((*self.outcomes, *[rest] * missing), self.worker_failure)

    async def _run_wave(
        self, program: str, tests: Sequence[TestCase], stop_at_error: bool
    ) -> str | None:
        """Have a worker run some tests, and judge its answers; returns what is wrong with the program if it is none."""
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
    """A test as the worker needs it, without what is expected."""
    if test.function is None:
        return {"stdin": str(test.stdin)}
    return {"function": test.function, "arguments": list(test.arguments)}


def _marshaled(batch: tuple[str, dict[str, float], list[dict[str, Any]], bool]) -> bytes:
    """In the oldest format that has all we send: the interpreter inside may be another one."""
    try:
        return marshal.dumps(batch, 2)
    except ValueError:
        pass  # it only takes the built-in types themselves
    program, limits, requests, stop_at_error = batch
    try:
        plain = json.loads(json.dumps(requests))
    except (TypeError, ValueError) as error:
        raise DatasetError(f"The arguments of a test are no plain values: {error}") from error
    return marshal.dumps((program, limits, plain, stop_at_error), 2)


def _answer(line: bytes) -> dict[str, Any]:
    """What the worker answered; nothing if that is anything else than an answer, which is the program's doing."""
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
    """The beginning, without lone surrogates: no file and no request can hold those."""
    return text[:SHOWN_CHARS].encode("utf-8", "replace").decode()


def _exit_code(answer: dict[str, Any]) -> object:
    try:
        code = os.waitstatus_to_exitcode(answer["wait_status"])
    except (TypeError, ValueError, OverflowError):
        return "unknown"
    return 128 - code if code < 0 else code


def _why(result: ExecResult) -> str:
    if result.timed_out:
        return "The program kept its worker from answering in time."
    if result.oom:
        return "The program used up the sandbox's memory."
    said = result.stderr.decode("utf-8", "replace").strip()
    return _shown(said[-SHOWN_CHARS:]) if said else "The program ended its worker."
