"""TOML files mean what they mean to the published 0.1.14; the expected values were printed by it."""

from pathlib import Path

import pytest

from verifiers.errors import ConfigError
from verifiers.evaluate.config_file import (
    invalid_ablation_sweep_fields,
    load_toml_config,
    read_config_file,
)
from verifiers.evaluate.settings import resolve


def evaluations(text: str, overrides: dict | None = None) -> list[dict]:
    Path("file.toml").write_text(text)
    return [planned.settings for planned in read_config_file("file.toml", overrides).evaluations]


def test_the_tops_values_are_the_default_of_every_table():
    text = 'model = "m"\nnum_examples = 2\n[[eval]]\nenv_id = "a"\n[[eval]]\nid = "b"\nnum_examples = 3'

    assert evaluations(text) == [
        {"env_id": "a", "model": "m", "num_examples": 2},
        {"env_id": "b", "model": "m", "num_examples": 3},
    ]


@pytest.mark.parametrize("table", ["env_args", "sampling_args"])
def test_a_tables_value_replaces_the_tops_whole_value(table):
    [one] = evaluations(f'{table} = {{x = 1, y = 2}}\n[[eval]]\nenv_id = "a"\n{table} = {{y = 3}}')
    assert one[table] == {"y": 3}


def test_a_sweep_gives_every_combination_with_swept_arguments_merged_into_fixed_ones():
    found = evaluations("""
        model = "m"
        [[eval]]
        env_id = "e"
        [[ablation]]
        env_id = "my-env"
        env_args = {split = "test"}
        [ablation.sweep]
        temperature = [0.0, 0.5]
        [ablation.sweep.env_args]
        difficulty = ["easy", "hard"]
    """)

    assert found[0] == {"env_id": "e", "model": "m"}
    assert [(one["temperature"], one["env_args"]) for one in found[1:]] == [
        (0.0, {"split": "test", "difficulty": "easy"}),
        (0.0, {"split": "test", "difficulty": "hard"}),
        (0.5, {"split": "test", "difficulty": "easy"}),
        (0.5, {"split": "test", "difficulty": "hard"}),
    ]


def test_swept_values_replace_fixed_ones_and_may_be_environments():
    assert evaluations(
        '[[ablation]]\nenv_id = "a"\ntemperature = 0.3\n[ablation.sweep]\ntemperature = [0.1]\nenv_id = ["x", "y"]'
    ) == [{"env_id": "x", "temperature": 0.1}, {"env_id": "y", "temperature": 0.1}]


def test_an_ablations_arguments_replace_the_tops():
    found = evaluations(
        'env_args = {g = 1}\n[[ablation]]\nenv_id = "a"\nargs = {h = 1}\n[ablation.sweep.args]\nx = [1, 2]'
    )
    assert [one["env_args"] for one in found] == [{"h": 1, "x": 1}, {"h": 1, "x": 2}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no evaluation"),
        ('env_id = "a"', "put it under [[eval]]"),
        ('[eval]\nenv_id = "a"', "double brackets"),
        ("[[eval]]\nnum_examples = 3", "needs env_id"),
        ('[[eval]]\nenv_id = "a"\nnum_exampels = 3', "Did you mean 'num_examples'?"),
        ('[[evals]]\nenv_id = "a"', "Did you mean [[eval]]?"),
        ('nonsense = 1\n[[eval]]\nenv_id = "a"', "at the top: there is no key 'nonsense'"),
        ('[[eval]]\nid = "a"\nenv_id = "b"', "both id and env_id are given"),
        ('[[eval]]\nenv_id = "a"\nmodel = "m"\nendpoint_id = "e"', "both choose the model"),
        ('[[eval]]\nenv_id = "a"\nprovider = "zz"', "'zz' is not one of 'prime'"),
        ('[[eval]]\nenv_id = "a"\ntaskset = "t"', "verifiers v1"),
        ('num_tasks = 3\n[env]\nid = "a"', "file for verifiers 0.4 or later: it has 'env'"),
        ('[[eval]]\nenv_id = 3', "env_id"),
        ('[[eval]]\nenv_id = "a"\nrollouts_per_example = 0', "rollouts_per_example"),
        ('[[eval]]\nenv_id = "a"\nnum_workers = "some"', "'auto' nor a number"),
        ('[[ablation]]\nenv_id = "a"', "needs [ablation.sweep]"),
        ('[[ablation]]\nenv_id = "a"\n[ablation.sweep]\ntemperature = 0.5', "Invalid sweep"),
        ('[[ablation]]\nenv_id = "a"\n[ablation.sweep]\ntemperature = []', "a non-empty list"),
        ('[[ablation]]\nenv_id = "a"\n[ablation.sweep]\ntemprature = [1]', "Did you mean 'temperature'?"),
        ('[[ablation]]\nenv_id = "a"\n[ablation.sweep.sampling_args]\ntop_p = [1]', "a non-empty list"),
        (
            '[[ablation]]\nenv_id = "a"\nenv_args = {x = 1}\n[ablation.sweep.env_args]\nx = [1, 2]',
            "both fixes and sweeps env_args.x",
        ),
        ("[[eval]", "not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_that_names_it(text, said):
    with pytest.raises(ConfigError) as caught:
        evaluations(text)
    assert said in str(caught.value)
    assert "file.toml" in str(caught.value)


def test_overrides_win_in_every_evaluation_but_not_over_what_is_swept():
    text = 'model = "m"\n[[eval]]\nenv_id = "a"\nnum_examples = 9\n[[eval]]\nenv_id = "b"\nendpoint_id = "e"'

    assert evaluations(text, {"num_examples": 1, "model": "n"}) == [
        {"env_id": "a", "model": "n", "num_examples": 1},
        {"env_id": "b", "model": "n", "num_examples": 1},
    ]
    with pytest.raises(ConfigError, match="sweeps temperature"):
        evaluations(
            '[[ablation]]\nenv_id = "a"\n[ablation.sweep]\ntemperature = [1, 2]', {"temperature": 3}
        )


def test_the_registrys_path_is_relative_to_the_file():
    Path("configs").mkdir()
    Path("configs/ends.toml").write_text(
        '[[endpoint]]\nendpoint_id="e"\nmodel="m"\nurl="http://h/v1"\nkey="K"\n'
    )
    Path("configs/file.toml").write_text(
        'endpoints_path = "ends.toml"\n[[eval]]\nenv_id = "a"\nendpoint_id = "e"'
    )

    [planned] = read_config_file("configs/file.toml").evaluations

    assert resolve(planned.settings).client_config.api_base_url == "http://h/v1"


def test_a_path_of_the_registry_that_leads_upwards_is_normalised():
    Path("configs").mkdir()
    Path("configs/file.toml").write_text(
        'endpoints_path = "./../other/./ends.toml"\n[[eval]]\nenv_id = "a"\nmodel = "m"'
    )
    [planned] = read_config_file("configs/file.toml").evaluations
    assert planned.settings["endpoints_path"] == "other/ends.toml"


def test_the_invalid_keys_of_a_sweep_are_those_that_are_not_settings():
    sweep = {"temperature": [1], "env_args": {"a": [1]}, "args": {"b": [2]}, "bogus": [1]}
    assert invalid_ablation_sweep_fields(sweep, {"temperature", "model"}) == {"bogus"}
    assert invalid_ablation_sweep_fields({}, set()) == set()


def test_v0s_reader_gives_dicts():
    Path("file.toml").write_text('[[eval]]\nenv_id = "a"\nargs = {x = 1}')
    assert load_toml_config(Path("file.toml")) == [{"env_id": "a", "env_args": {"x": 1}}]
