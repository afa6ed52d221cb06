"""Messages between a client, the server and its workers.

Frames, after the identity that ZeroMQ adds:

    client → server   [RUN, id, request]  [CANCEL, id]  [HEALTH, id]  [PING, ids of all pending requests, n]
    server → client   [DONE, id, response]  [PONG, stats, ids that the server does not have, n]
    worker → server   [READY]  [FAILED, reason]  [BEAT, stats]  [DONE, key, response]
    server → worker   [RUN, key, request]  [CANCEL, key]  [HEALTH, key]

ids are 16 random bytes. The server forwards requests and responses without reading them. If a restart or a lost frame
leaves the server without a request, the client sends it again.

Values become msgpack. `pack` is for requests and refuses values that it cannot encode; `pack_result` is for responses
and replaces such a value by its `repr`, because one odd value must not cost the rollout. Records and mappings arrive as
dicts, tuples as lists, sets as sorted lists, dates and paths as text; numpy arrays and bytes keep their type.

The processes meet at socket files, or at ports on systems without them: `address_in`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, PlainValidator

import verifiers.errors as errors
from verifiers.child_process import get_free_port
from verifiers.clients.connect import is_loopback
from verifiers.concurrency import EventLoopLagStats
from verifiers.configs import ClientConfig
from verifiers.errors import ConfigError, EnvironmentCodeError, Error, InfraError
from verifiers.runs.output import jsonable, safe_repr
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)

PROTOCOL = 1
"""Increases with every change of the frames. A worker of another version of the library is refused."""

RUN, CANCEL, HEALTH, PING = b"run", b"cancel", b"health", b"ping"
DONE, PONG, READY, FAILED, BEAT = b"done", b"pong", b"ready", b"failed", b"beat"
ID_BYTES = 16


class ServerError(InfraError, RuntimeError):
    """An environment server could not execute a request: it is gone or not ready, or its worker failed."""


class RequestQuarantined(EnvironmentCodeError, RuntimeError):
    """A request killed its worker each time it ran alone. It is not tried again."""


class ServerState(StrEnum):
    """State of a server, as its client sees it."""

    STARTUP = "startup"
    """It has not responded yet."""
    HEALTHY = "healthy"
    """It responds."""
    UNHEALTHY = "unhealthy"
    """It responded earlier, but no longer does."""


class BaseRequest(BaseModel):
    """A request of a client."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    request_type: str


class BaseResponse(BaseModel):
    """The response to a request. Without `success`, only the error fields are set."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    success: bool = True
    error: str | None = None
    """Message of the error."""
    error_type: str | None = None
    """Name of the exception, if it is one of this library."""


class HealthRequest(BaseRequest):
    """Whether rollouts can run, which a worker must confirm."""

    request_type: Literal["health"] = "health"  # pyright: ignore[reportIncompatibleVariableOverride]


class HealthResponse(BaseResponse):
    """A worker's response, or the server's while no worker is ready."""

    is_final: bool = False
    """True if the environment cannot be loaded: the client stops waiting."""


Row = Any
"""A dataset row: `RolloutInput` or any mapping, sent without a check or a copy."""


def _as_output(value: Any) -> Any:
    return RolloutOutput(value) if isinstance(value, dict) else value


Output = Annotated[RolloutOutput, PlainValidator(_as_output)]


class RunRequest(BaseRequest):
    """The fields that requests for rollouts share."""

    client_config: ClientConfig
    model: str
    sampling_args: dict[str, Any]
    max_retries: int
    state_columns: list[str] | None
    limits: dict[str, Any] | None = None
    """Limits of each rollout, as `RolloutLimits.as_request` returns them."""


class RunRolloutRequest(RunRequest):
    """Play and score one rollout."""

    request_type: Literal["run_rollout"] = "run_rollout"  # pyright: ignore[reportIncompatibleVariableOverride]
    input: Row


class RunRolloutResponse(BaseResponse):
    """The rollout."""

    output: Output | None = None


class RunGroupRequest(RunRequest):
    """Play the rollouts of one example together and score them together."""

    request_type: Literal["run_group"] = "run_group"  # pyright: ignore[reportIncompatibleVariableOverride]
    group_inputs: list[Row]


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
    """A request that a client has sent and waits for."""

    request_id: str
    request: BaseRequest
    future: asyncio.Future[dict[str, Any]]
    timeout: float | None = None
    """Maximum time until the response, in seconds."""
    submitted_at: float
    """`time.time()` when the request was sent."""


class EnvWorkerStats(BaseModel):
    """State of a worker, sent with every heartbeat."""

    worker_id: int
    timestamp: float
    """`time.time()` of the heartbeat."""
    active_tasks: int
    """Number of requests in progress."""
    lag: EventLoopLagStats = EventLoopLagStats()


class EnvRouterStats(BaseModel):
    """State of the server and its workers."""

    server_id: str = ""
    """Changes when the server is restarted."""
    lag: EventLoopLagStats = EventLoopLagStats()
    workers: dict[int, EnvWorkerStats | None] = {}
    """None for a worker that is not ready."""
    queued: int = 0
    """Number of requests that wait for a worker."""
    restarts: int = 0
    """Number of workers that replaced dead ones."""

    @property
    def num_workers(self) -> int:
        """Intended number of workers."""
        return len(self.workers)

    @property
    def active_tasks(self) -> int:
        """Number of requests in progress on workers."""
        return sum(stats.active_tasks for stats in self.workers.values() if stats is not None)


def encode_request(request: BaseRequest) -> bytes:
    """Return the payload of a request. Dataset rows are encoded without pydantic's deep copy."""
    return pack({name: getattr(request, name) for name in type(request).model_fields})


