"""Each option of a run has one declaration: command line, file, Python and worker read the same value."""

import inspect
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer.main

import verifiers as vf
from verifiers.configs import EvalConfig
from verifiers.envs.options import GenerateOptions
from verifiers.errors import ConfigError
from verifiers.evaluate.config_file import read_config_file
from verifiers.evaluate.run import run_evaluation
from verifiers.evaluate.settings import resolve, settings_of
from verifiers.rollouts.limits import current_limits
from verifiers.run_options import (
    EVALUATION_OPTIONS,
    FILE_OPTIONS,
    ROLLOUT_OPTIONS,
    RUN_OPTIONS,
    Option,
)
from verifiers.serve import wire
from verifiers.serve.client import EnvClient
from verifiers.serve.worker import EnvWorker
from verifiers.testing import ScriptedClient
from vf_cli import eval_options
from vf_cli.eval import app, settings_of_command

PRICES = "[m]\ninput_usd_per_mtok = 1.0\noutput_usd_per_mtok = 2.0\n"
SPECIAL = {
    "num_workers": 2,
    "prices": "prices.toml",
    "api_base_url": "http://localhost:1/v1",
    "header": ["X-A: b"],
    "header_from_state": ["X-B: key"],
}
EXCLUSIVE = {"endpoint_id", "endpoints_path", "resume", "resume_path"}
"""Keys that need a registry or a saved run; tests/cli and test_settings.py cover them."""


def sample(option: Option) -> Any:
    """A value of the option that is not its default."""
    if option.name in SPECIAL:
        return SPECIAL[option.name]
    for kind in (option.type, *get_args(option.type)):
        if get_origin(kind) is Literal:
            return get_args(kind)[-1]
        for known, value in ((bool, True), (int, 3), (float, 2.5), (str, "text")):
            if kind is known:
                return value
        if get_origin(kind) is dict:
            return {"key": "text"}
        if get_origin(kind) is list:
            return ["first", "second"]
    raise AssertionError(f"{option.name} has the type {option.type}: add it here")


SAMPLES = {key: sample(one) for key, one in FILE_OPTIONS.items() if key not in EXCLUSIVE}
NAMED = {one.name: SAMPLES[key] for key, one in FILE_OPTIONS.items() if key in SAMPLES}


@pytest.fixture(autouse=True)
def price_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("prices.toml").write_text(PRICES)


def by_command_line() -> EvalConfig:
    arguments = ["text"]
    for key, value in SAMPLES.items():
        option = FILE_OPTIONS[key]
        if not option.flags:
            continue
        if key == "state_columns":
            value = ",".join(value)
        for one in value if isinstance(value, list) else [value]:
            arguments.append(option.flags[-1])
            if one is not True:
                arguments.append(str(one).replace("'", '"') if isinstance(one, dict) else str(one))
    context = typer.main.get_command(app).make_context("vf-eval", arguments)
    settings = settings_of_command(context.params)
    files_only = {key: value for key, value in SAMPLES.items() if not FILE_OPTIONS[key].flags}
    return resolve(settings_of({**settings, **files_only}, "options"))


def by_file() -> EvalConfig:
    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {text(one)}" for key, one in value.items()) + "}"
        return str(value).lower() if isinstance(value, bool) else repr(value)

    Path("file.toml").write_text(
        "[[eval]]\n" + "".join(f"{key} = {text(value)}\n" for key, value in SAMPLES.items())
    )
    [planned] = read_config_file("file.toml").evaluations
    return resolve(planned.settings)


def in_python() -> EvalConfig:
    other = by_file()
    own = {one.name: NAMED[one.name] for one in EVALUATION_OPTIONS if one.name in NAMED}
    return EvalConfig(
        **own,
        shuffle=True,
        model=other.model,
        client_config=other.client_config,
        sampling_args=other.sampling_args,
    )


@pytest.mark.parametrize("name", [one.name for one in EVALUATION_OPTIONS if one.name in NAMED])
def test_command_line_file_and_python_give_one_value(name: str) -> None:
    values = [getattr(config, name) for config in (by_command_line(), by_file(), in_python())]

    assert values == [NAMED[name]] * 3


def test_command_line_and_file_choose_the_same_model() -> None:
    assert by_command_line() == by_file()
    assert by_file().sampling_args == {"max_tokens": 3, "temperature": 2.5, "key": "text"}
    assert by_file().client_config.extra_headers == {"X-A": "b", "key": "text"}


