"""The error tree of the library. Everything it raises on purpose is an `Error`.

    Error
    ├── InfraError                 the machinery failed, not the model and not the author; worth a retry
    │   ├── SandboxError           (`verifiers.sandboxes.errors` has the finer tree)
    │   │   └── BrowserSandboxError
    │   ├── MCPServerError         (also ToolError) an MCP server cannot be started or reached, or was lost
    │   │   └── MCPAnswerLost      it was lost after it was sent a call
    │   ├── NoVerdict              a judge did not decide
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

`note_error` is the place where the exception of a rollout becomes data, `note_scoring_error` the place for scoring.
The last part of the module is what is saved of an error: names, messages, the author's line, the traceback. The
reward of a rollout whose environment crashed, or whose infrastructure failed, is void: 0.0 in every statistic, masked
for trainers. `voids_reward` is the only rule that decides so.

How to add one: subclass ours *and* the builtin it is a case of, keep it picklable (all arguments in `args`),
and put it under `InfraError` only when trying again can help.
"""

from __future__ import annotations

import logging
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, Protocol


class Error(Exception):
    """Root of every error that this library raises deliberately."""


class InfraError(Error):
    """The infrastructure failed, neither the model nor the author's code."""


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
    """A tool raised an exception, or no tool has the name that the model called."""


class ToolTimeout(ToolCallError, TimeoutError):
    """A tool call reached its timeout (`tool_timeout_s`)."""


class MCPServerError(InfraError, ToolError):
    """An MCP server cannot be started or reached, or the connection to it was lost."""


class MCPAnswerLost(MCPServerError):
    """The connection ended between a call and its response: the tool may or may not have run."""


class RolloutTimeout(Error, TimeoutError):
    """A rollout reached its timeout."""


class NoVerdict(InfraError):
    """A judge did not decide, also after it was asked again."""


class ScoringTimeout(Error, TimeoutError):
    """A reward function reached its timeout."""


class AuthorError(Error):
    """A mistake in an environment or its configuration: another attempt cannot help."""


class RewardError(AuthorError, TypeError):
    """A reward function raised an exception, or cannot be called with the values of a rollout."""


class RewardArgumentError(RewardError):
    """A reward function has a parameter that the rollout does not offer."""

    argument = ""
    """The name of the parameter."""
    is_certain = True
    """False if an object that depends on the rollout may have that name."""


class EnvironmentCodeError(AuthorError):
    """A hook of an environment (`setup_state`, `env_response`, a stop condition …) raised an exception."""


class ConfigError(AuthorError, ValueError):
    """An option or a configuration key is wrong."""


class DatasetError(AuthorError, ValueError):
    """A row or a dataset cannot be turned into rollout inputs."""


class MissingAnswer(DatasetError):
    """A row has no `answer`, and a reward function uses the answer."""


class EnvironmentNotFound(AuthorError, ValueError):
    """No installed module has this environment id."""


class MissingKeyError(ValueError):
    """Environment variables that `ensure_keys` requires are not set; their names are in `keys`."""

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
"""Errors after which a whole rollout may be repeated. Mistakes of the author are never among them, because a retry
must not hide them.
"""


@contextmanager
def boundary(error_type: type[Error], what: str) -> Generator[None]:
    """Raise `error_type` for any exception in the block, with the original exception as `__cause__`.

    Errors of this library pass unchanged, and so do exceptions that are not an `Exception` (`CancelledError`,
    `KeyboardInterrupt`).
    """
    try:
        yield
    except Error:
        raise
    except Exception as error:
        raise error_type(f"{what} failed: {type(error).__name__}: {error}") from error


