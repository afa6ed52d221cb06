"""Every option of a run, declared once: name, type, default, help, command-line names, and the version that added it.

To add an option, add one field. These surfaces are generated from the fields:

    vf-eval           `--max-retries`      cli/vf_cli/eval_options.py, and docs/reference/cli.md
    a TOML file       `max_retries = 2`    verifiers/evaluate/settings.py; the key is the long command-line name
    Python            `max_retries=2`      verifiers/envs/options.py (`evaluate`, `generate`); configs.py (`EvalConfig`)
    worker processes                       `RolloutOptions` travel with each rollout: verifiers/rollouts/limits.py

Reading order: `RolloutOptions` (limits of one rollout) → `RunOptions` (one call of `evaluate`) → `EvaluationOptions`
(one evaluation of a command or a file) → `ModelOptions` (the model, its endpoint and its sampling arguments). This
module imports the standard library only, because `vf-eval --help` reads it.
"""

# ruff: noqa: RUF009 - `option` makes a dataclass field

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import get_annotations
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

ClientType = Literal[
    "openai_completions",
    "openai_chat_completions",
    "openai_chat_completions_token",
    "openai_responses",
    "renderer",
    "anthropic_messages",
    "nemorl_chat_completions",
]
OnChanged = Literal["stop", "rerun", "keep"]
"""Treatment of saved rollouts whose dataset row has changed since: stop with an error, run them again, or keep
them.
"""
Provider = Literal[
    "prime", "openrouter", "openai", "anthropic", "minimax", "deepseek", "glm", "local", "vllm"
]
"""The keys of `clients.connect.PROVIDERS`, which imports an HTTP client."""

DEFAULT_MAX_CONCURRENT = 32
"""Value of `-c` for a local API when the option is left out."""
ADAPTIVE_MAX_CONCURRENT = 256
"""Maximum number of rollouts at the same time while the number of requests follows the endpoint's rate limit."""


def is_adaptive(given: Mapping[str, Any], *, is_local: bool) -> bool:
    """Whether the number of requests follows the endpoint's rate limit (`ClientConfig.adaptive_concurrency`).

    An explicit `-c` switches the adaptive limit off, and a local API has no rate limit. `given`: the options that were
    given, by key of a configuration file.
    """
    return "max_concurrent" not in given and not is_local


def default_max_concurrent(*, adaptive: bool) -> int:
    """Return the value of `-c` in a command or a file that leaves the option out."""
    return ADAPTIVE_MAX_CONCURRENT if adaptive else DEFAULT_MAX_CONCURRENT


ENVIRONMENT, MODEL, SAMPLING = "Environment", "Model and endpoint", "Sampling"
SCOPE, RESULTS, DISPLAY = "How much to run", "Results", "Display"
PANELS = (ENVIRONMENT, MODEL, SAMPLING, SCOPE, RESULTS, DISPLAY)
"""Headings of the help, in order."""


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Option:
    """The declaration of one option."""

    name: str = ""
    """Name of the field: the keyword argument in Python."""
    type: Any = None
    """Type in a configuration file and on the command line; the annotation of the field unless given."""
    flags: tuple[str, ...] = ()
    """Long and short name on the command line; () if the command line does not have the option."""
    help: str = ""
    panel: str = SCOPE
    since: str = "0.1.14"
    """First version with this option; 0.1.14 is the newest published version that v0 callers use."""
    default_help: str = ""
    """The default that applies when the option is left out of a command or a file."""
    minimum: float | None = None
    is_positive: bool = False
    """The value must be above 0."""
    is_unlimited: bool = False
    """-1 means all, or no limit; other numbers below 1 are refused on the command line and in files."""
    is_repeatable: bool = False
    """A list has one value per occurrence on the command line; other lists are separated by commas."""
    metavar: str | None = None
    older: tuple[str, ...] = ()
    """Older names in files and in Python; the first one that starts with `--` is a hidden command-line name."""
    wire: str = ""
    """Name in requests to workers, if it is not the name of the field."""

    @property
    def key(self) -> str:
        """Name in a configuration file: the long command-line name with underscores, else the name of the field."""
        return self.flags[0].removeprefix("--").replace("-", "_") if self.flags else self.name

    @property
    def full_help(self) -> str:
        """The help with the default."""
        return f"{self.help} (default: {self.default_help})" if self.default_help else self.help


