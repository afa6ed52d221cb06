"""The options of `vf-eval`: names, short names and help. Defaults are applied later, by `evaluations.settings`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from vf_cli import output

PROVIDER_NAMES = "prime, openrouter, openai, anthropic, minimax, deepseek, glm, local, vllm"
"""Written out, because the table itself imports the HTTP client; a test compares them."""
BACKEND_NAMES = "local, unsafe-local, gvisor, docker, podman, prime"
"""The same, for sandboxes."""
CLIENT_TYPE_NAMES = (
    "openai_chat_completions, openai_completions, openai_chat_completions_token, openai_responses, renderer, "
    "anthropic_messages, nemorl_chat_completions"
)
LATEST_RUN = "latest"
"""What `--resume` without a path stands for."""

_MODEL, _SAMPLING, _SCOPE = "Model and endpoint", "Sampling", "How much to run"
_RESULTS, _DISPLAY, _ENVIRONMENT = "Results", "Display", "Environment"


def _option(*names: str, help: str, panel: str, **more: Any) -> Any:  # Typer's own name for it
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


EnvOrConfig = Annotated[
    str,
    typer.Argument(
        metavar="ENV_OR_CONFIG",
        help="Id of an installed environment (my-env), a folder (./my_env), a Python file (./my_env.py), or a TOML "
        "file with several evaluations.",
    ),
]
EnvArgs = Annotated[
    str | None,
    _option(
        "--env-args",
        "-a",
        help="JSON object for load_environment(), e.g. '{\"seed\": 1}'.",
        panel=_ENVIRONMENT,
    ),
]
ExtraEnvKwargs = Annotated[
    str | None,
    _option(
        "--extra-env-kwargs",
        "-x",
        help="JSON object of attributes to set on the environment, e.g. '{\"max_turns\": 20}'.",
        panel=_ENVIRONMENT,
    ),
]


def _choose_backend(name: str | None) -> str | None:
    """Let every sandbox of this process and of its workers come from the back end, unless code names another one."""
    if name is not None:
        if name not in BACKEND_NAMES.split(", "):
            raise typer.BadParameter(f"{name!r} is not one of {BACKEND_NAMES}.")
        os.environ["VF_SANDBOX_BACKEND"] = name
    return name


SandboxBackend = Annotated[
    str | None,
    _option(
        "--sandbox-backend",
        help=f"Back end of sandboxes for environments that name none: {BACKEND_NAMES}. "
        "The environment variable VF_SANDBOX_BACKEND does the same. (default: local)",
        metavar="NAME",
        callback=_choose_backend,
        panel=_ENVIRONMENT,
    ),
]
EnvDirPath = Annotated[
    str | None,
    _option(
        "--env-dir-path",
        help="Folder of local environments; runs of one of them are saved in it. (default: ./environments)",
        panel=_ENVIRONMENT,
    ),
]
Model = Annotated[
    str | None,
    _option(
        "--model",
        "-m",
        help="Model name, or a name in the endpoint registry. (default: openai/gpt-4.1-mini)",
        panel=_MODEL,
    ),
]
Provider = Annotated[
    str | None,
    _option(
        "--provider",
        "-p",
        help=f"Well-known API; sets URL and key variable: {PROVIDER_NAMES}.",
        panel=_MODEL,
    ),
]
ApiBaseUrl = Annotated[
    str | None,
    _option(
        "--api-base-url",
        "-b",
        help="URL of any OpenAI-compatible API, up to and with /v1.",
        panel=_MODEL,
    ),
]
ApiKeyVar = Annotated[
    str | None,
    _option(
        "--api-key-var", "-k", help="Environment variable that holds the API key.", panel=_MODEL
    ),
]
ApiClientType = Annotated[
    str | None,
    _option("--api-client-type", help=f"Kind of API: {CLIENT_TYPE_NAMES}.", panel=_MODEL),
]
EndpointsPath = Annotated[
    str | None,
    _option(
        "--endpoints-path",
        "-e",
        help="Endpoint registry: endpoints.toml, or an older endpoints.py. (default: ./configs/endpoints.toml)",
        panel=_MODEL,
    ),
]
Header = Annotated[
    list[str] | None,
    _option("--header", help="Extra HTTP header 'Name: value'. Repeatable.", panel=_MODEL),
]
HeaderFromState = Annotated[
    list[str] | None,
    _option(
        "--header-from-state",
        help="HTTP header whose value is a key of the rollout's state, 'Name: state_key'. Repeatable. "
        "X-Session-ID: example_id is always sent.",
        panel=_MODEL,
    ),
]
MaxTokens = Annotated[
    int | None,
    _option(
        "--max-tokens",
        "-t",
        min=1,
        help="Most tokens of one answer. (default: the model's)",
        panel=_SAMPLING,
    ),
]
Temperature = Annotated[
    float | None,
    _option(
        "--temperature",
        "-T",
        min=0.0,
        help="Sampling temperature. (default: the model's)",
        panel=_SAMPLING,
    ),
]
SamplingArgs = Annotated[
    str | None,
    _option(
        "--sampling-args",
        "-S",
        help="JSON object sent with every request, e.g. '{\"top_p\": 0.9}'; over -t and -T.",
        panel=_SAMPLING,
    ),
]
NumExamples = Annotated[
    int | None,
    _option(
        "--num-examples",
        "-n",
        min=-1,
        help="Examples; -1 means all. (default: its own, else 5)",
        panel=_SCOPE,
    ),
]
RolloutsPerExample = Annotated[
    int | None,
    _option(
        "--rollouts-per-example",
        "-r",
        min=1,
        help="Rollouts of each. (default: its own, else 3)",
        panel=_SCOPE,
    ),
]
Seed = Annotated[
    int | None,
    _option(
        "--seed",
        help="Take examples at random with this seed, instead of the first ones.",
        panel=_SCOPE,
    ),
]
MaxConcurrent = Annotated[
    int | None,
    _option(
        "--max-concurrent",
        "-c",
        help="Rollouts at once; -1: all. (default: what a remote API's rate limit allows; 32 on a local one)",
        panel=_SCOPE,
    ),
]
MaxConcurrentGeneration = Annotated[
    int | None,
    _option(
        "--max-concurrent-generation",
        help="Older name of -c.",
        panel=_SCOPE,
        hidden=True,
    ),
]
MaxConcurrentScoring = Annotated[
    int | None,
    _option(
        "--max-concurrent-scoring",
        min=1,
        help="Rollouts scored at once. (default: no limit)",
        panel=_SCOPE,
    ),
]
NoInterleaveScoring = Annotated[
    bool,
    _option(
        "--no-interleave-scoring",
        "-N",
        help="Accepted for 0.1.14, where it has no effect either.",
        panel=_SCOPE,
    ),
]
IndependentScoring = Annotated[
    bool,
    _option(
        "--independent-scoring",
        "-i",
        help="Score each rollout by itself, not with its group.",
        panel=_SCOPE,
    ),
]
Timeout = Annotated[
    float | None,
    _option("--timeout", help="Longest time of one rollout, in seconds.", panel=_SCOPE),
]
ScoringTimeout = Annotated[
    float | None,
    _option(
        "--scoring-timeout",
        help="Longest run of one reward function, in seconds; it then counts 0 and is reported. (default: 300)",
        panel=_SCOPE,
    ),
]
MaxRetries = Annotated[
    int | None,
    _option(
        "--max-retries",
        min=0,
        help="Times a rollout that failed for infrastructure reasons is run again. (default: 0)",
        panel=_SCOPE,
    ),
]
MaxTotalTokens = Annotated[
    int | None,
    _option("--max-total-tokens", min=1, help="Tokens after which a rollout ends.", panel=_SCOPE),
]
MaxCost = Annotated[
    float | None, _option("--max-cost", help="US dollars after which a rollout ends.", panel=_SCOPE)
]
Prices = Annotated[
    str | None,
    _option(
        "--prices",
        help="TOML file with what models cost; needed for costs and --max-cost.",
        panel=_SCOPE,
    ),
]
Strict = Annotated[
    bool, _option("--strict", help="Stop at the first reward function that raises.", panel=_SCOPE)
]
NumWorkers = Annotated[
    str | None,
    _option(
        "--num-workers",
        "-w",
        help="Number of worker processes that run the environment; they help environments that block. "
        "'auto' runs it in this process.",
        panel=_SCOPE,
    ),
]
DisableEnvServer = Annotated[
    bool,
    _option("--disable-env-server", help="Keep the environment in this process.", panel=_SCOPE),
]
SaveResults = Annotated[
    bool, _option("--save-results", "-s", help="Save every finished rollout.", panel=_RESULTS)
]
OutputDir = Annotated[
    str | None,
    _option(
        "--output-dir",
        "-o",
        help="Folder for runs. (default: outputs/ of the local environment, else ./outputs)",
        panel=_RESULTS,
    ),
]
Resume = Annotated[
    str | None,
    _option(
        "--resume",
        "-R",
        metavar="[PATH]",
        help="Run only what is missing of a saved run: of PATH, else of the newest incomplete one like this.",
        panel=_RESULTS,
    ),
]
OnChanged = Annotated[
    str | None,
    _option(
        "--on-changed",
        metavar="stop|rerun|keep",
        help="When rows of the dataset changed since the run to resume was saved: stop, run those again, or keep what "
        "was saved. (default: stop)",
        panel=_RESULTS,
    ),
]
StateColumns = Annotated[
    str | None,
    _option(
        "--state-columns",
        "-C",
        help="State keys to save too, e.g. 'trajectory,turn'; null where a rollout has none.",
        panel=_RESULTS,
    ),
]
SaveToHfHub = Annotated[
    bool,
    _option("--save-to-hf-hub", "-H", help="Push the results to Hugging Face.", panel=_RESULTS),
]
HfHubDatasetName = Annotated[
    str | None,
    _option("--hf-hub-dataset-name", "-D", help="Name of the dataset there.", panel=_RESULTS),
]
Push = Annotated[
    bool,
    _option(
        "--push",
        help="Upload the finished run to your hub (see `prime config`); implies -s.",
        panel=_RESULTS,
    ),
]
FailUnder = Annotated[
    float | None,
    _option("--fail-under", help="Exit with 1 when the mean reward is below this.", panel=_RESULTS),
]
AsJson = Annotated[
    bool,
    _option("--json", help="Print one JSON object on stdout, nothing else.", panel=_DISPLAY),
]
DryRun = Annotated[
    bool,
    _option("--dry-run", help="Show what would run; load and request nothing.", panel=_DISPLAY),
]
Yes = Annotated[
    bool,
    _option(
        "--yes",
        "-y",
        help="Do not ask: not before a very large run, and not before installing an environment of your hub.",
        panel=_DISPLAY,
    ),
]
Verbose = Annotated[
    bool, _option("--verbose", "-v", help="Log everything, and show tracebacks.", panel=_DISPLAY)
]
Fullscreen = Annotated[
    bool,
    _option("--fullscreen", "-f", help="Use the whole terminal while running.", panel=_DISPLAY),
]
DisableTui = Annotated[
    bool,
    _option("--disable-tui", "-d", help="Plain lines instead of the live display.", panel=_DISPLAY),
]
AbbreviatedSummary = Annotated[
    bool,
    _option(
        "--abbreviated-summary", "-A", help="Leave the example out of the summary.", panel=_DISPLAY
    ),
]
HeartbeatUrl = Annotated[
    str | None,
    _option("--heartbeat-url", help="URL to GET while rollouts keep finishing.", panel=_DISPLAY),
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.show(version("verifiers"))
        raise typer.Exit


Version = Annotated[
    bool,
    _option(
        "--version",
        help="Show the version and exit.",
        panel=_DISPLAY,
        callback=_show_version,
        is_eager=True,
    ),
]


def with_resume_value(arguments: Sequence[str]) -> list[str]:
    """The arguments with `latest` after a `--resume` or `-R` that has no path of its own."""
    completed: list[str] = []
    for index, argument in enumerate(arguments):
        completed.append(argument)
        following = arguments[index + 1] if index + 1 < len(arguments) else "-"
        if argument in ("--resume", "-R") and following.startswith("-"):
            completed.append(LATEST_RUN)
    return completed
