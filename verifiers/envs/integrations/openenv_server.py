"""An OpenEnv server: its process, if it runs here, and sessions over its WebSocket.

This module follows the public protocol of `openenv-core` 0.3 (`/health`, `/schema`, and `/ws` with the messages
`reset`, `step`, `mcp` and `close`). The package itself is not needed. Code that a server executes has the
permissions of the server's process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from weakref import WeakKeyDictionary

import aiohttp

from verifiers.child_process import ChildProcess, get_free_port, guarded
from verifiers.errors import ConfigError, SandboxError

MANIFEST = ".build.json"
"""File that v0 wrote into a project after it had built the image."""
MOST_MESSAGE_BYTES = 64 * 1024 * 1024
STOP_S = 5.0
"""Seconds that a server has to stop before it is killed."""


class OpenEnvServerError(SandboxError):
    """An OpenEnv server could not be started or reached, or it failed."""


class ActionRefused(OpenEnvServerError):
    """The server refused the action because it does not match the schema."""


class NoFreeSession(OpenEnvServerError):
    """All sessions of the server are in use."""


class Manifest(NamedTuple):
    """An image and how to run it."""

    image: str
    port: int
    start_command: str
    contract: str


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a project, or None if there is none. Raises ConfigError for an invalid one."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    for name in ("image", "start_command"):
        if not isinstance(values.get(name), str) or not values[name].strip():
            raise ConfigError(
                f"{path}: {name!r} must be a non-empty text; got {values.get(name)!r}."
            )
    if values.get("contract") not in ("gym", "mcp"):
        raise ConfigError(
            f"{path}: 'contract' must be 'gym' or 'mcp'; got {values.get('contract')!r}."
        )
    return Manifest(
        values["image"], int(values.get("port", 8000)), values["start_command"], values["contract"]
    )


def project_command(folder: Path, port: int) -> list[str]:
    """Return the command that serves a project at `port` of the loopback address.

    A manifest runs as a container if docker or podman is installed. Otherwise uv runs the `app` of `openenv.yaml`
    with the project's requirements. Raises ConfigError if neither is possible.
    """
    manifest = read_manifest(folder)
    runner = shutil.which("docker") or shutil.which("podman")
    if manifest is not None and runner is not None:
        published = f"127.0.0.1:{port}:{manifest.port}"
        start = ("sh", "-c", manifest.start_command)
        return [runner, "run", "--rm", "--init", "-p", published, manifest.image, *start]
    app = _app_of(folder)
    if app is not None and (uv := shutil.which("uv")) is not None:
        address = ("--host", "127.0.0.1", "--port", str(port))
        return [uv, "run", "--project", str(folder), "uvicorn", app, *address]
    raise ConfigError(
        f"The OpenEnv project {folder} cannot be started: it needs {MANIFEST} and docker or podman, or openenv.yaml "
        "with an `app` and uv. You can also start its server and pass its URL as openenv_project, or pass "
        "server_command."
    )


def _app_of(folder: Path) -> str | None:
    # One line of a flat file does not need a YAML parser.
    with suppress(OSError):
        for line in (folder / "openenv.yaml").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "app":
                return value.split("#")[0].strip().strip("'\"") or None
    return None


class OpenEnvServer:
    """A server at a URL, or one that is started here on first use."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        folder: Path | None = None,
        command: Sequence[str] | None = None,
        start_timeout_s: float = 30.0,
        poll_s: float = 1.0,
        health_timeout_s: float = 2.0,
        request_timeout_s: float = 5.0,
    ) -> None:
        """`command` may contain `{port}`; it runs in `folder`."""
        self._base_url = base_url.rstrip("/") if base_url else None
        self._folder = folder
        self._command = command
        self._start_timeout_s = start_timeout_s
        self._poll_s = poll_s
        self._health_timeout_s = health_timeout_s
        self._request_timeout_s = request_timeout_s
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._log: IO[bytes] | None = None
        self._is_ready = False
        self._schema: dict[str, Any] | None = None

    async def url(self) -> str:
        """Return the base URL once the server is healthy. Raises OpenEnvServerError with the server's output
        otherwise.
        """
        if self._is_ready and self._base_url and not self._has_ended():
            return self._base_url
        base_url = await asyncio.to_thread(self._started)  # a fork of a large process is slow
        reason = "no request was sent"
        try:
            async with asyncio.timeout(self._start_timeout_s), aiohttp.ClientSession() as session:
                while (reason := await self._ill(session, base_url)) is not None:
                    if self._has_ended():
                        raise self._failure("ended before it was ready")
                    await asyncio.sleep(self._poll_s)
        except TimeoutError:
            what = f"was not healthy at {base_url} within {self._start_timeout_s:g} s ({reason})"
            raise self._failure(what) from None
        self._is_ready = True
        return base_url

    def _started(self) -> str:
        with self._lock:
            if self._base_url is not None and (self._process is None or not self._has_ended()):
                return self._base_url
            self.stop()
            port = get_free_port()
            folder = self._folder or Path.cwd()
            command = (
                [part.replace("{port}", str(port)) for part in self._command]
                if self._command is not None
                else project_command(folder, port)
            )
            self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs
            try:
                self._process = ChildProcess(
                    guarded(command, STOP_S),
                    folder=folder,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "PORT": str(port)},
                    own_group=True,
                )
            except OSError as error:
                self._log.close()
                raise ConfigError(
                    f"The OpenEnv server {command} cannot be started: {error}"
                ) from error
            self._base_url = f"http://127.0.0.1:{port}"
            return self._base_url

    async def _ill(self, session: aiohttp.ClientSession, base_url: str) -> str | None:
        limit = aiohttp.ClientTimeout(total=self._health_timeout_s)
        try:
            async with session.get(f"{base_url}/health", timeout=limit) as answer:
                return None if answer.status == 200 else f"/health answered {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return str(error) or type(error).__name__

    def _has_ended(self) -> bool:
        return self._process is not None and not self._process.is_running

    def _failure(self, what: str) -> OpenEnvServerError:
        output = ""
        if self._log is not None:
            self._log.seek(0)
            output = self._log.read()[-2000:].decode("utf-8", "replace").strip()
        return OpenEnvServerError(
            f"The OpenEnv server {what}." + (f" Its output: {output}" if output else "")
        )

    async def schema(self) -> dict[str, Any]:
        """Return the JSON schemas of the server's `action`, `observation` and `state`."""
        if (schema := self._schema) is None:
            url = await self.url()
            limit = aiohttp.ClientTimeout(total=self._request_timeout_s)
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"{url}/schema", timeout=limit) as answer,
                ):
                    schema = await answer.json()
                    if answer.status != 200 or not isinstance(schema.get("action"), dict):
                        raise OpenEnvServerError(
                            f"{url}/schema schema {answer.status}: {schema!r:.200}"
                        )
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise OpenEnvServerError(
                    f"{url}/schema did not return a schema: {error!r}"
                ) from error
            self._schema = schema
        return schema

    def stop(self) -> None:
        """Stop the process, if there is one. Blocks until it has ended; after `STOP_S` it is killed."""
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            self._base_url = None
            process.close(STOP_S)
        if self._log is not None:
            self._log.close()
            self._log = None