def error_chain(error: BaseException | None) -> list[BaseException]:
    """Return the error and its causes, from outermost to innermost, without loops."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


# ---------------------------------------------------------------------------------------- what is saved of an error


INFRASTRUCTURE: tuple[type[Error], ...] = (InfraError, RateLimitError, EndpointUnavailable)
"""Failures of sandboxes, tunnels, servers and endpoints."""

LATE_NAMES = frozenset(
    (
        "AgentError",
        "IsolationUnavailable",
        "SandboxCreationError",
        "SandboxDead",
        "SandboxImageError",
        "SandboxNotReadyError",
        "SandboxRateLimited",
        "SandboxSetupError",
        "SandboxUnresponsive",
        "ServerError",
    )
)
"""Names of infrastructure errors whose modules load on first use."""

MAX_TRACEBACK_CHARACTERS = 8_000
MAX_CHAIN_CHARACTERS = 20_000
"""Maximum length of the saved text; the middle of a longer text is left out."""

KEY = "[key]"
"""Replacement for a key."""

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"\bsk-[\w-]{16,}|\b(?:hf|gh[pousr]|glpat|xox[abp])[_-][\w-]{16,}|\bAKIA[A-Z0-9]{16}\b"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)|(?<=Bearer )[\w.~+/-]{8,}"
)
_SHORTEST_SECRET = 8


def voids_reward(error: object) -> bool:
    """Return whether the reward of a rollout that ended in this error is void: the environment crashed or raised an
    `AuthorError`, or infrastructure failed (the error or one of its causes).

    Reward functions may judge every other `vf.Error`. A saved error is recognised by its mark, or by the names of its
    types if the mark is missing.
    """
    if isinstance(error, Error):
        return isinstance(error, AuthorError) or is_infrastructure(error)
    if isinstance(error, BaseException):
        return True
    if not isinstance(error, Mapping):
        return False
    if (mark := error.get("voids_reward")) is not None:
        return bool(mark)
    infrastructure = type_names(INFRASTRUCTURE) | LATE_NAMES
    return error.get("error") in type_names((AuthorError,)) or any(
        name in infrastructure for name in saved_types(error)
    )


def is_infrastructure(error: object) -> bool:
    """Return whether the error, or one of its causes, is a failure of infrastructure."""
    return isinstance(error, BaseException) and any(
        isinstance(link, INFRASTRUCTURE) for link in error_chain(error)
    )


def is_void(rollout: Mapping[str, Any]) -> bool:
    """Return whether the reward of a `State` or of an output is void, by its error or by an error in scoring."""
    error = rollout.get("error")
    if error is not None and voids_reward(error):
        return True
    entries = rollout.get("reward_errors") or rollout.get("errors") or ()
    return any(isinstance(entry, Mapping) and entry.get("voids_reward") for entry in entries)


def saved_types(error: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the types of a saved error and of its causes."""
    yield str(error.get("error"))
    for link in str(error.get("error_chain_str") or "").split(" -> "):
        yield link.partition(":")[0].strip()


def type_names(kinds: Sequence[type]) -> set[str]:
    """Return the names of the types and of all their loaded subclasses."""
    names: set[str] = set()
    left = list(kinds)
    while left:
        kind = left.pop()
        names.add(kind.__name__)
        left += kind.__subclasses__()
    return names


# --------------------------------------------------------------------------------------- exceptions become data


class HasLogger(Protocol):
    """An environment, as far as `note_error` needs it."""

    logger: logging.Logger


def note_error(
    state: MutableMapping[str, Any],
    error: BaseException,
    env: HasLogger | None = None,
    *,
    replace: bool = False,
) -> None:
    """End a rollout with an error. A rollout that has an error keeps it, unless `replace`.

    An exception that is not an `Error` becomes an EnvironmentCodeError of `env`, which also logs the error.
    """
    if state.get("error") is not None and not replace:
        return
    if not isinstance(error, Error):
        owner = "The environment" if env is None else type(env).__name__
        wrapped = EnvironmentCodeError(f"{owner} raised {type(error).__name__}: {text_of(error)}")
        wrapped.__cause__ = error
        error = wrapped
    if env is not None:
        env.logger.warning("Aborted rollout due to %r", error)
        env.logger.debug("Rollout aborted", exc_info=error)
    state["error"] = error
    state["is_completed"] = True
    state["stop_condition"] = "has_error"


def note_scoring_error(
    state: MutableMapping[str, Any],
    error: Exception,
    func: Callable[..., Any],
    name: str,
    message: str | None = None,
) -> None:
    """Add an error of scoring to the `reward_errors` of a rollout; `message` replaces the text of the error."""
    entry = scoring_error_info(error, func, name)
    if message is not None:
        entry["message"] = message
    state["reward_errors"] = [*(state.get("reward_errors") or []), entry]


# ------------------------------------------------------------------------------------------------- what is saved


def error_info(error: BaseException) -> dict[str, Any]:
    """Return the saved form of an error: type name, `repr` chain, chain of type names, traceback.

    `where` (file, line and function of the author's code) and `voids_reward` are present only if they apply. Texts
    have a maximum length and contain no keys.
    """
    chain = error_chain(error)
    info: dict[str, Any] = {
        "error": type(error).__name__,
        "error_chain_repr": _saved(
            " -> ".join(_repr(link) for link in chain), MAX_CHAIN_CHARACTERS
        ),
        "error_chain_str": " -> ".join(type(link).__name__ for link in chain),
    }
    if (where := author_line(chain)) is not None:
        info["where"] = where
    info["traceback"] = traceback_text(error)
    if voids_reward(error):
        info["voids_reward"] = True
    return info


