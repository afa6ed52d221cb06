import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.runs.folders import RunLocked
from verifiers.runs.output import encode_line
from verifiers.runs.store import (
    FORMAT_VERSION,
    RunDamaged,
    RunNotFound,
    RunStore,
    RunStoreError,
    iterate_outputs,
    load_metadata,
    load_outputs,
    save_metadata,
    save_new_outputs,
    save_outputs,
)

METADATA = {"env_id": "e", "model": "m", "num_examples": 2, "rollouts_per_example": 1}


@pytest.fixture
def store(tmp_path):
    with RunStore.create(tmp_path / "run", METADATA) as store:
        yield store


def python(code: str, *arguments: object, **options) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, **options)


# --- writing and reading


async def test_appended_rollouts_come_back_in_order(store, make_output):
    await store.append([make_output(0), make_output(0, 0.5)])
    await store.append([make_output(1)])
    assert [(o.example_id, o.reward) for o in store.outputs()] == [(0, 1.0), (0, 0.5), (1, 1.0)]
    assert [o.example_id for o in load_outputs(store.folder)] == [0, 0, 1]
    assert store.saved_count == 3


async def test_a_rollout_is_in_the_file_when_append_returns(store, make_output):
    await store.append([make_output(5)])
    assert (store.folder / "results.jsonl").read_bytes() == encode_line(make_output(5))


async def test_groups_that_finish_together_share_a_write_and_its_fsync(
    store, make_output, monkeypatch
):
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor))
    )
    await asyncio.gather(*(store.append([make_output(i), make_output(i)]) for i in range(200)))
    assert 1 <= len(synced) < 100
    ids = [output.example_id for output in load_outputs(store.folder)]
    assert len(ids) == 400
    assert ids[::2] == ids[1::2]  # a group's lines stay together


async def test_the_event_loop_runs_while_the_disk_is_slow(store, make_output, monkeypatch):
    release = threading.Event()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (release.wait(30), real(descriptor)))
    appending = asyncio.ensure_future(store.append([make_output(0)]))
    await asyncio.sleep(0)
    assert not appending.done()  # the loop came back to us although the fsync hangs
    release.set()
    await appending


async def test_cancelling_an_append_loses_no_rollout_and_disturbs_no_other(
    store, make_output, monkeypatch
):
    release = threading.Event()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (release.wait(30), real(descriptor)))
    first = asyncio.ensure_future(store.append([make_output(0)]))
    second = asyncio.ensure_future(store.append([make_output(1)]))
    await asyncio.sleep(0)
    second.cancel()
    release.set()
    await first
    await asyncio.to_thread(store.close)
    assert [o.example_id for o in load_outputs(store.folder)] == [0, 1]


def test_rollouts_can_be_appended_without_an_event_loop(store, make_output):
    store.append_and_wait([make_output(0)])
    store.append_and_wait([])
    assert len(load_outputs(store.folder)) == 1


async def test_appending_costs_little_cpu(tmp_path, make_output):
    async with RunStore.create(tmp_path / "run", METADATA) as store:
        outputs = [make_output(i) for i in range(1000)]
        slots = asyncio.Semaphore(64)

        async def finish(output):
            async with slots:
                await store.append([output])

        started = time.process_time()
        await asyncio.gather(*map(finish, outputs))
        per_rollout_s = (time.process_time() - started) / len(outputs)
    assert (
        per_rollout_s < 0.4e-3
    )  # 0.1 ms was measured, tasks and semaphore of this test included; budget 0.2 ms


async def test_closing_waits_for_what_was_appended(tmp_path, make_output):
    store = RunStore.create(tmp_path / "run", METADATA)
    pending = [asyncio.ensure_future(store.append([make_output(i)])) for i in range(50)]
    await asyncio.sleep(0)
    await asyncio.to_thread(store.close)
    store.close()
    assert len(load_outputs(store.folder)) == 50
    await asyncio.gather(*pending)
    with pytest.raises(RunStoreError, match="is closed; 1 rollouts were not saved"):
        await store.append([make_output(0)])


# --- folder and metadata


