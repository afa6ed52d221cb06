"""`vf-export`."""

import json

from verifiers.runs.store import RunStore


def test_rollouts_messages_and_results_are_written(run, tmp_path):
    folder = tmp_path / "run"
    with RunStore.create(folder, {"env_id": "e", "model": "m", "avg_reward": 1.0}) as store:
        message = {"role": "user", "content": "hi"}
        store.append_and_wait(
            [
                {
                    "example_id": 0,
                    "prompt": [message],
                    "completion": [],
                    "reward": 1.0,
                    "answer": "x",
                    "metrics": {},
                }
            ]
        )
    done = run("export", folder, "--to", tmp_path / "t.jsonl", "--column", "answer")
    assert (done.code, done.out.split(" written")[0]) == (0, "1 rollouts")
    assert json.loads((tmp_path / "t.jsonl").read_text())["answer"] == "x"
    assert run("export", folder, "-t", "messages", "-o", tmp_path / "m.csv").code == 0
    assert "hi" in (tmp_path / "m.csv").read_text()
    done = run("export", folder, "-o", tmp_path / "r.yaml", "--benchmark", "o/b")
    assert done.code == 0
    assert "o/b" in (tmp_path / "r.yaml").read_text()


def test_wrong_usage_is_an_error_with_the_way_out(run, tmp_path):
    assert "no run at or below" in run("export", tmp_path, "-o", "t.csv").err
    done = run("export", tmp_path, "-o", "r.yaml")
    assert done.code != 0
    assert "--benchmark" in done.err
