"""Full-text search: JSON forms, case, places, portions."""

from pathlib import Path
from types import ModuleType

import pytest

from verifiers.view import search
from verifiers.view.filters import Filter
from verifiers.view.search import Scan, TextSearch
from verifiers.view.sources import FolderRun


def found(run: FolderRun, text: str, condition: str = "") -> list[int]:
    scan = Scan(run, run.columns(), Filter(condition) if condition else None, TextSearch(text))
    scan.advance(None, 60)
    assert scan.is_done
    return scan.rows.tolist()


@pytest.fixture
def run(tmp_path: Path, samples: ModuleType) -> FolderRun:
    texts = [
        'He said "yes"\nand left\\',
        "GRÖSSE und größe",
        "Привет мир",
        "漢字かな",
        "plain",
        "lone \ud800 Größe",
    ]
    outputs = [
        samples.output(n, completion=[{"role": "assistant", "content": t}])
        for n, t in enumerate(texts)
    ]
    call = samples.tool_call(0, {"query": 'find "yes" now'}, name="lookup")
    outputs.append(
        samples.output(9, completion=[{"role": "assistant", "content": "", "tool_calls": [call]}])
    )
    return FolderRun(samples.write_run(tmp_path / "run", outputs), "run")


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('"YES"', [0, 6]),
        ('yes"\nAND', [0]),
        ("left\\", [0]),
        ("größe", [1, 5]),
        ("ПРИВЕТ", [2]),
        ("привет", [2]),
        ("字か", [3]),
        ("Plain", [4]),
        ("lookup", [6]),
        ('find "yes"', [6]),
        ("what is 4", [4]),
        ("max_turns_reached", []),
        ("role", []),
        ("absent", []),
    ],
)
def test_texts_are_found_in_every_form(run: FolderRun, text: str, rows: list[int]) -> None:
    assert found(run, text) == rows


@pytest.mark.parametrize("size", [64, 100, 1000])
def test_hits_across_the_blocks_are_found_once(
    run: FolderRun, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "BLOCK_BYTES", size)
    assert found(run, "what is") == list(range(7))
    assert found(run, 'find "yes"') == [6]


def test_a_search_and_a_filter_must_both_hold(run: FolderRun) -> None:
    assert found(run, "what is", "example_id > 2 and example_id < 5") == [3, 4]
    assert found(run, "what is", 'answer == "4"') == [2]


def test_a_scan_stops_at_a_full_page_and_continues(run: FolderRun) -> None:
    scan = Scan(run, run.columns(), None, TextSearch("what is"))
    scan.advance(2, 60)
    assert scan.rows.tolist() == [0, 1]
    assert not scan.is_done
    scan.advance(5, 60)
    assert scan.rows.tolist() == [0, 1, 2, 3, 4]
    scan.advance(None, 60)
    assert scan.rows.tolist() == list(range(7))
    assert scan.is_done


def test_a_scan_without_time_makes_progress_and_ends(run: FolderRun) -> None:
    scan = Scan(run, run.columns(), Filter('completion[0].content ~ "plain"'), None)
    for _ in range(7):
        scan.advance(None, 0.0)
    scan.advance(None, 0.0)
    assert scan.is_done
    assert scan.rows.tolist() == [4]


def test_a_snippet_names_the_place(run: FolderRun) -> None:
    snippet = TextSearch("AND LEFT").snippet(run.output(0))
    assert snippet is not None
    assert snippet.where == "completion[0].content"
    assert snippet.hit == "and left"
    assert snippet.before.endswith('"yes"\n')
