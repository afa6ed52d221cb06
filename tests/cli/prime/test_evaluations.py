"""Runs: evaluating what is on the hub, and putting the results there."""

import json
import shutil
from pathlib import Path

import pytest

from verifiers.hub import evaluations
from verifiers.hub.client import HubClient
from verifiers.hub.config import hub_settings
from verifiers.hub.evaluations import InterruptedPush, RunPush, metrics_of, push_run

CODE = """
import verifiers as vf


def is_right(completion, answer):
    return 1.0 if f"<answer>{answer}</answer>" in completion[-1]["content"] else 0.0


def load_environment():
    rows = [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(6)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[is_right]))
"""


@pytest.fixture
def published(prime, alice, make_project):
    """`owner/name` of an environment on the hub that can be evaluated."""
    folder = make_project(code=CODE)
    done = prime("env", "push", "-p", folder, "--json")
    assert done.code == 0, done.err
    return done.json["environment"]


def write_run(folder: Path, *, rows: int = 4, env_id: str = "some-env", **metadata) -> Path:
    """A run folder as 0.1.14 writes it."""
    folder.mkdir(parents=True)
    known = {"env_id": env_id, "model": "m/x", "avg_reward": 0.5, "avg_metrics": {"is_right": 0.5}}
    (folder / "metadata.json").write_text(json.dumps({**known, **metadata}))
    lines = [
        json.dumps({"example_id": row // 2, "reward": row % 2, "prompt": [], "completion": []})
        for row in range(rows)
    ]
    (folder / "results.jsonl").write_text("".join(line + "\n" for line in lines))
    return folder


@pytest.mark.timeout(
    300
)  # three processes that import everything, on machines that do other things
def test_a_run_of_a_hub_environment_installs_it_when_told_and_is_pushed(
    published, target, start_in, endpoint, prime
):
    model = ("-m", "any", "-b", endpoint.url, "-n", "3", "-r", "2")
    entry = "vf_cli.main:eval_main"
    unsure = start_in(target.python, entry, published, *model)
    _, err = unsure.communicate(timeout=90)
    assert (unsure.returncode, "Not installed" in err, "--yes" in err) == (2, True, True)
    run = start_in(target.python, entry, f"{published}@0.1.0", *model, "--yes", "--push", "--json")
    out, err = run.communicate(timeout=90)
    assert run.returncode == 0, err
    [report] = json.loads(out)["evaluations"]
    assert report["pushed"]["samples"] == 6
    evaluation = prime("eval", "get", report["pushed"]["evaluation_id"]).json
    assert evaluation["status"] == "COMPLETED"
    assert [(e["name"], e["version"]) for e in evaluation["environments"]] == [(published, "0.1.0")]
    assert evaluation["metrics"]["reward"] == 1.0
    assert evaluation["is_public"] is False
    other = start_in(target.python, entry, f"{published}@0.2.0", *model)
    _, err = other.communicate(timeout=90)
    assert (other.returncode, "0.1.0 is installed" in err) == (2, True)


def test_a_push_that_cannot_work_is_said_before_anything_is_spent(
    prime, alice, endpoint, make_project, as_person
):
    folder = make_project(code=CODE)
    arguments = (f"./{folder}", "-m", "any", "-b", endpoint.url, "--push")
    unknown = prime("eval", "run", *arguments)
    assert (unknown.code, "prime env push" in unknown.err) == (2, True)
    as_person(None)
    no_key = prime("eval", *arguments)
    assert (no_key.code, "prime login" in no_key.err) == (2, True)
    assert endpoint.requests == []
    assert prime("eval", "run", str(folder), "--hosted").code == 2


def test_a_folder_that_was_pushed_knows_where_its_runs_belong(prime, alice, endpoint, make_project):
    folder = make_project(code=CODE)
    prime("env", "push", "-p", folder)
    done = prime(
        "eval", f"./{folder}", "-m", "any", "-b", endpoint.url, "-n", 2, "-r", 1, "--push", "--json"
    )
    assert done.code == 0, done.err
    [report] = done.json["evaluations"]
    assert report["pushed"]["environment"] == f"alice/{folder.name.replace('_', '-')}"
    assert Path(report["saved_to"]).is_dir()


def test_a_run_folder_of_0_1_14_is_pushed(prime, published, tmp_path):
    saved = Path(__file__).parents[1] / "saved_by_0_1_14" / "evals"
    shutil.copytree(saved, tmp_path / "evals")
    folder = tmp_path / "evals/counting--scripted/ffa3da4d"
    done = prime("eval", "push", folder, "--env", published, "--json")
    assert done.code == 0, done.err
    evaluation = prime("eval", "get", done.json["evaluation_id"]).json
    assert (evaluation["status"], evaluation["model_name"]) == ("COMPLETED", "scripted")
    assert evaluation["metrics"]["reward"] == 0.5
    samples = prime("eval", "samples", done.json["evaluation_id"], "--json").json["samples"]
    assert sorted(sample["reward"] for sample in samples) == [0.0, 0.0, 1.0, 1.0]
    assert {len(sample["completion"]) for sample in samples} == {0, 1, 3}


def test_a_run_that_cannot_be_pushed_is_kept_and_exit_1(
    prime, as_person, relay, endpoint, make_project
):
    as_person("alice", relay.url)
    folder = make_project(code=CODE)
    prime("env", "push", "-p", folder)
    relay.statuses = [("/evaluations/", 500)]
    done = prime(
        "eval", f"./{folder}", "-m", "any", "-b", endpoint.url, "-n", 2, "-r", 1, "--push", "--json"
    )
    assert (done.code, done.json["exit_code"]) == (1, 1)
    assert done.json["evaluations"][0]["pushed"] is None
    saved = done.json["evaluations"][0]["saved_to"]
    command = done.err.partition("prime eval push ")[2].split()
    assert (command[0], command[1]) == (saved, "--env")
    assert prime("eval", "push", *command).code == 0


def test_saved_runs_are_pushed_listed_and_read(prime, published):
    run = write_run(Path("run"), rows=5, version_info={"env_version": "0.1.0"})
    refused = prime("eval", "push", run)
    assert (refused.code, "--env owner/name" in refused.err) == (2, True)
    pushed = prime("eval", "push", run, "--env", published, "--name", "mine", "--public", "--json")
    assert pushed.code == 0, pushed.err
    evaluation_id = pushed.json["evaluation_id"]
    assert pushed.json["samples"] == 5
    got = prime("eval", "get", evaluation_id).json
    assert (got["name"], got["is_public"], got["metrics"]["is_right"]) == ("mine", True, 0.5)
    assert f"{published}@0.1.0" in prime("eval", "get", evaluation_id, "-o", "table").out
    [listed] = prime("eval", "list", "--env", published, "--json").json["evaluations"]
    assert listed["evaluation_id"] == evaluation_id
    page = prime("eval", "samples", evaluation_id, "--num", "2", "--page", "3").json
    assert (len(page["samples"]), page["total"], page["has_more"]) == (1, 5, False)
    table = prime("eval", "samples", evaluation_id, "-o", "table").out
    assert len(table.splitlines()) == 7
    assert evaluation_id in prime("eval", "list", "--plain").out
    assert evaluation_id in prime("eval", "list", "--env", f"{published}@0.1.0", "--plain").out
    again = prime("eval", "push", run, "--env", published, "--eval", evaluation_id)
    assert again.code == 0, again.err
    assert prime("eval", "get", evaluation_id).json["total_samples"] == 5
    assert prime("eval", "get", "nope").code == 1
    wrong = prime("eval", "list", "--env", "a/b/c")
    assert (wrong.code, "owner/name" in wrong.err) == (2, True)


def test_an_interrupted_push_is_continued_without_counting_anything_twice(
    prime, as_person, published, relay, monkeypatch
):
    monkeypatch.setattr(evaluations, "MAX_BATCH_ROWS", 10)
    as_person("alice", relay.url)
    run = write_run(Path("run"), rows=95)
    relay.statuses = [("/samples", 503)] * 2 + [("/samples", 400)]
    failed = prime("eval", "push", run, "--env", published)
    assert failed.code == 1
    command = failed.err.partition("prime eval push ")[2].split()
    assert command[:4:2] == ["run", published], failed.err
    done = prime("eval", "push", *command)
    assert done.code == 0, done.err
    evaluation = prime("eval", "get", command[4]).json
    assert (evaluation["status"], evaluation["total_samples"]) == ("COMPLETED", 95)


def test_ctrl_c_during_a_push_is_130_and_names_the_command_that_continues(
    prime, as_person, published, relay, ctrl_c_when
):
    as_person("alice", relay.url)
    run = write_run(Path("run"), rows=5)
    relay.stalls_uploads = True
    ctrl_c_when(relay.stalled)
    failed = prime("eval", "push", run, "--env", published)
    assert (failed.code, failed.out) == (130, ""), failed.err
    assert "Interrupted. 0 rollouts are on the hub." in failed.err
    relay.stalls_uploads = False
    command = failed.err.partition("prime eval push ")[2].split()[:5]
    done = prime("eval", "push", *command)
    assert done.code == 0, done.err


def test_damaged_lines_are_left_out_and_said(prime, published):
    run = write_run(Path("run"))
    with (run / "results.jsonl").open("a") as file:
        file.write('{"example_id": 9, "rew\n{"example_id": 10, "reward": 1.0}\n')
    done = prime("eval", "push", run, "--env", published, "--json")
    assert (done.code, done.json["samples"]) == (0, 5)
    assert [line["number"] for line in done.json["damaged"]] == [5]
    assert "Line 5" in done.err


def test_all_runs_here_are_pushed_and_each_failure_is_said(prime, published):
    write_run(Path("outputs/evals/a--m/1"), env_id=published)
    write_run(Path("outputs/evals/b--m/2"), env_id="unknown-env")
    done = prime("eval", "push", "--json")
    assert done.code == 1
    assert [one["status"] for one in done.json["results"]] == ["success", "failed"]
    assert prime("eval", "push", "--eval", "x").code == 2


@pytest.mark.parametrize("what", ["nothing", "no metadata", "no model"])
def test_folders_that_are_no_runs_are_said(prime, alice, what):
    folder = Path("run")
    folder.mkdir()
    if what == "no model":
        (folder / "metadata.json").write_text('{"env_id": "a/b"}')
    arguments = () if what == "nothing" else (folder,)
    done = prime("eval", "push", *arguments)
    assert done.code in (1, 2)
    assert done.err.startswith("error: ") or "error: " in done.err
    assert "Traceback" not in done.err


async def test_large_runs_go_in_batches_that_the_hub_takes(
    published, hub, relay, monkeypatch, as_person
):
    monkeypatch.setattr(evaluations, "MAX_BATCH_BYTES", 2_000)
    as_person("alice", relay.url)
    run = write_run(Path("run"), rows=100)
    with (run / "results.jsonl").open("a") as file:
        file.write(json.dumps({"example_id": 77, "text": "x" * 3_000}) + "\n")
    seen = []
    async with HubClient(hub_settings()) as client:
        done = await push_run(
            client,
            run,
            RunPush(environment=published),
            lambda moved, total: seen.append((moved, total)),
        )
        assert (done.samples, done.too_large) == (100, 1)
        assert seen == sorted(seen)
        assert len([p for p in relay.passed if p.path.endswith("/samples")]) == len(seen) > 3
        relay.statuses = [("/finalize", 400)]
        with pytest.raises(InterruptedPush) as caught:
            await push_run(client, run, RunPush(environment=published))
        assert caught.value.evaluation_id


def test_a_crash_that_an_older_version_had_scored_earns_nothing_on_the_hub(prime, published):
    error = {"error": "EnvironmentCodeError", "error_chain_str": "EnvironmentCodeError -> KeyError"}
    run = write_run(Path("run"), rows=2, avg_reward=1.0)
    lines = [
        {"example_id": 0, "reward": 1.0, "error": {**error, "traceback": "File /home/me"}},
        {"example_id": 1, "reward": 1.0, "error": None},
    ]
    (run / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pushed = prime("eval", "push", run, "--env", published, "--public", "--json").json
    listed = prime("eval", "list", "--json").json["evaluations"][0]
    samples = prime("eval", "samples", pushed["evaluation_id"], "--json").json["samples"]

    assert (listed["metrics"]["reward"], listed["metrics"]["reward_error_free"]) == (0.5, 1.0)
    assert [sample["reward"] for sample in samples] == [0.0, 1.0]
    assert "/home/me" not in json.dumps(samples)
    assert "0.500 (1.000 error-free)" in prime("eval", "list").out


def test_the_numbers_of_a_run_keep_their_names():
    metadata = {
        "avg_reward": 0.5,
        "avg_metrics": {"a": 1.0},
        "avg_error": 0.0,
        "model": "m",
        "avg_x": float("nan"),
    }
    assert metrics_of(metadata) == {"reward": 0.5, "a": 1.0, "error": 0.0}


@pytest.mark.parametrize("ran", [None, "9.9.9"])
def test_a_run_of_an_unknown_version_is_filed_under_no_version(prime, published, ran):
    said = {"version_info": {"env_version": ran}} if ran else {}
    run = write_run(Path("run"), **said)
    pushed = prime("eval", "push", run, "--env", published, "--json")
    assert (pushed.code, "9.9.9" in pushed.err) == (0, ran is not None)
    [subject] = prime("eval", "get", pushed.json["evaluation_id"]).json["environments"]
    assert (subject["name"], subject["version"]) == (published, None)
    named = prime("eval", "push", run, "--env", f"{published}@8.8.8")
    assert (named.code, "8.8.8" in named.err) == (1, True)
