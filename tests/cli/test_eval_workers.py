"""`vf-eval --num-workers`: the same results from processes of their own."""

import json
from pathlib import Path


def test_rollouts_run_in_other_processes_and_are_saved_as_ever(run, endpoint, make_environment):
    environment = make_environment()
    asked = ("-b", endpoint.url, "-m", "sums", "-n", 4, "-r", 2, "--json")

    here = run("eval", environment, *asked)
    there = run("eval", environment, *asked, "-s", "--num-workers", 2)

    assert (here.code, there.code) == (0, 0), there.err
    [mine], [its] = here.json["evaluations"], there.json["evaluations"]
    assert its["summary"]["reward"] == mine["summary"]["reward"]
    lines = (Path(its["saved_to"]) / "results.jsonl").read_text().splitlines()
    assert len([json.loads(line)["reward"] for line in lines]) == 8
    assert "Process" not in there.err
