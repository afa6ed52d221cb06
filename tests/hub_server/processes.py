"""Hubs as processes of their own: `vf-hub serve` on a free port; the conftests load this."""

import asyncio
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from hub_server.database import Database
from hub_server.logins.service import new_setup_token, use_setup_token
from hub_server.migrations import upgrade
from verifiers.hub.wire import SetupRequest


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port: int, process: subprocess.Popen[Any], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode}")
        time.sleep(0.02)
    raise RuntimeError(f"nothing listens on {port} after {limit_s} s")


@dataclass
class LiveHub:
    """`vf-hub serve` on a port of this machine."""

    url: str
    data_dir: Path
    port: int
    process: subprocess.Popen[str]
    log: Path
    environment: dict[str, str]
    setup_token: str | None
    token: str = ""

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A `vf-hub` command on this hub's data."""
        return subprocess.run(
            [sys.executable, "-m", "hub_server.cli", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
        )


def start_hub(
    data_dir: Path, *, port: int | None = None, tries: int = 1, **settings: Any
) -> LiveHub:
    port = port or free_port()
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("VF_HUB_", "PRIME_"))},
        "VF_HUB_DATA_DIR": str(data_dir),
        "VF_HUB_PORT": str(port),
        **{f"VF_HUB_{key.upper()}": str(value) for key, value in settings.items()},
    }
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "serve.log"
    with log.open("a") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "hub_server.cli", "serve"],
            env=environment,
            stdout=out,
            stderr=out,
            text=True,
            start_new_session=True,
        )
    try:
        wait_for_port(port, process)
    except RuntimeError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait()
        raise
    setup = [word for word in log.read_text().split('"') if word.startswith("setup_")]
    return LiveHub(
        f"http://127.0.0.1:{port}",
        data_dir,
        port,
        process,
        log,
        environment,
        setup[-1] if setup else None,
    )


def stop_hub(hub: LiveHub) -> None:
    hub.process.terminate()
    try:
        hub.process.wait(15)
    except subprocess.TimeoutExpired:
        hub.process.kill()
        hub.process.wait()


@functools.cache
def migrated_database() -> bytes:
    """A SQLite file with all tables and no user: making them takes longer than most tests."""
    with tempfile.TemporaryDirectory() as folder:
        return _database_after(Path(folder) / "hub.db", _migrate)[0]


@functools.cache
def founded_database() -> tuple[bytes, str]:
    """A SQLite file with the administrator `alice`, and her token."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hub.db"
        path.write_bytes(migrated_database())
        return _database_after(path, _found)


async def _migrate(database: Database) -> str:
    await upgrade(database.engine)
    return ""


async def _found(database: Database) -> str:
    async with database.write() as session:
        token = await new_setup_token(session)
        assert token is not None
        request = SetupRequest(token=token, username="alice", password="correct horse")
        return (await use_setup_token(session, request)).text


def _database_after(path: Path, work: Callable[[Database], Awaitable[str]]) -> tuple[bytes, str]:
    async def done() -> str:
        database = Database(f"sqlite+aiosqlite:///{path}")
        try:
            return await work(database)
        finally:
            await database.aclose()

    # In a thread: this may be asked for while a test's event loop runs.
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: asyncio.run(done())).result()
    return path.read_bytes(), answer


def found(data_dir: Path) -> str:
    """Make the folder of a hub that can be served without preparation; the token of its administrator `alice`."""
    database, token = founded_database()
    for folder in (data_dir, data_dir / "blobs", data_dir / "staging"):
        folder.mkdir(parents=True, exist_ok=True)
    (data_dir / "hub.db").write_bytes(database)
    return token


@contextlib.contextmanager
def served_hub(data_dir: Path, **settings: Any) -> Iterator[LiveHub]:
    """A served hub with the administrator `alice`, for the block."""
    token = ""
    if not {"database_url", "storage_url"} & settings.keys():
        token = found(data_dir)
    hub = start_hub(data_dir, **settings)
    try:
        if not token:
            body = {"token": hub.setup_token, "username": "alice", "password": "correct horse"}
            answer = httpx.post(f"{hub.url}/api/v1/setup", json=body)
            token = answer.raise_for_status().json()["data"]["token"]
        hub.token = token
        yield hub
    finally:
        stop_hub(hub)
