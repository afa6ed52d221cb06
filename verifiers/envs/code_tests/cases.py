"""What a test is, and whether a program's answer is right. Pure functions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from verifiers.errors import DatasetError

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
