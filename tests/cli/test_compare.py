"""`vf-compare` and `vf-plan`."""

import json
from xml.etree import ElementTree

import pytest

from verifiers.runs.store import RunStore


@pytest.fixture
def runs(tmp_path):
    """Three runs of 40 examples with two rollouts: b is better than a, c equals a."""
    folders = []
    for name, shift in (("a", 0.0), ("b", 0.3), ("c", 0.0)):
        with RunStore.create(
            tmp_path / name, {"env_id": "demo", "model": f"model-{name}"}
        ) as store:
            store.append_and_wait(
                [
                    {
                        "example_id": e,
                        "input_key": f"{e:064x}",
                        "reward": min(1.0, 0.1 * (e % 7) + shift + 0.02 * r),
                        "metrics": {},
                    }
                    for e in range(40)
                    for r in range(2)
                ]
            )
        folders.append(str(tmp_path / name))
    return folders


def test_two_runs_are_compared_in_words_and_numbers(run, runs):
    done = run("compare", *runs[:2])
    assert done.code == 0
    assert done.out.startswith("model-b is better than model-a: +0.")
    for text in ("pass@2", "paired t", "detects a true difference of", "40 examples won"):
        assert text in done.out


def test_several_candidates_have_ranks(run, runs):
    done = run("compare", *runs)
    assert "all 2 candidates together" in done.out
    assert "2–3" in done.out


def test_json_is_one_document(run, runs):
    values = run("compare", *runs, "--json").json
    assert [one["candidate"] for one in values["comparisons"]] == ["model-b", "model-c"]
    assert values["runs"][1]["ranks"] == [1, 1]
    assert values["gate"] is None


def test_a_gate_decides_the_exit_code_and_writes_reports(run, runs, tmp_path):
    policy, page, junit = (tmp_path / name for name in ("policy.toml", "report.md", "report.xml"))
    policy.write_text('[reward]\ntest = "superiority"\nmargin = 0.1\n')
    options = ("--gate", policy, "--markdown", page, "--junit", junit)
    passed = run("compare", *runs[:2], *options)
    assert (passed.code, passed.out.strip().splitlines()[-1]) == (0, "gate: PASS")
    assert "**Gate: PASS**" in page.read_text()
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    failed = run("compare", runs[1], runs[0], *options)
    assert failed.code == 1
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    policy.write_text("[reward]\nmargin = 0.0\nat_least = 0.3\n")
    assert run("compare", runs[0], runs[2], "--gate", policy, "--json").json["gate"]["outcome"] in (
        "PASS",
        "INCONCLUSIVE",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["A"], "needs 2 to 8 runs"),
        (["A", "nowhere"], "nowhere is not a saved run"),
        (["A", "B", "--junit", "x.xml"], "add --gate"),
        (["A", "B", "--gate", "none.toml"], "cannot be read"),
        (["A", "B", "--markdown", "no/folder/x.md"], "cannot be written"),
        (["A", "B", "--cluster", "info.x"], "has the field 'info.x'"),
    ],
)
def test_wrong_usage_is_an_error_with_the_way_out(run, runs, arguments, message):
    names = dict(zip("ABC", runs, strict=True))
    done = run("compare", *(names.get(one, one) for one in arguments))
    assert done.code not in (0, None)
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_plan_shows_examples_by_effect_and_rollouts(run, runs):
    done = run("plan", runs[0])
    assert done.code == 0
    assert "r = 16" in done.out
    values = run("plan", runs[0], "-e", "0.05", "--json").json
    assert len(values["needed_examples"]) == 5
    assert json.dumps(values)
    refused = run("plan", *runs)
    assert "one pilot run or two runs; got 3" in refused.err