def test_a_new_run_has_both_files_and_a_format_version(store):
    assert load_metadata(store.folder) == {"format_version": FORMAT_VERSION, **METADATA}
    assert (store.folder / "results.jsonl").read_bytes() == b""


def test_creating_over_a_run_is_refused(store):
    with pytest.raises(RunStoreError, match=r"already contains a run"):
        RunStore.create(store.folder, METADATA)


def test_a_run_is_opened_or_created_as_needed(tmp_path, make_output):
    for expected in (1, 2):
        with RunStore.create_or_open(tmp_path / "run", METADATA) as store:
            store.append_and_wait([make_output()])
        assert len(load_outputs(tmp_path / "run")) == expected


def test_metadata_is_replaced_without_the_path(store):
    store.write_metadata(
        {**METADATA, "path_to_save": Path("/x"), "avg_reward": 0.5, "stderr": float("nan")}
    )
    expected = {"format_version": FORMAT_VERSION, **METADATA, "avg_reward": 0.5, "stderr": None}
    assert load_metadata(store.folder) == expected
    assert sorted(os.listdir(store.folder)) == [
        ".lock",
        "metadata.json",
        "results.index",
        "results.jsonl",
    ]


def test_metadata_stays_whole_when_its_replacement_fails(store, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunStoreError, match=r"metadata.json could not be written: No space left"):
        store.write_metadata({"env_id": "other"})
    assert load_metadata(store.folder)["env_id"] == "e"
    assert not list(store.folder.glob(".*.tmp"))


def test_folders_that_are_no_runs_are_named(tmp_path):
    with pytest.raises(
        RunNotFound, match=r"is not a saved run: it needs results.jsonl and metadata.json"
    ):
        RunStore.open(tmp_path)
    with pytest.raises(RunNotFound, match=r"results.jsonl does not exist"):
        load_outputs(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        load_outputs(tmp_path / "nothing")


def test_a_run_of_a_newer_format_is_refused(tmp_path):
    save_metadata({**METADATA, "format_version": 99}, tmp_path)
    with pytest.raises(
        RunStoreError, match="format version 99; this library reads versions up to 1"
    ):
        RunStore.open(tmp_path)


def test_damaged_metadata_is_named(tmp_path):
    (tmp_path / "metadata.json").write_text("{half")
    with pytest.raises(RunStoreError, match=r"metadata.json cannot be read"):
        load_metadata(tmp_path)


def test_a_run_of_0_1_14_is_continued(tmp_path, make_output):
    (tmp_path / "metadata.json").write_text(json.dumps(METADATA))
    (tmp_path / "results.jsonl").write_text('{"example_id": 0, "reward": 1.0}\n')
    with RunStore.open(tmp_path) as store:
        store.append_and_wait([make_output(1)])
        assert [o.example_id for o in store.outputs()] == [0, 1]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunStoreError, match=r"The run at .*file/run cannot be created: Not a directory"
    ):
        RunStore.create(tmp_path / "file" / "run", METADATA)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunStoreError, match="cannot be created: Permission denied"):
        RunStore.create(tmp_path / "run", METADATA)


def test_v0_writers_replace_and_append(tmp_path, make_output):
    save_outputs([make_output(0)], tmp_path / "r")
    save_new_outputs([make_output(1)], tmp_path / "r")
    assert [o.example_id for o in load_outputs(tmp_path / "r")] == [0, 1]
    save_outputs([make_output(2)], tmp_path / "r")
    assert [o.example_id for o in load_outputs(tmp_path / "r" / "results.jsonl")] == [2]


# --- damage