def option(default: Any, *flags: str, help: str, factory: Any = None, **more: Any) -> Any:
    """A dataclass field with the declaration of an option."""
    declared = Option(flags=flags, help=help, **more)
    if factory is not None:
        return field(default_factory=factory, metadata={"option": declared})
    return field(default=default, metadata={"option": declared})


# fmt: off
@dataclass(init=False, repr=False, eq=False, kw_only=True)
class RolloutOptions:
    """Limits of one rollout. They travel with the rollout to the process that plays it."""

    rollout_timeout_s: float | None = option(
        None, "--timeout", is_positive=True, wire="timeout_s",
        help="Maximum time of one rollout, in seconds. The rollout ends as `timeout_reached` and is scored "
        "as it is.",
    )
    scoring_timeout_s: float | None = option(
        None, "--scoring-timeout", is_positive=True, since="1.0.0", default_help="300",
        help="Maximum time of one call of a reward function, in seconds. The call then counts 0 and is "
        "reported.",
    )
    max_total_tokens: int | None = option(
        None, "--max-total-tokens", minimum=1, is_positive=True, since="1.0.0",
        help="Maximum number of prompt and completion tokens per rollout. The rollout then ends and is "
        "scored as it is.",
    )
    max_cost_usd: float | None = option(
        None, "--max-cost", is_positive=True, since="1.0.0",
        help="Maximum cost per rollout in US dollars; needs --prices. The rollout then ends and is scored "
        "as it is.",
    )


@dataclass(init=False, repr=False, eq=False, kw_only=True)
class RunOptions(RolloutOptions):
    """Options of `Environment.evaluate` and `Environment.generate`."""

    num_examples: int = option(
        -1, "--num-examples", "-n", is_unlimited=True, default_help="the environment's, else 5",
        help="Number of examples; -1 means all.",
    )
    rollouts_per_example: int = option(
        1, "--rollouts-per-example", "-r", minimum=1, default_help="the environment's, else 3",
        help="Number of rollouts per example.",
    )
    shuffle: bool = option(False, since="1.0.0", help="Take the examples in a random order.")
    shuffle_seed: int | None = option(
        None, "--seed", since="1.0.0",
        help="Seed of a random order of the examples, instead of the order of the dataset.",
    )
    max_concurrent: int = option(
        -1, "--max-concurrent", "-c", is_unlimited=True,
        older=("max_concurrent_generation", "--max-concurrent-generation"),
        default_help=f"follows a remote API's rate limit; {DEFAULT_MAX_CONCURRENT} for a local API",
        help="Maximum number of rollouts at the same time; -1 means no limit.",
    )
    """Place of effect: `Schedule` in `rollouts/schedule.py`. Defaults of commands and files: `default_max_concurrent`;
    effect on the adaptive limit: `is_adaptive`.
    """
    max_concurrent_scoring: int | None = option(
        None, "--max-concurrent-scoring", minimum=1, since="1.0.0", default_help="no limit",
        help="Maximum number of groups that are scored at the same time.",
    )
    independent_scoring: bool = option(
        False, "--independent-scoring", "-i",
        help="Score each rollout alone, also if rewards depend on the group.",
    )
    max_retries: int = option(
        0, "--max-retries", minimum=0, default_help="0",
        help="Maximum number of further attempts for a rollout that infrastructure failed.",
    )
    prices: Any = option(
        None, "--prices", since="1.0.0", type=str,
        help="Price table: a TOML or JSON file with the prices of models. Needed for costs and --max-cost.",
    )
    strict: bool = option(
        False, "--strict", since="1.0.0",
        help="Stop the run at the first reward function that raises.",
    )
    save_results: bool = option(
        False, "--save-results", "-s", panel=RESULTS,
        help="Save every finished rollout.",
    )
    on_changed: OnChanged = option(
        "stop", "--on-changed", panel=RESULTS, since="1.0.0", default_help="stop",
        help="Treatment of saved rollouts whose dataset row has changed since: stop with an error, rerun "
        "them, or keep them. Applies when a run is resumed.",
    )
    state_columns: Sequence[str] | None = option(
        None, "--state-columns", "-C", panel=RESULTS, type=list[str],
        help="Further keys of the state to save, e.g. 'trajectory,turn'. A rollout without the key has null.",
    )
    save_to_hf_hub: bool = option(
        False, "--save-to-hf-hub", "-H", panel=RESULTS, older=("push_to_hf_hub",),
        help="Upload the results as a dataset to the Hugging Face hub.",
    )
    hf_hub_dataset_name: str | None = option(
        None, "--hf-hub-dataset-name", "-D", panel=RESULTS, default_help="environment, model and size",
        help="Name of the dataset on the Hugging Face hub.",
    )


