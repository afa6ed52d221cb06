"""`vf-gepa` with the embedded model: the whole way, on this machine only."""

import json
from pathlib import Path

import pytest

from verifiers.endpoint.process import endpoint_process

pytest.importorskip("gepa", reason="the extra gepa is not installed")


def test_a_search_with_the_embedded_model_saves_what_it_found(run, make_environment):
    path = make_environment()
    with endpoint_process() as embedded:
        options = ("-b", embedded.base_url, "-m", "embedded", "-n", 2, "-N", 2, "-B", 8)
        done = run("gepa", path, *options, "-S", '{"max_tokens": 8}', "-o", "found", "--json")

    assert done.code == 0, done.err
    assert done.json["calls"] >= 2
    assert done.json["saved_to"] == "found"
    assert Path("found/system_prompt.txt").read_text() == done.json["best_prompt"]
    metadata = json.loads(Path("found/metadata.json").read_text())
    assert metadata["total_metric_calls"] == done.json["calls"]
    assert metadata["config"]["num_train"] == 2
    lines = Path("found/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["score"] for line in lines] == [
        score for _, score in done.json["candidates"]
    ]


def test_one_ctrl_c_ends_a_search(run, make_environment, endpoint_that, ctrl_c_when):
    path, endpoint = make_environment(), endpoint_that(hold_after=0)
    ctrl_c_when(endpoint.is_holding)

    done = run("gepa", path, "-b", endpoint.url, "-m", "sums", "-n", 2, "-N", 2, "-B", 8)

    assert (done.code, done.out) == (130, ""), done.err
    assert "Interrupted." in done.err
    assert len(endpoint.requests) <= 2, "the search continued"


def test_wrong_usage_is_exit_code_2(run, make_environment):
    Path("c.toml").write_text('[env]\nenv_id = "x"\nenv_argz = {}\n')
    assert run("gepa", "c.toml").code == 2
    assert run("gepa", "x", "-B", 0).code == 2
    assert run("gepa", "x", "-a", "[").code == 2