@given(cut=st.integers(min_value=0, max_value=400), tail=st.binary(max_size=20))
def test_wherever_a_crash_cuts_the_file_the_whole_lines_survive(cut, tail):
    outputs = [{"example_id": i, "reward": 1.0, "text": "é\n" * i} for i in range(6)]
    content = b"".join(map(encode_line, outputs))
    left = content[: min(cut, len(content))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        save_metadata(METADATA, path)
        (path / "results.jsonl").write_bytes(left + tail.replace(b"\n", b""))
        with RunStore.open(path) as store:
            kept = [dict(o) for o in store.outputs() if o.get("text") is not None]
            store.append_and_wait([{"example_id": 99}])
            assert store.damaged_lines == []
        whole = left.count(b"\n")
        assert kept[:whole] == outputs[:whole]
        assert len(kept) <= whole + 1  # a line that lacked only its line break counts
        assert load_outputs(path)[-1] == {"example_id": 99}


def test_a_half_written_last_line_is_kept_beside_the_run(tmp_path, make_output, caplog):
    save_metadata(METADATA, tmp_path)
    line = encode_line(make_output(0))
    (tmp_path / "results.jsonl").write_bytes(line + line[:30])
    assert len(load_outputs(tmp_path)) == 1
    with RunStore.open(tmp_path):
        pass
    assert (tmp_path / "results.jsonl").read_bytes() == line
    assert (tmp_path / "results.jsonl.cut").read_bytes() == line[:30] + b"\n"
    assert any("half-written line (30 bytes)" in record.getMessage() for record in caplog.records)


def test_a_very_long_half_written_line_is_cut(tmp_path):
    save_metadata(METADATA, tmp_path)
    (tmp_path / "results.jsonl").write_bytes(b'{"a": 1}\n{"text": "' + b"x" * 3_000_000)
    with RunStore.open(tmp_path):
        assert (tmp_path / "results.jsonl").read_bytes() == b'{"a": 1}\n'


def test_a_damaged_line_is_named_and_the_others_are_read(tmp_path, caplog):
    save_metadata(METADATA, tmp_path)
    (tmp_path / "results.jsonl").write_text('{"example_id": 0}\n\n{bad\n{"example_id": 1}\n')
    with pytest.raises(RunDamaged, match=r"results.jsonl, line 3 cannot be read"):
        load_outputs(tmp_path)
    with RunStore.open(tmp_path) as store, caplog.at_level(logging.WARNING):
        assert [o.example_id for o in store.outputs()] == [0, 1]
        assert [line.number for line in store.damaged_lines] == [3]
    assert "line 3" in caplog.text


def test_reading_is_a_stream(tmp_path):
    save_metadata(METADATA, tmp_path)
    (tmp_path / "results.jsonl").write_text('{"example_id": 0}\n{bad\n')
    stream = iterate_outputs(tmp_path)
    assert next(stream).example_id == 0
    with pytest.raises(RunDamaged):
        next(stream)


# --- the disk refuses

FULL_DISK = """
    import asyncio, resource, signal, sys
    from verifiers.runs.store import RunStoreError
    from verifiers.runs.store import RunStore

    async def main():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = RunStore.create(sys.argv[1], {})
        await store.append([{"example_id": 0, "text": "a" * 1000}])
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
        try:
            await store.append([{"example_id": 1, "text": "b" * 9000}])
        except RunStoreError as error:
            print(error, flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.append([{"example_id": 2}])
        store.close()

    asyncio.run(main())
"""


def test_a_full_disk_is_named_and_damages_nothing(tmp_path):
    process = python(FULL_DISK, tmp_path / "run")
    message = process.communicate(timeout=50)[0].decode()
    assert process.returncode == 0
    assert "1 finished rollouts could not be saved in" in message
    assert "File too large" in message  # a file-size limit stands in for the full disk
    assert "All rollouts saved before are intact" in message
    assert [o.example_id for o in load_outputs(tmp_path / "run")] == [0, 2]


async def test_every_group_of_a_failed_write_hears_of_it(store, make_output, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    results = await asyncio.gather(
        *(store.append([make_output(i)]) for i in range(5)), return_exceptions=True
    )
    assert all(isinstance(result, RunStoreError) for result in results)
    assert "a partial line may follow" in str(results[0])  # taking it back needed the same fsync
    monkeypatch.undo()
    await store.append([make_output(9)])
    assert [o.example_id for o in load_outputs(store.folder)] == [9]
    assert store.saved_count == 1


# --- SIGKILL

WRITER = """
    import asyncio, os, sys
    from verifiers.runs.store import RunStore

    async def main():
        store = RunStore.create_or_open(sys.argv[1], {"env_id": "e"})
        start = sum(1 for _ in store.outputs())

        async def finish(number):
            await store.append([{"example_id": number, "text": "x" * (number % 50) * 100}])
            os.write(1, b"%d\\n" % number)

        for first in range(start * 1000, start * 1000 + 100_000, 8):
            await asyncio.gather(*(finish(n) for n in range(first, first + 8)))

    asyncio.run(main())
"""


def test_killing_the_process_at_any_moment_loses_no_saved_rollout(tmp_path):
    folder = tmp_path / "run"
    acknowledged: set[int] = set()
    for kill_after in (1, 9, 150, 777):
        process = python(WRITER, folder)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(kill_after)]
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].splitlines(keepends=True)
        acknowledged |= {int(line) for line in [*lines, *rest] if line.endswith(b"\n")}
        with RunStore.open(folder) as store:
            saved = [output.example_id for output in store.outputs()]
            assert store.damaged_lines == []
        assert acknowledged <= set(saved)
        assert len(saved) == len(set(saved))


