import json
import os
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest
from conversations import conversations
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers.tokens import TokenGraph
from verifiers.tokens.token_file import INDEX_FILE, TOKENS_FILE, TokenFile, TokenFileError


def trajectory(turns):
    graph = TokenGraph()
    return [{"tokens": graph.commit(turn)} for turn in turns]


def turn(prompt, completion, **more):
    return {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "completion_logprobs": [-0.5] * len(completion),
        **more,
    }


@settings(max_examples=40)
@given(st.lists(conversations(max_turns=4), min_size=1, max_size=4))
def test_every_rollout_reads_back_as_it_was(tmp_path_factory, many):
    folder = tmp_path_factory.mktemp("run")
    trajectories = {f"r{n}": trajectory(turns) for n, turns in enumerate(many)}
    with TokenFile(folder) as file:
        for key, steps in trajectories.items():
            file.append({key: steps}, sync=False)
    with TokenFile(folder, read_only=True) as file:
        assert list(file) == list(trajectories)
        for key, steps in trajectories.items():
            read = file.read(key)
            assert [dict(one) for one in read] == [dict(step["tokens"]) for step in steps]
            assert len(read[0].graph.chains) == len(steps[0]["tokens"].graph.chains)


def test_what_is_not_a_token_is_kept_too(tmp_path):
    more = {
        "routed_experts": [[[1, 2]], [[3, 70000]]],
        "versions": [4, 5],
        "multi_modal_data": {"image": "x"},
        "completion_mask": [0, 1],
        "is_truncated": True,
    }
    steps = [*trajectory([turn([1], [2, 3], **more), turn([9], [8], versions=7)]), {"tokens": None}]
    with TokenFile(tmp_path) as file:
        file.append({"a": steps})
        first, second, third = file.read("a")
    assert dict(first) == dict(steps[0]["tokens"])
    assert (first.versions, second.versions, third) == ([4, 5], 7, None)


def test_plain_dicts_of_an_environments_own_steps_share_their_tokens_too(tmp_path):
    steps = [{"tokens": turn([1, 2], [3])}, {"tokens": turn([1, 2, 3, 4], [5])}]
    with TokenFile(tmp_path) as file:
        file.append({"a": steps})
        read = file.read("a")
    assert read[1]["prompt_ids"] == [1, 2, 3, 4]
    assert len(read[0].graph.chains) == 1


def test_any_arrow_reader_opens_the_file(tmp_path):
    with TokenFile(tmp_path) as file:
        file.append({"a": trajectory([turn([1, 2], [3])])})
        file.append({"b": trajectory([turn([4], [5])])})
    with pa.ipc.open_stream(tmp_path / TOKENS_FILE) as reader:
        table = reader.read_all()
    assert table.column("key").to_pylist() == ["a", "b"]
    assert table.column("chains").to_pylist()[0][0]["ids"] == [1, 2, 3]


def filled(folder, count=3):
    with TokenFile(folder) as file:
        for number in range(count):
            file.append({f"r{number}": trajectory([turn([number], [number + 1])])})
    return folder / TOKENS_FILE, folder / INDEX_FILE


@given(cut=st.integers(0, 10_000))
@settings(max_examples=60)
def test_a_write_that_a_crash_cut_short_costs_only_its_own_rollouts(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("run")
    tokens, _ = filled(folder)
    whole = tokens.read_bytes()
    kept = whole[: min(cut, len(whole) - 1)]
    tokens.write_bytes(kept)
    with TokenFile(folder) as file:
        survivors = list(file)
        assert survivors == [f"r{n}" for n in range(len(survivors))]
        assert len(survivors) < 3
        for number, key in enumerate(survivors):
            assert file.read(key)[0]["prompt_ids"] == [number]
        file.append({"new": trajectory([turn([7], [8])])})
    with TokenFile(folder, read_only=True) as file:
        assert list(file) == [*survivors, "new"]
        assert file.read("new")[0]["completion_ids"] == [8]


@pytest.mark.parametrize(
    "damage", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-9])]
)
def test_a_lost_or_cut_index_is_made_again(tmp_path, damage):
    _, index = filled(tmp_path)
    before = index.read_text()
    damage(index)
    with TokenFile(tmp_path, read_only=True) as file:
        assert list(file) == ["r0", "r1", "r2"]
    with TokenFile(tmp_path) as file:
        assert file.read("r2")[0]["prompt_ids"] == [2]
    assert index.read_text() == before


def test_a_killed_writer_loses_nothing_that_append_returned_for(tmp_path):
    program = textwrap.dedent(
        """
        import sys
        from verifiers.tokens import TokenGraph
        from verifiers.tokens.token_file import TokenFile
        with TokenFile(sys.argv[1]) as file:
            for number in range(10**6):
                turn = {"prompt_ids": [number], "completion_ids": [1], "completion_logprobs": [-1.0]}
                file.append({str(number): [{"tokens": TokenGraph().commit(turn)}]})
                print(number, flush=True)
        """
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    reported = -1
    for line in writer.stdout:
        reported = int(line)
        if reported >= 20:
            writer.kill()
            break
    reported = max([reported, *map(int, writer.stdout.read().split())])
    writer.stdout.close()
    writer.wait()
    with TokenFile(tmp_path) as file:
        assert len(file) >= reported + 1
        assert all(file.read(str(n))[0]["prompt_ids"] == [n] for n in range(reported + 1))


def test_the_latest_trajectory_of_a_key_is_the_one_that_is_read(tmp_path):
    with TokenFile(tmp_path) as file:
        file.append({"a": trajectory([turn([1], [2])])})
        file.append({"a": trajectory([turn([3], [4])])})
        assert file.read("a")[0]["prompt_ids"] == [3]
    with TokenFile(tmp_path, read_only=True) as file:
        assert file.read("a")[0]["prompt_ids"] == [3]
        with pytest.raises(KeyError):
            file.read("b")


def test_another_file_of_that_name_is_not_overwritten(tmp_path):
    (tmp_path / TOKENS_FILE).write_bytes(b"something else")
    with pytest.raises(TokenFileError, match="move it away"), TokenFile(tmp_path):
        pass
    assert (tmp_path / TOKENS_FILE).read_bytes() == b"something else"


def test_a_missing_file_and_a_closed_one_say_so(tmp_path):
    with (
        pytest.raises(TokenFileError, match="no saved tokens"),
        TokenFile(tmp_path, read_only=True),
    ):
        pass
    with TokenFile(tmp_path) as file:
        pass
    with pytest.raises(TokenFileError, match="not open"):
        file.append({"a": []})


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_an_error_that_leaves_the_file_whole(tmp_path):
    tokens, index = filled(tmp_path)
    before = tokens.read_bytes(), json.dumps(index.read_text())
    with TokenFile(tmp_path) as file:
        full = os.open("/dev/full", os.O_WRONLY)
        own, file._tokens = file._tokens, full
        with pytest.raises(TokenFileError, match="could not be saved"):
            file.append({"x": trajectory([turn([1], [2])])})
        file._tokens = own
        os.close(full)
        assert list(file) == ["r0", "r1", "r2"]
    assert before == (tokens.read_bytes(), json.dumps(index.read_text()))
