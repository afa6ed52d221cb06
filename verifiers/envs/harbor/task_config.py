"""The contents of a `task.toml`, schema 1.4 of Harbor and older.

Unknown keys are ignored with a warning, as Harbor ignores them. Spellings of older schemas (`version`, `memory`,
`storage`, `allow_internet`) are read and replaced by their successors.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from verifiers.errors import ConfigError

NEWEST_SCHEMA = (1, 4)
NetworkMode = Literal["public", "no-network", "allowlist"]
VerifierMode = Literal["shared", "separate"]
MAIN = "main"
"""The service of a Compose file in which the agent works."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE)
_SIZE_MB = {"": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20}
_STEP_NAME = re.compile(r"[^\x00-\x1f/\\:*?\"<>|]*[^\x00-\x1f/\\:*?\"<>|. ]")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_PROTECTED = ("/tests", "/solution", "/oracle", "/logs/verifier", "/proc", "/sys", "/dev")
"""Directories whose files an agent must not provide to the verifier."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    def unknown_keys(self, prefix: str = "") -> Iterator[str]:
        """Return the keys that the schema does not have, with the path of their table."""
        for name in self.model_extra or {}:
            yield prefix + name
        for name in type(self).model_fields:
            value = getattr(self, name)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, _Section):
                    yield from each.unknown_keys(f"{prefix}{name}.")


def _no_zero_limit(value: float | None) -> float | None:
    return value if value is None or value > 0 else None


Seconds = Annotated[float | None, AfterValidator(_no_zero_limit)]
"""A time limit. Zero and negative numbers mean that there is none."""
User = str | int | None
Variables = dict[str, str]


class Healthcheck(_Section):
    """A command that must succeed before the agent starts."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    """Failures in this time do not count."""
    start_interval_sec: float = Field(default=5.0, ge=0)
    """Interval of the checks in `start_period_sec`."""
    retries: int = Field(default=3, ge=1)
    """Number of consecutive failures that make the check fail."""


class Artifact(_Section):
    """A file or directory that is copied out of the agent's sandbox, and into a separate verifier."""

    source: str
    destination: str | None = None
    """Relative path below the folder for artifacts on this machine. None: the path of the source."""
    exclude: tuple[str, ...] = ()
    """Patterns of files in a directory that are left out, as in `tar --exclude`."""
    service: str | None = None
    """Service of a Compose file. None: the agent's container."""

    @model_validator(mode="after")
    def _safe_paths(self) -> Artifact:
        source = posixpath.normpath(self.source) if self.source else "."
        if source in (".", "/") or ".." in source.split("/"):
            raise ValueError(f"{self.source!r} is not the path of a file or a directory")
        if self.service not in (None, MAIN) and not source.startswith("/"):
            raise ValueError(f"the source {self.source!r} in a service must be an absolute path")
        destination = self.destination
        if destination is not None and (
            destination.startswith("/") or ".." in destination.split("/")
        ):
            raise ValueError(
                f"the destination {destination!r} must be a relative path without '..'"
            )
        return self

    @property
    def is_protected(self) -> bool:
        """Whether this path is reserved for files of the verifier, which an agent must not replace."""
        source = posixpath.normpath(self.source)
        return any(source == own or source.startswith(own + "/") for own in _PROTECTED)


