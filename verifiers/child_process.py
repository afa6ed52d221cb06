"""Child processes that end with their parent, however the parent ends.

The parent holds the write end of a pipe to the child's stdin. The operating system closes the pipe when the parent
ends, even by SIGKILL, and the child then exits. Settings also go through the pipe, because every user of the machine
can read a command line.

    parent, blocking    `ChildProcess`
    parent, asyncio     `start_python`, `stop_process`
    child               `read_settings`, `watch_parent`, `reserve_stdout`, `end_group`

A program that does not watch its stdin is started through a guard, which watches in its place: `guarded`. The guard
is this file, run as a script, so it imports only the standard library.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO

GRACE_S = 5.0
"""Time that a child without a parent has for its clean-up, in seconds."""
TAIL_BYTES = 2000

_HAS_GROUPS = sys.platform != "win32"
_START = (
    "import json, sys\n"
    "path = json.loads(sys.argv[2])\n"
    "if path: sys.path[:] = path\n"
    "import importlib\n"
    "importlib.import_module(sys.argv[1]).main()\n"
)


def python_command(module: str, python: str | None = None) -> list[str]:
    """Return the command that runs `main()` of a module. This interpreter also receives the parent's `sys.path`."""
    # -P: a file in the current folder must not shadow a module.
    path = [] if python else [entry or os.getcwd() for entry in sys.path]
    return [python or sys.executable, "-P", "-c", _START, module, json.dumps(path)]


def settings_line(settings: Mapping[str, Any]) -> bytes:
    """Return the settings as the line that `read_settings` reads."""
    return json.dumps(settings).encode() + b"\n"


def described_exit(code: int | None) -> str:
    """Return how a process ended, as a phrase for a message."""
    if code is None:
        return "is gone"
    if code < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def log_tail(log: Path) -> str:
    """Return the last `TAIL_BYTES` of a child's log, for a message."""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL_BYTES))
        return file.read().decode(errors="replace").strip()


def get_free_port() -> int:
    """Return a TCP port of this machine that is free now. Another program may take the port before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads, including programs that outlived their leader."""
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


# --- the parent, blocking


