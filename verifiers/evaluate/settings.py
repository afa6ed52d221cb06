"""One evaluation as somebody asks for it, and what it resolves to.

`EvalSettings` holds what was said, by options or by a table of a configuration file; everything may be left out.
`resolve` adds the environment's and our defaults, looks the model up in the endpoint registry, and gives the
`EvalConfig` that runs. It makes no request, and names no host that the user did not name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator, model_validator

from verifiers.clients.connect import PROVIDERS, is_private
from verifiers.configs import ClientConfig, ClientType, Config, EvalConfig, OnChanged
from verifiers.errors import ConfigError
from verifiers.evaluate.registry import DEFAULT_ENDPOINTS_PATH, load_endpoints, registry_file
from verifiers.types import Endpoint

DEFAULT_MODEL = "openai/gpt-4.1-mini"
DEFAULT_ENV_DIR_PATH = "./environments"
DEFAULT_NUM_EXAMPLES = 5
DEFAULT_ROLLOUTS_PER_EXAMPLE = 3
DEFAULT_MAX_CONCURRENT = 32
ADAPTIVE_MAX_CONCURRENT = 256
"""Rollouts in progress at most while the requests in flight follow the endpoint's rate limit."""
SESSION_HEADER = {"X-Session-ID": "example_id"}
"""Sent with every request, so that a router can keep the rollouts of one example on one replica."""


class EvalSettings(Config):
    """What was said about one evaluation. A field that is None was not said."""

    env_id: str | None = None
    env_args: dict[str, Any] | None = None
    """Arguments of the environment's `load_environment`; `args` in a table means the same."""
    extra_env_kwargs: dict[str, Any] | None = None
    """Attributes set on the environment after it is built, e.g. `max_turns`."""
    env_dir_path: str | None = None
    """Folder of local environments; a run of one of them is saved inside its folder."""

    model: str | None = None
    """A name in the endpoint registry, or else the model's name at the endpoint."""
    endpoint_id: str | None = None
    """A name that must be in the registry; instead of `model`."""
    endpoints_path: str | None = None
    provider: str | None = None
    """A well-known API: sets base URL, key variable and client type."""
    api_base_url: str | None = None
    api_key_var: str | None = None
    api_client_type: ClientType | None = None
    header: list[str] | None = None
    """`Name: value` lines; each replaces the same name in `headers`, which replaces the registry's."""
    headers: dict[str, str] | None = None
    header_from_state: list[str] | None = None
    """`Name: state key` lines."""
    headers_from_state: dict[str, str] | None = None

    num_examples: int | None = None
    """Examples to evaluate; -1 means all."""
    rollouts_per_example: int | None = Field(None, ge=1)
    max_concurrent: int | None = None
    """Rollouts in progress at most; -1 means no limit."""
    max_concurrent_generation: int | None = None
    """The older name of `max_concurrent`."""
    max_concurrent_scoring: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    sampling_args: dict[str, Any] | None = None
    """Sent as they are with every request; over `max_tokens` and `temperature`."""
    timeout: float | None = Field(None, gt=0)
    """Longest time of one rollout, in seconds."""
    scoring_timeout: float | None = Field(None, gt=0)
    """Longest run of one reward function, in seconds."""
    max_retries: int | None = Field(None, ge=0)
    """How often a rollout that failed for infrastructure reasons is tried again."""
    max_total_tokens: int | None = Field(None, ge=1)
    """Tokens one rollout may use before it ends."""
    max_cost: float | None = Field(None, gt=0)
    """US dollars one rollout may cost before it ends."""
    independent_scoring: bool | None = None
    num_workers: int | str | None = None
    disable_env_server: bool | None = None

    output_dir: str | None = None
    state_columns: list[str] | None = None
    save_results: bool | None = None
    resume: bool | None = None
    """Continue the newest run of the same evaluation that is not complete."""
    resume_path: Path | None = None
    """Continue the run in this folder."""
    on_changed: OnChanged | None = None
    """What to do when a run is continued and rows of the dataset have changed since."""
    save_to_hf_hub: bool | None = None
    hf_hub_dataset_name: str | None = None
    verbose: bool | None = None
    disable_tui: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def accept_other_names(cls, value: Any) -> Any:
        """`id` and `args` are other names of `env_id` and `env_args`."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        for other, name in (("id", "env_id"), ("args", "env_args")):
            if other in value:
                if name in value:
                    raise ValueError(f"{other} and {name} are the same setting; give one of them")
                value[name] = value.pop(other)
        for name in ("taskset", "harness"):
            if name in value:
                raise ValueError(
                    f"{name} belongs to the tasksets of verifiers v1; name an environment with env_id"
                )
        if value.get("endpoint_id") and value.get("model"):
            raise ValueError("endpoint_id and model both choose the model; give one of them")
        return value

    @field_validator("provider")
    @classmethod
    def provider_is_known(cls, value: str | None) -> str | None:
        """Name the providers there are."""
        if value is not None and value not in PROVIDERS:
            raise ValueError(f"{value!r} is none of {', '.join(PROVIDERS)}")
        return value

    @field_validator("num_examples", "max_concurrent", "max_concurrent_generation")
    @classmethod
    def nothing_is_not_all(cls, value: int | None) -> int | None:
        """0 meant "all" in 0.1.14, which is not what anybody expects of it."""
        if value is not None and value < 1 and value != -1:
            raise ValueError(f"must be at least 1, or -1 for all; got {value}")
        return value

    @field_validator("num_workers")
    @classmethod
    def workers_are_counted(cls, value: int | str | None) -> int | str | None:
        """`auto` or a number."""
        if isinstance(value, str) and value != "auto":
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"{value!r} is neither 'auto' nor a number of processes")
            return int(value)
        return value

    def said(self) -> dict[str, Any]:
        """The fields that were given, by name."""
        return {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name in self.model_fields_set and getattr(self, name) is not None
        }


def settings_of(values: Mapping[str, Any], where: str) -> EvalSettings:
    """Validated settings; ConfigError that says where and what is wrong."""
    try:
        return EvalSettings.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{where}: {readable_problems(error)}") from error


def readable_problems(error: ValidationError) -> str:
    """Pydantic's findings as short sentences, without its links and type names."""
    problems: list[str] = []
    for found in error.errors(include_url=False):
        name = ".".join(str(part) for part in found["loc"])
        text = (
            found["msg"]
            .removeprefix("Value error, ")
            .replace("EvalSettings has no key", "there is no key")
        )
        got = "" if found["type"] == "value_error" else f" (got {found['input']!r:.80})"
        problems.append(f"{name}: {text}{got}" if name else text)
    return "; ".join(problems)


