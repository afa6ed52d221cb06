import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.runs.index import HEADER, INDEX_FILE, short_output
from verifiers.runs.output import decode_line, encode_value
from verifiers.runs.store import (
    RunDamaged,
    RunNotFound,
    RunStore,
    iterate_index,
    iterate_outputs,
    read_output,
)
from verifiers.runs.summary import summarize

METADATA = {"env_id": "e", "model": "m"}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def output(example: int, reward: float = 1.0, **fields):
    return {
        "example_id": example,
        "rollout_index": 0,
        "prompt": [{"role": "user", "content": "x" * 500}],
        "reward": reward,
        "metrics": {"accuracy": reward},
        "stop_condition": "done",
        "token_usage": {"input_tokens": 10.0, "output_tokens": 5.0},
        "timing": {"start_time": 100.0, "total": 2.0, "model": {"spans": [], "duration": 1.5}},
    } | fields


def write(folder, *outputs):
    with RunStore.create_or_open(folder, METADATA) as store:
        for one in outputs:
            store.append_and_wait([one])


def shorts(folder):
    return [rollout.output for rollout in iterate_index(folder)]


def expected(folder):
    return [decode_line(encode_value(short_output(one))) for one in iterate_outputs(folder)]


def index_of(folder) -> bytes:
    return (folder / INDEX_FILE).read_bytes()


def test_the_index_is_written_with_the_run_and_finds_every_rollout(folder):
    write(folder, output(0), output(1, 0.5, error={"error": "ToolError", "where": "a.py:3"}))
    content = index_of(folder)
    assert content.count(b"\n") == 3
    rollouts = list(iterate_index(folder))
    assert index_of(folder) == content
    assert [read_output(folder, one.place)["reward"] for one in rollouts] == [1.0, 0.5]
    assert rollouts[1].output == {
        "example_id": 1,
        "rollout_index": 0,
        "reward": 0.5,
        "metrics": {"accuracy": 0.5},
        "stop_condition": "done",
        "token_usage": {"input_tokens": 10.0, "output_tokens": 5.0},
        "error": {"error": "ToolError", "where": "a.py:3"},
        "timing": {"start_time": 100.0, "total": 2.0, "model": 1.5},
    }


def test_a_summary_of_the_index_is_the_summary_of_the_run(folder):
    failed = output(2, 0.0, error={"error": "InfraError", "voids_reward": True})
    broken = output(
        3, errors=[{"function": "judge", "message": "no verdict", "error": "ValueError"}]
    )
    write(folder, output(0), output(1, 0.5, is_truncated=True), failed, broken)
    assert summarize(shorts(folder)).as_json() == summarize(iterate_outputs(folder)).as_json()


@pytest.mark.parametrize(
    "change",
    [
        lambda index, results: index.unlink(),
        lambda index, results: index.write_bytes(b""),
        lambda index, results: index.write_bytes(b"\x00\xff not an index\n"),
        lambda index, results: index.write_bytes(HEADER),
        lambda index, results: index.write_bytes(index.read_bytes()[:-7]),
        lambda index, results: index.write_bytes(HEADER + b'{"at":[0,5]}\n'),
        lambda index, results: index.write_bytes(HEADER + b'{"at":"x"}\n[1]\n'),
        lambda index, results: index.write_bytes(index.read_bytes() + b'{"at":[99999,5]}\n'),
        lambda index, results: results.write_bytes(results.read_bytes().replace(b"0.25", b"0.75")),
        lambda index, results: results.write_bytes(
            b"".join(results.read_bytes().splitlines(True)[1:])
        ),
        lambda index, results: results.write_bytes(results.read_bytes() + encode_value(output(9))),
    ],
)
def test_an_index_that_does_not_fit_the_results_is_replaced(folder, change):
    write(folder, *(output(number, 0.25) for number in range(5)))
    change(folder / INDEX_FILE, folder / "results.jsonl")
    assert shorts(folder) == expected(folder)
    rebuilt = index_of(folder)
    assert rebuilt.count(b"\n") == 1 + len(expected(folder))
    assert shorts(folder) == expected(folder)
    assert index_of(folder) == rebuilt


def test_a_run_of_the_public_package_gets_an_index(folder):
    folder.mkdir()
    line = {"example_id": 3, "reward": math.nan, "metrics": {}, "timing": {"total_ms": 4.0}}
    (folder / "results.jsonl").write_text(json.dumps(line) + "\n")
    assert shorts(folder) == [
        {"example_id": 3, "metrics": {}, "reward": None, "timing": {"total_ms": 4.0}}
    ]
    assert index_of(folder).startswith(HEADER)


def test_a_run_that_is_being_written_is_read_without_a_change_to_its_index(folder):
    with RunStore.create(folder, METADATA) as store:
        store.append_and_wait([output(0)])
        (folder / INDEX_FILE).write_bytes(HEADER)
        assert [one["example_id"] for one in shorts(folder)] == [0]
        assert index_of(folder) == HEADER
    assert len(shorts(folder)) == 1
    assert index_of(folder) != HEADER


def test_a_continued_run_continues_its_index_also_after_rollouts_were_moved(folder):
    write(folder, output(0), output(1))
    with RunStore.open(folder) as store:
        store.append_and_wait([output(2)])
        store.supersede({0: "again"})
        store.append_and_wait([output(0, 0.25)])
    content = index_of(folder)
    assert [(one["example_id"], one["reward"]) for one in shorts(folder)] == [
        (1, 1.0),
        (2, 1.0),
        (0, 0.25),
    ]
    assert index_of(folder) == content


def test_opening_a_run_completes_the_index_of_a_crash(folder):
    write(folder, output(0), output(1))
    content = index_of(folder)
    (folder / INDEX_FILE).write_bytes(content[: content.rindex(b"{")])
    with RunStore.open(folder) as store:
        store.append_and_wait([output(2)])
    assert index_of(folder).startswith(content)
    assert [one["example_id"] for one in shorts(folder)] == [0, 1, 2]


def test_damaged_lines_are_skipped_and_the_rest_is_found(folder, caplog):
    write(folder, output(0), output(1))
    results = folder / "results.jsonl"
    first, second = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(first + b"broken\n" + second + b'{"half')
    assert [read_output(folder, one.place)["example_id"] for one in iterate_index(folder)] == [0, 1]
    assert "line 2 cannot be read and is skipped" in caplog.text


def test_a_folder_that_cannot_hold_an_index_is_read_all_the_same(folder, monkeypatch):
    write(folder, output(0))
    (folder / INDEX_FILE).unlink()
    (folder / INDEX_FILE).mkdir()
    assert len(shorts(folder)) == 1


def test_a_place_without_a_rollout_and_a_folder_without_a_run_are_errors(folder):
    write(folder, output(0))
    with pytest.raises(RunDamaged, match="no rollout at byte 7"):
        read_output(folder, type(next(iter(iterate_index(folder))).place)(7, 20))
    with pytest.raises(RunNotFound, match=r"results\.jsonl"):
        list(iterate_index(folder / "nothing"))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5),
            st.one_of(st.floats(), st.none(), st.text(max_size=5)),
            st.text(max_size=400),
        ),
        max_size=40,
    )
)
def test_any_outputs_have_an_index_that_a_reader_trusts(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("runs") / "run"
    lines = [
        output(example, reward, task=text, error={"error": text, "where": text})
        for example, reward, text in rows
    ]
    write(folder, *lines)
    content = index_of(folder)
    assert shorts(folder) == expected(folder)
    assert index_of(folder) == content
