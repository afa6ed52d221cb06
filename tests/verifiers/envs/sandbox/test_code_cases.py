"""Tests of a program as values: reading them, comparing answers, finding the program in a completion."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.envs.code_tests import (
    AnswerComparison,
    TestCase,
    TestLimits,
    extract_code,
    fenced_blocks,
    test_cases,
)
from verifiers.errors import DatasetError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# --------------------------------------------------------------------------------------------- reading tests


@pytest.mark.parametrize(
    ("given_tests", "expected"),
    [
        ([{"input": "1\n", "output": "2\n"}], TestCase("2\n", stdin="1\n")),
        (
            [{"function": "f", "arguments": [1, "a"], "expected": None}],
            TestCase(None, function="f", arguments=(1, "a")),
        ),
        ({"inputs": ["1"], "outputs": ["2"]}, TestCase("2", stdin="1")),
        ({"inputs": [["1", "2"]], "outputs": [["3"]]}, TestCase("3", stdin="1\n2")),
        (
            {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"},
            TestCase(3, function="add", arguments=(1, 2)),
        ),
    ],
)
def test_every_shape_that_datasets_have_is_read(given_tests: Any, expected: TestCase):
    assert test_cases(given_tests) == [expected]
    assert test_cases(json.dumps(given_tests)) == [expected]


@pytest.mark.parametrize(
    ("given_tests", "message"),
    [
        ("no json", "not valid JSON"),
        ([], "at least one"),
        ({}, "at least one"),
        (3, "at least one"),
        ([{"input": "1"}], "Test 0 has neither"),
        ([{"function": "f", "arguments": 3}], "Test 0 has neither"),
        ({"inputs": ["1"], "outputs": []}, r"'inputs' \(1\) differs from .* \(0\)"),
    ],
)
def test_anything_else_is_refused_by_name(given_tests: Any, message: str):
    with pytest.raises(DatasetError, match=message):
        test_cases(given_tests)


# ------------------------------------------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    ("whitespace", "got", "expected", "is_right"),
    [
        ("exact", "1\n", "1\n", True),
        ("exact", "1", "1\n", False),
        ("lines", "1  \n2\n\n", "1\n2", True),
        ("lines", "1\r\n2", "1\n2\n", True),
        ("lines", " 1", "1", False),
        ("lines", "1 2", "1\n2", False),
        ("lines", "\n1", "1", False),
        ("tokens", "1 2", "1\n2", True),
        ("tokens", "12", "1 2", False),
    ],
)
def test_whitespace_counts_as_it_is_told_to(
    whitespace: Any, got: str, expected: str, is_right: bool
):
    assert AnswerComparison(whitespace).printed(got, expected) is is_right


@pytest.mark.parametrize(
    ("got", "expected", "is_right"),
    [
        ("0.3333333", "0.333333333", True),
        ("0.34", "0.333333333", False),
        ("x 1.0000001", "x 1", True),
        ("y 1.0", "x 1", False),
        ("1 2", "1", False),
        ("nan", "nan", True),
        ("1e400", "5", False),
    ],
)
def test_close_numbers_are_equal_within_the_tolerance(got: str, expected: str, is_right: bool):
    assert AnswerComparison("lines", 1e-6).printed(got, expected) is is_right
    assert AnswerComparison("tokens", 1e-6).printed(got, expected) is is_right


def test_lines_keep_their_shape_under_a_tolerance():
    assert not AnswerComparison("lines", 1e-6).printed("1 2", "1\n2")
    assert AnswerComparison("tokens", 1e-6).printed("1 2", "1\n2")


@given(JSON)
def test_a_value_equals_itself_through_json(value: Any):
    assert AnswerComparison().returned(json.dumps(value), value)


@pytest.mark.parametrize(
    ("text", "expected", "is_right"),
    [
        ("[1, 2]", (1, 2), True),
        ("1.0", 1, True),
        ("true", 1, True),
        ('{"1": 2}', {1: 2}, True),
        ('{"1": 2}', {"1": 3}, False),
        ("[1]", [1, 2], False),
        ('"1"', 1, False),
        ("NaN", math.nan, True),
        ("null", None, True),
        ("null", 0, False),
        ("", None, False),
        ("[" * 100_000, [], False),
    ],
)
def test_returned_values_are_compared_as_python_has_them(text: str, expected: Any, is_right: bool):
    assert AnswerComparison().returned(text, expected) is is_right


def test_returned_numbers_may_be_close_only_when_told_so():
    assert not AnswerComparison().returned("[0.30000000000000004]", [0.3])
    assert AnswerComparison(float_tolerance=1e-9).returned("[0.30000000000000004]", [0.3])


@given(st.text(), st.text(), st.sampled_from(["exact", "lines", "tokens"]))
def test_comparing_never_fails_on_any_text(got: str, expected: str, whitespace: Any):
    for tolerance in (None, 1e-6):
        comparison = AnswerComparison(whitespace, tolerance)
        assert comparison.printed(expected, expected)
        comparison.printed(got, expected)
        comparison.returned(got, expected)


# ------------------------------------------------------------------------------------------------ extraction


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a"),
        ("```\na\n```\nor rather\n```py\nb\n```", "b"),
        ("```python\na\n```\nOutput:\n```text\nb\n```", "a"),
        ("```cpp\na\n```", "a"),
        ("~~~python\na\n~~~", "a"),
        ("````python\n```\na\n```\n````", "```\na\n```"),
        ("```python\na\n```\n```python\ncut off", "a"),
        ("```python\ncut off", ""),
        ("no code, `inline` only", ""),
        ("  ```python\n  a\n  ```", "  a"),
        ("```Python title=x\na\n```", "a"),
        ("", ""),
    ],
)
def test_the_last_closed_block_of_python_is_the_program(text: str, code: str):
    assert extract_code(text) == code


@given(st.text(alphabet="`~ab\n py", max_size=60))
def test_extraction_takes_any_text_and_gives_a_part_of_it(text: str):
    assert all(content in "\n".join(text.splitlines()) for _, content in fenced_blocks(text))


def test_the_clock_limit_follows_the_processor_limit_unless_it_is_given():
    assert TestLimits(time_s=2).clock_s == 7
    assert TestLimits(time_s=2, wall_time_s=3).clock_s == 3


@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_numbers_too_large_for_a_float_are_compared_exactly(tolerance: float | None):
    compare = AnswerComparison(float_tolerance=tolerance)
    huge = 10**400
    for got in ("1.0", "NaN", "Infinity", "-Infinity", "1e400", "-1", str(2 * huge), '"x"', "[]"):
        assert not compare.returned(got, huge), got
        assert not compare.returned(str(huge), 1.5)
    assert compare.returned(str(huge), huge)
    assert compare.returned(str(huge + 1), huge) == (tolerance is not None)
    for got in ("inf", "Infinity", "1e999", "nan", str(3 * huge)):
        assert not compare.printed(got, str(huge)), got
    assert compare.printed(str(huge), str(huge))
    assert not compare.returned("1", float("nan"))
    assert compare.returned("NaN", float("nan"))
