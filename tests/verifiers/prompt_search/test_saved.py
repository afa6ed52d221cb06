"""The folder of a finished prompt search; this module needs no gepa package."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from verifiers.gepa.gepa_utils import save_gepa_results

FOUND = SimpleNamespace(
    best_idx=1,
    best_candidate={"system_prompt": "B\nline"},
    candidates=[{"system_prompt": "A"}, {"system_prompt": "B\nline"}, {"system_prompt": "C"}],
    val_aggregate_scores=[0.2, 0.5, None],
    val_subscores=[{0: 0.0, 1: 0.5}, {0: 0.5, 1: 0.5}, {}],
    parents=[[None], [0], [0, 1]],
    discovery_eval_counts=[0, 5, 9],
    total_metric_calls=20,
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def saved(folder: Path, result: Any, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Name → content of every file; lines as objects."""
    save_gepa_results(folder, result, config)
    found: dict[str, Any] = {}
    for path in folder.iterdir():
        text = path.read_text()
        if path.suffix == ".jsonl":
            found[path.name] = [json.loads(line) for line in text.splitlines()]
        else:
            found[path.name] = json.loads(text) if path.suffix == ".json" else text
    return found


def test_every_candidate_is_a_line_with_its_scores_and_its_difference(tmp_path: Path) -> None:
    files = saved(tmp_path, FOUND)
    assert files["system_prompt.txt"] == "B\nline"
    first, second, third = files["results.jsonl"]
    assert second == {
        "example_id": 1,
        "reward": 0.5,
        "score": 0.5,
        "info": {
            "schema_version": "verifiers.gepa.v1",
            "eval_kind": "gepa",
            "sample_type": "gepa_candidate",
            "optimization_target": "system_prompt",
            "candidate_idx": 1,
            "is_best": True,
            "system_prompt": "B\nline",
            "system_prompt_sha256": sha("B\nline"),
            "diff_from_initial": "--- initial/system_prompt.txt\n+++ candidate/system_prompt.txt\n"
            "@@ -1 +1,2 @@\n-A\n+B\n+line\n",
            "parent_candidate_idxs": [0],
            "val_subscores": {"0": 0.5, "1": 0.5},
            "num_val_examples": 2,
            "discovery_metric_calls": 5,
        },
    }
    assert (first["info"]["diff_from_initial"], first["info"]["parent_candidate_idxs"]) == ("", [])
    assert (third["reward"], third["score"]) == (0.0, None)
    assert "task" not in first
    assert not (tmp_path / "best_prompt.txt").exists()


def test_the_best_candidates_of_each_validation_row_are_listed(tmp_path: Path) -> None:
    lines = saved(tmp_path, FOUND)["pareto_frontier.jsonl"]
    assert [(line["valset_row"], line["num_best_candidates"]) for line in lines] == [(0, 1), (1, 2)]
    assert lines[0] == {
        "schema_version": "verifiers.gepa.v1",
        "valset_row": 0,
        "best_score": 0.5,
        "num_best_candidates": 1,
        "best_candidates": [
            {"candidate_idx": 1, "system_prompt_sha256": sha("B\nline"), "score": 0.5}
        ],
    }


def test_the_metadata_describes_the_search(tmp_path: Path) -> None:
    config = {"env_id": "e", "model": "m", "reflection_model": "r", "seed": 3, "run_dir": Path("x")}
    metadata = saved(tmp_path, FOUND, config)["metadata.json"]
    assert metadata.pop("completed_at")
    assert metadata == {
        "schema_version": "verifiers.gepa.v1",
        "eval_kind": "gepa",
        "framework": "verifiers",
        "optimizer": "gepa",
        "optimization_target": "system_prompt",
        "env_id": "e",
        "model": "m",
        "reflection_model": "r",
        "num_candidates": 3,
        "best_idx": 1,
        "best_score": 0.5,
        "total_metric_calls": 20,
        "initial_prompt_sha256": sha("A"),
        "best_prompt_sha256": sha("B\nline"),
        "system_prompt_path": "system_prompt.txt",
        "results_path": "results.jsonl",
        "config": {**config, "run_dir": "x"},
    }


@pytest.mark.parametrize(
    ("result", "prompt", "lines"),
    [
        (SimpleNamespace(best_candidate={"system_prompt": "only"}), "only", 1),
        ({"best_candidate": "text", "best_idx": 0}, "text", 1),
        (SimpleNamespace(), "", 0),
        (SimpleNamespace(best_idx=1, candidates=["x", "y"]), "y", 2),
    ],
)
def test_a_result_with_few_fields_is_saved(
    tmp_path: Path, result: Any, prompt: str, lines: int
) -> None:
    files = saved(tmp_path, result)
    assert files["system_prompt.txt"] == prompt
    assert len(files["results.jsonl"]) == files["metadata.json"]["num_candidates"] == lines
    assert files["metadata.json"]["best_score"] is None
    assert "pareto_frontier.jsonl" not in files
    assert "config" not in files["metadata.json"]
    for line in files["results.jsonl"]:
        assert "discovery_metric_calls" not in line["info"]
