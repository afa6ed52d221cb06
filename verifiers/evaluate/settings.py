"""From the options of one evaluation, given on the command line or in a table of a file, to the `EvalConfig` that runs.

`settings_of` checks the options that were given. `resolve` adds the defaults of the environment and of the commands,
looks the model up in the endpoint registry, and returns the `EvalConfig`. It sends no request, and uses no host that
the user did not name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from verifiers.clients.connect import PROVIDERS, is_private
from verifiers.configs import ClientConfig, Config, EvalConfig
from verifiers.errors import ConfigError
from verifiers.evaluate.registry import DEFAULT_ENDPOINTS_PATH, load_endpoints, registry_file
from verifiers.run_options import (
    EVALUATION_OPTIONS,
    FILE_OPTIONS,
    Option,
    default_max_concurrent,
    is_adaptive,
)
from verifiers.types import Endpoint, Endpoints

DEFAULT_MODEL = "openai/gpt-4.1-mini"
DEFAULT_NUM_EXAMPLES = 5
DEFAULT_ROLLOUTS_PER_EXAMPLE = 3
SESSION_HEADER = {"X-Session-ID": "example_id"}
"""Sent with every request. A router can keep the rollouts of one example on one replica."""


Settings = dict[str, Any]
"""The options given for one evaluation: key of a configuration file → value. Options that were left out are absent."""
_UNLIMITED = [key for key, option in FILE_OPTIONS.items() if option.is_unlimited]


class _Checked(Config):
    """Base of the model that checks settings; its fields are generated from `run_options.FILE_OPTIONS`."""

    @model_validator(mode="before")
    @classmethod
    def accept_other_names(cls, value: Any) -> Any:
        """Replace older names, e.g. `id` and `args`, and refuse keys that exclude each other."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if "max_concurrent" in value:
            value.pop("max_concurrent_generation", None)
        for key, option in FILE_OPTIONS.items():
            for older in option.older:
                if older not in value:
                    continue
                if key in value:
                    raise ValueError(
                        f"both {older} and {key} are given; they are the same setting, so give one of them"
                    )
                value[key] = value.pop(older)
        for name in ("taskset", "harness"):
            if name in value:
                raise ValueError(
                    f"{name} belongs to the tasksets of verifiers v1 (0.4 and later); name an environment with env_id"
                )
        if value.get("endpoint_id") and value.get("model"):
            raise ValueError("endpoint_id and model both choose the model; give one of them")
        return value

    @field_validator(*_UNLIMITED, check_fields=False)
    @classmethod
    def zero_is_not_all(cls, value: int | None) -> int | None:
        """Refuse 0, which meant "all" in 0.1.14 and reads as "none"."""
        if value is not None and value < 1 and value != -1:
            raise ValueError(f"must be at least 1, or -1 for all; got {value}")
        return value

    @field_validator("num_workers", check_fields=False)
    @classmethod
    def workers_are_counted(cls, value: int | str | None) -> int | str | None:
        """Accept `auto` or a number."""
        if isinstance(value, str) and value != "auto":
            if not value.isdecimal() or int(value) < 1:
                raise ValueError(f"{value!r} is neither 'auto' nor a number of processes")
            return int(value)
        return value


def _field_of(option: Option) -> Any:
    limits: dict[str, Any] = {}
    if option.minimum is not None:
        limits["ge"] = option.minimum
    elif option.is_positive:
        limits["gt"] = 0
    return (option.type | None, Field(None, **limits))


@cache
def _model() -> type[_Checked]:
    fields = {key: _field_of(option) for key, option in FILE_OPTIONS.items()}
    return create_model("EvalSettings", __base__=_Checked, **fields)


def settings_of(values: Mapping[str, Any], where: str) -> Settings:
    """Return the checked settings. Raises ConfigError with `where` and the mistake."""
    try:
        checked = _model().model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{where}: {readable_problems(error)}") from error
    given = {key: getattr(checked, key) for key in FILE_OPTIONS if key in checked.model_fields_set}
    return {key: value for key, value in given.items() if value is not None}


