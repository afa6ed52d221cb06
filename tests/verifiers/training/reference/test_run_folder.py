import json

import pytest

from verifiers.errors import ConfigError
from verifiers.training.reference.run_folder import RunFolder


@pytest.fixture
def folder(config_with, tmp_path):
    return RunFolder.new(config_with(output=str(tmp_path / "run")))


def fill(folder, phase, step, *, keep=2):
    with folder.new_checkpoint(phase, step, keep=keep) as part:
        (part / "model").mkdir()
        (part / "model" / "weights").write_text(str(step))


def names(folder):
    return [checkpoint.folder.name for checkpoint in folder.checkpoints()]


def test_a_folder_that_has_a_run_is_left_alone(config_with, tmp_path):
    config = config_with(output=str(tmp_path / "run"))
    paths = [RunFolder.new(config).path.name for _ in range(3)]
    assert paths == ["run", "run-2", "run-3"]


def test_a_run_is_found_again_with_its_configuration(folder, config_with):
    again, fields = RunFolder.existing(folder.path)
    assert again.path == folder.path
    assert config_with(**fields) == config_with(output=str(folder.path))


def test_what_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(ConfigError, match="not the folder of a run"):
        RunFolder.existing(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        RunFolder.existing(tmp_path)
    (tmp_path / "config.json").write_text('{"format": 9, "config": {}}')
    with pytest.raises(ConfigError, match="has format 9; this version reads 1"):
        RunFolder.existing(tmp_path)


def test_only_the_newest_checkpoints_are_kept(folder):
    fill(folder, "warm_start", 300)
    for step in (8, 9, 10):
        fill(folder, "step", step)
    assert names(folder) == ["step_000009", "step_000010"]
    assert (folder.latest().phase, folder.latest().step) == ("step", 10)
    assert (folder.latest().model / "weights").read_text() == "10"
    fill(folder, "step", 10)
    assert names(folder) == ["step_000009", "step_000010"]


def test_a_checkpoint_that_was_not_finished_is_none(folder):
    fill(folder, "step", 1)
    with pytest.raises(OSError, match="disk full"), folder.new_checkpoint("step", 2, keep=2):
        raise OSError("disk full")
    assert names(folder) == ["step_000001"]
    fill(folder, "step", 2)
    assert names(folder) == ["step_000001", "step_000002"]


def test_lines_of_steps_that_are_taken_again_are_dropped(folder):
    for phase, step in [("warm_start", 300), ("step", 1), ("step", 2), ("step", 3)]:
        folder.add_metrics({"phase": phase, "step": step})
    with open(folder.metrics_file, "a") as file:
        file.write('{"phase": "st')
    fill(folder, "step", 2)
    folder.forget_after(folder.latest())
    assert [json.loads(line)["step"] for line in folder.metrics_file.read_text().splitlines()] == [
        300,
        1,
        2,
    ]
    folder.forget_after(None)
    assert folder.metrics() == []


def test_old_weights_are_removed_but_not_those_the_server_may_be_reading(folder):
    for step in range(5):
        path = folder.weights(str(step))
        path.mkdir(parents=True)
    assert {path.name for path in (folder.path / "weights").iterdir()} >= {"3", "4"}
    assert len(list((folder.path / "weights").iterdir())) <= 3