def scoring_error_info(error: Exception, func: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the saved form of a reward function's error. If the traceback has no line of the author's code, `where` is
    the line that defines the function.
    """
    info = error_info(error)
    info.pop(
        "voids_reward", None
    )  # an error in one function does not affect the rewards of the others
    if is_infrastructure(error):
        info["voids_reward"] = True
    if "where" not in info and (where := definition_line(func)) is not None:
        info["where"] = where
    return {**info, "function": name, "message": _saved(text_of(error), MAX_CHAIN_CHARACTERS)}


def without_traceback(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an output whose errors have no `traceback`."""

    def short(error: Any) -> Any:
        if not isinstance(error, Mapping):
            return error
        return {name: value for name, value in error.items() if name != "traceback"}

    copied = {**output, "error": short(output.get("error"))}
    if output.get("errors"):
        copied["errors"] = [short(entry) for entry in output["errors"]]
    return copied


def text_of(error: BaseException) -> str:
    """Return `str(error)`, also for an exception whose `__str__` raises."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - an author's exception class may be broken
        return f"[its text cannot be shown: {type(failure).__name__}]"


def _repr(error: BaseException) -> str:
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - an author's exception class may be broken
        return f"{type(error).__name__}({text_of(error)!r})"


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error and of its causes."""
    try:
        lines = list(traceback.TracebackException.from_exception(error, compact=True).format())
    except Exception:  # noqa: BLE001 - an author's exception class may be broken
        lines = []
        for link in reversed(error_chain(error)):
            lines += [*traceback.format_tb(link.__traceback__), f"{_repr(link)}\n"]
    return _saved("".join(lines), MAX_TRACEBACK_CHARACTERS)


def _saved(text: str, limit: int) -> str:
    text = without_keys(text.encode("utf-8", "replace").decode())
    if len(text) <= limit:
        return text
    kept = limit // 2
    return f"{text[:kept]}\n[… {len(text) - 2 * kept} characters are left out …]\n{text[-kept:]}"


def without_keys(text: str) -> str:
    """Return the text without the values of key variables, and without text that looks like a key."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name) and value in text:
            text = text.replace(value, KEY)
    return _SECRET_TEXT.sub(KEY, text)


# -------------------------------------------------------------------------------------------- the author's line


def author_line(chain: Sequence[BaseException]) -> str | None:
    """Return `file:line in function` of the author's code that raised, from the outermost error with such a line; None
    if no error has one.
    """
    for error in chain:
        frames = [
            (code, line)
            for code, line in _frames(error.__traceback__)
            if _package(code.co_filename) is not None
        ]
        if not frames:
            continue
        packages = [_package(code.co_filename) for code, _ in frames]
        own = "" if "" in packages else packages[0]
        code, line = [f for f, package in zip(frames, packages, strict=True) if package == own][-1]
        return f"{_shown_path(code.co_filename)}:{line} in {code.co_name}"
    return None


def definition_line(func: Callable[..., Any]) -> str | None:
    """Return `file:line in function` of a function's definition; None if it is not Python code."""
    inner = getattr(func, "func", func)  # functools.partial
    inner = getattr(inner, "__wrapped__", getattr(inner, "__func__", inner))
    code = getattr(inner, "__code__", None)
    if not isinstance(code, CodeType) or _package(code.co_filename) is None:
        return None
    return f"{_shown_path(code.co_filename)}:{code.co_firstlineno} in {code.co_name}"


def _frames(tb: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while tb is not None:
        yield tb.tb_frame.f_code, tb.tb_lineno
        tb = tb.tb_next


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    own = str(Path(__file__).parent)
    return tuple(f"{folder}{os.sep}" for folder in (own, paths["stdlib"], paths["platstdlib"]))


@cache
def _package(filename: str) -> str | None:
    """Return the package of a file: "" for a file outside of all packages, the folder of an installed package, None for
    this library and Python itself.
    """
    if filename.startswith("<frozen"):
        return None
    own = f"{Path(__file__).parent}{os.sep}"
    if filename.startswith(own):
        return None
    for folder in ("site-packages", "dist-packages"):
        head, found, rest = filename.partition(f"{os.sep}{folder}{os.sep}")
        if found:
            return f"{head}{found}{rest.partition(os.sep)[0]}"
    return None if filename.startswith(_library_folders()) else ""


def _shown_path(filename: str) -> str:
    relative = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return filename if relative.startswith("..") else relative