def parse_header_lines(lines: list[str], what: str) -> dict[str, str]:
    """`["Name: value"]` → `{"Name": "value"}`; ConfigError names the line that is none."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise ConfigError(f"{what} must be 'Name: value'; got {line!r}.")
        headers[name.strip()] = value.strip()
    return headers


def resolve(
    settings: EvalSettings,
    *,
    environment_defaults: Callable[[str], Mapping[str, Any]] = lambda env_id: {},
    environ: Mapping[str, str] | None = None,
) -> EvalConfig:
    """The evaluation to run: settings over the environment's own defaults over ours.

    `environment_defaults(env_id)` gives `num_examples` and `rollouts_per_example` an environment suggests.
    Raises ConfigError, for one when nothing says which host to use.
    """
    if not settings.env_id:
        raise ConfigError(
            "No environment is named. Give its id, e.g. `vf-eval my-env`, or env_id in the table."
        )
    environ = os.environ if environ is None else environ
    suggested = environment_defaults(settings.env_id)
    model, endpoint_id, client_config = _client_of(settings, environ)

    def chosen(name: str, default: Any) -> Any:
        said = getattr(settings, name)
        return said if said is not None else suggested.get(name, default)

    max_concurrent = settings.max_concurrent
    if max_concurrent is None:
        max_concurrent = settings.max_concurrent_generation
    if max_concurrent is None:
        max_concurrent = (
            ADAPTIVE_MAX_CONCURRENT
            if client_config.adaptive_concurrency
            else DEFAULT_MAX_CONCURRENT
        )
    extra_env_kwargs = dict(settings.extra_env_kwargs or {})
    if settings.timeout is not None:
        extra_env_kwargs.pop("timeout_seconds", None)
    try:
        return EvalConfig(
            env_id=settings.env_id,
            env_args=settings.env_args or {},
            env_dir_path=settings.env_dir_path or DEFAULT_ENV_DIR_PATH,
            endpoint_id=endpoint_id,
            model=model,
            client_config=client_config,
            sampling_args=_sampling_args(settings),
            num_examples=chosen("num_examples", DEFAULT_NUM_EXAMPLES),
            rollouts_per_example=chosen("rollouts_per_example", DEFAULT_ROLLOUTS_PER_EXAMPLE),
            max_concurrent=max_concurrent,
            max_concurrent_scoring=settings.max_concurrent_scoring,
            num_workers=settings.num_workers or "auto",
            independent_scoring=settings.independent_scoring or False,
            extra_env_kwargs=extra_env_kwargs,
            max_retries=settings.max_retries or 0,
            rollout_timeout_s=settings.timeout,
            scoring_timeout_s=settings.scoring_timeout,
            max_total_tokens=settings.max_total_tokens,
            max_cost_usd=settings.max_cost,
            disable_env_server=settings.disable_env_server or False,
            verbose=settings.verbose or False,
            disable_tui=settings.disable_tui or False,
            output_dir=settings.output_dir,
            state_columns=settings.state_columns or None,
            save_results=bool(settings.save_results or settings.resume or settings.resume_path),
            resume_path=settings.resume_path,
            on_changed=settings.on_changed or "stop",
            save_to_hf_hub=settings.save_to_hf_hub or False,
            hf_hub_dataset_name=settings.hf_hub_dataset_name or None,
        )
    except ValidationError as error:
        raise ConfigError(f"{settings.env_id}: {readable_problems(error)}") from error


def _sampling_args(settings: EvalSettings) -> dict[str, Any]:
    plain = {"max_tokens": settings.max_tokens, "temperature": settings.temperature}
    return {k: v for k, v in plain.items() if v is not None} | (settings.sampling_args or {})


def _client_of(
    settings: EvalSettings, environ: Mapping[str, str]
) -> tuple[str, str | None, ClientConfig]:
    """Model name at the endpoint, registry name or None, and how to reach it."""
    replicas, endpoint_id = _replicas(settings)
    provider = PROVIDERS[settings.provider] if settings.provider else None
    base_url = settings.api_base_url or (provider.base_url if provider else None)
    key_var = settings.api_key_var or (provider.key_var if provider else None)
    client_type = settings.api_client_type or (
        replicas[0].get("api_client_type") if replicas else None
    )
    client_type = client_type or (provider.client_type if provider else None)
    if not replicas and base_url is None:
        base_url, key_var = _openai_from(environ, key_var, settings)

    model = replicas[0]["model"] if replicas else settings.model or DEFAULT_MODEL
    if settings.model is None and not replicas and _host(base_url) == "api.openai.com":
        model = model.removeprefix("openai/")
    headers = dict(replicas[0].get("extra_headers") or {}) if replicas else {}
    said_headers = {
        **(settings.headers or {}),
        **parse_header_lines(settings.header or [], "--header"),
    }
    used_urls = [base_url] if base_url else [replica["url"] for replica in replicas]
    from_state = {
        **SESSION_HEADER,
        **(settings.headers_from_state or {}),
        **parse_header_lines(settings.header_from_state or [], "--header-from-state"),
    }
    fixed = settings.max_concurrent is not None or settings.max_concurrent_generation is not None
    several = [] if base_url or len(replicas) < 2 else replicas
    fields: dict[str, Any] = {
        "client_type": client_type or "openai_chat_completions",
        "api_key_var": key_var or (replicas[0]["key"] if replicas else "OPENAI_API_KEY"),
        "api_base_url": used_urls[0],
        "endpoint_configs": [
            {
                "api_key_var": key_var or replica["key"],
                "api_base_url": replica["url"],
                "extra_headers": {**(replica.get("extra_headers") or {}), **said_headers},
            }
            for replica in several
        ],
        "extra_headers": {**headers, **said_headers},
        "extra_headers_from_state": from_state,
        "adaptive_concurrency": not fixed and not all(is_local(url) for url in used_urls),
    }
    try:
        config = ClientConfig(**fields)
    except ValidationError as error:
        raise ConfigError(f"{settings.env_id}: {readable_problems(error)}") from error
    return model, endpoint_id, config


def _replicas(settings: EvalSettings) -> tuple[list[Endpoint], str | None]:
    path = settings.endpoints_path or DEFAULT_ENDPOINTS_PATH
    if settings.endpoints_path and registry_file(path) is None:
        raise ConfigError(f"There is no endpoint registry at {path} (-e, endpoints_path).")
    wanted = settings.endpoint_id or settings.model or DEFAULT_MODEL
    endpoints = load_endpoints(path)
    if wanted not in endpoints:
        if settings.endpoint_id:
            known = ", ".join(sorted(endpoints)) or "no endpoint at all"
            raise ConfigError(
                f"The endpoint {wanted!r} is not in the registry {path}, which has {known}."
            )
        return [], None
    replicas = endpoints[wanted]
    models = {replica["model"] for replica in replicas}
    if len(models) > 1:
        raise ConfigError(
            f"The replicas of {wanted!r} in {path} serve different models: {', '.join(sorted(models))}."
        )
    return replicas, wanted


def _openai_from(
    environ: Mapping[str, str], key_var: str | None, settings: EvalSettings
) -> tuple[str, str]:
    if environ.get("OPENAI_API_KEY"):
        url = environ.get("OPENAI_BASE_URL") or PROVIDERS["openai"].base_url
        return url, key_var or "OPENAI_API_KEY"
    wanted = settings.model or DEFAULT_MODEL
    raise ConfigError(
        f"No endpoint is named for the model {wanted!r}. Say where it runs, in one of these ways: "
        f"-p PROVIDER ({', '.join(PROVIDERS)}); -b http://localhost:8000/v1 for any OpenAI-compatible server; "
        f"-m NAME with a name from {settings.endpoints_path or DEFAULT_ENDPOINTS_PATH}; or set OPENAI_API_KEY "
        "(and OPENAI_BASE_URL). To try without any of them: `vf-endpoint` serves a small model on this machine."
    )


def _host(url: str | None) -> str:
    return urlsplit(url or "").hostname or ""


def is_local(url: str) -> bool:
    """Whether the URL names this machine or its network, where no rate limit has to be found out."""
    return is_private(_host(url))
