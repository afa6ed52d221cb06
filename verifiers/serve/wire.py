"""What travels between a client, the server and its workers.

Frames, after the identity that ZeroMQ adds:

    client → server   [RUN, id, request]  [CANCEL, id]  [HEALTH, id]  [PING, ids of all that is waited for, n]
    server → client   [DONE, id, response]  [PONG, stats, ids that the server does not know, n]
    worker → server   [READY]  [FAILED, reason]  [BEAT, stats]  [DONE, key, response]
    server → worker   [RUN, key, request]  [CANCEL, key]  [HEALTH, key]

ids are 16 random bytes. The server passes requests and responses on without reading them. A request that the server
does not know (it was started anew, or a frame was lost) is sent again by its client.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainValidator

import verifiers.errors as errors
from verifiers.concurrency import EventLoopLagStats
from verifiers.configs import ClientConfig
from verifiers.errors import EnvironmentCodeError, Error, InfraError
from verifiers.serve.encoding import pack, unpack
from verifiers.types import RolloutOutput

PROTOCOL = 1
"""Raised with every change of the frames: a worker of another version of the library is refused."""

RUN, CANCEL, HEALTH, PING = b"run", b"cancel", b"health", b"ping"
DONE, PONG, READY, FAILED, BEAT = b"done", b"pong", b"ready", b"failed", b"beat"
ID_BYTES = 16


class ServerError(InfraError, RuntimeError):
    """An environment server could not carry a request out: it is gone, not ready, or its worker failed."""


class RequestQuarantined(EnvironmentCodeError, RuntimeError):
    """A request killed its worker each time it ran alone; it is not tried again."""


class ServerState(StrEnum):
    """What a client knows of its server."""

    STARTUP = "startup"
    """It has not answered yet."""
    HEALTHY = "healthy"
    """It answers."""
    UNHEALTHY = "unhealthy"
    """It did answer, and no longer does."""


class BaseRequest(BaseModel):
    """A request of a client."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    request_type: str


class BaseResponse(BaseModel):
    """The answer to a request; without `success` only the error says something."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    success: bool = True
    error: str | None = None
    """What happened, for people."""
    error_type: str | None = None
    """Name of the exception, where it is one of ours."""


class HealthRequest(BaseRequest):
    """Whether rollouts can be run; a worker answers."""

    request_type: Literal["health"] = "health"  # pyright: ignore[reportIncompatibleVariableOverride]


class HealthResponse(BaseResponse):
    """A worker's answer, or the server's while no worker is ready."""

    is_final: bool = False
    """Waiting is no use: the environment cannot be loaded."""


Row = Any
"""A dataset row: `RolloutInput` or any mapping. It goes as it is, without a check or a copy."""


def _as_output(value: Any) -> Any:
    return RolloutOutput(value) if isinstance(value, dict) else value


Output = Annotated[RolloutOutput, PlainValidator(_as_output)]


class RolloutLimitsRequest(BaseModel):
    """How far a rollout may go, as `RolloutLimits`, with prices instead of a function."""

    timeout_s: float | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    input_usd_per_token: float = 0.0
    output_usd_per_token: float = 0.0
    scoring_timeout_s: float | None = None
    """Longest run of one call of a reward function, in seconds."""


class RunRolloutRequest(BaseRequest):
    """One rollout, played and scored."""

    request_type: Literal["run_rollout"] = "run_rollout"  # pyright: ignore[reportIncompatibleVariableOverride]
    input: Row
    client_config: ClientConfig
    model: str
    sampling_args: dict[str, Any]
    max_retries: int
    state_columns: list[str] | None
    limits: RolloutLimitsRequest | None = None


class RunRolloutResponse(BaseResponse):
    """The rollout."""

    output: Output | None = None


class RunGroupRequest(BaseRequest):
    """The rollouts of one example, played together and scored together."""

    request_type: Literal["run_group"] = "run_group"  # pyright: ignore[reportIncompatibleVariableOverride]
    group_inputs: list[Row]
    client_config: ClientConfig
    model: str
    sampling_args: dict[str, Any]
    max_retries: int
    state_columns: list[str] | None
    limits: RolloutLimitsRequest | None = None


class RunGroupResponse(BaseResponse):
    """The rollouts, in the order of the inputs."""

    outputs: list[Output] | None = None


REQUESTS: dict[str, type[BaseRequest]] = {
    "health": HealthRequest,
    "run_rollout": RunRolloutRequest,
    "run_group": RunGroupRequest,
}


@dataclass(kw_only=True, eq=False)
class PendingRequest:
    """A request a client has sent and waits for."""

    request_id: str
    request: BaseRequest
    future: asyncio.Future[dict[str, Any]]
    timeout: float | None = None
    """Longest wait, in seconds."""
    submitted_at: float
    """`time.time()` of the sending."""


class EnvWorkerStats(BaseModel):
    """What a worker says about itself with every heartbeat."""

    worker_id: int
    timestamp: float
    """`time.time()` of the heartbeat."""
    active_tasks: int
    """Requests being worked on."""
    lag: EventLoopLagStats = EventLoopLagStats()


class EnvRouterStats(BaseModel):
    """The server and its workers."""

    server_id: str = ""
    """Changes when the server is started anew."""
    lag: EventLoopLagStats = EventLoopLagStats()
    workers: dict[int, EnvWorkerStats | None] = {}
    """None for a worker that is not ready."""
    queued: int = 0
    """Requests that wait for a worker."""
    restarts: int = 0
    """Workers that were started in place of one that had died."""

    @property
    def num_workers(self) -> int:
        """How many workers there should be."""
        return len(self.workers)

    @property
    def active_tasks(self) -> int:
        """Requests that workers are working on."""
        return sum(stats.active_tasks for stats in self.workers.values() if stats is not None)


def encode_request(request: BaseRequest) -> bytes:
    """The payload of a request; dataset rows go as they are, without a deep copy by pydantic."""
    return pack({name: getattr(request, name) for name in type(request).model_fields})


def decode_request(payload: bytes) -> BaseRequest:
    """The request of a payload. Raises ValueError when it is none."""
    fields = unpack(payload)
    kind = REQUESTS.get(fields.get("request_type", "")) if isinstance(fields, dict) else None
    if kind is None:
        raise ValueError(f"This is no request: {fields!r:.200}")
    return kind.model_validate(fields)


def failure(error: BaseException) -> dict[str, Any]:
    """The response that carries an exception to the client."""
    text = str(error) or type(error).__name__
    if not isinstance(error, Error):
        text = f"{type(error).__name__}: {text}"
    return {"success": False, "error": text, "error_type": type(error).__name__}


def error_of(response: BaseResponse) -> Error:
    """The exception of a response without success: the library's own where the name is known, else ServerError."""
    own = {"RequestQuarantined": RequestQuarantined}
    kind = own.get(response.error_type or "") or getattr(errors, response.error_type or "", None)
    text = response.error or "The environment server failed without a word."
    if isinstance(kind, type) and issubclass(kind, Error):
        return kind(text)
    return ServerError(text)
