"""`vf-rescore`."""

import pytest

import verifiers as vf
from verifiers.runs.store import load_outputs
from verifiers.testing import ScriptedClient

FILE = """
import verifiers as vf


def right(completion, answer):
    return float(answer in completion[-1]["content"])


def load_environment(count=3):
    rows = [{"question": str(n), "answer": str(n)} for n in range(count)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[right]))
"""


@pytest.fixture
def folder(tmp_path):
    env = vf.SingleTurnEnv(
        dataset=[{"question": str(n), "answer": str(n)} for n in range(3)], rubric=vf.Rubric()
    )
    env.evaluate_sync(ScriptedClient([], then="1"), "m", results_path=tmp_path / "run")
    return tmp_path / "run"


def test_a_run_is_scored_with_a_rubric_of_a_file(run, folder, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    done = run("rescore", folder, "--rubric", f"{tmp_path}/mine.py:right", "--author", "ann")
    assert done.code == 0
    assert "3 rollouts scored again; 1 rewards changed" in done.out
    assert "were added to score_history" in done.out
    assert [one["score_history"][0]["author"] for one in load_outputs(folder)] == ["ann"] * 3
    assert {one["reward"] for one in load_outputs(folder)} == {0.0}


def test_a_run_is_scored_with_the_present_rubric_of_its_environment(run, folder, tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    done = run("rescore", folder, "--env", tmp_path / "mine.py", "--overwrite", "--json")
    assert done.json["new_mean"] == pytest.approx(1 / 3)
    assert sorted(one["reward"] for one in load_outputs(folder)) == [0.0, 0.0, 1.0]
    nothing = run("rescore", folder, "--env", tmp_path / "mine.py", "--failed")
    assert "0 rollouts scored again, 3 kept their scores" in nothing.out


def test_wrong_usage_is_an_error_with_the_way_out(run, folder, tmp_path):
    assert "is not a saved run" in run("rescore", tmp_path / "none").err
    assert "file.py:object" in run("rescore", folder, "--rubric", "x").err
    (tmp_path / "broken.py").write_text("def bad(completion):\n    raise ValueError('no')\n")
    done = run("rescore", folder, "--rubric", f"{tmp_path}/broken.py:bad")
    assert done.code == 1
    assert "3 rollouts have no score" in done.err
