"""`ZMQEnvClient`: rollouts on an environment server, with the interface of a local environment.

    client = ZMQEnvClient(address, name="math")
    await client.wait_for_server_startup()
    output = await client.run_rollout(row, client_config, model, sampling_args)

A request ends exactly once: with its output, an error, or its cancellation. Once per second the client sends the ids of
its pending requests, and sends those requests again that the server has lost, for example by a restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from verifiers.clients import resolve_client
from verifiers.configs import ClientConfig
from verifiers.errors import ConfigError
from verifiers.serve import wire
from verifiers.serve.server import DEFAULT_ADDRESS
from verifiers.serve.wire import (
    BaseRequest,
    BaseResponse,
    EnvRouterStats,
    HealthRequest,
    HealthResponse,
    PendingRequest,
    RunGroupRequest,
    RunGroupResponse,
    RunRolloutRequest,
    RunRolloutResponse,
    ServerError,
    ServerState,
    encode_request,
    error_of,
    unpack,
)
from verifiers.types import RolloutOutput, SamplingArgs

logger = logging.getLogger(__name__)

ResponseT = TypeVar("ResponseT", bound=BaseResponse)

STARTUP_POLL_S = 0.05
DECODED_ELSEWHERE_BYTES = 1_000_000
"""Larger responses are decoded in a thread, so that they do not block the event loop."""
MISSED_PINGS = 5
"""Number of pings without a response after which the server counts as unreachable."""


class ServerTimeout(ServerError, TimeoutError):
    """A request received no response in time. The server has been asked to drop it."""


class EnvClient(ABC):
    """A client of an environment server."""

    shares_endpoints = True
    """The workers distribute the requests among all endpoints of a configuration."""

    def __init__(
        self,
        address: str,
        name: str | None = None,
        health_check_interval: float = 1.0,
        startup_timeout: float = 600.0,
        recovery_timeout: float = 600.0,
    ) -> None:
        self.address = address
        self.name = name or address
        self.health_check_interval = health_check_interval
        """Seconds between two pings."""
        self.startup_timeout = startup_timeout
        """Maximum time until a server is ready, in seconds."""
        self.recovery_timeout = recovery_timeout
        """Time that requests wait for an unreachable server before they fail, in seconds."""

    async def health(self, timeout: float | None = 1) -> bool:
        """Return whether a worker responds within `timeout` seconds."""
        try:
            return (await self.send_request(HealthRequest(), HealthResponse, timeout)).success
        except ServerError:
            return False

    async def run_rollout(
        self,
        input: Mapping[str, Any],
        client_config: ClientConfig | Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        *,
        limits: Mapping[str, Any] | None = None,
    ) -> RolloutOutput:
        """Play one rollout. Raise ServerError, RequestQuarantined, and the environment's own exceptions."""
        request = RunRolloutRequest(
            input=input,
            client_config=config_of(client_config),
            model=model,
            sampling_args=dict(sampling_args or {}),
            max_retries=max_retries,
            state_columns=None if state_columns is None else list(state_columns),
            limits=None if limits is None else dict(limits),
        )
        response = await self.send_request(request, RunRolloutResponse)
        if not response.success or response.output is None:
            raise error_of(response)
        return response.output

    async def run_group(
        self,
        group_inputs: Sequence[Mapping[str, Any]],
        client_config: ClientConfig | Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
        max_retries: int = 0,
        state_columns: Sequence[str] | None = None,
        *,
        limits: Mapping[str, Any] | None = None,
    ) -> list[RolloutOutput]:
        """Play the rollouts of one example and score them together. Raises like `run_rollout`."""
        request = RunGroupRequest(
            group_inputs=list(group_inputs),
            client_config=config_of(client_config),
            model=model,
            sampling_args=dict(sampling_args or {}),
            max_retries=max_retries,
            state_columns=None if state_columns is None else list(state_columns),
            limits=None if limits is None else dict(limits),
        )
        response = await self.send_request(request, RunGroupResponse)
        if not response.success or response.outputs is None:
            raise error_of(response)
        return response.outputs

    @abstractmethod
    async def send_request(
        self, request: BaseRequest, response_type: type[ResponseT], timeout: float | None = None
    ) -> ResponseT:
        """Return the response to a request, also if it has no `success`."""

    async def wait_for_server_startup(self, timeout: float | None = None) -> None:
        """Wait until a worker responds. Raise ServerError at once if the environment cannot be loaded."""
        limit_s = self.startup_timeout if timeout is None else timeout
        last = "It did not respond."
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    try:
                        response = await self.send_request(HealthRequest(), HealthResponse, 1.0)
                    except ServerTimeout:
                        continue
                    if response.success:
                        return
                    if response.is_final:
                        raise error_of(response)
                    last = response.error or last
                    await asyncio.sleep(STARTUP_POLL_S)
        except TimeoutError:
            raise ServerTimeout(
                f"The environment server {self.name} at {self.address} was not ready after {limit_s:g} s. {last}"
            ) from None

    @abstractmethod
    async def close(self) -> None:
        """Cancel all pending requests and close the connection."""

    async def __aenter__(self) -> EnvClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def config_of(client: Any) -> ClientConfig:
    """Return the configuration of a client, which can be sent to another process. That process reads the API keys."""
    if isinstance(client, ClientConfig):
        return client
    config = resolve_client(client).config
    if config is None:
        raise ConfigError(
            f"A {type(client).__name__} cannot be sent to the process of an environment server. Pass a "
            f"vf.ClientConfig, or run without a server."
        )
    return config


