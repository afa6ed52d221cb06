"""`ZMQEnvServer`: passes requests from clients to supervised workers, by the decisions of a `RequestDispatch`."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from verifiers.concurrency import EventLoopLagMonitor
from verifiers.errors import ConfigError
from verifiers.logs import setup_logging
from verifiers.rollouts.schedule import first_failure
from verifiers.serve import wire
from verifiers.serve.dispatch import Key, RequestDispatch
from verifiers.serve.supervisor import Supervisor, WorkerPlan, WorkersFailed, worker_log_file
from verifiers.serve.wire import (
    EnvRouterStats,
    EnvWorkerStats,
    RequestQuarantined,
    ServerError,
    address_in,
    pack,
    socket_folder,
    unpack,
    warn_if_open,
)

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = "tcp://127.0.0.1:5000"
REPORT_FAILURE_S = 10.0
"""Time for which a server whose environment cannot be loaded stays to report the error, in seconds."""


class EnvServer(ABC):
    """An environment, by id and arguments, behind an address. Nothing starts before `serve` or `run`."""

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any] | None = None,
        extra_env_kwargs: dict[str, Any] | None = None,
        log_level: str | None = None,
        log_dir: str | None = None,
        console_logging: bool = True,
        file_logging: bool = True,
        json_logging: bool = False,
        *,
        num_workers: int = 1,
        worker_heartbeat_timeout: float = 30.0,
        worker_startup_timeout: float = 600.0,
        stats_log_interval: float = 10.0,
        death_pipe: Any = None,
        python: str | None = None,
        max_in_flight_per_worker: int = 1024,
        max_queued: int = 65_536,
        max_lone_deaths: int = 3,
        client_timeout: float = 600.0,
    ) -> None:
        for name, value in (
            ("num_workers", num_workers),
            ("max_in_flight_per_worker", max_in_flight_per_worker),
            ("max_lone_deaths", max_lone_deaths),
        ):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1; got {value!r}.")
        if python is not None and not os.access(python, os.X_OK):
            raise ConfigError(f"python={python!r} is not a program that can be run.")
        self.env_id = env_id
        self.env_args = dict(env_args or {})
        self.extra_env_kwargs = dict(extra_env_kwargs or {})
        self.num_workers = num_workers
        self.worker_heartbeat_timeout = worker_heartbeat_timeout
        """Time without a heartbeat after which a worker is killed and replaced, in seconds."""
        self.worker_startup_timeout = worker_startup_timeout
        self.stats_log_interval = stats_log_interval
        self.python = python
        """Interpreter of the workers, for an environment with its own virtual environment."""
        self.max_queued = max_queued
        """Maximum number of requests at once, for all clients; further ones are refused."""
        self.client_timeout = client_timeout
        """Time without a ping after which a client's requests are cancelled, in seconds."""
        self.log_level = log_level
        self.log_dir = Path(log_dir) if log_dir and file_logging else None
        self.console_logging = console_logging
        self.json_logging = json_logging
        self.max_in_flight_per_worker = max_in_flight_per_worker
        """Maximum number of requests at a worker at once; further ones wait in the server."""
        self._max_lone_deaths = max_lone_deaths
        self._death_pipe = death_pipe

    @abstractmethod
    async def serve(self, stop_event: asyncio.Event | None = None) -> None:
        """Serve until the event is set."""

    @abstractmethod
    async def close(self) -> None:
        """End a `serve` that is running."""

    @staticmethod
    def get_log_file(log_dir: str) -> Path:
        """Return the log file of the server."""
        return Path(log_dir) / "env_server.log"

    @staticmethod
    def get_all_log_files(log_dir: str, num_workers: int) -> list[Path]:
        """Return the log files of the server and its workers."""
        workers = [worker_log_file(log_dir, index) for index in range(num_workers)]
        return [EnvServer.get_log_file(log_dir), *workers]

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Serve as the only work of a process: until SIGTERM, SIGINT, the end of the parent process, or `stop`."""
        if self.log_dir is not None:
            self.log_dir.mkdir(parents=True, exist_ok=True)
        setup_logging(
            self.log_level or "INFO",
            log_file=self.get_log_file(str(self.log_dir)) if self.log_dir else None,
            console_logging=self.console_logging,
            json_logging=self.json_logging,
        )
        stop = stop or asyncio.Event()
        loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread() and sys.platform != "win32":
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
        watched = [] if self._death_pipe is None else [self._death_pipe.fileno()]
        if (parent := multiprocessing.parent_process()) is not None:
            watched.append(parent.sentinel)
        for descriptor in watched:
            loop.add_reader(descriptor, stop.set)
        try:
            await self.serve(stop)
        finally:
            for descriptor in watched:
                loop.remove_reader(descriptor)

    @classmethod
    def run_server(cls, *args: Any, **kwargs: Any) -> None:
        """`run` as the target of a process: `Process(target=ZMQEnvServer.run_server, args=(env_id, …))`."""
        asyncio.run(cls(*args, **kwargs).run())


class ZMQEnvServer(EnvServer):
    """An environment server at a ZeroMQ address.

    Accepts the arguments of `EnvServer` and `address` (`tcp://host:port` or `ipc:///path`). Workers load the
    environment by its id. A dead worker is replaced, and other workers repeat its unfinished requests. Every request
    receives exactly one response.
    """

    def __init__(
        self,
        *args: Any,
        address: str = DEFAULT_ADDRESS,
        socket_dir: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.address = address
        self.socket_dir = Path(socket_dir) if socket_dir is not None else None
        """Folder for the workers' socket, which its owner removes; None for a folder of the server."""
        self.server_id = os.urandom(8).hex()
        self._dispatch = RequestDispatch(
            capacity=self.max_in_flight_per_worker, max_lone_deaths=self._max_lone_deaths
        )
        self._health: dict[Key, str] = {}
        """Health requests in progress → the worker that received them."""
        self._clients_heard: dict[bytes, float] = {}
        self._failure: str | None = None
        self._have_all_been_ready = False
        self._stop: asyncio.Event | None = None
        self._is_reported = asyncio.Event()
        self._lag = EventLoopLagMonitor()
        self._frontend: Any = None
        self._backend: Any = None
        self._supervisor: Supervisor | None = None

    async def close(self) -> None:
        """End a `serve` that is running."""
        if self._stop is not None:
            self._stop.set()

    async def serve(self, stop_event: asyncio.Event | None = None) -> None:
        """Serve until the event is set. Raise WorkersFailed if the environment cannot be loaded."""
        import zmq
        import zmq.asyncio

        stop = self._stop = stop_event or asyncio.Event()
        warn_if_open(self.address)
        with ExitStack() as stack:
            folder = self.socket_dir or stack.enter_context(socket_folder())
            context = stack.enter_context(zmq.asyncio.Context())
            self._frontend = stack.enter_context(context.socket(zmq.ROUTER))
            self._backend = stack.enter_context(context.socket(zmq.ROUTER))
            workers_address = address_in(folder, f"workers-{self.server_id[:8]}")
            for socket, address in (
                (self._frontend, self.address),
                (self._backend, workers_address),
            ):
                # The clients and `max_queued` limit what is in flight; a router drops messages above its high-water
                # mark.
                socket.setsockopt(zmq.SNDHWM, 0)
                socket.setsockopt(zmq.RCVHWM, 0)
                socket.setsockopt(zmq.LINGER, 1000)
                socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
                try:
                    socket.bind(address)
                except zmq.ZMQError as error:
                    raise ServerError(
                        f"The environment server cannot listen at {address}: {error}. Choose another address."
                    ) from error
            self._supervisor = Supervisor(self._plan(workers_address, folder), self._worker_lost)
            logger.info(
                "%s is served at %s by %d workers", self.env_id, self.address, self.num_workers
            )
            await self._serve_until(stop)

    async def _serve_until(self, stop: asyncio.Event) -> None:
        assert self._supervisor is not None
        failed: WorkersFailed | None = None
        answering: list[asyncio.Task[Any]] = [
            asyncio.create_task(work)
            for work in (self._hear_clients(), self._hear_workers(), self._tick(), self._lag.run())
        ]
        supervising: asyncio.Task[Any] = asyncio.create_task(self._supervisor.run())
        stopped: asyncio.Task[Any] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait(
                [*answering, supervising, stopped], return_when=asyncio.FIRST_COMPLETED
            )
            for task in answering:
                if task.done():
                    task.result()
            if supervising.done() and not stopped.done():
                try:
                    supervising.result()
                except BaseExceptionGroup as group:
                    failed = await self._report_failure(first_failure(group), stopped)
        finally:
            reason = self._failure or "The environment server was stopped."
            for job in self._dispatch.drop_all():
                await self._reply(job.key, pack(wire.failure(ServerError(reason))))
            for task in (*answering, supervising, stopped):
                task.cancel()
            await asyncio.gather(*answering, supervising, stopped, return_exceptions=True)
        if failed is not None:
            raise failed

    async def _report_failure(
        self, error: BaseException, stopped: asyncio.Task[Any]
    ) -> WorkersFailed:
        """Stay until a client has received the reason why there is no server."""
        if not isinstance(error, WorkersFailed):
            raise error
        self._failure = f"{self.env_id} cannot be served: {error}"
        logger.error(self._failure)
        for job in self._dispatch.drop_all():
            await self._reply(job.key, pack(wire.failure(ServerError(self._failure))))
        reported = asyncio.create_task(self._is_reported.wait())
        await asyncio.wait(
            [reported, stopped], timeout=REPORT_FAILURE_S, return_when=asyncio.FIRST_COMPLETED
        )
        reported.cancel()
        return WorkersFailed(self._failure)

    def _plan(self, address: str, folder: Path) -> WorkerPlan:
        return WorkerPlan(
            count=self.num_workers,
            settings={
                "env_id": self.env_id,
                "env_args": self.env_args,
                "extra_env_kwargs": self.extra_env_kwargs,
                "log_level": self.log_level or ("INFO" if self.console_logging else "ERROR"),
                "json_logging": self.json_logging,
                "address": address,
                "silence_s": self.worker_heartbeat_timeout,
                "socket_folder": None if self.socket_dir is not None else str(folder),
            },
            python=self.python,
            heartbeat_timeout_s=self.worker_heartbeat_timeout,
            startup_timeout_s=self.worker_startup_timeout,
            log_dir=self.log_dir,
        )

    # ---------------------------------------------------------------------------------------------- clients

    async def _hear_clients(self) -> None:
        while True:
            client, kind, *rest = await self._frontend.recv_multipart()
            self._clients_heard[client] = time.monotonic()
            try:
                await self._from_client(client, kind, rest)
            except (ValueError, IndexError):
                logger.warning(
                    "A client sent frames that this server does not support; they are ignored."
                )

    async def _from_client(self, client: bytes, kind: bytes, rest: list[bytes]) -> None:
        if kind == wire.RUN:
            await self._take(Key(client, rest[0]), rest[1])
        elif kind == wire.CANCEL:
            if job := self._dispatch.cancel(Key(client, rest[0])):
                await self._send_to(job.worker, wire.CANCEL, job.key)
        elif kind == wire.HEALTH:
            await self._ask_health(Key(client, rest[0]))
        elif kind == wire.PING:
            ids = [rest[0][i : i + wire.ID_BYTES] for i in range(0, len(rest[0]), wire.ID_BYTES)]
            unknown = [one for one in ids if Key(client, one) not in self._dispatch]
            stats = pack(self.stats().model_dump())
            await self._frontend.send_multipart(
                [client, wire.PONG, stats, b"".join(unknown), rest[1]]
            )

    async def _take(self, key: Key, payload: bytes) -> None:
        if self._failure is not None:
            await self._reply(key, pack(wire.failure(ServerError(self._failure))))
        elif len(self._dispatch) >= self.max_queued:
            error = ServerError(
                f"The environment server already holds {self.max_queued} requests. Send fewer at once."
            )
            await self._reply(key, pack(wire.failure(error)))
        elif self._dispatch.submit(key, payload):
            await self._assign()

    async def _ask_health(self, key: Key) -> None:
        assert self._supervisor is not None
        ready = self._supervisor.ready
        # Wait for all workers at the start; otherwise the first one to be ready would receive the whole first batch.
        self._have_all_been_ready |= len(ready) == self.num_workers
        if ready and self._have_all_been_ready and self._failure is None:
            worker = min(ready, key=lambda worker: self._dispatch.load(worker.name))
            self._health[key] = worker.name
            await self._send_to(worker.name, wire.HEALTH, key)
            return
        waiting = f"{len(ready)} of the {self.num_workers} workers of {self.env_id} are ready."
        answer = {
            **wire.failure(ServerError(self._failure or waiting)),
            "is_final": self._failure is not None,
        }
        await self._reply(key, pack(answer))
        if self._failure is not None:
            self._is_reported.set()

    async def _reply(self, key: Key, response: Any) -> None:
        await self._frontend.send_multipart(
            [key.client, wire.DONE, key.request, response], copy=False
        )

    # ---------------------------------------------------------------------------------------------- workers

    async def _hear_workers(self) -> None:
        while True:
            frames = await self._backend.recv_multipart(copy=False)
            name, kind = frames[0].bytes.decode(), frames[1].bytes
            assert self._supervisor is not None
            worker = self._supervisor.workers.get(name)
            if worker is None or worker.killed_for is not None:
                continue  # the server gave this worker up; other workers repeat its requests
            worker.heard = time.monotonic()
            if kind == wire.DONE:
                key = Key(frames[2].bytes, frames[3].bytes)
                if self._health.pop(key, None) is not None:
                    await self._reply(key, frames[4])
                elif job := self._dispatch.finish(name, key):
                    if not job.is_cancelled:
                        await self._reply(key, frames[4])
                    await self._assign()
            elif kind == wire.BEAT:
                worker.stats = EnvWorkerStats.model_validate(unpack(frames[2].buffer))
            elif kind == wire.FAILED:
                worker.failure = unpack(frames[2].buffer)
            elif kind == wire.READY:
                theirs = unpack(frames[2].buffer).get("protocol")
                if theirs != wire.PROTOCOL:
                    worker.failure = {"error": _other_version(self.python, theirs)}
                    worker.kill("uses another version of the protocol")
                    continue
                worker.is_ready = True
                self._dispatch.add_worker(name)
                await self._assign()

    async def _assign(self) -> None:
        for job in self._dispatch.assign():
            await self._send_to(job.worker, wire.RUN, job.key, job.payload)

    async def _send_to(self, worker: str | None, kind: bytes, key: Key, *payload: bytes) -> None:
        if worker is not None:
            await self._backend.send_multipart([worker.encode(), kind, *key, *payload], copy=False)

    async def _worker_lost(self, name: str, how: str) -> int:
        held = self._dispatch.load(name)
        for key in [key for key, asked in self._health.items() if asked == name]:
            del self._health[key]
            await self._ask_health(key)
        for job in self._dispatch.lose_worker(name):
            error = RequestQuarantined(
                f"{job.deaths} workers died with this request, {job.lone_deaths} of them with no other request; "
                f"the last one {how}. The request is not tried again. The environment's code, or code that the rollout "
                f"executed, ends the process."
            )
            await self._reply(job.key, pack(wire.failure(error)))
        await self._assign()
        return held

    # ------------------------------------------------------------------------------------------- bookkeeping

    async def _tick(self) -> None:
        logged = time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self.client_timeout / 4, self.stats_log_interval))
            now = time.monotonic()
            for client, heard in list(self._clients_heard.items()):
                if now - heard > self.client_timeout:
                    await self._forget_client(client)
            if now - logged >= self.stats_log_interval:
                logged = now
                _log_stats(self.stats(), logger.debug if not len(self._dispatch) else logger.info)

    async def _forget_client(self, client: bytes) -> None:
        del self._clients_heard[client]
        gone = [job.key for job in self._dispatch.jobs() if job.key.client == client]
        if gone:
            logger.warning("A client is gone; its %d requests are cancelled.", len(gone))
        for key in gone:
            if job := self._dispatch.cancel(key):
                await self._send_to(job.worker, wire.CANCEL, key)

    def stats(self) -> EnvRouterStats:
        """Return the present state of the server and its workers."""
        lag = self._lag.get_lag_stats()
        workers: dict[int, EnvWorkerStats | None] = dict.fromkeys(range(self.num_workers))
        found = self._supervisor.workers.values() if self._supervisor is not None else ()
        workers.update({worker.index: worker.stats for worker in found if worker.is_ready})
        return EnvRouterStats(
            server_id=self.server_id,
            lag=lag,
            workers=workers,
            queued=self._dispatch.queued,
            restarts=self._supervisor.restarts if self._supervisor is not None else 0,
        )


def _other_version(python: str | None, theirs: Any) -> str:
    return (
        f"The interpreter {python} has another version of verifiers: it uses protocol {theirs}, this one uses "
        f"{wire.PROTOCOL}. Install the same version there."
    )


def _log_stats(stats: EnvRouterStats, log: Callable[..., None]) -> None:
    for index, worker in stats.workers.items():
        if worker is None:
            log("worker %d is not ready", index)
        else:
            lag = worker.lag
            log(
                "worker %d: %d running, event loop late by %.0f ms (p90 %.0f, max %.0f)",
                index,
                worker.active_tasks,
                lag.mean * 1e3,
                lag.p90 * 1e3,
                lag.max * 1e3,
            )
    if stats.queued:
        log("%d requests wait for a worker", stats.queued)
