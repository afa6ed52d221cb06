"""Requests of clients: bodies read within limits, checked, and turned into specifications."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import platform
from collections.abc import AsyncIterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from verifiers.sandbox_server.config import Quota, ServerConfig
from verifiers.sandbox_server.metrics import ServerMetrics
from verifiers.sandboxes.spec import ProxyNetwork, SandboxSpec

MAX_LABELS = 64
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_Label = Annotated[str, Field(max_length=256)]


class RequestRefused(Exception):
    """A refused request: HTTP status, and the reason for the client."""

    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status = status
        self.detail = detail


class StartCommand(BaseModel):
    """The command that runs from the start, in the form of newer clients."""

    executable: str = Field(min_length=1, max_length=4096)
    args: list[str] = []


class CreateRequest(BaseModel):
    """Body of `POST /sandbox`, for all generations of clients. Unsupported fields are refused unless they are empty."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str = Field(default="sandbox", max_length=256)
    docker_image: str | None = Field(default=None, max_length=512)
    arch: Literal["amd64", "arm64"] | None = None
    start_command: str | StartCommand | None = None
    cpu_cores: float = Field(default=1.0, gt=0, le=4096)
    memory_gb: float = Field(default=1.0, gt=0)
    disk_size_gb: float | None = Field(default=None, gt=0)
    gpu_count: int = 0
    network_access: bool = True
    network_allowlist: list[str] | None = None
    network_denylist: list[str] | None = None
    timeout_minutes: float = Field(default=60.0, gt=0)
    idle_timeout_minutes: float | None = Field(default=None, gt=0, le=1e6)
    environment_vars: dict[str, str] | None = None
    secrets: dict[str, str] | None = Field(default=None, repr=False)
    labels: list[_Label] = Field(default=[], max_length=MAX_LABELS)
    team_id: str | None = Field(default=None, max_length=256)
    region: str | None = Field(default=None, max_length=256)
    idempotency_key: str | None = Field(default=None, max_length=512)
    vm: bool | None = None

    @property
    def fingerprint(self) -> bytes:
        """A hash that is equal for equal requests."""
        return hashlib.sha256(self.model_dump_json().encode()).digest()

    def without_content(self) -> CreateRequest:
        """Return the part that the record of an ended sandbox keeps: fields of limited length."""
        return self.model_copy(
            update={
                "start_command": None,
                "environment_vars": None,
                "secrets": None,
                "network_allowlist": None,
                "network_denylist": None,
            }
        )

    @field_validator("labels", mode="before")
    @classmethod
    def _no_labels(cls, labels: object) -> object:
        return [] if labels is None else labels


def parse(body: object) -> CreateRequest:
    """Return the request of a JSON body. Raises RequestRefused with every wrong field."""
    try:
        request = CreateRequest.model_validate(body)
    except ValidationError as error:
        faults = (
            f"{'.'.join(str(part) for part in each['loc']) or 'body'}: {each['msg']}"
            for each in error.errors()[:10]
        )
        raise RequestRefused(422, "; ".join(faults)) from None
    unknown = sorted(name for name, value in (request.model_extra or {}).items() if value)
    if request.gpu_count:
        unknown.insert(0, "gpu_count")
    if request.network_denylist:
        unknown.insert(0, "network_denylist (give network_allowlist instead)")
    if unknown:
        raise RequestRefused(422, f"This server does not support {', '.join(unknown)}.")
    known = {
        name: getattr(request, name)
        for name in request.model_fields_set - set(request.model_extra or {})
    }
    return CreateRequest.model_construct(**known)


