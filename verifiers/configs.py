"""Configuration of clients and evaluations: validated values; unknown keys are refused with a suggestion."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from verifiers.run_options import ClientType, EvaluationOptions
from verifiers.run_options import OnChanged as OnChanged

CLIENT_TYPES: tuple[str, ...] = get_args(ClientType)

DEFAULT_API_KEY_VAR = "OPENAI_API_KEY"
DEFAULT_API_BASE_URL = "https://api.openai.com/v1"


class Config(BaseModel):
    """Base class of configurations. A misspelt key is an error that suggests the closest name."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_keys(cls, value: Any) -> Any:
        """Name the closest valid key, which pydantic's own message does not."""
        if isinstance(value, dict):
            for key in value:
                if key not in cls.model_fields:
                    near = get_close_matches(str(key), cls.model_fields, n=1)
                    hint = f" Did you mean {near[0]!r}?" if near else ""
                    raise ValueError(f"{cls.__name__} has no key {key!r}.{hint}")
        return value


class EndpointClientConfig(Config):
    """Address and limits of one endpoint."""

    client_idx: int = 0
    """Index of this endpoint among the endpoints of one run."""
    api_key_var: str = DEFAULT_API_KEY_VAR
    """Name of the environment variable that holds the key. The key itself is never stored."""
    api_base_url: str = DEFAULT_API_BASE_URL
    """URL up to and including the version, e.g. `http://localhost:8000/v1`."""
    timeout: float = Field(3600.0, gt=0)
    """Maximum wait for one response, in seconds."""
    connect_timeout: float = Field(60.0, gt=0)
    """Maximum wait for a connection, in seconds. Starting thousands at once takes longer than starting one."""
    max_connections: int = Field(28000, ge=1)
    """Maximum number of open connections."""
    max_keepalive_connections: int = Field(28000, ge=0)
    """0 closes every connection after its response. Any other number keeps idle connections for 4 seconds."""
    max_retries: int = Field(10, ge=0)
    """Maximum number of attempts after the first, for 408, 409, 425, 429, 5xx and connection errors, over all
    endpoints.
    """
    extra_headers: dict[str, str] = Field(default_factory=dict)
    """Headers sent with every request."""

    @field_validator("extra_headers")
    @classmethod
    def header_names_are_tokens(cls, value: dict[str, str]) -> dict[str, str]:
        """A line break in a header would let a configuration forge requests."""
        for name, content in value.items():
            if not name or any(c in "\r\n" for c in name + content):
                raise ValueError(f"extra_headers: {name!r} is not a valid header")
        return value


class ClientConfig(EndpointClientConfig):
    """Access to a model: the API, the endpoint or endpoints, and limits."""

    client_type: ClientType = "openai_chat_completions"
    renderer: str = "auto"
    renderer_config: dict[str, Any] | None = None
    renderer_model_name: str | None = None
    renderer_pool_size: int | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    preserve_all_thinking: bool = False
    preserve_thinking_between_tool_calls: bool = False
    endpoint_configs: list[EndpointClientConfig] = Field(default_factory=list)
    """Several endpoints that serve the same model, used in turn while healthy."""
    extra_headers_from_state: dict[str, str] = Field(default_factory=dict)
    """Header name → key of the rollout's state that supplies the value (session affinity)."""
    adaptive_concurrency: bool = False
    """Let the number of requests in flight follow the endpoint's rate limit (AIMD)."""

    @field_validator("endpoint_configs", mode="before")
    @classmethod
    def endpoints_do_not_nest(cls, value: Any) -> Any:
        """Nested endpoints have no meaning; an empty list of them is left out."""
        kept: list[Any] = []
        for endpoint in value or []:
            is_table = isinstance(endpoint, dict)
            name = "endpoint_configs"
            if endpoint.get(name) if is_table else getattr(endpoint, name, None):
                raise ValueError("an entry of endpoint_configs cannot include endpoint_configs")
            if is_table:
                endpoint = {k: v for k, v in endpoint.items() if k != name}
            kept.append(endpoint)
        return kept


EndpointConfig = EndpointClientConfig


class EvalConfig(Config, EvaluationOptions):
    """One evaluation: environment, model, and the options of `run_options.EvaluationOptions`."""

    env_id: str  # pyright: ignore[reportGeneralTypeIssues]  # required here
    env_args: dict[str, Any] = Field(default_factory=dict)
    extra_env_kwargs: dict[str, Any] = Field(default_factory=dict)
    endpoint_id: str | None = None
    model: str
    client_config: ClientConfig
    sampling_args: dict[str, Any] = Field(default_factory=dict)


class EvalRunConfig(Config):
    """Several evaluations of one command."""

    evals: list[EvalConfig]
    heartbeat_url: str | None = None


class GenerateInputs(BaseModel):
    """Inputs of `generate` as parallel lists, one entry per rollout: the form of the oldest releases."""

    prompt: list[Any]
    answer: list[Any] | None = None
    info: list[Any] | None = None
    task: list[Any] | None = None
    completion: list[Any] | None = None
