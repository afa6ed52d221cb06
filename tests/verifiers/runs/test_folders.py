from pathlib import Path

from verifiers.runs.folders import (
    folder_for,
    is_run_folder,
    new_run_folder,
    runs_folder,
    saved_runs,
)

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
