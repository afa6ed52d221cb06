"""A run folder that the published 0.1.14 has written: `saved_by_0_1_14/evals`, killed after 4 of 6 rollouts.

The folder was made by `vf-eval counting -m scripted -n 3 -r 2 -s` of 0.1.14. Two rollouts call a tool, one is wrong,
and one has the error of an empty reply.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest

from verifiers.runs.store import iterate_index, iterate_outputs, load_metadata, load_outputs
from verifiers.utils import path_utils, save_utils

HERE = Path(__file__).with_name("saved_by_0_1_14")
RUN = Path("evals/counting--scripted/ffa3da4d")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, in the working directory, and its environment in the path of modules."""
    shutil.copytree(HERE / "evals", "outputs/evals")
    monkeypatch.syspath_prepend(str(HERE))
    yield Path("outputs") / RUN
    sys.modules.pop("counting", None)


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_the_readers_return_its_rollouts(folder):
    outputs = load_outputs(folder)
    assert [dict(output) for output in outputs] == lines_of(HERE / RUN)
    assert list(iterate_outputs(folder)) == outputs
    entries = list(iterate_index(folder))
    assert [(entry.output["example_id"], entry.output["reward"]) for entry in entries] == [
        (output["example_id"], output["reward"]) for output in outputs
    ]
    assert [output["reward"] for output in save_utils.load_outputs(folder)] == [1.0, 0.0, 1.0, 0.0]
    assert load_metadata(folder)["version_info"]["vf_version"] == "0.1.14"
    assert path_utils.is_valid_eval_results_path(folder)


def test_it_is_found_as_the_latest_incomplete_run(folder):
    found = path_utils.find_latest_incomplete_eval_results_path("counting", "scripted", 3, 2)
    assert found == folder
    save_utils.validate_resume_metadata(folder, "counting", "scripted", 3, 2)
    with pytest.raises(ValueError, match="cannot be continued"):
        save_utils.validate_resume_metadata(folder, "counting", "other", 3, 2)


@pytest.mark.parametrize("named", [True, False], ids=["by path", "the latest"])
def test_it_is_resumed(folder, run, endpoint, named):
    resume = ("--resume", folder) if named else ("--resume",)
    done = run(
        "eval",
        *("counting", "-m", "scripted", "-b", endpoint.url, "-n", 3, "-r", 2, "-s", "--json"),
        *resume,
    )
    assert done.code == 0, done.err
    [report] = done.json["evaluations"]
    assert Path(report["saved_to"]) == folder
    assert len(endpoint.requests) == 3  # both of example 2, and the empty reply again
    before, after = lines_of(HERE / RUN), lines_of(folder)
    assert after[:3] == [line for line in before if line["error"] is None]
    assert [line["example_id"] for line in after[:3]] == [1, 0, 0]
    assert sorted(line["example_id"] for line in after[3:]) == [1, 2, 2]
    assert [line["reward"] for line in after] == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert (folder / "superseded.jsonl").read_text().count("EmptyModelResponseError") >= 1
    assert report["summary"]["rollouts"] == 6
    metadata = load_metadata(folder)
    assert metadata["avg_reward"] == pytest.approx(5 / 6)
    assert metadata["avg_metrics"]["add_calls"] == pytest.approx(2 / 6)