@dataclass(init=False, repr=False, eq=False, kw_only=True)
class EvaluationOptions(RunOptions):
    """Options of one evaluation of a command or of a configuration file."""

    env_id: str = option(
        "", panel=ENVIRONMENT, older=("id",), type=str,
        help="Id, folder or Python file of the environment.",
    )
    env_args: dict[str, Any] = option(
        None, "--env-args", "-a", panel=ENVIRONMENT, factory=dict, older=("args",),
        help="JSON object of arguments for load_environment(), e.g. '{\"seed\": 1}'.",
    )
    extra_env_kwargs: dict[str, Any] = option(
        None, "--extra-env-kwargs", "-x", panel=ENVIRONMENT, factory=dict,
        help="JSON object of attributes to set on the environment, e.g. '{\"max_turns\": 20}'.",
    )
    env_dir_path: str = option(
        "./environments", "--env-dir-path", panel=ENVIRONMENT, default_help="./environments",
        help="Folder of local environments. Runs of a local environment are saved in its folder.",
    )
    num_workers: int | str = option(
        "auto", "--num-workers", "-w", default_help="auto",
        help="Number of worker processes that run the environment; useful for environments that block. "
        "'auto' runs the environment in this process.",
    )
    disable_env_server: bool = option(
        False, "--disable-env-server",
        help="Run the environment in this process.",
    )
    output_dir: str | None = option(
        None, "--output-dir", "-o", panel=RESULTS,
        default_help="outputs/ of the local environment, else ./outputs",
        help="Folder for saved runs.",
    )
    resume: bool = option(
        False, "--resume", "-R", panel=RESULTS, metavar="[PATH]",
        help="Run only the rollouts that are missing in a saved run: the run in PATH, else the newest "
        "incomplete run of the same evaluation.",
    )
    resume_path: Path | None = option(
        None, panel=RESULTS,
        help="Folder of the saved run to resume; `--resume PATH`.",
    )
    verbose: bool = option(
        False, "--verbose", "-v", panel=DISPLAY,
        help="Log everything, and show tracebacks.",
    )
    disable_tui: bool = option(
        False, "--disable-tui", "-d", panel=DISPLAY,
        help="Print plain lines instead of the live display.",
    )


