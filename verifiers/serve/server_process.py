"""An environment server as a child of this process, for `Environment.start_server` and `vf-eval --num-workers`.

The child ends with this process. If it dies on its own, it is started again at the same address, and the client sends
the lost requests again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.child_process import (
    GRACE_S,
    described_exit,
    end_group,
    kill_group,
    read_settings,
    start_python,
    stop_process,
    watch_parent,
)
from verifiers.errors import ConfigError
from verifiers.serve.client import ZMQEnvClient
from verifiers.serve.server import ZMQEnvServer
from verifiers.serve.wire import ServerError, address_in, new_socket_folder

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment

logger = logging.getLogger(__name__)

STOP_S = 2 * GRACE_S + 2
"""Time in which a server and its workers can end by themselves, in seconds."""
MAX_RESTARTS = 5


class ServerProcess:
    """A server in a separate process, with a client. Call `await start()`, use `client`, then `await stop()`."""

    def __init__(
        self,
        env_id: str,
        env_args: dict[str, Any] | None = None,
        *,
        address: str | None = None,
        health_check_interval: float = 1.0,
        startup_timeout: float = 600.0,
        recovery_timeout: float = 600.0,
        **options: Any,
    ) -> None:
        """`options`: further arguments of `ZMQEnvServer`, as JSON values."""
        server = ZMQEnvServer(
            env_id, env_args, **options
        )  # for its checks, before anything is started
        self._folder: Path | None = None
        self._given_address = address
        self._settings = {"env_id": env_id, "env_args": env_args or {}, **options}
        at_workers = server.num_workers * server.max_in_flight_per_worker
        self._settings["max_queued"] = max(server.max_queued, at_workers)
        self._client_options = {
            "name": env_id,
            "health_check_interval": health_check_interval,
            "startup_timeout": startup_timeout,
            "recovery_timeout": recovery_timeout,
            "max_in_flight": at_workers,
        }
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.client: ZMQEnvClient | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id."""
        return None if self._process is None else self._process.pid

    async def start(self) -> ZMQEnvClient:
        """Start, and wait until a worker is ready. Raise ServerError, with the reason, if no worker can be started."""
        if self._given_address is not None:
            address = self._given_address
        else:
            self._folder = new_socket_folder()
            address = address_in(self._folder, "server")
        self._settings["address"] = address
        self.client = ZMQEnvClient(address, **self._client_options)
        try:
            self._process = await self._spawn()
            await self._wait_until_ready()
        except BaseException:
            await self.stop()
            raise
        self._keeper = asyncio.create_task(self._keep())
        return self.client

    async def _wait_until_ready(self) -> None:
        assert self.client is not None
        assert self._process is not None
        ready = asyncio.create_task(self.client.wait_for_server_startup())
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([ready, ended], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ServerError(
                    f"The server of {self._settings['env_id']} {described_exit(self._process.returncode)} before it "
                    f"was ready. Its output above has the reason."
                )
            ready.result()
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.gather(ready, ended, return_exceptions=True)

    async def _spawn(self) -> asyncio.subprocess.Process:
        settings = dict(self._settings)
        if self._folder is not None:
            settings["socket_dir"] = str(self._folder)
        return await start_python("verifiers.serve.server_process", settings)

    async def _keep(self) -> None:
        assert self._process is not None
        for _ in range(MAX_RESTARTS):
            code = await self._process.wait()
            kill_group(self._process.pid)
            logger.warning(
                "The server of %s %s; it is started again.",
                self._settings["env_id"],
                described_exit(code),
            )
            self._process = await self._spawn()
        await self._process.wait()
        if self.client is not None:
            await self.client.cancel_all_pending(
                f"The server of {self._settings['env_id']} died {MAX_RESTARTS + 1} times and is not started again."
            )

    async def stop(self) -> None:
        """End the server and its workers. Do nothing if it is not running."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self.client is not None:
            await self.client.close()
            self.client = None
        process, self._process = self._process, None
        try:
            if process is not None and not await stop_process(process, STOP_S):
                logger.warning("The environment server %d did not end by itself.", process.pid)
        finally:
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None


async def start_server(
    env: Environment,
    address: str | None = None,
    extra_env_kwargs: dict[str, Any] | None = None,
    num_workers: int = 1,
    log_level: str | None = None,
    log_dir: str | None = None,
    console_logging: bool = True,
    health_check_interval: float = 1.0,
    startup_timeout: float = 600.0,
    recovery_timeout: float = 600.0,
    *,
    env_id: str | None = None,
    python: str | None = None,
    **options: Any,
) -> tuple[ServerProcess, ZMQEnvClient]:
    """Start a server that loads the environment again, by its id or path. Behind `Environment.start_server`."""
    served = env_id or (str(env.loaded_from) if env.loaded_from else env.env_id)
    if not served:
        raise ConfigError(
            f"This {type(env).__name__} has no env_id: a server loads its environment by id, so start it for one that "
            f"came from vf.load_environment."
        )
    server = ServerProcess(
        served,
        env.env_args,
        address=address,
        health_check_interval=health_check_interval,
        startup_timeout=startup_timeout,
        recovery_timeout=recovery_timeout,
        extra_env_kwargs=extra_env_kwargs or {},
        num_workers=num_workers,
        log_level=log_level,
        log_dir=log_dir,
        console_logging=console_logging,
        worker_startup_timeout=startup_timeout,
        python=python,
        **options,
    )
    return server, await server.start()


def main() -> None:
    """Serve until the parent ends. This is the program of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = read_settings()
    stops: list[Any] = [end_group]

    def orphaned() -> None:
        if settings.get("socket_dir") is not None:
            shutil.rmtree(settings["socket_dir"], ignore_errors=True)
        stops[-1]()

    watch_parent(orphaned, grace_s=GRACE_S * 2)

    async def serve() -> None:
        server = ZMQEnvServer(**settings)
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        await server.run(stop)

    try:
        asyncio.run(serve())
    except ServerError as error:
        logger.critical(
            "%s", error
        )  # the parent's error refers to this line, so print it at every log level
        os._exit(1)


if __name__ == "__main__":
    main()