def specification(request: CreateRequest, config: ServerConfig, quota: Quota) -> SandboxSpec:
    """Return the specification of a sandbox. Raises RequestRefused if this server or token does not allow it."""
    image = request.docker_image or "host"
    if not any(fnmatchcase(image, pattern) for pattern in config.images):
        raise RequestRefused(
            422,
            f"docker_image {image!r} is not available. Every sandbox here shows the server's own system. "
            f"Accepted names: {', '.join(config.images)}.",
        )
    own_arch = _ARCHITECTURES.get(platform.machine(), platform.machine())
    if request.arch not in (None, own_arch):
        raise RequestRefused(422, f"arch {request.arch!r} is not available, only {own_arch!r}.")
    # Compared before rounding: a float that is too large cannot be converted to an integer.
    _within("memory_gb", request.memory_gb, quota.max_sandbox_memory_mb / 1024)
    _within("disk_size_gb", request.disk_size_gb or 0.0, quota.max_sandbox_disk_mb / 1024)
    _within("timeout_minutes", request.timeout_minutes, quota.max_lifetime_s / 60)
    memory_mb = max(32, round(request.memory_gb * 1024))
    disk_mb = config.template.disk_mb
    if request.disk_size_gb is not None:
        disk_mb = max(1, round(request.disk_size_gb * 1024))
    lifetime_s = request.timeout_minutes * 60
    _within("disk_size_gb", disk_mb / 1024, quota.max_sandbox_disk_mb / 1024)
    fields = {
        **config.template.model_dump(),
        "memory_mb": memory_mb,
        "disk_mb": disk_mb,
        "cpu_cores": request.cpu_cores,
        "network": _network(request, config),
        "env": {
            **config.template.env,
            **(request.environment_vars or {}),
            **(request.secrets or {}),
        },
        "ttl_s": lifetime_s,
    }
    try:
        return SandboxSpec.model_validate(fields)
    except ValidationError as error:
        raise RequestRefused(422, "; ".join(each["msg"] for each in error.errors())) from None


def _within(name: str, value: float, maximum: float) -> None:
    if value > maximum:
        raise RequestRefused(
            422, f"{name} {value:g} is above {maximum:g}, the maximum for this token."
        )


def _network(
    request: CreateRequest, config: ServerConfig
) -> Literal["none", "full"] | ProxyNetwork:
    domains = request.network_allowlist
    if config.network == "none":
        if domains:
            raise RequestRefused(
                422,
                "network_allowlist is not available: sandboxes of this server have no network (`--network full`).",
            )
        return "none"
    if not request.network_access or domains == []:
        return "none"
    if domains is None:
        return "full"
    try:
        return ProxyNetwork(allow=tuple(domains))
    except ValidationError as error:
        raise RequestRefused(422, f"network_allowlist: {error.errors()[0]['msg']}") from None


class Transfer:
    """Reads requests and writes responses. Disconnects clients that are slower than allowed."""

    def __init__(self, config: ServerConfig, metrics: ServerMetrics) -> None:
        self.config = config
        self.metrics = metrics

    async def body(self, request: web.Request, max_bytes: int) -> bytes:
        """Return the whole body. Raises RequestRefused if it is too large or arrives too slowly."""
        parts = [part async for part in self.pieces(request, max_bytes)]
        return b"".join(parts)

    async def pieces(self, request: web.Request, max_bytes: int) -> AsyncIterator[bytes]:
        """Return the pieces of the body as they arrive. Raises RequestRefused."""
        if (request.content_length or 0) > max_bytes:
            raise RequestRefused(413, f"The maximum size of the body is {max_bytes} bytes.")
        left = max_bytes
        while True:
            async with self.patience("sends too slowly"):
                piece = await request.content.readany()
            if not piece:
                return
            left -= len(piece)
            if left < 0:
                raise RequestRefused(413, f"The maximum size of the body is {max_bytes} bytes.")
            yield piece

    async def json_body(self, request: web.Request) -> object:
        """Return the value of a JSON body. Raises RequestRefused."""
        data = await self.body(request, self.config.max_json_bytes)
        try:
            return json.loads(data or b"{}", parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            raise RequestRefused(
                400, "The body is not valid JSON, or it has a number that is not finite."
            ) from None

    def patience(self, what: str) -> Patience:
        """Return a context that gives the client `client_timeout_s` for the block."""
        return Patience(self.config.client_timeout_s, what, self.metrics)

    async def write(self, response: web.StreamResponse, data: bytes) -> None:
        """Send a piece of a streamed response. Raises ClientTooSlow if the client does not receive it in time."""
        async with self.patience("reads too slowly"):
            await response.write(data)


def _finite(text: str) -> float:
    """Return the number. Raises ValueError for `Infinity`, `NaN`, and numbers as large as `1e999`."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


class ClientTooSlow(RequestRefused):
    """The client is too slow; its connection is closed."""


class Patience:
    """See `Transfer.patience`."""

    def __init__(self, limit_s: float, what: str, metrics: ServerMetrics) -> None:
        self._timeout = asyncio.timeout(limit_s)
        self._limit_s = limit_s
        self._what = what
        self._metrics = metrics

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._timeout.__aexit__(*exc)  # pyright: ignore[reportArgumentType] - the three of any block
        except TimeoutError:
            self._metrics.add("clients_cut_off_total", cause=self._what.replace(" ", "_"))
            raise ClientTooSlow(
                408, f"The client {self._what}: nothing for {self._limit_s:g} s."
            ) from None