def _as_artifact(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


Artifacts = tuple[Annotated[Artifact, BeforeValidator(_as_artifact)], ...]


class CollectHook(_Section):
    """A command that runs in a service when the agent has ended, before artifacts are copied."""

    command: str
    service: str = MAIN
    timeout_sec: float = Field(default=60.0, gt=0)
    user: User = None


class _Network(_Section):
    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _hosts_need_their_mode(self) -> _Network:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts is only valid with network_mode = 'allowlist'")
        return self


class Environment(_Network):
    """`[environment]` or `[verifier.environment]`: a sandbox."""

    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = Field(default=None, ge=0)
    gpu_types: tuple[str, ...] | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: tuple[Any, ...] = ()
    """Read by `parse_mcp_servers`."""
    env: Variables = Field(default_factory=dict)
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_spellings(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = dict(data)
        allowed = data.pop("allow_internet", None)
        if allowed is not None and "network_mode" not in data:
            data["network_mode"] = "public" if allowed else "no-network"
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            size = data.pop(old, None)
            if size is not None and new not in data:
                data[new] = _megabytes(size)
        return data


class Verifier(_Network):
    """`[verifier]` or `[steps.verifier]`: how the tests run."""

    timeout_sec: Seconds = None
    env: Variables = Field(default_factory=dict)
    user: User = None
    environment_mode: VerifierMode | None = None
    environment: Environment | None = None
    collect: tuple[CollectHook, ...] = ()

    @model_validator(mode="after")
    def _one_mode(self) -> Verifier:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                "environment_mode = 'shared' contradicts [verifier.environment]; remove one of them"
            )
        return self

    @property
    def mode(self) -> VerifierMode | None:
        """The mode, which `environment` implies; None if nothing defines it."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


class Agent(_Network):
    """`[agent]` or `[steps.agent]`."""

    timeout_sec: Seconds = None
    user: User = None


class Solution(_Section):
    """`[solution]`."""

    env: Variables = Field(default_factory=dict)


class TaskStep(_Section):
    """One entry of `[[steps]]`. Values that it leaves open are those of the task."""

    name: str
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    """The task ends after this step if its reward, or one of several rewards, is lower."""
    healthcheck: Healthcheck | None = None
    artifacts: Artifacts = ()

    def is_passed_by(self, rewards: Mapping[str, float] | None) -> bool:
        """Return whether the rewards of this step reach `min_reward`. A missing reward does not."""
        wanted = self.min_reward
        if wanted is None:
            return True
        limits = wanted if isinstance(wanted, dict) else {"reward": wanted}
        return all((rewards or {}).get(key, float("-inf")) >= low for key, low in limits.items())


class TaskConfig(_Section):
    """A whole `task.toml`."""

    schema_version: str = "1.4"
    task: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    source: str | None = None
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: Environment = Environment()
    solution: Solution = Solution()
    artifacts: Artifacts = ()
    steps: tuple[TaskStep, ...] = ()
    multi_step_reward_strategy: Literal["mean", "final"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_spellings(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        data = {key: value for key, value in data.items() if value is not None}
        data.pop("multi_step_reward_mode", None)
        version = data.pop("version", None)
        data.setdefault("schema_version", version if isinstance(version, str) else "1.4")
        return data

    @model_validator(mode="after")
    def _distinct_steps(self) -> TaskConfig:
        names = [step.name.casefold() for step in self.steps]
        for name in names:
            if not _STEP_NAME.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"the step name {name!r} is not the name of a folder")
            if names.count(name) > 1:
                raise ValueError(f"the step name {name!r} is used more than once")
        return self

    @property
    def is_newer(self) -> bool:
        """Whether the schema is newer than the one that this module reads."""
        numbers = re.findall(r"\d+", self.schema_version)
        return tuple(map(int, numbers[:2])) > NEWEST_SCHEMA

    def of_step(self, number: int) -> TaskConfig:
        """Return the configuration in one step: values of the step before those of the task."""
        if not self.steps:
            return self
        step = self.steps[number]
        verifier = _merged(self.verifier, step.verifier)
        if step.verifier.environment_mode == "shared":
            verifier = verifier.model_copy(update={"environment": None})
        if step.verifier.env:
            env = {**self.verifier.env, **step.verifier.env}
            verifier = verifier.model_copy(update={"env": env})
        if not step.verifier.collect:
            verifier = verifier.model_copy(update={"collect": self.verifier.collect})
        return self.model_copy(
            update={
                "agent": _merged(self.agent, step.agent),
                "verifier": verifier,
                "artifacts": (*self.artifacts, *step.artifacts),
            }
        )


_AnySection = TypeVar("_AnySection", bound=_Section)


def _merged(base: _AnySection, over: _AnySection) -> _AnySection:
    set_values = {name: getattr(over, name) for name in over.model_fields_set}
    return base.model_copy(update=set_values)


def parse_task_config(config: Mapping[str, Any]) -> TaskConfig:
    """Return the checked contents of a task.toml. Raises ConfigError with the path of each wrong value."""
    try:
        return TaskConfig.model_validate(config)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'task.toml'}: "
            f"{fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors()
        ]
        raise ConfigError("; ".join(faults)) from error


def resolved_variables(variables: Mapping[str, str], place: str) -> dict[str, str]:
    """Return the variables with `${NAME}` and `${NAME:-default}` replaced by the environment of this process.

    Raises ConfigError for a name that is not set and has no default.
    """

    def value_of(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = os.environ.get(name)
        if value is None and default is None:
            raise ConfigError(
                f"{place} uses ${{{name}}}, which is not set. Export {name}, or write ${{{name}:-default}}."
            )
        return value if value is not None else default

    return {name: _VARIABLE.sub(value_of, value) for name, value in variables.items()}


def _megabytes(size: Any) -> int:
    match = _SIZE.fullmatch(str(size).strip())
    if match is None:
        raise ValueError(f"{size!r} is not a size; write '512M' or '4G'")
    return max(1, int(float(match[1]) * _SIZE_MB[match[2].lower()]))
