import json
import os
from pathlib import Path

import pytest

from verifiers.runs.folders import (
    find_latest_incomplete,
    folder_for,
    is_run_folder,
    new_run_folder,
    runs_folder,
    saved_runs,
)


@pytest.fixture(autouse=True)
def in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def make_run(
    folder, lines, saved_at_s, *, env_id="my-env", model="m", num_examples=2, rollouts_per_example=2
):
    folder.mkdir(parents=True)
    names = {"env_id": env_id, "model": model, "num_examples": num_examples}
    (folder / "metadata.json").write_text(
        json.dumps({**names, "rollouts_per_example": rollouts_per_example})
    )
    (folder / "results.jsonl").write_text("".join('{"example_id": 0}\n' for _ in range(lines)))
    os.utime(folder / "results.jsonl", (saved_at_s, saved_at_s))
    return folder


# The expected paths are those of the published 0.1.14.


def test_runs_lie_in_outputs_by_environment_and_model():
    assert runs_folder("my-env", "org/model") == Path("outputs/evals/my-env--org--model")
    assert runs_folder("owner/my-env", "org/model") == Path(
        "outputs/evals/owner/my-env--org--model"
    )
    assert runs_folder("my-env", "m", output_dir="elsewhere") == Path("elsewhere/evals/my-env--m")


def test_runs_of_an_environment_that_is_here_lie_in_its_folder():
    Path("environments/my_env").mkdir(parents=True)
    assert runs_folder("my-env", "m") == Path("environments/my_env/outputs/evals/my-env--m")
    assert runs_folder("owner/my-env", "m") == Path("outputs/evals/owner/my-env--m")
    assert runs_folder("my-env", "m", output_dir="elsewhere") == Path("elsewhere/evals/my-env--m")


def test_a_new_run_has_a_new_name_of_8_hex_digits():
    folder = new_run_folder("my-env", "m")
    assert len(folder.name) == 8
    int(folder.name, 16)
    assert folder != new_run_folder("my-env", "m")
    assert not folder.exists()


def test_a_config_names_its_run():
    from verifiers.configs import ClientConfig, EvalConfig

    config = EvalConfig(
        env_id="my-env",
        model="org/m",
        client_config=ClientConfig(),
        num_examples=1,
        rollouts_per_example=1,
        output_dir="there",
    )
    assert folder_for(config).parent == Path("there/evals/my-env--org--m")


def test_a_run_folder_has_both_files():
    folder = make_run(Path("run"), 0, 1)
    assert is_run_folder(folder)
    (folder / "metadata.json").unlink()
    assert not is_run_folder(folder)
    assert not is_run_folder(folder / "results.jsonl")
    assert not is_run_folder(Path("nothing"))


def test_the_latest_run_with_rollouts_missing_is_found():
    runs = runs_folder("my-env", "m")
    half = make_run(runs / "aaaaaaaa", 1, 100)
    full = make_run(runs / "bbbbbbbb", 4, 200)
    assert saved_runs(runs) == [full, half]
    assert find_latest_incomplete("my-env", "m", 2, 2) == half
    assert (
        find_latest_incomplete("my-env", "m", 3, 2) == full
    )  # a larger -n continues the complete one
    assert find_latest_incomplete("my-env", "m", 2, 3) == full  # and so does a larger -r
    assert find_latest_incomplete("my-env", "m", 2, 1) is None
    assert find_latest_incomplete("other", "m", 2, 2) is None


def test_runs_with_other_settings_or_broken_metadata_are_passed_over():
    runs = runs_folder("my-env", "m")
    make_run(runs / "1", 0, 1, model="other")
    make_run(runs / "2", 0, 1, num_examples=5)
    make_run(runs / "3", 0, 1, env_id="other")
    (make_run(runs / "4", 0, 1) / "metadata.json").write_text("{half")
    (make_run(runs / "5", 0, 1) / "metadata.json").write_text("[]")
    assert find_latest_incomplete("my-env", "m", 2, 2) is None


def test_a_half_written_line_does_not_count_as_saved():
    folder = make_run(runs_folder("my-env", "m") / "aaaaaaaa", 3, 100)
    with (folder / "results.jsonl").open("a") as file:
        file.write('{"example_id": 0, "rew')
    assert find_latest_incomplete("my-env", "m", 2, 2) == folder
