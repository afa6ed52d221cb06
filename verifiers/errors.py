"""The error tree of the library. Everything it raises on purpose is an `Error`.

    Error
    ├── InfraError                 the machinery failed, not the model and not the author; worth a retry
    │   ├── SandboxError           (`verifiers.sandboxes.errors` has the finer tree)
    │   │   └── BrowserSandboxError
    │   ├── MCPServerError         (also ToolError) an MCP server cannot be started or reached, or was lost
    │   │   └── MCPAnswerLost      it was lost after it was sent a call
    │   └── TunnelError
    ├── ModelError                 a model call failed
    │   ├── AuthenticationError    wrong or missing key: the run stops, no retry helps
    │   ├── RateLimitError         429 or 529 after all retries
    │   ├── EndpointUnavailable    connection refused, 5xx after all retries, or a time limit passed
    │   ├── BadRequestError        the endpoint refused the request (4xx)
    │   └── InvalidModelResponseError
    │       └── EmptyModelResponseError
    ├── OverlongPromptError        the prompt does not fit the model's context: a truncation, not a failure
    ├── ToolError
    │   ├── ToolParseError         the arguments of a tool call are not valid JSON
    │   └── ToolCallError          a tool raised, or does not exist
    │       └── ToolTimeout        a tool ran into the time limit of a call
    ├── RolloutTimeout             a rollout ran into its time limit
    ├── ScoringTimeout             a reward function ran into its time limit
    └── AuthorError                a mistake in an environment or its configuration; never retried, never hidden
        ├── RewardError            (also TypeError) a reward function raised
        │   └── RewardArgumentError  a reward function asks for an argument that the rollout does not offer
        ├── EnvironmentCodeError   a hook of an environment raised
        ├── ConfigError            (also ValueError) an option or a config key is wrong
        ├── DatasetError           (also ValueError) a row or a dataset cannot be used
        │   └── MissingAnswer      a row has no `answer`, and a reward function uses the answer
        └── EnvironmentNotFound    (also ValueError) no installed module has this environment id

How to add one: subclass ours *and* the builtin it is a case of, keep it picklable (all arguments in `args`),
and put it under `InfraError` only when trying again can help.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class Error(Exception):
    """Root of every error this library raises on purpose."""


class InfraError(Error):
    """The machinery failed: neither the model's fault nor the author's."""


class SandboxError(InfraError):
    """A sandbox could not be created, reached or used."""


class BrowserSandboxError(SandboxError):
    """A browser sandbox could not be created, reached or used."""


class TunnelError(InfraError):
    """A tunnel to a remote machine could not be opened or was lost."""


class ModelError(Error):
    """A model call failed."""


class AuthenticationError(ModelError):
    """The endpoint refused the credentials (401 or 403)."""


class RateLimitError(ModelError):
    """The endpoint still limited the request rate after all retries."""


class EndpointUnavailable(ModelError):
    """The endpoint could not be reached, or answered 5xx, after all retries."""


class BadRequestError(ModelError):
    """The endpoint refused the request as malformed or unsupported."""


class InvalidModelResponseError(ModelError):
    """The endpoint answered, but not with a usable completion."""


class EmptyModelResponseError(InvalidModelResponseError):
    """The completion has neither content, nor reasoning, nor tool calls."""


class OverlongPromptError(Error):
    """The prompt is longer than the model's context."""


class ToolError(Error):
    """A tool could not be used."""


class ToolParseError(ToolError):
    """The arguments of a tool call are not a JSON object."""


class ToolCallError(ToolError):
    """A tool raised, or no tool has the name the model called."""


class ToolTimeout(ToolCallError, TimeoutError):
    """A tool ran into the time limit of a call (`tool_timeout_s`)."""


class MCPServerError(InfraError, ToolError):
    """An MCP server cannot be started or reached, or was lost."""


class MCPAnswerLost(MCPServerError):
    """The connection ended after a call was sent and before its answer: whether the tool ran is not known."""


class RolloutTimeout(Error, TimeoutError):
    """A rollout ran into its time limit."""


class ScoringTimeout(Error, TimeoutError):
    """A reward function ran into its time limit."""


class AuthorError(Error):
    """A mistake in an environment or its configuration: trying again cannot help."""


class RewardError(AuthorError, TypeError):
    """A reward function raised, or cannot be called with what a rollout offers."""


class RewardArgumentError(RewardError):
    """A reward function asks for an argument that the rollout does not offer."""

    argument = ""
    """The name that is asked for."""
    is_certain = True
    """False when an object that depends on the rollout could still have that name."""


class EnvironmentCodeError(AuthorError):
    """A hook of an environment (`setup_state`, `env_response`, a stop condition …) raised."""


class ConfigError(AuthorError, ValueError):
    """An option or a configuration key is wrong."""


class DatasetError(AuthorError, ValueError):
    """A row or a dataset cannot be turned into rollout inputs."""


class MissingAnswer(DatasetError):
    """A row has no `answer`, and a reward function uses the answer."""


class EnvironmentNotFound(AuthorError, ValueError):
    """No installed module has this environment id."""


class MissingKeyError(ValueError):
    """Environment variables that `ensure_keys` asks for are not set; their names are in `keys`."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        super().__init__(keys)

    def __str__(self) -> str:
        names = ", ".join(self.keys)
        return f"Environment variables not set: {names}. Set them, e.g. `export {self.keys[0]}=…`."


RETRYABLE: tuple[type[Exception], ...] = (
    InfraError,
    InvalidModelResponseError,
    RateLimitError,
    EndpointUnavailable,
)
"""What a whole-rollout retry may repeat. Author mistakes are never here: a retry must not hide them."""


@contextmanager
def boundary(error_type: type[Error], what: str) -> Generator[None]:
    """Turn whatever escapes the block into `error_type`, keeping the original as `__cause__`.

    Errors of this library pass unchanged, and so does everything that is not an `Exception`
    (`CancelledError`, `KeyboardInterrupt`).
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise error_type(f"{what} failed: {type(error).__name__}: {error}") from error


def error_chain(error: BaseException | None) -> list[BaseException]:
    """The error, then its causes from outermost to innermost, without loops."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain
