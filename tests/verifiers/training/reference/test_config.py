from pathlib import Path

import pytest
from pydantic import ValidationError

from verifiers.errors import ConfigError
from verifiers.training.reference.config import (
    DEMO,
    EXAMPLES,
    OWN,
    example_path,
    parse_config,
    read_fields,
)

from_file = sorted(EXAMPLES.glob("*.toml"))


@pytest.mark.parametrize("path", from_file, ids=lambda path: path.stem)
def test_the_configurations_that_come_with_the_package_are_valid(path):
    fields = read_fields(path)
    if path.stem == OWN:
        assert "environment" not in fields  # the command line names it
        fields["environment"] = {"id": "./my_env.py"}
    assert parse_config(fields, name=path.name).steps > 0


def test_the_page_shows_the_configuration_of_the_demo():
    page = (Path(__file__).parents[4] / "docs" / "train-a-model.md").read_text(encoding="utf-8")
    assert f"```toml\n{example_path(DEMO).read_text(encoding='utf-8')}```\n" in page


BASE = {
    "steps": 1,
    "environment": {"id": "x"},
    "source": {"groups_per_batch": 1, "rollouts_per_group": 2},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 3}, "no key 'stepz'. Did you mean 'steps'?"),
        ({"environment": {"idd": "x"}}, "no key 'idd'. Did you mean 'id'?"),
        ({"source": {"group_per_batch": 1}}, "Did you mean 'groups_per_batch'?"),
        ({"optimizer": {"kind": "sgd"}}, "optimizer.kind"),
        (
            {"loss": "icepop"},
            "loss='icepop' does not exist; choose one of masked_importance_sampling",
        ),
        ({"loss_options": {"ratio_mx": 2.0}}, "Did you mean 'ratio_max'?"),
        ({"model": {"hidden_size": 60, "num_attention_heads": 4}}, "must be an even number times"),
        ({"warm_start": {"noise": 2}}, "warm_start.noise"),
    ],
)
def test_a_mistake_is_named_with_the_key_it_is_in(change, message):
    with pytest.raises(ConfigError) as raised:
        parse_config(BASE | change, name="my.toml")
    assert str(raised.value).startswith("my.toml: ")
    assert message in str(raised.value)


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"my\.toml lacks these keys: steps, environment, source"):
        parse_config({}, name="my.toml")


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"Cannot read .*nowhere\.toml: No such file"):
        read_fields(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("steps = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml is not valid TOML"):
        read_fields(tmp_path / "bad.toml")


def test_a_configuration_cannot_be_changed():
    config = parse_config(BASE, name="x")
    with pytest.raises(ValidationError):
        config.steps = 2
