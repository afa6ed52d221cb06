"""`vf-eval`: evaluate a model on an environment, or on all of a configuration file."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand

from vf_cli import eval_options as o

app = typer.Typer(add_completion=False)


class EvalCommand(TyperCommand):
    """A command whose `--resume` may stand without a path."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Complete the arguments, then parse them as usual."""
        return super().parse_args(ctx, o.with_resume_value(args))


@app.command(cls=EvalCommand)
def evaluate(  # one parameter an option
    env_id_or_config: o.EnvOrConfig,
    env_args: o.EnvArgs = None,
    extra_env_kwargs: o.ExtraEnvKwargs = None,
    env_dir_path: o.EnvDirPath = None,
    sandbox_backend: o.SandboxBackend = None,
    model: o.Model = None,
    provider: o.Provider = None,
    api_base_url: o.ApiBaseUrl = None,
    api_key_var: o.ApiKeyVar = None,
    api_client_type: o.ApiClientType = None,
    endpoints_path: o.EndpointsPath = None,
    header: o.Header = None,
    header_from_state: o.HeaderFromState = None,
    max_tokens: o.MaxTokens = None,
    temperature: o.Temperature = None,
    sampling_args: o.SamplingArgs = None,
    num_examples: o.NumExamples = None,
    rollouts_per_example: o.RolloutsPerExample = None,
    seed: o.Seed = None,
    max_concurrent: o.MaxConcurrent = None,
    max_concurrent_generation: o.MaxConcurrentGeneration = None,
    max_concurrent_scoring: o.MaxConcurrentScoring = None,
    no_interleave_scoring: o.NoInterleaveScoring = False,
    independent_scoring: o.IndependentScoring = False,
    timeout: o.Timeout = None,
    scoring_timeout: o.ScoringTimeout = None,
    max_retries: o.MaxRetries = None,
    max_total_tokens: o.MaxTotalTokens = None,
    max_cost: o.MaxCost = None,
    prices: o.Prices = None,
    strict: o.Strict = False,
    num_workers: o.NumWorkers = None,
    disable_env_server: o.DisableEnvServer = False,
    save_results: o.SaveResults = False,
    output_dir: o.OutputDir = None,
    resume: o.Resume = None,
    on_changed: o.OnChanged = None,
    state_columns: o.StateColumns = None,
    save_to_hf_hub: o.SaveToHfHub = False,
    hf_hub_dataset_name: o.HfHubDatasetName = None,
    push: o.Push = False,
    fail_under: o.FailUnder = None,
    as_json: o.AsJson = False,
    dry_run: o.DryRun = False,
    yes: o.Yes = False,
    verbose: o.Verbose = False,
    fullscreen: o.Fullscreen = False,
    disable_tui: o.DisableTui = False,
    abbreviated_summary: o.AbbreviatedSummary = False,
    heartbeat_url: o.HeartbeatUrl = None,
    version: o.Version = False,
) -> int:
    """Evaluate a model on an environment and say how good it is, with error bars.

    \b
    vf-eval my-env -m Qwen/Qwen3-4B -b http://localhost:8000/v1 -n 20 -r 4 -s
    vf-eval configs/benchmark.toml
    vf-eval my-env -m Qwen/Qwen3-4B -s --resume        finish what was interrupted
    vf-eval owner/my-env@1.2 -m Qwen/Qwen3-4B --push   an environment of your hub, and the run back to it

    Exit code: 0 done, 1 some rollouts failed or a threshold was missed, 2 wrong usage, 130 interrupted.
    """
    said = dict(locals())  # the options by name, before anything else is a local
    from vf_cli.command import configure_logging
    from vf_cli.eval_run import Choices, run_all

    configure_logging(is_verbose=verbose)
    if fullscreen and disable_tui:
        raise typer.BadParameter("--fullscreen and --disable-tui exclude each other.")
    choices = Choices(**{name: said[name] for name in Choices._fields})
    return run_all(env_id_or_config, settings_said(said), choices)


_JSON_OPTIONS = {"env_args": "-a", "extra_env_kwargs": "-x", "sampling_args": "-S"}
# fmt: off
_SETTINGS = [
    "env_args", "extra_env_kwargs", "env_dir_path", "model",
    "provider", "api_base_url", "api_key_var", "api_client_type",
    "endpoints_path", "header", "header_from_state", "max_tokens",
    "temperature", "sampling_args", "num_examples", "rollouts_per_example",
    "max_concurrent", "max_concurrent_generation", "max_concurrent_scoring", "independent_scoring",
    "timeout", "scoring_timeout", "max_retries", "max_total_tokens", "max_cost",
    "num_workers", "disable_env_server", "save_results", "output_dir", "on_changed",
    "save_to_hf_hub", "hf_hub_dataset_name", "verbose", "disable_tui",
]
# fmt: on


def settings_said(said: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as settings of an evaluation; options left out are not in it."""
    settings = {
        # By identity: 0 equals False, and was asked for.
        name: said[name]
        for name in _SETTINGS
        if said[name] is not None and said[name] is not False
    }
    for name, option in _JSON_OPTIONS.items():
        if name in settings:
            settings[name] = json_object(settings[name], option)
    if said["state_columns"]:
        settings["state_columns"] = [
            name.strip() for name in said["state_columns"].split(",") if name.strip()
        ]
    if said["push"]:
        settings["save_results"] = True
    if said["resume"] == o.LATEST_RUN:
        settings["resume"] = True
    elif said["resume"] is not None:
        settings["resume_path"] = said["resume"]
    return settings


def json_object(text: str, option: str) -> dict[str, Any]:
    """The JSON object an option holds; a usage error that shows where the text stops being one."""
    import json

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(
            f"{option} is not valid JSON: {error.msg} at character {error.pos + 1} of {text!r}. "
            """Write it like '{"key": "value", "number": 1}', in single quotes."""
        ) from error
    if not isinstance(value, dict):
        raise typer.BadParameter(
            f"{option} must be a JSON object, e.g. '{{\"key\": 1}}'; got {text!r}."
        )
    return value
