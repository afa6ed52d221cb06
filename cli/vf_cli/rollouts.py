"""`vf-rollouts`: play environments on inference servers and serve the samples to a trainer over HTTP."""

from __future__ import annotations

import asyncio
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vf_cli import output
from vf_cli.interrupts import protect, stop_on_signal

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment
    from verifiers.training.pull_api import PullServer
    from verifiers.training.source_config import SourceConfig

app = typer.Typer(add_completion=False)

DEFAULTS = {"groups_per_batch": 8, "rollouts_per_group": 8}
"""Defaults for settings that `SourceConfig` leaves open."""

Envs = Annotated[
    list[str],
    typer.Argument(
        metavar="ENV...", help="Ids, folders or Python files of environments; several are mixed."
    ),
]
BaseUrl = Annotated[
    list[str],
    typer.Option(
        "--base-url",
        "-b",
        help="URL of an inference server. Can be repeated; the servers are used in turn.",
    ),
]
Model = Annotated[str, typer.Option("--model", "-m", help="Name of the model on the servers.")]
EnvArgs = Annotated[
    str | None,
    typer.Option("--env-args", "-a", help="JSON object of arguments for the environment."),
]
SamplingArgs = Annotated[
    str | None,
    typer.Option("--sampling-args", "-S", help="JSON object of sampling arguments."),
]
GroupsPerBatch = Annotated[
    int | None,
    typer.Option(
        "--groups-per-batch", "-g", min=1, help="Number of examples per batch. Default: 8."
    ),
]
RolloutsPerGroup = Annotated[
    int | None,
    typer.Option(
        "--rollouts-per-group", "-r", min=1, help="Number of rollouts per example. Default: 8."
    ),
]
MaxInFlight = Annotated[
    int | None,
    typer.Option(
        "--max-in-flight",
        "-c",
        min=1,
        help="Maximum number of rollouts at the same time. Default: 128.",
    ),
]
NumExamples = Annotated[
    int, typer.Option("--num-examples", "-n", help="Number of examples to train on; -1 means all.")
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file with settings of SourceConfig; options override it."),
]
State = Annotated[
    Path | None,
    typer.Option("--state", help="File with the response of GET /state, to continue from."),
]
Version = Annotated[
    int | None,
    typer.Option("--version", min=0, help="Version of the policy that the servers have now."),
]
Dialect = Annotated[
    str, typer.Option("--dialect", help="API of the servers for weight updates: prime_rl or vllm.")
]
Salts = Annotated[
    bool,
    typer.Option("--salts/--no-salts", help="Send a different prefix-cache salt for each version."),
]
EndpointKeyVar = Annotated[
    str | None,
    typer.Option(
        "--endpoint-key-var", "-k", help="Name of the variable that holds the key of the servers."
    ),
]
Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[
    int,
    typer.Option("--port", "-p", min=0, max=65535, help="Port to listen on; 0 chooses a free one."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="VF_ROLLOUTS_API_KEY",
        help="Key that trainers must send; prefer the variable. Required unless the address is 127.0.0.1.",
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print the address as one JSON document.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Log everything, and show tracebacks.")
]


@app.command()
def rollouts(
    envs: Envs,
    base_url: BaseUrl,
    model: Model,
    env_args: EnvArgs = None,
    sampling_args: SamplingArgs = None,
    groups_per_batch: GroupsPerBatch = None,
    rollouts_per_group: RolloutsPerGroup = None,
    max_in_flight: MaxInFlight = None,
    num_examples: NumExamples = -1,
    config: Config = None,
    state: State = None,
    version: Version = None,
    dialect: Dialect = "prime_rl",
    salts: Salts = True,
    endpoint_key_var: EndpointKeyVar = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    api_key: ApiKey = None,
    json_output: JsonOutput = False,
    verbose: Verbose = False,
) -> int:
    """Play environments continuously and serve batches of training samples over HTTP until Ctrl-C.

    A trainer in any language requests GET /batches/1, trains, sends POST /weights, requests GET /batches/2, and so on.
    """
    from verifiers.training.pull_api import PullServer
    from verifiers.training.source import RolloutSource
    from vf_cli.command import configure_logging
    from vf_cli.eval_options import json_object

    configure_logging(is_verbose=verbose)
    options = {
        "groups_per_batch": groups_per_batch,
        "rollouts_per_group": rollouts_per_group,
        "max_in_flight": max_in_flight,
    }
    settings = _settings(config, {name: v for name, v in options.items() if v is not None})
    source = RolloutSource(
        _environment(envs, json_object(env_args, "-a") if env_args else {}),
        _endpoints(base_url, dialect, endpoint_key_var, salts=salts),
        settings,
        model=model,
        sampling_args=json_object(sampling_args, "-S") if sampling_args else None,
        num_examples=num_examples,
        state=_saved(state),
        version=version,
    )
    protect()
    server = PullServer(source, host=host, port=port, api_key=api_key)
    asyncio.run(_serve(server, json_output=json_output))
    return 0


def _settings(path: Path | None, options: dict[str, int]) -> SourceConfig:
    from pydantic import ValidationError

    from verifiers.training.source_config import SourceConfig

    try:
        given: dict[str, Any] = tomllib.loads(path.read_text("utf-8")) if path else {}
        return SourceConfig.model_validate({**DEFAULTS, **given, **options})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise typer.BadParameter(f"--config {path} cannot be read: {error}") from error
    except ValidationError as error:
        raise typer.BadParameter(f"These settings are not valid: {error}") from error


def _environment(names: list[str], arguments: dict[str, Any]) -> Environment:
    from verifiers.envs.env_group import EnvGroup
    from verifiers.loading import load_environment

    if len(names) == 1:
        return load_environment(names[0], **arguments)
    if arguments:
        raise typer.BadParameter(
            "-a applies to one environment; several environments are loaded with their defaults."
        )
    environments = [load_environment(name) for name in names]
    ids = [environment.env_id for environment in environments]
    # Two files of one name in different folders keep their paths as names.
    return EnvGroup(environments, env_names=ids if len(set(ids)) == len(ids) else names)


def _endpoints(urls: list[str], dialect: str, key_var: str | None, *, salts: bool) -> list[Any]:
    from pydantic import ValidationError

    from verifiers.training.inference_admin import AdminConfig
    from verifiers.training.policy import PolicyEndpoint

    try:
        admin = AdminConfig.model_validate({"dialect": dialect})
    except ValidationError as error:
        raise typer.BadParameter(f"--dialect must be prime_rl or vllm; got {dialect!r}.") from error
    key = os.environ.get(key_var) if key_var else None
    return [
        PolicyEndpoint.at(url, api_key_var=key_var, api_key=key, admin=admin, salts=salts)
        for url in urls
    ]


def _saved(path: Path | None) -> Any:
    import orjson

    if path is None:
        return None
    try:
        return orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise typer.BadParameter(f"--state {path} cannot be read: {error}") from error


async def _serve(server: PullServer, *, json_output: bool) -> None:
    with stop_on_signal() as stop:
        await _served(server, stop, json_output=json_output)


async def _served(server: PullServer, stop: asyncio.Event, *, json_output: bool) -> None:
    async with server:
        source = server.source
        if json_output:
            output.show_json({"url": server.url, "pid": os.getpid()})
        else:
            config = source.config
            output.show(f"serving    {server.url}")
            output.show(
                f"playing    {source.env.env_id} on {', '.join(e.url for e in source.endpoints)}"
            )
            output.show(
                f"batch      {config.groups_per_batch} groups of {config.rollouts_per_group}"
            )
            output.show(f"next       curl {server.url}/batches/1   (Ctrl-C stops)")
        await stop.wait()
