"""Filter expressions: on columns, on saved lines, and their errors."""

from pathlib import Path

import numpy as np
import pytest

from verifiers.runs.store import load_outputs
from verifiers.view.columns import RunColumns
from verifiers.view.filters import Filter, FilterError
from verifiers.view.sources import FolderRun


@pytest.fixture
def columns(run_folder: Path) -> RunColumns:
    return FolderRun(run_folder, "run").columns()


ON_COLUMNS = [
    ("reward < 0.5", 12),
    ("reward >= 0.25 and reward <= 0.5", 12),
    ("reward == 1 or reward == 0", 12),
    ("not (reward == 1 or reward == 0)", 12),
    ("metrics.accuracy == 0 and reward < 0.5", 12),
    ("accuracy == 1", 6),
    ('error ~ "tool FAILED"', 1),
    ('error == "ToolError"', 1),
    ("error == null", 23),
    ("error != null", 1),
    ("error", 1),
    ("has_failed", 1),
    ("is_truncated == true", 0),
    ("not is_truncated", 24),
    ("example_id in [1, 2, 9]", 8),
    ("example_id == 3", 4),
    ("example_id > 3", 8),
    ('example_id == "3"', 4),
    ("example_id not in [1, 2]", 16),
    ("3 > rollout_index", 18),
    ("output_tokens > input_tokens", 0),
    ('stop_condition = "max_turns_reached" && reward = 1', 6),
    ('"x" ~ "X"', 24),
]


@pytest.mark.parametrize(("text", "count"), ON_COLUMNS)
def test_columns_and_lines_give_the_same_matches(
    text: str, count: int, columns: RunColumns, run_folder: Path
) -> None:
    condition = Filter(text)
    assert not condition.needs_lines(columns)
    mask = condition.mask(columns)
    assert int(mask.sum()) == count
    by_line = [condition.matches(output) for output in load_outputs(run_folder)]
    assert mask.tolist() == by_line


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('info.level == "hard"', 12),
        ('answer == "4"', 4),
        ('completion[-1].content ~ "answer is 6"', 4),
        ('completion[0].tool_calls ~ "sum of 2"', 4),
        ("len(completion) == 0", 1),
        ('prompt[1].content ~ "what is" and reward == 1', 6),
        ('info["level"] == "easy" or has_failed', 13),
        ("info.unknown == null", 24),
        ('completion ~ "größe 3"', 6),
    ],
)
def test_any_field_of_the_saved_line_can_be_compared(
    text: str, count: int, columns: RunColumns, run_folder: Path
) -> None:
    condition = Filter(text)
    assert condition.needs_lines(columns)
    outputs = load_outputs(run_folder)
    assert sum(map(condition.matches, outputs)) == count
    possible = np.flatnonzero(condition.mask(columns)).tolist()
    assert all(n in possible for n, output in enumerate(outputs) if condition.matches(output))


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("reward <", 8, "found the end"),
        ("reward < 0.5 0.6", 13, "Expected `and`"),
        ("reward < 0.5 and", 16, "found the end"),
        ("(reward < 1", 11, "Expected ')'"),
        ("reward # 1", 7, "Unexpected character '#'"),
        ('error ~ "open', 8, "no closing quotation mark"),
        ("len(3) > 1", 0, "takes a field"),
        ("", 0, "Expected a field"),
        ("__import__('os')", 10, "Expected `and`"),
        ("(" * 100, 60, "nested too deeply"),
        ("x" * 3000, 2000, "at most 2000 characters"),
    ],
)
def test_an_error_names_its_position(text: str, position: int, words: str) -> None:
    with pytest.raises(FilterError, match=r"\(at character") as caught:
        Filter(text)
    assert words in str(caught.value)
    assert caught.value.position == position


def test_an_unknown_field_is_an_error_with_the_closest_name(columns: RunColumns) -> None:
    with pytest.raises(FilterError, match="Did you mean 'reward'"):
        Filter("rewrd < 1").check_fields(columns, ["answer"])
    Filter("answer == 1").check_fields(columns, ["answer"])
