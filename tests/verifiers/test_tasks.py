"""Rows and their identity; formats of datasets are tested through `Environment` in envs/test_environment.py."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.errors import DatasetError
from verifiers.tasks import RowFormat, TaskSource, group, input_key, repeat, shuffled_order

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
rows = st.dictionaries(st.text(min_size=1, max_size=4), values, max_size=4)


@given(rows, st.integers())
def test_a_key_names_the_content_and_nothing_else(row: dict[str, Any], example_id: int) -> None:
    reordered = dict(reversed(row.items()))
    assert input_key({**reordered, "example_id": example_id}) == input_key(row)
    assert input_key({**row, "answer": "changed"}) != input_key({**row, "answer": "original"})


@given(st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_an_order_is_a_permutation_that_the_seed_decides(count: int, seed: int) -> None:
    order = shuffled_order(range(count), seed)
    assert sorted(order) == list(range(count))
    assert order == shuffled_order(range(count), seed)


@given(st.lists(st.integers(0, 5), max_size=20), st.integers(1, 4))
def test_repeats_stand_together_and_group_by_example(ids: list[int], times: int) -> None:
    unique = [{"example_id": example_id} for example_id in dict.fromkeys(ids)]
    repeated = repeat(unique, times)
    assert len(repeated) == times * len(unique)
    assert [len(one) for one in group(repeated)] == [times] * len(unique)
    assert len({id(row) for row in repeated}) == len(repeated)
    with pytest.raises(DatasetError, match="at least 1; got 0"):
        repeat(unique, 0)


def test_only_the_rows_that_are_taken_are_formatted() -> None:
    broken_later = [{"question": "a"}, {"question": "b"}, {"nothing": "c"}]
    source = TaskSource(broken_later, RowFormat())
    assert len(source.inputs(2)) == 2
    with pytest.raises(DatasetError, match="Row 2"):
        source.inputs()


def test_the_keys_of_question_and_answer_can_be_chosen() -> None:
    source = TaskSource([{"q": "a", "a": 5}], RowFormat(question_key="q", answer_key="a"))
    [row] = source.inputs()
    assert (row["prompt"][0]["content"], row["answer"]) == ("a", 5)