class ZMQEnvClient(EnvClient):
    """A client of an environment server at a ZeroMQ address.

    It connects with the first request and belongs to one event loop at a time. At most `max_in_flight` requests are at
    the server at once; further requests wait here.
    """

    def __init__(
        self, address: str = DEFAULT_ADDRESS, *, max_in_flight: int = 4096, **kwargs: Any
    ) -> None:
        name = kwargs.pop("name", None)
        super().__init__(address, name, **kwargs)
        if max_in_flight < 1:
            raise ConfigError(f"max_in_flight must be at least 1; got {max_in_flight}.")
        self.max_in_flight = max_in_flight
        self.server_state = ServerState.STARTUP
        self.stats: EnvRouterStats | None = None
        """The last state that the server reported about itself and its workers."""
        self.resent = 0
        """Number of requests that the server lost and received again."""
        self.pending: dict[str, PendingRequest] = {}
        """Pending requests by id."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: Any = None
        self._socket: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._slots: asyncio.Semaphore | None = None
        self._pings_out = 0
        self._pings_sent = 0
        self._sent_after: dict[str, int] = {}
        """Request id → number of pings sent before it.

        Only a later ping shows whether the server has lost the request.
        """

    async def ensure_started(self) -> None:
        """Connect, unless this event loop has a connection already."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._socket is not None:
            return
        if self._socket is not None:  # left from an event loop that has ended
            self._disconnect()
            self.pending.clear()
        import zmq
        import zmq.asyncio

        self._loop = loop
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, os.urandom(wire.ID_BYTES))
        self._socket.setsockopt(zmq.SNDHWM, 0)  # `max_in_flight` limits the number of frames
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.connect(self.address)
        self._slots = asyncio.Semaphore(self.max_in_flight)
        self._pings_out = 0
        self._tasks = [loop.create_task(self.receive_loop()), loop.create_task(self._ping_loop())]

    async def send_request(
        self, request: BaseRequest, response_type: type[ResponseT], timeout: float | None = None
    ) -> ResponseT:
        """Return the response to a request, also if it has no `success`.

        Raise ServerTimeout after `timeout` seconds, ServerError if the server stays unreachable for `recovery_timeout`.
        After a timeout or a cancellation, ask the server to drop the request.
        """
        await self.ensure_started()
        if isinstance(request, HealthRequest):
            return await self._exchange(request, response_type, timeout)
        assert self._slots is not None
        async with self._slots:
            return await self._exchange(request, response_type, timeout)

    async def _exchange(
        self, request: BaseRequest, response_type: type[ResponseT], timeout: float | None
    ) -> ResponseT:
        request_id = os.urandom(wire.ID_BYTES).hex()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pending[request_id] = PendingRequest(
            request_id=request_id,
            request=request,
            future=future,
            timeout=timeout,
            submitted_at=time.time(),
        )
        try:
            async with asyncio.timeout(timeout):
                await self._send(request_id, request)
                fields = await future
        except TimeoutError:
            await self.send_cancel(request_id)
            raise ServerTimeout(
                f"{self.name} did not respond to {request.request_type!r} within {timeout:g} s."
            ) from None
        except asyncio.CancelledError:
            await self.send_cancel(request_id)
            raise
        finally:
            self.pending.pop(request_id, None)
            self._sent_after.pop(request_id, None)
        return response_type.model_validate(fields)

    async def _send(self, request_id: str, request: BaseRequest) -> None:
        self._sent_after[request_id] = self._pings_sent
        if isinstance(request, HealthRequest):
            frames = [wire.HEALTH, bytes.fromhex(request_id)]
        else:
            frames = [wire.RUN, bytes.fromhex(request_id), encode_request(request)]
        await self._socket.send_multipart(frames, copy=False)

    async def send_cancel(self, request_id: str) -> None:
        """Ask the server to drop a request."""
        if self._socket is not None:
            await self._socket.send_multipart([wire.CANCEL, bytes.fromhex(request_id)])

    async def cancel_all_pending(
        self, reason: str = "Request cancelled", use_cancelled: bool = False
    ) -> list[PendingRequest]:
        """End all pending requests, with ServerError or as cancelled. Return them."""
        ended = [pending for pending in self.pending.values() if not pending.future.done()]
        for pending in ended:
            await self.send_cancel(pending.request_id)
            if use_cancelled:
                pending.future.cancel()
            else:
                pending.future.set_exception(ServerError(reason))
        return ended

    async def receive_loop(self) -> None:
        """Receive responses until cancelled."""
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            self._pings_out = 0
            if self.server_state is not ServerState.HEALTHY:
                self.on_became_healthy(self.server_state)
            if frames[0].bytes == wire.DONE:
                await self._finish(frames[1].bytes.hex(), frames[2])
            elif frames[0].bytes == wire.PONG:
                self.stats = EnvRouterStats.model_validate(unpack(frames[1].buffer))
                await self._send_again(int.from_bytes(frames[3].bytes), frames[2].bytes)

    async def _finish(self, request_id: str, frame: Any) -> None:
        pending = self.pending.get(request_id)
        if pending is None or pending.future.done():
            return
        try:
            if len(frame) > DECODED_ELSEWHERE_BYTES:
                fields = await asyncio.to_thread(unpack, frame.buffer)
            else:
                fields = unpack(frame.buffer)
        except ValueError as error:
            fields = wire.failure(
                ServerError(f"The response of {self.name} is not readable: {error}")
            )
        if not pending.future.done():
            pending.future.set_result(fields)

    async def _send_again(self, ping: int, unknown: bytes) -> None:
        for start in range(0, len(unknown), wire.ID_BYTES):
            request_id = unknown[start : start + wire.ID_BYTES].hex()
            pending = self.pending.get(request_id)
            if pending is None or pending.future.done():
                continue
            if ping > self._sent_after[request_id]:
                self.resent += 1
                await self._send(request_id, pending.request)

    async def _ping_loop(self) -> None:
        while True:
            ids = b"".join(
                bytes.fromhex(pending.request_id)
                for pending in self.pending.values()
                if not isinstance(pending.request, HealthRequest)
            )
            self._pings_sent += 1
            await self._socket.send_multipart([wire.PING, ids, self._pings_sent.to_bytes(8)])
            self._pings_out += 1
            # Count pings, not seconds: a caller that blocks this event loop must not lose its server.
            if self._pings_out > MISSED_PINGS:
                if self.server_state is ServerState.HEALTHY:
                    self.on_became_unhealthy(self._pings_out)
                away_s = self._pings_out * self.health_check_interval
                if away_s > self.recovery_timeout and self.pending:
                    await self.cancel_all_pending(
                        f"The environment server {self.name} at {self.address} has not responded for {away_s:.0f} s."
                    )
            await asyncio.sleep(self.health_check_interval)

    def on_became_healthy(self, old_state: ServerState) -> None:
        """Record that the server responds."""
        self.server_state = ServerState.HEALTHY
        if old_state is ServerState.UNHEALTHY:
            logger.warning("The environment server %s responds again.", self.name)

    def on_became_unhealthy(self, failed_checks: int) -> None:
        """Record that the server no longer responds."""
        self.server_state = ServerState.UNHEALTHY
        logger.warning(
            "The environment server %s has not responded to %d pings; its %d requests wait for it.",
            self.name,
            failed_checks,
            len(self.pending),
        )

    async def close(self) -> None:
        """Cancel all pending requests and close the connection. The next request connects again."""
        if self._socket is None:
            return
        if self._loop is asyncio.get_running_loop():
            await self.cancel_all_pending("The client was closed.", use_cancelled=True)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._disconnect()

    def _disconnect(self) -> None:
        self._socket.close()
        self._context.term()
        self._socket = self._context = self._loop = None
        self._tasks = []
