"""One worker: a process that loads the environment and plays the rollouts that its server sends.

It reads its settings from stdin and ends when stdin closes. The event loop that plays the rollouts also sends a
heartbeat. If the loop is blocked for too long, the worker writes the stack of every thread to its log and ends itself,
and the server starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from verifiers.child_process import end_group, read_settings, watch_parent
from verifiers.clients import close_all_clients, resolve_client
from verifiers.concurrency import EventLoopLagMonitor
from verifiers.errors import ConfigError
from verifiers.evaluate.run import apply_extra_kwargs
from verifiers.loading import load
from verifiers.logs import setup_logging
from verifiers.rollouts.limits import RolloutLimits, run_limits
from verifiers.serve import wire
from verifiers.serve.wire import pack, pack_result

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)

BEAT_INTERVAL_S = 1.0
LAG_INTERVAL_S = 0.05
EXIT_NOT_LOADED = 3
CLEANUP_S = 4.0
"""Maximum time for the clean-up of the environment when the worker is stopped, in seconds."""


class EnvWorker:
    """Plays the rollouts of one environment until `stop`."""

    def __init__(
        self, environment: Environment, *, worker_id: int, address: str, name: str, silence_s: float
    ) -> None:
        self._environment = environment
        self._worker_id = worker_id
        self._address = address
        self._name = name
        self._silence_s = silence_s
        self._tasks: dict[tuple[bytes, bytes], asyncio.Task[None]] = {}
        self._lag = EventLoopLagMonitor(LAG_INTERVAL_S, 600)
        self._stopping = asyncio.Event()
        self._scoring_timeout_s: float | None = None

    def stop(self) -> None:
        """Cancel all rollouts and end."""
        self._stopping.set()

    async def serve(self) -> None:
        """Serve until `stop()`."""
        with connected(self._address, self._name) as socket:
            await socket.send_multipart([wire.READY, pack({"protocol": wire.PROTOCOL})])
            running = [
                asyncio.create_task(self._lag.run()),
                asyncio.create_task(self._beat(socket)),
                asyncio.create_task(self._receive(socket)),
            ]
            stopped = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait([*running, stopped], return_when=asyncio.FIRST_COMPLETED)
                for task in running:
                    if task.done():
                        task.result()
            finally:
                faulthandler.cancel_dump_traceback_later()
                await _cancelled([*running, stopped, *self._tasks.values()])

    async def _beat(self, socket: Any) -> None:
        interval_s = min(BEAT_INTERVAL_S, self._silence_s / 4)
        while True:
            # faulthandler does not need Python's lock, which an extension may hold: a regular expression without end,
            # for example.
            faulthandler.dump_traceback_later(self._silence_s, exit=True, file=2)
            lag = self._lag.get_lag_stats()
            stats = {
                "worker_id": self._worker_id,
                "timestamp": time.time(),
                "active_tasks": len(self._tasks),
                "lag": {name: getattr(lag, name) for name in lag.__dataclass_fields__},
            }
            await socket.send_multipart([wire.BEAT, pack(stats)])
            await asyncio.sleep(interval_s)

    async def _receive(self, socket: Any) -> None:
        while True:
            kind, client, request, *rest = await socket.recv_multipart()
            key = (client, request)
            if kind == wire.RUN:
                task = asyncio.create_task(self._answer(socket, key, rest[0]))
                self._tasks[key] = task
            elif kind == wire.CANCEL:
                if task := self._tasks.get(key):
                    task.cancel()
            elif kind == wire.HEALTH:
                await socket.send_multipart([wire.DONE, *key, pack({"success": True})])

    async def _answer(self, socket: Any, key: tuple[bytes, bytes], payload: bytes) -> None:
        try:
            response = await self._response(payload)
        except asyncio.CancelledError:
            # Respond all the same: the server counts this request until its worker responds.
            response = pack(wire.failure(wire.ServerError("The request was cancelled.")))
        except Exception as error:
            logger.debug("A request failed", exc_info=error)
            response = pack(wire.failure(error))
        finally:
            self._tasks.pop(key, None)
        await socket.send_multipart([wire.DONE, *key, response], copy=False)

    async def _response(self, payload: bytes) -> bytes:
        request = wire.decode_request(payload)
        environment = self._environment
        if isinstance(request, wire.RunRolloutRequest):
            with run_limits(self._limits(request.limits)):
                output = await environment.run_rollout(
                    request.input,
                    resolve_client(request.client_config),
                    request.model,
                    request.sampling_args,
                    max_retries=request.max_retries,
                    state_columns=request.state_columns,
                )
            return pack_result({"success": True, "output": output})
        if isinstance(request, wire.RunGroupRequest):
            with run_limits(self._limits(request.limits)):
                outputs = await environment.run_group(
                    request.group_inputs,
                    resolve_client(request.client_config),
                    request.model,
                    request.sampling_args,
                    max_retries=request.max_retries,
                    state_columns=request.state_columns,
                )
            return pack_result({"success": True, "outputs": outputs})
        raise ConfigError(f"A worker cannot execute {request.request_type!r}.")

    def _limits(self, request: Mapping[str, Any] | None) -> RolloutLimits:
        limits = RolloutLimits.from_request(request)
        if limits.scoring_timeout_s not in (None, self._scoring_timeout_s):
            self._scoring_timeout_s = limits.scoring_timeout_s
            self._environment.rubric.set_scoring_timeout_s(limits.scoring_timeout_s)
        return limits


async def _cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def connected(address: str, name: str) -> Iterator[Any]:
    """Return a socket to the server. The server identifies the worker by `name`."""
    import zmq
    import zmq.asyncio

    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.IDENTITY, name.encode())
        socket.setsockopt(zmq.SNDHWM, 0)  # the server limits the number of requests at a worker
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(address)
        yield socket


def load_served(env_id: str, env_args: dict[str, Any], extra: dict[str, Any]) -> Environment:
    """Return the environment with this id or path, with its extra settings."""
    loaded = load(env_id, env_args)
    apply_extra_kwargs(loaded.environment, extra)
    return loaded.environment


def main() -> None:
    """Run a worker with the settings from stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which decides
    settings = read_settings()
    # Output of an environment must not get into a stream that has another meaning.
    os.dup2(2, 1)
    stops: list[Any] = [end_group]

    def orphaned() -> None:
        if settings["socket_folder"] is not None:  # a server that was killed could not remove it
            shutil.rmtree(settings["socket_folder"], ignore_errors=True)
        stops[-1]()

    watch_parent(orphaned)
    setup_logging(settings["log_level"], json_logging=settings["json_logging"])
    address, name = settings["address"], settings["name"]
    try:
        environment = load_served(
            settings["env_id"], settings["env_args"], settings["extra_env_kwargs"]
        )
    except Exception as error:  # noqa: BLE001 - the server reports it to its clients
        asyncio.run(_report_failure(address, name, wire.failure(error)))
        sys.exit(EXIT_NOT_LOADED)

    async def serve() -> None:
        worker = EnvWorker(
            environment,
            worker_id=settings["worker_id"],
            address=address,
            name=name,
            silence_s=settings["silence_s"],
        )
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(worker.stop))
        loop.add_signal_handler(signal.SIGTERM, worker.stop)
        try:
            await worker.serve()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLEANUP_S):
                    await environment.aclose()
                    await close_all_clients()

    asyncio.run(serve())
    end_group()  # kill programs that the environment started and did not end


async def _report_failure(address: str, name: str, reason: dict[str, Any]) -> None:
    with connected(address, name) as socket:
        await socket.send_multipart([wire.FAILED, pack(reason)])


if __name__ == "__main__":
    main()
