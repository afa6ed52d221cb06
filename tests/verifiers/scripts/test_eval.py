"""`verifiers.scripts.eval.main`, driven as programs of v0 drive it: with its parts replaced."""

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from verifiers.scripts import eval as script
from verifiers.utils import eval_utils

ARGUMENTS: dict[str, Any] = {
    "env_id_or_config": "dummy-env",
    "env_args": {},
    "env_dir_path": "./environments",
    "endpoints_path": "./configs/endpoints.toml",
    "provider": None,
    "model": "gpt-4.1-mini",
    "api_client_type": None,
    "api_key_var": None,
    "api_base_url": None,
    "header": None,
    "header_from_state": None,
    "num_examples": 1,
    "rollouts_per_example": 1,
    "max_concurrent": 1,
    "max_tokens": 42,
    "temperature": 0.9,
    "sampling_args": None,
    "verbose": False,
    "state_columns": [],
    "save_results": False,
    "resume": None,
    "extra_env_kwargs": {},
    "max_retries": 0,
    "num_workers": "auto",
    "timeout": None,
}


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs `main` and returns the configurations that `run_evaluation` received."""
    monkeypatch.setattr(script, "setup_logging", lambda *_, **__: None)

    def run(endpoints: dict[str, Any] | None = None, **arguments: Any) -> list[Any]:
        configs: list[Any] = []

        async def run_evaluation(config: Any, **_: Any) -> dict[str, Any]:
            configs.append(config)
            return {"outputs": [], "metadata": {}}

        given = Namespace(**{**ARGUMENTS, **arguments})
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda *_, **__: given)
        monkeypatch.setattr(script, "load_endpoints", lambda _: endpoints or {})
        monkeypatch.setattr(eval_utils, "run_evaluation", run_evaluation)
        assert script.main() == 0
        return configs

    return run


def test_sampling_arguments_win_over_their_own_options(drive: Any) -> None:
    [config] = drive(sampling_args={"max_tokens": 77, "enable_thinking": False})
    assert config.sampling_args == {
        "max_tokens": 77,
        "temperature": 0.9,
        "enable_thinking": False,
    }
    [config] = drive(max_tokens=None, temperature=None)
    assert config.sampling_args == {"max_tokens": None}


def test_the_registry_of_the_module_gives_the_endpoints(drive: Any) -> None:
    replicas = [
        {"model": "real", "url": "http://a/v1", "key": "KA"},
        {"model": "real", "url": "http://b/v1", "key": "KB", "extra_headers": {"X": "y"}},
    ]
    [config] = drive({"gpt-4.1-mini": replicas}, header=["X-A: b"])
    client = config.client_config
    assert (config.model, config.endpoint_id) == ("real", "gpt-4.1-mini")
    assert [one.api_base_url for one in client.endpoint_configs] == ["http://a/v1", "http://b/v1"]
    assert [one.extra_headers for one in client.endpoint_configs] == [
        {"X-A": "b"},
        {"X": "y", "X-A": "b"},
    ]
    assert client.extra_headers_from_state == {"X-Session-ID": "example_id"}


def test_a_url_wins_over_the_registry_and_a_model_without_endpoint_has_v0s_provider(
    drive: Any,
) -> None:
    registry = {"one": [{"model": "m1", "url": "http://one/v1", "key": "K1"}]}
    [config] = drive(registry, model="one", api_base_url="http://own/v1", api_key_var="OWN")
    assert (config.model, config.client_config.api_base_url) == ("one", "http://own/v1")
    [config] = drive(registry)
    assert config.client_config.api_key_var == "PRIME_API_KEY"
    [config] = drive(registry, provider="openrouter", model="one")
    assert (config.model, config.client_config.api_key_var) == ("m1", "OPENROUTER_API_KEY")


def test_a_timeout_is_also_a_setting_of_the_environment(drive: Any) -> None:
    [config] = drive(timeout=5.0, extra_env_kwargs={"timeout_seconds": 3, "a": 1})
    assert config.extra_env_kwargs == {"timeout_seconds": 5.0, "a": 1}


def test_a_file_replaces_the_other_arguments(drive: Any, tmp_path: Path) -> None:
    path = tmp_path / "file.toml"
    path.write_text(
        'max_tokens = 5\n[[eval]]\nenv_id = "e1"\nnum_examples = 7\n[[eval]]\nid = "e2"'
    )
    first, second = drive(env_id_or_config=str(path))
    assert (first.env_id, first.num_examples, second.env_id) == ("e1", 7, "e2")
    assert first.sampling_args == {"max_tokens": 5}
    assert (second.max_concurrent, second.rollouts_per_example) == (32, 3)


def test_the_reader_of_the_module_reads_the_file(
    drive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "load_toml_config", lambda _: [{"env_id": "z", "model": "mm"}])
    [config] = drive(env_id_or_config="any.toml")
    assert (config.env_id, config.model) == ("z", "mm")


def test_a_path_to_resume_must_be_a_saved_run(drive: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a valid evaluation results path"):
        drive(resume=str(tmp_path))
    with pytest.raises(ValueError, match="--header must be"):
        drive(header=["nocolon"])


def test_arguments_of_the_process_are_parsed_when_only_the_run_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[Any] = []

    async def run_evaluation(config: Any, **_: Any) -> None:
        configs.append(config)

    line = "vf-eval my-env -n 3 -c 4 -s -C a,b --header X:y --header Z:w -b http://h.lan/v1"
    monkeypatch.setattr("sys.argv", [*line.split(), "-a", '{"k": 1}', "-S", '{"top_p": 0.5}'])
    monkeypatch.setattr(script, "setup_logging", lambda *_, **__: None)
    monkeypatch.setattr(eval_utils, "run_evaluation", run_evaluation)
    assert script.main() == 0
    [config] = configs
    assert (config.env_id, config.num_examples, config.max_concurrent) == ("my-env", 3, 4)
    assert (config.env_args, list(config.state_columns)) == ({"k": 1}, ["a", "b"])
    assert config.client_config.extra_headers == {"X": "y", "Z": "w"}
    assert (config.save_results, config.sampling_args["top_p"]) == (True, 0.5)


def test_without_replaced_parts_the_command_itself_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "eval_main", lambda: 17)
    assert script.main() == 17
