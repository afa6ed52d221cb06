import json

import pytest
from conversations import conversations
from hypothesis import given, settings
from rollouts import rollout, turn

from verifiers.training.exports import (
    preference_rows,
    read_jsonl,
    read_parquet,
    sft_rows,
    to_arrow,
    to_dataset,
    write_jsonl,
    write_parquet,
)
from verifiers.training.samples import SampleError, samples_of


def same(one, other):
    for name in ("token_ids", "mask", "logprobs"):
        assert getattr(one, name).dtype == getattr(other, name).dtype
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.token_advantages().tolist() == other.token_advantages().tolist()
    assert (one.versions is None) == (other.versions is None)
    assert one.versions is None or one.versions.tolist() == other.versions.tolist()
    for name in ("prompt_len", "reward", "group_id", "rollout_id", "is_truncated", "temperature"):
        assert getattr(one, name) == getattr(other, name)


@settings(max_examples=30)
@given(conversations(max_turns=4))
def test_samples_survive_jsonl_and_parquet(tmp_path_factory, turns):
    folder = tmp_path_factory.mktemp("samples")
    output = rollout(turns, reward=0.25, steps={0: {"advantage": -1.5}})
    samples = [s.with_advantage(0.75) for s in samples_of(output, group_id="g")]
    assert write_jsonl(samples, folder / "s.jsonl") == len(samples)
    for one, other in zip(samples, read_jsonl(folder / "s.jsonl"), strict=True):
        same(one, other)
    write_parquet(samples, folder / "s.parquet")
    for one, other in zip(samples, read_parquet(folder / "s.parquet"), strict=True):
        same(one, other)
    assert sorted(path.name for path in folder.iterdir()) == ["s.jsonl", "s.parquet"]


def test_versions_survive_too_and_a_table_has_narrow_types():
    samples = samples_of(rollout([turn([1], [2], versions=3)]))
    table = to_arrow(samples)
    assert str(table.schema.field("token_ids").type) == "list<item: int32>"
    assert str(table.schema.field("logprobs").type) == "list<item: float>"
    assert table.column("versions").to_pylist() == [[-1, 3]]


def test_a_line_that_is_no_sample_is_named(tmp_path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"token_ids": [1]}\n')
    with pytest.raises(SampleError, match="line 1"):
        list(read_jsonl(path))


def said(content, reward, example_id=0, **more):
    return {
        "example_id": example_id,
        "prompt": [{"role": "user", "content": "q"}],
        "completion": [{"role": "assistant", "content": content, "reasoning_content": None}],
        "reward": reward,
        "error": None,
        "errors": [],
        "is_truncated": False,
        **more,
    }


def test_rollouts_that_did_well_become_rows_to_imitate():
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    with_tool = said("c", 1.0, tool_defs=[{"name": "add", "description": "", "parameters": {}}])
    with_tool["completion"][0]["tool_calls"] = [call]
    outputs = [
        said("a", 1.0),
        said("b", 0.2),
        with_tool,
        said("d", 1.0, is_truncated=True),
        said("e", 1.0, error={"error": "ToolError"}),
        said("f", 1.0, errors=[{"message": "x"}]),
    ]
    rows = sft_rows(outputs, min_reward=0.5)
    assert [row["completion"][0]["content"] for row in rows] == ["a", "c"]
    assert rows[0]["completion"] == [{"role": "assistant", "content": "a"}]
    dataset = to_dataset(rows)
    assert dataset[1]["prompt"] == [{"role": "user", "content": "q"}]
    assert json.loads(dataset[1]["completion"][0]["tool_calls"]) == [call]
    assert json.loads(dataset[1]["tools"])[0]["name"] == "add"


def test_the_best_against_the_worst_of_an_example_becomes_a_preference():
    outputs = [
        said("good", 1.0),
        said("bad", 0.0),
        said("middle", 0.5),
        said("failed", -1.0, error={"error": "x"}),
        said("same", 0.5, example_id=1),
        said("same too", 0.5, example_id=1),
    ]
    [row] = preference_rows(outputs)
    assert row["chosen"][0]["content"] == "good"
    assert row["rejected"][0]["content"] == "bad"
    assert row["margin"] == 1.0
    assert to_dataset([row])[0]["margin"] == 1.0
    assert preference_rows(outputs, min_margin=1.0) == []