class Observed(NamedTuple):
    """The result of a reset or a step."""

    observation: Any
    reward: float | None
    done: bool


class Session:
    """The connection of one episode. A reader task receives messages, so that pings are answered while a model runs."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, http: aiohttp.ClientSession
    ) -> None:
        self._socket = socket
        self._http = http
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, base_url: str) -> Session:
        """Open a session. Raises OpenEnvServerError."""
        http = aiohttp.ClientSession()
        address = "ws" + base_url.removeprefix("http") + "/ws"
        try:
            return cls(await http.ws_connect(address, max_msg_size=MOST_MESSAGE_BYTES), http)
        except BaseException as error:
            await http.close()
            if isinstance(error, aiohttp.ClientError | OSError):
                raise OpenEnvServerError(f"No session with {base_url}: {error}") from error
            raise

    async def _read(self) -> None:
        async for message in self._socket:
            try:
                answer = json.loads(message.data)
            except (TypeError, ValueError):
                answer = {
                    "type": "error",
                    "data": {"message": f"unreadable: {message.data!r:.200}"},
                }
            self._answers.put_nowait(answer)
        self._answers.put_nowait(None)

    async def ask(self, kind: str, data: Mapping[str, Any]) -> Any:
        """Send one message and return the `data` of its answer. Raises OpenEnvServerError or a subclass."""
        try:
            await self._socket.send_str(json.dumps({"type": kind, "data": data}))
        except (ConnectionError, aiohttp.ClientError) as error:
            raise OpenEnvServerError(f"The OpenEnv session is closed: {error}") from error
        answer = await self._answers.get()
        if answer is None:
            self._answers.put_nowait(None)
            raise OpenEnvServerError(
                f"The OpenEnv server ended the session (code {self._socket.close_code}) before it answered {kind!r}."
            )
        content = answer.get("data")
        if answer.get("type") != "error":
            return content
        content = content if isinstance(content, dict) else {"message": content}
        message = f"The OpenEnv server answered {kind!r} with {content.get('code')}: {content.get('message')}"
        match content.get("code"):
            case "CAPACITY_REACHED":
                raise NoFreeSession(f"{message} Raise its max_concurrent_envs.")
            case "VALIDATION_ERROR":
                raise ActionRefused(f"{message} {_problems(content.get('errors'))}")
        raise OpenEnvServerError(message)

    async def observe(self, kind: str, data: Mapping[str, Any]) -> Observed:
        """Send a reset or a step, and return the observation."""
        content = await self.ask(kind, data)
        if not isinstance(content, dict) or "observation" not in content:
            raise OpenEnvServerError(f"The OpenEnv server answered {kind!r} with {content!r:.200}.")
        reward = content.get("reward")
        return Observed(
            content["observation"],
            None if reward is None else float(reward),
            bool(content.get("done")),
        )

    async def aclose(self) -> None:
        """End the session. The server frees its environment."""
        try:
            with suppress(ConnectionError, aiohttp.ClientError):
                await self._socket.send_str(json.dumps({"type": "close"}))
            await self._socket.close()
        finally:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
            await self._http.close()


def _problems(errors: Any) -> str:
    if not isinstance(errors, list):
        return ""
    return "; ".join(
        f"{'.'.join(map(str, one.get('loc', [])))}: {one.get('msg')}"
        for one in errors
        if isinstance(one, dict)
    )


class Sessions:
    """Opens sessions up to the limit of the server. If the server is full, callers wait until one of ours ends."""

    def __init__(self, server: OpenEnvServer) -> None:
        self._server = server
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Open] = WeakKeyDictionary()

    async def open(self, seed: int | None) -> tuple[Session, Observed]:
        """Open a session and reset it with `seed`. Raises NoFreeSession if other clients hold all sessions."""
        held = self._by_loop.setdefault(asyncio.get_running_loop(), _Open())
        while True:
            session = await Session.connect(await self._server.url())
            try:
                first = await session.observe("reset", {} if seed is None else {"seed": seed})
            except NoFreeSession:
                await session.aclose()
                if held.count == 0 and held.refusals >= MOST_REFUSALS:
                    raise
                # None of our sessions is open, but one may still be closing on the server.
                held.refusals += held.count == 0
                ended = held.ended
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if held.count else REFUSED_WAIT_S):
                        await ended.wait()
                continue
            except BaseException:
                await session.aclose()
                raise
            held.count += 1
            held.refusals = 0
            return session, first

    async def close(self, session: Session) -> None:
        """Close a session and wake one caller that waits."""
        held = self._by_loop.setdefault(asyncio.get_running_loop(), _Open())
        try:
            await session.aclose()
        finally:
            held.count -= 1
            held.ended.set()
            held.ended = asyncio.Event()


MOST_REFUSALS = 20
REFUSED_WAIT_S = 0.25
"""Number of attempts to open a session while we hold none, and the seconds between them."""


class _Open:
    def __init__(self) -> None:
        self.count = 0
        self.refusals = 0
        self.ended = asyncio.Event()
