"""task.toml: schema 1.4, older spellings, and errors that name the wrong value."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from verifiers.envs.harbor.task_config import TaskConfig, parse_task_config, resolved_variables
from verifiers.envs.harbor.task_files import read_task, task_rows
from verifiers.errors import ConfigError, DatasetError

WHOLE = """
schema_version = "1.4"
source = "made here"
artifacts = ["/app/out", {source = "/app/log", destination = "log.txt", exclude = ["*.tmp"]}]
multi_step_reward_strategy = "final"
[task]
name = "org/name"
version = "1.0.0"
[metadata]
anything = {goes = 1979-05-27}
[agent]
timeout_sec = 60
user = "agent"
network_mode = "no-network"
[verifier]
timeout_sec = 120.5
user = 0
env = {KEY = "${KEY}"}
environment_mode = "separate"
[verifier.environment]
docker_image = "checker:1"
[[verifier.collect]]
command = "dump"
[environment]
docker_image = "img:1"
build_timeout_sec = 30
cpus = 2
memory_mb = 512
storage_mb = 1024
gpus = 0
network_mode = "allowlist"
allowed_hosts = ["example.com"]
workdir = "/work"
skills_dir = "/skills"
env = {A = "1"}
[environment.healthcheck]
command = "true"
[[environment.mcp_servers]]
name = "a"
url = "http://a:1/"
[solution]
env = {B = "2"}
[[steps]]
name = "first"
min_reward = {reward = 0.5, style = 1}
[[steps]]
name = "second"
min_reward = 1
artifacts = ["/app/more"]
healthcheck = {command = "check"}
[steps.agent]
timeout_sec = 5
[steps.verifier]
timeout_sec = 7
env = {MORE = "1"}
"""


def read(text: str) -> TaskConfig:
    return parse_task_config(tomllib.loads(text))


def test_every_key_of_schema_1_4_is_read():
    config = read(WHOLE)
    assert list(config.unknown_keys()) == []
    assert [artifact.source for artifact in config.artifacts] == ["/app/out", "/app/log"]
    assert config.artifacts[1].exclude == ("*.tmp",)
    environment = config.environment
    assert (environment.cpus, environment.memory_mb, environment.storage_mb) == (2, 512, 1024)
    assert environment.healthcheck is not None
    assert environment.healthcheck.interval_sec == 5.0
    assert environment.healthcheck.retries == 3
    assert config.verifier.collect[0].service == "main"
    assert config.verifier.collect[0].timeout_sec == 60.0


def test_values_of_a_step_come_before_those_of_the_task():
    config = read(WHOLE)
    first, second = config.of_step(0), config.of_step(1)
    assert (first.agent.timeout_sec, second.agent.timeout_sec) == (60, 5)
    assert (first.verifier.timeout_sec, second.verifier.timeout_sec) == (120.5, 7)
    assert second.agent.user == "agent"
    assert second.verifier.mode == "separate"
    assert second.verifier.env == {"KEY": "${KEY}", "MORE": "1"}
    assert [artifact.source for artifact in second.artifacts][-1] == "/app/more"
    assert first.verifier.collect == second.verifier.collect != ()


@pytest.mark.parametrize(
    ("rewards", "passed"),
    [
        ({"reward": 0.5, "style": 1.0}, True),
        ({"reward": 0.5}, False),
        ({"reward": 0.4, "style": 1.0}, False),
        (None, False),
    ],
)
def test_a_step_is_passed_at_its_least_rewards(rewards: Any, passed: bool):
    assert read(WHOLE).steps[0].is_passed_by(rewards) is passed


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("", None),
        ('[verifier]\nenvironment_mode = "shared"', "shared"),
        ('[verifier]\nenvironment_mode = "separate"', "separate"),
        ("[verifier.environment]\ncpus = 1", "separate"),
    ],
)
def test_an_environment_of_the_verifier_makes_it_separate(text: str, mode: str | None):
    assert read(text).verifier.mode == mode


def test_older_spellings_are_read():
    old = read(
        'version = "1.0"\nmulti_step_reward_mode = "mean"\n'
        '[environment]\nmemory = "4G"\nstorage = "512M"\nallow_internet = false'
    )
    assert list(old.unknown_keys()) == []
    assert (old.schema_version, old.environment.memory_mb, old.environment.storage_mb) == (
        "1.0",
        4096,
        512,
    )
    assert old.environment.network_mode == "no-network"
    newer_wins = read('[environment]\nallow_internet = false\nnetwork_mode = "public"')
    assert newer_wins.environment.network_mode == "public"
    assert read("").environment.network_mode is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[environment]\ncpus = "many"', "environment.cpus: Input should be a valid number"),
        ('[environment]\nmemory = "lots"', "environment: 'lots' is not a size"),
        ('[environment]\nnetwork_mode = "some"', "environment.network_mode"),
        ('[environment]\nallowed_hosts = ["a"]', "allowed_hosts is only valid with"),
        ('[environment]\nos = "dos"', "environment.os"),
        ("[environment.healthcheck]\nretries = 1", "environment.healthcheck.command: Field req"),
        (
            '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]',
            "contradicts [verifier.environment]",
        ),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "A"', "'a' is used more than once"),
        ('[[steps]]\nname = "../a"', "'../a' is not the name of a folder"),
        ("[[steps]]\nmin_reward = 1", "steps.0.name: Field required"),
        ('artifacts = ["/"]', "artifacts.0: '/' is not the path of a file"),
        ('artifacts = [{source = "/a", destination = "/b"}]', "must be a relative path"),
        ('artifacts = [{source = "a", service = "db"}]', "must be an absolute path"),
        ("[verifier]\nenv = {A = 1}", "verifier.env.A: Input should be a valid string"),
        ("verifier = 1", "verifier: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_value_is_named(text: str, says: str, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert says in str(caught.value)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "instruction.md").write_text("Do it.")
    (tmp_path / "a" / "task.toml").write_text(text)
    with pytest.raises(DatasetError, match=r"a cannot be read") as wrapped:
        task_rows(tmp_path)
    assert says in str(wrapped.value)


def test_unknown_keys_and_newer_schemas_are_reported_and_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "instruction.md").write_text("Do it.")
    (tmp_path / "task.toml").write_text(
        'schema_version = "1.5"\nextra = 1\n[environment]\ncpu = 2\n[[steps]]\nname = "s"\nfoo = 1\n'
    )
    (tmp_path / "steps" / "s").mkdir(parents=True)
    (tmp_path / "steps" / "s" / "instruction.md").write_text("Do it.")
    task, _ = read_task(tmp_path)
    assert task.config.environment.cpus is None
    assert "['extra', 'environment.cpu', 'steps.foo']" in caplog.text
    assert "newer than schema 1.4" in caplog.text


def test_a_step_without_an_instruction_is_named(tmp_path: Path):
    (tmp_path / "instruction.md").write_text("Do it.")
    (tmp_path / "task.toml").write_text('[[steps]]\nname = "s"\n')
    with pytest.raises(DatasetError, match=r"steps/s/instruction\.md"):
        read_task(tmp_path)


def test_dates_of_the_metadata_do_not_keep_rows_from_being_saved(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "instruction.md").write_text("Do it.")
    (tmp_path / "a" / "task.toml").write_text("[metadata]\nmade = 1979-05-27\n")
    [row] = task_rows(tmp_path)
    assert row["info"]["config"]["metadata"] == {"made": "1979-05-27"}


def test_variables_are_filled_in_from_this_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("THERE", "yes")
    monkeypatch.delenv("ABSENT", raising=False)
    variables = {"A": "${THERE}", "B": "${ABSENT:-no}", "C": "$THERE ${THERE:-x}!", "D": ""}
    assert resolved_variables(variables, "env") == {
        "A": "yes",
        "B": "no",
        "C": "$THERE yes!",
        "D": "",
    }
    with pytest.raises(ConfigError, match=r"env uses \$\{ABSENT\}, which is not set"):
        resolved_variables({"A": "${ABSENT}"}, "env")
