"""The short form of a run: values, order, growth; and its numbers against those of the summary."""

import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from verifiers.runs.store import RunStore, iterate_index, load_outputs
from verifiers.runs.summary import summarize
from verifiers.view.columns import ColumnsBuilder
from verifiers.view.overview import example_means, overview
from verifiers.view.sources import FolderRun, FolderSource, run_folders


def test_columns_hold_the_values_of_the_rollouts(run_folder: Path) -> None:
    columns = FolderRun(run_folder, "run").columns()
    assert columns.count == 24
    assert columns.example_ids == [0, 1, 2, 3, 4, 5]
    assert columns.value("reward", 1) == 0.25
    assert columns.value("is_truncated", 1) is False
    assert columns.value("error_type", 5) == "ToolError"
    assert columns.value("error", 5) == "ToolError('the tool failed')"
    assert columns.value("error", 4) is None
    assert columns.column("accuracy") == "metrics.accuracy"
    assert columns.column("seconds") == "timing.total"
    assert columns.column("answer") is None


def test_the_numbers_are_those_of_the_summary(run_folder: Path) -> None:
    summary = summarize(load_outputs(run_folder))
    numbers = overview(FolderRun(run_folder, "run").columns())
    assert numbers.reward == pytest.approx(summary.reward)
    assert numbers.reward_error_free == pytest.approx(summary.reward_error_free)
    assert numbers.failed == summary.failed == 1
    assert numbers.failed_interval == summary.failed_interval
    assert numbers.void == summary.void
    for k, estimate in summary.pass_at_k.items():
        assert numbers.pass_at_k[k] == pytest.approx(estimate)
        assert numbers.pass_all_k[k] == pytest.approx(summary.pass_all_k[k])
    for metric in numbers.metrics:
        expected = tuple(summary.metrics[metric.name].estimate)
        assert tuple(metric.estimate) == pytest.approx(expected, nan_ok=True)
    assert [(group.name, group.rollouts) for group in numbers.errors] == [("ToolError", 1)]
    assert sum(one.rollouts for one in numbers.bins) == 24


def test_means_by_example_count_void_rewards_as_zero(run_folder: Path) -> None:
    counts, means, deviations = example_means(FolderRun(run_folder, "run").columns())
    assert counts.tolist() == [4] * 6
    assert means[0] == pytest.approx(0.4375)
    assert means[1] == pytest.approx((0.25 + 0 + 1 + 0) / 4)
    assert deviations[0] == pytest.approx(np.std([0, 0.25, 0.5, 1], ddof=1))


def test_order_places_missing_values_last_and_numbers_in_texts_by_value(
    samples: ModuleType,
) -> None:
    builder = ColumnsBuilder()
    outputs = [samples.output(0, example_id=name) for name in ("10", "9", "b", "a")]
    outputs[1]["reward"] = None
    builder.extend(_indexed(outputs))
    columns = builder.columns("1")
    rows = np.arange(4)
    assert columns.order(rows, "example_id").tolist() == [1, 0, 3, 2]
    assert columns.order(rows, "reward")[-1] == 1
    assert columns.order(rows, "reward", is_descending=True)[-1] == 1


def _indexed(outputs: list[dict[str, object]]):
    from verifiers.runs.index import IndexedRollout, Place, short_output

    return [IndexedRollout(Place(n * 10, 10), short_output(one)) for n, one in enumerate(outputs)]


def test_rollouts_that_are_not_as_expected_do_not_stop_the_columns() -> None:
    builder = ColumnsBuilder()
    builder.extend(
        _indexed(
            [
                {},
                {"reward": "high", "metrics": {"a": "x"}},
                {"metrics": {"b": 10**400}, "errors": ["?"]},
            ]
        )
    )
    columns = builder.columns("1")
    assert columns.count == 3
    assert math.isnan(columns.numbers["reward"][1])
    assert columns.value("reward_error", 2) == "?"
    assert overview(columns).rollouts == 3


def test_columns_follow_a_run_that_is_being_written(
    tmp_path: Path, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verifiers.view.sources.REFRESH_S", 0.0)
    folder = tmp_path / "run"
    with RunStore.create(folder, {"env_id": "sums"}) as store:
        run = FolderRun(folder, "run")
        assert run.columns().count == 0
        assert run.is_live
        for number in range(3):
            store.append_and_wait([samples.output(number)])
            assert run.columns().count == number + 1
        first = run.columns()
        assert run.columns() is first
        assert run.output(2)["example_id"] == 2
    assert not run.is_live


def test_a_replaced_file_is_read_again(
    run_folder: Path, samples: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verifiers.view.sources.REFRESH_S", 0.0)
    run = FolderRun(run_folder, "run")
    assert run.columns().count == 24
    results = run_folder / "results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)[:3]
    results.unlink()
    results.write_bytes(b"".join(lines))
    assert run.columns().count == 3


def test_rollouts_after_a_byte_are_read_from_the_results(run_folder: Path) -> None:
    whole = list(iterate_index(run_folder))
    rest = list(iterate_index(run_folder, sum(whole[20].place)))
    assert rest == whole[21:]


def test_folders_of_runs_are_found_and_links_are_not_followed(
    tmp_path: Path, run_folder: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(run_folder.parent, target_is_directory=True)
    assert list(run_folders(tmp_path)) == [run_folder]
    assert list(run_folders(run_folder)) == [run_folder]
    [run] = FolderSource([tmp_path, run_folder]).runs()
    assert run.name == "sums--small/aaaa1111"