# --- one writer

HOLDER = """
    import os, sys
    from verifiers.runs.store import RunStore
    store = RunStore.create_or_open(sys.argv[1], {})
    if sys.argv[2] == "fork" and os.fork() == 0:
        os.close(1)
        sys.stdin.read()
        os._exit(0)
    os.write(1, b"held\\n")
    sys.stdin.read()
"""


def test_a_second_store_on_a_run_is_refused_until_the_first_is_closed(store):
    with pytest.raises(RunLocked, match=rf"is being written by this process \(pid {os.getpid()}\)"):
        RunStore.open(store.folder)
    store.close()
    with RunStore.open(store.folder):
        assert (store.folder / ".lock").exists()
    assert not (store.folder / ".lock").exists()


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_run_written_by_another_process_is_free_again_when_that_dies(tmp_path, how):
    process = python(HOLDER, tmp_path / "run", how)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(RunLocked, match=f"is being written by process {process.pid} on"):
        RunStore.open(tmp_path / "run")
    process.kill()
    process.wait()
    with RunStore.open(
        tmp_path / "run"
    ) as store:  # "fork": a child of the dead writer still has the lock
        store.append_and_wait([{"example_id": 0}])
    process.communicate()


# --- running again


def test_superseded_rollouts_are_moved_with_the_reason(store, make_output):
    store.append_and_wait([make_output(i) for i in range(4)])
    store.supersede({1: "the row changed", 3: "it failed"})
    store.append_and_wait([make_output(9)])
    assert [o.example_id for o in store.outputs()] == [0, 2, 9]
    moved = [
        json.loads(line) for line in (store.folder / "superseded.jsonl").read_text().splitlines()
    ]
    assert [(m["reason"], m["output"]["example_id"]) for m in moved] == [
        ("the row changed", 1),
        ("it failed", 3),
    ]
    assert moved[0]["date"].endswith("+00:00")
    store.supersede({})


def test_positions_of_superseded_rollouts_pass_over_damaged_lines(tmp_path):
    save_metadata(METADATA, tmp_path)
    (tmp_path / "results.jsonl").write_text('{bad\n{"example_id": 0}\n\n{"example_id": 1}\n')
    with RunStore.open(tmp_path) as store:
        store.supersede({1: "why"})
        assert [o.example_id for o in store.outputs()] == [0]
        assert [line.number for line in store.damaged_lines] == [1]


def test_a_move_that_a_crash_interrupted_leaves_the_run_as_it_was(store, make_output, monkeypatch):
    store.append_and_wait([make_output(i) for i in range(3)])
    real = os.fsync

    def crash(descriptor):
        real(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(RunStoreError, match=r"cannot be changed: No space left on device"):
        store.supersede({0: "why"})
    monkeypatch.undo()
    store.close()
    with RunStore.open(store.folder) as again:
        assert [o.example_id for o in again.outputs()] == [0, 1, 2]
        assert not list(store.folder.glob(".*.tmp"))
        again.supersede({0: "why"})
        assert [o.example_id for o in again.outputs()] == [1, 2]
