import json
import math

import pytest
import yaml

import verifiers as vf
from verifiers.errors import ConfigError
from verifiers.runs.frames import find_runs, write_eval_results, write_table
from verifiers.runs.store import RunNotFound, RunStore


@pytest.fixture
def saved(tmp_path):
    """Two runs below `runs/`: two rollouts with messages, and one that failed."""

    def save(name, outputs, **metadata):
        with RunStore.create(tmp_path / "runs" / name, {"env_id": "e", **metadata}) as store:
            store.append_and_wait(outputs)

    call = {"id": "1", "name": "add", "arguments": '{"a": 1}'}
    conversation = [
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": [{"type": "text", "text": "It is 3"}]},
    ]
    prompt = [{"role": "user", "content": "1 + 2"}]
    save(
        "a",
        [
            {
                "example_id": 0,
                "rollout_index": 0,
                "prompt": prompt,
                "completion": conversation,
                "answer": "3",
                "info": {"level": 2, "tags": ["x"]},
                "reward": 1.0,
                "metrics": {"exact": 1.0, "reward": 0.5},
                "token_usage": {"input_tokens": 5.0, "output_tokens": 7.0},
                "timing": {"start_time": 1.0, "total": 2.5},
            },
            {
                "example_id": 1,
                "rollout_index": 0,
                "prompt": prompt,
                "completion": [],
                "reward": math.nan,
                "metrics": {"late": 2.0},
                "error": {"error": "ToolError", "where": "f.py:1"},
            },
        ],
        model="m-a",
        avg_reward=0.5,
        avg_metrics={"exact": 1.0},
        num_examples=2,
        rollouts_per_example=1,
        date="2026-01-02T03:04:05+00:00",
    )
    save(
        "deep/b",
        [
            {
                "example_id": "s",
                "prompt": "text",
                "completion": "done",
                "reward": 0.0,
                "timing": {"total_ms": 500.0},
            }
        ],
        model="m-b",
    )
    return tmp_path / "runs"


def rows(table):
    return table.to_pylist()


def test_rollouts_of_all_runs_below_a_folder_share_one_table(saved):
    table = rows(vf.rollouts_df(saved, library="arrow"))
    assert [row["model"] for row in table] == ["m-a", "m-a", "m-b"]
    first, failed, other = table
    assert (first["reward"], first["exact"], first["metrics.reward"]) == (1.0, 1.0, 0.5)
    assert (first["input_tokens"], first["output_tokens"], first["total_s"]) == (5.0, 7.0, 2.5)
    assert (failed["reward"], failed["error"], failed["late"]) == (None, "ToolError", 2.0)
    assert other["total_s"] == 0.5
    assert [row["example_id"] for row in table] == ["0", "1", "s"]


def test_further_columns_come_from_the_saved_rollouts(saved):
    table = rows(
        vf.rollouts_df(saved / "a", columns=["answer", "info.level", "info"], library="arrow")
    )
    assert [row["answer"] for row in table] == ["3", None]
    assert table[0]["info.level"] == 2
    assert json.loads(table[0]["info"]) == {"level": 2, "tags": ["x"]}


def test_every_message_is_a_row(saved):
    table = rows(vf.messages_df(saved, library="arrow"))
    assert [row["role"] for row in table] == [
        *["user", "assistant", "tool", "assistant"],
        "user",
        *["user", "assistant"],
    ]
    assert [row["position"] for row in table[:4]] == [0, 1, 2, 3]
    assert [row["part"] for row in table[:2]] == ["prompt", "completion"]
    assert json.loads(table[1]["tool_calls"])[0]["name"] == "add"
    assert table[1]["reasoning_content"] == "hm"
    assert table[3]["content"] == "It is 3"
    assert table[-1]["content"] == "done"


def test_a_run_is_a_row_of_its_metadata(saved):
    table = vf.runs_df(saved)
    assert list(table["model"]) == ["m-a", "m-b"]
    assert table.loc[0, "exact"] == 1.0
    assert table.loc[0, "avg_reward"] == 0.5


def test_pandas_is_the_default_and_agrees_with_the_table_of_results_in_memory(saved):
    table = vf.rollouts_df(saved / "a")
    assert table["reward"].isna().tolist() == [False, True]
    shared = {
        "example_id",
        "rollout_index",
        "reward",
        "error",
        "stop_condition",
        "input_tokens",
        "total_s",
    }
    assert shared <= set(table.columns)


def test_a_column_of_mixed_types_is_text(saved, tmp_path):
    with RunStore.create(tmp_path / "runs" / "mixed", {"env_id": "e", "model": "m"}) as store:
        store.append_and_wait(
            [{"example_id": 0, "metrics": {}, "x": value} for value in (1, "a\ud800", [2])]
        )
    table = rows(vf.rollouts_df(tmp_path / "runs" / "mixed", columns=["x"], library="arrow"))
    assert [row["x"] for row in table] == ["1", "a?", "[2]"]


def test_unknown_libraries_and_empty_folders_are_refused(saved, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="got 'spark'"):
        vf.rollouts_df(saved, library="spark")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunNotFound, match="no run at or below"):
        vf.rollouts_df(tmp_path / "empty")
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(ConfigError, match="package polars is not installed"):
        vf.rollouts_df(saved, library="polars")
    assert find_runs([saved / "a", saved]) == [saved / "a", saved / "deep" / "b"]


@pytest.mark.parametrize("name", ["t.csv", "t.parquet", "t.jsonl", "t.arrow", "dataset"])
def test_a_written_table_reads_back(saved, tmp_path, name):
    import datasets
    import pyarrow
    from pyarrow import csv, parquet

    write_table(vf.rollouts_df(saved, library="arrow"), tmp_path / "out" / name)
    path = tmp_path / "out" / name
    read = {
        "t.csv": lambda: csv.read_csv(path).column("reward").to_pylist(),
        "t.parquet": lambda: parquet.read_table(path).column("reward").to_pylist(),
        "t.jsonl": lambda: [json.loads(line)["reward"] for line in path.read_text().splitlines()],
        "t.arrow": lambda: (
            pyarrow.ipc.open_stream(path.read_bytes()).read_all()["reward"].to_pylist()
        ),
        "dataset": lambda: list(datasets.load_from_disk(path)["reward"]),
    }[name]()
    assert read == [1.0, None, 0.0]


def test_a_path_with_another_suffix_or_below_a_file_is_refused(saved, tmp_path):
    table = vf.runs_df(saved, library="arrow")
    with pytest.raises(ConfigError, match=r"ends in '\.xlsx'"):
        write_table(table, tmp_path / "t.xlsx")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_table(table, tmp_path / "file" / "t.csv")


def test_results_for_a_model_repository_name_the_benchmark(saved, tmp_path):
    path = tmp_path / "results.yaml"
    assert write_eval_results([saved / "a"], path, "owner/bench:hard") == 1
    [entry] = yaml.safe_load(path.read_text())
    assert entry["dataset"] == {"id": "owner/bench", "task_id": "hard"}
    assert (entry["value"], entry["date"]) == (0.5, "2026-01-02")
    with pytest.raises(ConfigError, match="--benchmark owner/name"):
        write_eval_results([saved / "a"], path, None)
    with pytest.raises(ConfigError, match="no mean reward"):
        write_eval_results([saved / "deep"], path, "owner/bench")
