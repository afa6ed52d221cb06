import os
from pathlib import Path

from verifiers.runs.folders import (
    SCRATCH_RUNS,
    folder_for,
    is_run_folder,
    new_run_folder,
    new_scratch_folder,
    runs_folder,
    saved_runs,
    scratch_base,
    scratch_runs,
)
from verifiers.runs.store import RunStore

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


def test_a_run_folder_has_both_files(make_run):
    folder = make_run(Path("run"), 0, 1)
    assert is_run_folder(folder)
    (folder / "metadata.json").unlink()
    assert not is_run_folder(folder)
    assert not is_run_folder(folder / "results.jsonl")
    assert not is_run_folder(Path("nothing"))


def test_saved_runs_are_listed_latest_first(make_run):
    runs = runs_folder("my-env", "m")
    older = make_run(runs / "aaaaaaaa", 1, 100)
    newer = make_run(runs / "bbbbbbbb", 4, 200)
    assert saved_runs(runs) == [newer, older]
    assert saved_runs(runs / "nothing") == []


# --- runs that nobody asked to save


def scratch_run(number: int) -> Path:
    folder = new_scratch_folder("env", f"model-{number % 2}")
    assert folder is not None
    with RunStore.create(folder, {"env_id": "env"}) as store:
        store.append_and_wait([{"example_id": 0, "reward": 1.0}])
    os.utime(folder / "results.jsonl", ns=(number, number))
    return folder


def test_only_the_newest_runs_stay_in_the_scratch_folder():
    folders = [scratch_run(number) for number in range(SCRATCH_RUNS + 3)]
    assert set(scratch_runs()) == set(folders[3:])
    assert folders[0].parent.is_dir()


def test_a_scratch_run_that_is_being_written_stays():
    first = scratch_run(0)
    with RunStore.open(first):
        for number in range(1, SCRATCH_RUNS + 2):
            scratch_run(number)
        assert first in scratch_runs()
    scratch_run(99)
    assert first not in scratch_runs()


def test_the_scratch_folder_is_private_and_follows_the_cache_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = new_scratch_folder("env", "model")
    assert folder is not None
    assert folder.is_relative_to(tmp_path / "cache" / "verifiers")
    assert scratch_base().stat().st_mode & 0o077 == 0


def test_a_cache_that_cannot_be_written_keeps_no_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert new_scratch_folder("env", "model") is None