def decode_request(payload: bytes) -> BaseRequest:
    """Return the request of a payload. Raise ValueError if the payload is not a request."""
    fields = unpack(payload)
    kind = REQUESTS.get(fields.get("request_type", "")) if isinstance(fields, dict) else None
    if kind is None:
        raise ValueError(f"This is not a request: {fields!r:.200}")
    return kind.model_validate(fields)


def failure(error: BaseException) -> dict[str, Any]:
    """Return the response that carries an exception to the client."""
    text = str(error) or type(error).__name__
    if not isinstance(error, Error):
        text = f"{type(error).__name__}: {text}"
    return {"success": False, "error": text, "error_type": type(error).__name__}


def error_of(response: BaseResponse) -> Error:
    """Return the exception of a response without success: the library's class of this name, else ServerError."""
    own = {"RequestQuarantined": RequestQuarantined}
    kind = own.get(response.error_type or "") or getattr(errors, response.error_type or "", None)
    text = response.error or "The environment server failed without a message."
    if isinstance(kind, type) and issubclass(kind, Error):
        return kind(text)
    return ServerError(text)


try:
    import msgpack
except ImportError as error:
    raise ConfigError(
        "Environments in separate processes need pyzmq and msgpack: pip install 'pyzmq>=26' 'msgpack>=1.0'."
    ) from error

ARRAY = 1
"""msgpack extension: dtype, shape, and the raw bytes in C order."""
INTEGER = 2
"""msgpack extension: an integer beyond 64 bits, as decimal digits."""


def _packed(value: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    packed = msgpack.packb(
        value, default=default, use_bin_type=True, unicode_errors="surrogatepass"
    )
    assert packed is not None  # the stub allows for subclasses that return nothing
    return packed


def pack(value: Any) -> bytes:
    """Return the bytes of a request. Raise ConfigError, with the type, for a value that cannot be sent."""
    try:
        return _packed(value, msgpack_encoder)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"A request to an environment server cannot be sent: {error}") from error


def pack_result(value: Any) -> bytes:
    """Return the bytes of a response. Any value can be encoded: see the module."""
    try:
        return _packed(value, _lenient)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _packed(jsonable(value))  # the value contains itself, or is nested too deeply


def unpack(payload: bytes | memoryview) -> Any:
    """Return the value of such bytes. Raise ValueError if they are not msgpack."""
    options = {"ext_hook": _extension, "strict_map_key": False, "unicode_errors": "surrogatepass"}
    try:
        return msgpack.unpackb(payload, **options)
    except TypeError:  # the dict had a tuple as a key, which arrives as a list
        return _with_lists(msgpack.unpackb(payload, use_list=False, **options))