def readable_problems(error: ValidationError) -> str:
    """Return the problems that pydantic reports as short sentences, without links and type names."""
    problems: list[str] = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"])
        text = (
            problem["msg"]
            .removeprefix("Value error, ")
            .replace("EvalSettings has no key", "there is no key")
        )
        if problem["type"] == "literal_error":
            text = f"{problem['input']!r} is not one of {problem.get('ctx', {}).get('expected')}"
        elif problem["type"] != "value_error":
            text += f" (got {problem['input']!r:.80})"
        problems.append(f"{name}: {text}" if name else text)
    return "; ".join(problems)


def parse_header_lines(lines: list[str], what: str) -> dict[str, str]:
    """`["Name: value"]` → `{"Name": "value"}`. Raises ConfigError with the line that has another form."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise ConfigError(f"{what} must be 'Name: value'; got {line!r}.")
        headers[name.strip()] = value.strip()
    return headers


def resolve(
    settings: Mapping[str, Any],
    *,
    environment_defaults: Callable[[str], Mapping[str, Any]] = lambda env_id: {},
    environ: Mapping[str, str] | None = None,
    read_registry: Callable[[str], Endpoints] | None = None,
) -> EvalConfig:
    """Return the evaluation to run: the settings, then the environment's defaults, then the defaults of a command.

    `environment_defaults(env_id)` returns the `num_examples` and `rollouts_per_example` that an environment suggests.
    `read_registry(path)` returns the endpoint registry, instead of the file at the path.
    Raises ConfigError, also if no setting names a host.
    """
    env_id = settings.get("env_id")
    if not env_id:
        raise ConfigError(
            "No environment is named. Give its id, e.g. `vf-eval my-env`, or env_id in the table."
        )
    environ = os.environ if environ is None else environ
    suggested = environment_defaults(env_id)
    model, endpoint_id, client_config = _client_of(settings, environ, read_registry)
    options: dict[str, Any] = {
        "num_examples": suggested.get("num_examples", DEFAULT_NUM_EXAMPLES),
        "rollouts_per_example": suggested.get("rollouts_per_example", DEFAULT_ROLLOUTS_PER_EXAMPLE),
        "max_concurrent": default_max_concurrent(adaptive=client_config.adaptive_concurrency),
    }
    options |= {one.name: settings[one.key] for one in EVALUATION_OPTIONS if one.key in settings}
    options["shuffle"] = "seed" in settings
    options["save_results"] = any(
        settings.get(key) for key in ("save_results", "resume", "resume_path")
    )
    if "timeout" in settings and "extra_env_kwargs" in settings:
        others = settings["extra_env_kwargs"].items()
        options["extra_env_kwargs"] = {k: v for k, v in others if k != "timeout_seconds"}
    plain = {key: settings[key] for key in ("max_tokens", "temperature") if key in settings}
    try:
        return EvalConfig(
            **{name: value for name, value in options.items() if value not in _EMPTY},
            endpoint_id=endpoint_id,
            model=model,
            client_config=client_config,
            sampling_args={**plain, **settings.get("sampling_args", {})},
        )
    except ValidationError as error:
        raise ConfigError(f"{env_id}: {readable_problems(error)}") from error


_EMPTY = ("", [])
"""Values that count as left out: the name of a dataset, a path, the list of state columns."""


def _client_of(
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    read_registry: Callable[[str], Endpoints] | None,
) -> tuple[str, str | None, ClientConfig]:
    """Return the model's name at the endpoint, its name in the registry or None, and the client's configuration."""
    replicas, endpoint_id = _replicas(settings, read_registry)
    provider = PROVIDERS[settings["provider"]] if settings.get("provider") else None
    base_url = settings.get("api_base_url") or (provider.base_url if provider else None)
    key_var = settings.get("api_key_var") or (provider.key_var if provider else None)
    client_type = settings.get("api_client_type") or (
        replicas[0].get("api_client_type") if replicas else None
    )
    client_type = client_type or (provider.client_type if provider else None)
    if not replicas and base_url is None:
        base_url, key_var = _openai_from(environ, key_var, settings)

    model = replicas[0]["model"] if replicas else settings.get("model") or DEFAULT_MODEL
    if settings.get("model") is None and not replicas and _host(base_url) == "api.openai.com":
        model = model.removeprefix("openai/")
    headers = dict(replicas[0].get("extra_headers") or {}) if replicas else {}
    own_headers = {
        **(settings.get("headers") or {}),
        **parse_header_lines(settings.get("header") or [], "--header"),
    }
    used_urls = [base_url] if base_url else [replica["url"] for replica in replicas]
    from_state = {
        **SESSION_HEADER,
        **(settings.get("headers_from_state") or {}),
        **parse_header_lines(settings.get("header_from_state") or [], "--header-from-state"),
    }
    several = [] if base_url or len(replicas) < 2 else replicas
    fields: dict[str, Any] = {
        "client_type": client_type or "openai_chat_completions",
        "api_key_var": key_var or (replicas[0]["key"] if replicas else "OPENAI_API_KEY"),
        "api_base_url": used_urls[0],
        "endpoint_configs": [
            {
                "api_key_var": key_var or replica["key"],
                "api_base_url": replica["url"],
                "extra_headers": {**(replica.get("extra_headers") or {}), **own_headers},
            }
            for replica in several
        ],
        "extra_headers": {**headers, **own_headers},
        "extra_headers_from_state": from_state,
        "adaptive_concurrency": is_adaptive(
            settings, is_local=all(is_local(url) for url in used_urls)
        ),
    }
    try:
        config = ClientConfig(**fields)
    except ValidationError as error:
        raise ConfigError(f"{settings['env_id']}: {readable_problems(error)}") from error
    return model, endpoint_id, config


def _replicas(
    settings: Mapping[str, Any], read_registry: Callable[[str], Endpoints] | None
) -> tuple[list[Endpoint], str | None]:
    path = settings.get("endpoints_path") or DEFAULT_ENDPOINTS_PATH
    if read_registry is None and settings.get("endpoints_path") and registry_file(path) is None:
        raise ConfigError(f"There is no endpoint registry at {path} (-e, endpoints_path).")
    name = settings.get("endpoint_id") or settings.get("model") or DEFAULT_MODEL
    endpoints = (read_registry or load_endpoints)(path)
    if name not in endpoints:
        if settings.get("endpoint_id"):
            known = ", ".join(sorted(endpoints)) or "no endpoints"
            raise ConfigError(
                f"The endpoint {name!r} is not in the registry {path}, which has {known}."
            )
        return [], None
    replicas = endpoints[name]
    models = {replica["model"] for replica in replicas}
    if len(models) > 1:
        raise ConfigError(
            f"The replicas of {name!r} in {path} serve different models: {', '.join(sorted(models))}."
        )
    return replicas, name


def _openai_from(
    environ: Mapping[str, str], key_var: str | None, settings: Mapping[str, Any]
) -> tuple[str, str]:
    if environ.get("OPENAI_API_KEY"):
        url = environ.get("OPENAI_BASE_URL") or PROVIDERS["openai"].base_url
        return url, key_var or "OPENAI_API_KEY"
    raise ConfigError(
        f"No endpoint is named for the model {settings.get('model') or DEFAULT_MODEL!r}. The ways to name one: "
        f"-p PROVIDER ({', '.join(PROVIDERS)}); -b http://localhost:8000/v1 for any OpenAI-compatible server; "
        f"-m NAME with a name from {settings.get('endpoints_path') or DEFAULT_ENDPOINTS_PATH}; or set OPENAI_API_KEY "
        "(and OPENAI_BASE_URL). Without an endpoint, `vf-endpoint` serves a small model on this machine."
    )


def _host(url: str | None) -> str:
    return urlsplit(url or "").hostname or ""


def is_local(url: str) -> bool:
    """Whether the URL names this machine or its network, which have no rate limit."""
    return is_private(_host(url))