class ChildProcess:
    """A running child whose stdin is a pipe. Close it, or use it as a context manager."""

    def __init__(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        stdout: int | IO[Any] | None = subprocess.PIPE,
        stderr: int | IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        own_group: bool = False,
    ) -> None:
        """`own_group`: start a session, so that Ctrl-C reaches the parent only, and kill the whole group at the end."""
        self._own_group = own_group and _HAS_GROUPS
        self._is_closed = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=folder,
            start_new_session=self._own_group,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, minus the signal's number after a signal; None while the process runs."""
        return self._process.poll()

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self.exit_code is None

    def send(self, line: bytes) -> None:
        """Write a line to the child's stdin. Raise OSError if the child has closed it."""
        stdin = _pipe(self._process.stdin)
        stdin.write(line)
        stdin.flush()

    def read_line(self, timeout_s: float) -> bytes | None:
        """Return the next line of the child's stdout: None after `timeout_s` seconds, b"" if the child closed it.

        Do not use for a child that writes several lines without being asked: waiting ignores buffered lines.
        """
        stdout = _pipe(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            return stdout.readline() if selector.select(max(0.0, timeout_s)) else None

    def kill(self) -> None:
        """Send SIGKILL. Do nothing if the process has ended."""
        if self._own_group:
            kill_group(self.pid)
        else:
            self._process.kill()

    def close(self, grace_s: float = 0.0) -> None:
        """Close the child's stdin, wait up to `grace_s` seconds, kill the rest. Do nothing if the process has ended."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if grace_s > 0:
                self._close_pipe(self._process.stdin)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(grace_s)
        finally:
            self.kill()
            self._process.wait()
            # After the end of the process: closing writes what is buffered, and would block on a full pipe.
            self._close_pipe(self._process.stdin)
            self._close_pipe(self._process.stdout)

    @staticmethod
    def _close_pipe(pipe: IO[Any] | None) -> None:
        if pipe is not None:
            # Closing a pipe to a dead process raises for undelivered data; nothing depends on that data.
            with suppress(OSError):
                pipe.close()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(GRACE_S)


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("The process was started without this pipe.")
    return stream


# --- the parent, asyncio


async def start_python(
    module: str,
    settings: Mapping[str, Any],
    *,
    python: str | None = None,
    log: IO[bytes] | None = None,
) -> asyncio.subprocess.Process:
    """Start `main()` of a module in a process that leads its own group, and send the settings.

    The child writes to `log`, or to this process's stderr: output to this process's stdout could corrupt it.
    """
    process = await asyncio.create_subprocess_exec(
        *python_command(module, python),
        stdin=subprocess.PIPE,
        stdout=2 if log is None else log,
        stderr=log,
        start_new_session=_HAS_GROUPS,  # Ctrl-C is for the parent; kill_group ends it with its children
    )
    assert process.stdin is not None
    process.stdin.write(settings_line(settings))
    return process


async def stop_process(
    process: asyncio.subprocess.Process, grace_s: float, *, own_group: bool = True
) -> bool:
    """Close the child's stdin, wait up to `grace_s` seconds, kill the rest.

    Return whether the child ended by itself.
    """
    try:
        if process.returncode is None:
            if process.stdin is not None:
                process.stdin.close()
            async with asyncio.timeout(grace_s):
                await process.wait()
    except TimeoutError:
        return False
    finally:
        if own_group:
            kill_group(process.pid)
        elif process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        # Python 3.11 warns about an open pipe if the event loop is closed first.
        if process.stdin is not None:
            process.stdin.close()
    return True


# --- the child


def read_settings() -> dict[str, Any]:
    """Return the settings that the parent sent. Exit if the parent has ended."""
    # Byte by byte: a buffered reader would also take what follows the line.
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            sys.exit(0)
        line += byte
    return json.loads(line)


def watch_parent(stop: Callable[[], None], grace_s: float = GRACE_S) -> None:
    """Call `stop` when the parent has ended, and kill this process and its children `grace_s` seconds later.

    The watch runs in a thread, because the main thread may be busy or stuck in an environment's code.
    """
    parent = os.getppid()

    def watch() -> None:
        # The parent's id is checked too: a sibling can hold a copy of the pipe open.
        while os.getppid() == parent:
            with suppress(OSError):
                ready, _, _ = select.select([0], [], [], 1.0)
                if ready and not os.read(0, 1):
                    break
        with suppress(Exception):
            stop()
        time.sleep(grace_s)
        end_group()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def reserve_stdout() -> BinaryIO:
    """Return the pipe to the parent. Later output to stdout goes to stderr, so that it cannot corrupt responses."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return responses


def end_group() -> None:
    """Kill this process at once, with its children if it leads its group."""
    if os.getpgid(0) == os.getpid():
        with suppress(OSError):
            os.killpg(0, signal.SIGKILL)
    os._exit(1)


# --- a guard for programs that do not watch their stdin


def guarded(command: Sequence[str | os.PathLike[str]], grace_s: float = GRACE_S) -> list[str]:
    """Return a command for `ChildProcess(..., own_group=True)` that runs `command` and ends it when stdin closes.

    The guard sends SIGTERM to its group, and SIGKILL `grace_s` seconds later. Its exit code is the command's, 128 plus
    the signal's number after a signal. Raise FileNotFoundError if the program does not exist.
    """
    words = [os.fspath(word) for word in command]
    if os.sep not in words[0] and shutil.which(words[0]) is None:
        raise FileNotFoundError(f"The program {words[0]!r} is not on the PATH.")
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), f"{grace_s:g}", *words]


def _guard(grace_s: float, command: Sequence[str]) -> None:
    if os.getpgid(0) != os.getpid():
        os.setpgid(0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # after the start: a child inherits what is ignored
    is_orphan = threading.Event()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        is_orphan.set()
        os.killpg(0, signal.SIGTERM)
        time.sleep(grace_s)
        end_group()

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    if is_orphan.is_set():
        end_group()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    _guard(float(sys.argv[1]), sys.argv[2:])