@dataclass(init=False, repr=False, eq=False, kw_only=True)
class ModelOptions:
    """Options that choose the model, its endpoint and its sampling arguments."""

    model: str | None = option(
        None, "--model", "-m", panel=MODEL, default_help="openai/gpt-4.1-mini",
        help="Name of the model, or a name in the endpoint registry.",
    )
    endpoint_id: str | None = option(
        None, panel=MODEL,
        help="A name that must be in the endpoint registry; instead of `model`.",
    )
    provider: Provider | None = option(
        None, "--provider", "-p", panel=MODEL,
        help=f"Well-known API; sets the URL and the key variable: {', '.join(get_args(Provider))}.",
    )
    api_base_url: str | None = option(
        None, "--api-base-url", "-b", panel=MODEL,
        help="URL of an OpenAI-compatible API, including /v1.",
    )
    api_key_var: str | None = option(
        None, "--api-key-var", "-k", panel=MODEL,
        help="Name of the environment variable that holds the API key.",
    )
    api_client_type: ClientType | None = option(
        None, "--api-client-type", panel=MODEL,
        help=f"Kind of API: {', '.join(get_args(ClientType))}.",
    )
    endpoints_path: str | None = option(
        None, "--endpoints-path", "-e", panel=MODEL, default_help="./configs/endpoints.toml",
        help="Endpoint registry: endpoints.toml, or an older endpoints.py.",
    )
    header: list[str] | None = option(
        None, "--header", panel=MODEL, is_repeatable=True,
        help="Extra HTTP header 'Name: value'. Can be repeated.",
    )
    headers: dict[str, str] | None = option(
        None, panel=MODEL,
        help="Extra HTTP headers; a line of `header` replaces the same name.",
    )
    header_from_state: list[str] | None = option(
        None, "--header-from-state", panel=MODEL, is_repeatable=True,
        help="HTTP header whose value is a key of the rollout's state, 'Name: state_key'. Can be repeated. "
        "X-Session-ID: example_id is always sent.",
    )
    headers_from_state: dict[str, str] | None = option(
        None, panel=MODEL,
        help="HTTP headers whose values are keys of the rollout's state.",
    )
    max_tokens: int | None = option(
        None, "--max-tokens", "-t", panel=SAMPLING, minimum=1, default_help="the model's",
        help="Maximum number of tokens per response.",
    )
    temperature: float | None = option(
        None, "--temperature", "-T", panel=SAMPLING, minimum=0, default_help="the model's",
        help="Sampling temperature.",
    )
    sampling_args: dict[str, Any] | None = option(
        None, "--sampling-args", "-S", panel=SAMPLING,
        help="JSON object that is sent with every request, e.g. '{\"top_p\": 0.9}'; overrides -t and -T.",
    )


# fmt: on


def options_of(owner: type) -> tuple[Option, ...]:
    """The options that a class declares itself, in order, with names and types."""
    own = get_annotations(owner)  # objects, because this module does not postpone annotations
    return tuple(
        replace(declared, name=one.name, type=declared.type or one.type)
        for one in fields(owner)
        if one.name in own and (declared := one.metadata.get("option")) is not None
    )


def kinds_of(one: Option) -> tuple[Any, ...]:
    """Return the types that a value of the option may have, without None: `(int,)` for `int | None`."""
    is_union = isinstance(one.type, UnionType) or get_origin(one.type) is Union
    return tuple(
        kind for kind in (get_args(one.type) if is_union else (one.type,)) if kind is not type(None)
    )


def choices_of(one: Option) -> tuple[str, ...]:
    """Return the values of an option with a `Literal` type; () for other types."""
    return next((get_args(kind) for kind in kinds_of(one) if get_origin(kind) is Literal), ())


ROLLOUT_OPTIONS = options_of(RolloutOptions)
RUN_OPTIONS = (*options_of(RunOptions), *ROLLOUT_OPTIONS)
"""Options of `evaluate` and `generate`."""
EVALUATION_OPTIONS = (*RUN_OPTIONS, *options_of(EvaluationOptions))
FILE_OPTIONS: Mapping[str, Option] = MappingProxyType(
    {
        one.key: one
        for one in (*EVALUATION_OPTIONS, *options_of(ModelOptions))
        if one.name != "shuffle"
    }
)
"""Key in a configuration file → option."""
