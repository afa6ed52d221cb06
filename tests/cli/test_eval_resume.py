"""`vf-eval --resume`."""

import json
from pathlib import Path


def results_of(folder: str) -> list[dict]:
    return [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]


def test_resume_runs_only_what_is_missing(run, endpoint, make_environment):
    common = ("eval", make_environment(), "-b", endpoint.url, "-m", "sums", "-s", "--json")
    first = run(*common, "-n", 2, "-r", 2).json["evaluations"][0]

    latest = run(*common, "-n", 5, "-r", 2, "--resume").json["evaluations"][0]
    by_path = run(*common, "-n", 5, "-r", 3, "--resume", latest["saved_to"]).json["evaluations"][0]

    assert first["saved_to"] == latest["saved_to"] == by_path["saved_to"]
    assert len(endpoint.requests) == 15
    assert len(results_of(first["saved_to"])) == by_path["summary"]["rollouts"] == 15


def test_resume_runs_again_what_infrastructure_made_fail(run, endpoint, make_environment):
    path = make_environment("""
import pathlib
import verifiers as vf

class Fragile(vf.SingleTurnEnv):
    async def setup_state(self, state):
        if state["example_id"] == 1 and not pathlib.Path("repaired").exists():
            raise vf.InfraError("the machine is broken")
        return state

def load_environment():
    return Fragile(dataset=[{"question": "1 + 1"}, {"question": "2 + 2"}])
""")
    common = ("eval", path, "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 2, "-s", "--json")

    broken = run(*common)
    Path("repaired").touch()
    repaired = run(*common, "--resume", broken.json["evaluations"][0]["saved_to"])

    assert (broken.code, broken.json["evaluations"][0]["summary"]["error_count"]) == (1, 2)
    assert (repaired.code, repaired.json["evaluations"][0]["summary"]["rollouts"]) == (0, 4)


def test_resume_of_a_folder_that_is_no_run_is_refused(run, endpoint, make_environment):
    done = run("eval", make_environment(), "-b", endpoint.url, "--resume", "nowhere")

    assert done.code == 2
    assert "nowhere is not a saved run" in done.err


def test_rows_that_changed_stop_a_resumed_run_unless_it_is_said_what_to_do(
    run, endpoint, make_environment
):
    source = "import verifiers as vf\nfrom pathlib import Path\n\ndef load_environment():\n"
    source += (
        "    rows = [{'question': line} for line in Path('rows.txt').read_text().splitlines()]\n"
    )
    source += "    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric())\n"
    common = ("eval", make_environment(source), "-b", endpoint.url, "-m", "sums", "-n", 2, "-r", 1)
    common = (*common, "-s", "--json")
    Path("rows.txt").write_text("What is 1?\nWhat is 2?\n")
    folder = run(*common).json["evaluations"][0]["saved_to"]
    Path("rows.txt").write_text("How much is 1?\nHow much is 2?\n")

    stopped = run(*common, "--resume", folder)
    kept = run(*common, "--resume", folder, "--on-changed", "keep")
    asked_before = len(endpoint.requests)
    rerun = run(*common, "--resume", folder, "--on-changed", "rerun")

    assert stopped.code == 2
    assert "--on-changed rerun" in stopped.err
    assert "--on-changed keep" in stopped.err
    assert (kept.code, asked_before) == (0, 2)
    assert (rerun.code, len(endpoint.requests)) == (0, 4)
    assert all("How much" in one["prompt"][0]["content"] for one in results_of(folder))


def test_resume_without_a_path_works_in_every_evaluation_of_a_sweep(
    run, endpoint, make_environment
):
    Path("sweep.toml").write_text(
        f'api_base_url = "{endpoint.url}"\nmodel = "sums"\nrollouts_per_example = 1\nsave_results = true\n'
        f'[[ablation]]\nenv_id = "{make_environment()}"\n[ablation.sweep.env_args]\ndifficulty = ["easy", "hard"]\n'
    )
    first = run("eval", "sweep.toml", "-n", 2, "--json").json["evaluations"]

    again = run("eval", "sweep.toml", "-n", 3, "--resume", "--json")

    assert again.code == 0, again.err
    folders = [one["saved_to"] for one in again.json["evaluations"]]
    assert folders == [one["saved_to"] for one in first]
    assert len(set(folders)) == 2
    assert [len(results_of(folder)) for folder in folders] == [3, 3]
    assert len(endpoint.requests) == 6