async def test_every_option_reaches_evaluate() -> None:
    given: dict[str, Any] = {}

    class Double:
        async def evaluate(
            self, client: Any, model: str, sampling_args: Any, **options: Any
        ) -> Any:
            given.update(options)

        async def stop_server(self) -> None: ...

    config = by_file().model_copy(update={"num_workers": "auto"})
    await run_evaluation(config, environment=Double(), results_path=Path("run"))  # type: ignore[arg-type]

    options = GenerateOptions.from_call(**given)
    for one in RUN_OPTIONS:
        if one.name == "prices":
            assert options.prices.price_of("m").output_usd_per_mtok == 2.0
        else:
            assert getattr(options, one.name) == NAMED.get(one.name, True), one.name


class Loopback(EnvClient):
    """A client whose server is a worker in this process; requests and responses travel as bytes."""

    def __init__(self, environment: vf.Environment) -> None:
        self.worker = EnvWorker(environment, worker_id=0, address="", name="", silence_s=1.0)
        self.requests: list[wire.RunRequest] = []

    async def send_request(self, request: Any, response_type: Any, timeout: Any = None) -> Any:
        payload = wire.encode_request(request)
        received = wire.decode_request(payload)
        assert isinstance(received, wire.RunRequest)
        self.requests.append(received)
        response = wire.unpack(await self.worker._response(payload))
        return response_type.model_validate(response)

    async def close(self) -> None: ...


class Recording(vf.SingleTurnEnv):
    async def setup_state(self, state: vf.State) -> vf.State:
        state["limits"] = asdict(current_limits())
        return state


@pytest.mark.parametrize("place", ["process", "worker"])
async def test_the_limits_of_a_rollout_are_the_same_in_process_and_in_a_worker(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Recording(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric())
    client: Any = ScriptedClient(lambda _: "a")
    if place == "worker":
        monkeypatch.setattr(
            "verifiers.serve.worker.resolve_client", lambda _, scripted=client: scripted
        )
        env.env_client = Loopback(
            Recording(dataset=[{"question": "q", "answer": "a"}], rubric=vf.Rubric())
        )
        client = vf.ClientConfig()
    limits = {one.name: NAMED[one.name] for one in ROLLOUT_OPTIONS}

    results = await env.evaluate(
        client, "m", prices="prices.toml", state_columns=["limits"], max_retries=3, **limits
    )

    [output] = results["outputs"]
    assert output["limits"] == {
        **limits,
        "input_usd_per_token": 1e-6,
        "output_usd_per_token": 2e-6,
    }
    if place == "worker":
        [request] = env.env_client.requests
        assert (request.max_retries, request.state_columns) == (3, ["limits"])
        assert env.env_client.worker._environment.rubric.scoring_timeout_s == 2.5


def test_older_names_mean_the_same() -> None:
    options = GenerateOptions.from_call(max_concurrent_generation=5, push_to_hf_hub=True)
    assert (options.max_concurrent, options.save_to_hf_hub) == (5, True)
    settings = settings_of({"id": "e", "args": {"a": 1}, "max_concurrent_generation": 5}, "file")
    assert settings == {"env_id": "e", "env_args": {"a": 1}, "max_concurrent": 5}


def test_values_that_are_not_valid_are_named() -> None:
    for given, message in (
        ({"max_retries": -1}, "max_retries must be at least 0; got -1"),
        ({"rollouts_per_example": 0}, "rollouts_per_example must be at least 1; got 0"),
        ({"on_changed": "ignore"}, "on_changed must be one of stop, rerun, keep; got 'ignore'"),
        ({"max_retrys": 1}, "Did you mean 'max_retries'"),
    ):
        with pytest.raises(ConfigError, match=message):
            GenerateOptions.from_call(**given)


def test_every_option_says_what_it_does_and_since_when() -> None:
    for one in (*FILE_OPTIONS.values(), *eval_options.OPTIONS.values()):
        assert one.help.endswith((".", ")")), one.name
        assert one.since in ("0.1.14", "1.0.0"), one.name


def test_the_signatures_of_v0_are_visible() -> None:
    names = " ".join(inspect.signature(vf.Environment.evaluate).parameters)
    assert "client model sampling_args num_examples rollouts_per_example max_concurrent" in names
    assert {one.name for one in fields(GenerateOptions)} >= {one.name for one in RUN_OPTIONS}
    assert set(EvalConfig.model_fields) >= {one.name for one in EVALUATION_OPTIONS}