def msgpack_encoder(obj: Any) -> Any:
    """Return a value that msgpack supports in place of one that it does not: its `default`. Raise TypeError if there is
    no such value.
    """
    np = sys.modules.get(
        "numpy"
    )  # importing numpy takes half a second, and without it there are no arrays
    if np is not None and isinstance(obj, np.generic):
        return obj.item()
    if np is not None and isinstance(obj, np.ndarray) and not obj.dtype.hasobject:
        header = _packed([obj.dtype.str, list(obj.shape)])
        return msgpack.ExtType(ARRAY, header + obj.tobytes())
    if isinstance(obj, int):
        return msgpack.ExtType(INTEGER, str(int(obj)).encode())
    if isinstance(obj, Enum):
        return obj.value
    if isinstance(obj, datetime | date | time):
        return obj.isoformat()
    if isinstance(obj, PurePath | UUID):
        return str(obj)
    if isinstance(obj, timedelta):
        return obj.total_seconds()
    if isinstance(obj, Decimal):
        return float(obj)
    if isinstance(obj, set | frozenset):
        return _listed(obj)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return dict(obj)
    if isinstance(obj, Sequence) and not isinstance(obj, str | bytes):
        return list(obj)
    if not isinstance(obj, type):
        for name in ("model_dump", "tolist"):
            if callable(convert := getattr(obj, name, None)):
                return convert()
    raise TypeError(f"Object of type {type(obj)} is not msgpack serializable: {safe_repr(obj)}")


def decode_tensor_payload(obj: Any, *, to_torch: bool = True) -> Any:
    """Return a torch tensor (`to_torch=False`: a numpy array) for a tensor from an environment server; None for None.

    `obj` is an array, a tensor, a nested list, or the published package's dict `{"__torch_tensor__": True, "dtype",
    "shape", "data"}`. The result is writable. Raise ValueError if `data` and `shape` do not fit together.
    """
    if obj is None:
        return None
    import numpy as np

    if hasattr(obj, "detach"):  # a torch tensor
        return obj if to_torch else obj.detach().cpu().numpy()
    if isinstance(obj, Mapping):
        flat = np.frombuffer(obj["data"], np.dtype(obj["dtype"]))
        values = flat.reshape(tuple(obj["shape"])).copy()
    else:
        values = np.array(obj)
    if not to_torch:
        return values
    import importlib  # the trainer provides torch, and type checkers must pass without it

    return importlib.import_module("torch").from_numpy(values)


def _lenient(obj: Any) -> Any:
    if isinstance(obj, BaseException):
        return repr(obj)
    try:
        return msgpack_encoder(obj)
    except TypeError:
        logger.warning(
            "A value of type %s cannot leave the environment's process; its repr was sent. Store plain values, or "
            "leave its key out of state_columns.",
            type(obj).__name__,
        )
        return safe_repr(obj)


def _listed(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return list(values)


def _extension(code: int, data: bytes) -> Any:
    if code == INTEGER:
        return int(data)
    if code == ARRAY:
        import numpy as np

        unpacker = msgpack.Unpacker()
        unpacker.feed(data[:1024])
        dtype, shape = unpacker.unpack()
        # A copy: an array over the message itself would be read-only.
        return np.frombuffer(data, np.dtype(dtype), offset=unpacker.tell()).reshape(shape).copy()
    return msgpack.ExtType(code, data)


def _with_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    if isinstance(value, tuple) and not isinstance(value, msgpack.ExtType):
        return [_with_lists(item) for item in value]
    return value


LONGEST_SOCKET_FOLDER = 80
"""In bytes.

Kernels limit paths to 103 (macOS) or 107 (Linux) bytes, and names need up to 22; longer folders move to /tmp.
"""


def make_ipc_address(session_id: str, name: str) -> str:
    """Return the address of a socket file for one process of a session."""
    return f"ipc:///tmp/vf-{session_id}-{name}"


def new_socket_folder() -> Path:
    """Make a folder that only this user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="vf-"))
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="vf-", dir="/tmp"))
    return folder


@contextmanager
def socket_folder() -> Iterator[Path]:
    """Context manager around `new_socket_folder` that removes the folder with its content."""
    folder = new_socket_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def address_in(folder: Path, name: str) -> str:
    """Return an address for a socket in a folder, or a port of this machine on systems without socket files."""
    if sys.platform == "win32":
        return f"tcp://127.0.0.1:{get_free_port()}"
    return f"ipc://{folder / name}"


def warn_if_open(address: str) -> None:
    """Warn about an address beyond this machine.

    There are no passwords: any client can run rollouts with the server's keys.
    """
    if not address.startswith("tcp://"):
        return
    host = address.removeprefix("tcp://").rpartition(":")[0]
    if not is_loopback(host):
        logger.warning(
            "The environment server listens at %s, beyond this machine, and requires no password. Any client that "
            "reaches it can run rollouts with its keys. Process %d.",
            address,
            os.getpid(),
        )
