"""A sandbox that is an ordinary process with its own directory and without namespaces.

Two levels use it: "restricted" (the process gives up files, sockets and privileges before it serves) and "none".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from verifiers.sandboxes import owned_folders
from verifiers.sandboxes.connection import GuestConnection
from verifiers.sandboxes.errors import SandboxCreationError, SandboxDead
from verifiers.sandboxes.guest_sandbox import Started
from verifiers.sandboxes.sandbox import SandboxInfo
from verifiers.sandboxes.spec import SandboxSpec

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 5.0
_SCRIPT = Path(__file__).parent / "zygote" / "start.py"


class PlainProcessMachine:
    """The `Machine` of one such sandbox."""

    def __init__(
        self,
        spec: SandboxSpec,
        *,
        python: list[str],
        uid: int | None,
        restrict: bool,
        info: Callable[[str], SandboxInfo],
    ) -> None:
        self._spec = spec
        self._python = python
        self._uid = uid
        self._restrict = restrict
        self._info = info
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None
        self._is_killed = False
        self._is_signalled = False
        self._is_up = False
        self._starting: asyncio.Future[None] | None = None

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        host_socket, guest_socket = socket.socketpair()
        # Making directories and processes blocks. After a cancellation, `gone` removes what the thread has made. Not a
        # task: tasks are cancelled when a loop ends, and the results of the thread would be lost.
        self._starting = asyncio.get_running_loop().run_in_executor(
            None, self._execute, guest_socket.detach()
        )
        try:
            await asyncio.shield(self._starting)
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            host_socket.setblocking(False)
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: GuestConnection(on_closed), sock=host_socket.dup()
            )
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await connection.ready
            except BaseException as error:
                connection.fail(error if isinstance(error, Exception) else EOFError())
                raise
        except SandboxDead as error:
            if self._is_killed:
                raise
            raise SandboxCreationError(f"The guest did not start: {self._stderr_tail()}") from error
        finally:
            host_socket.close()
        assert self._folder is not None
        self._is_up = True
        return Started(connection, self._info(os.path.join(self._folder, "box")))

    def _execute(self, descriptor: int) -> None:
        try:
            self._folder = owned_folders.make_folder()
            os.chmod(self._folder, 0o711)
            for name in ("box", "tmp"):
                path = os.path.join(self._folder, name)
                os.mkdir(path, 0o700)
                if self._uid is not None:
                    os.chown(path, self._uid, self._uid)
            self._process = subprocess.Popen(
                [*self._python, str(_SCRIPT), "plain", str(descriptor)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[descriptor],
                cwd="/",
                env={
                    "PATH": "/usr/bin:/bin",
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                    owned_folders.OWNER_MARK: self._folder,  # forks of the guest show the guest's variables
                },
                start_new_session=True,
            )
            spec = self._spec
            settings = {
                "folder": self._folder,
                "env": {**spec.env, owned_folders.OWNER_MARK: self._folder},
                "preload": list(spec.preload),
                "uid": self._uid,
                "restrict": self._restrict,
                "memory_bytes": spec.memory_mb << 20,
                "disk_bytes": spec.disk_mb << 20,
                "max_processes": spec.max_processes,
            }
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(json.dumps(settings).encode())
        finally:
            os.close(descriptor)

    def _stderr_tail(self) -> str:
        if self._process is None or self._process.stderr is None:
            return "the interpreter could not be executed"
        os.set_blocking(self._process.stderr.fileno(), False)
        return (self._process.stderr.read() or b"").decode("utf-8", "replace").strip()[-2000:]

    def kill_now(self) -> None:
        """See Machine. The guest ends what it has started when the host closes the stream."""
        self._is_killed = True
        if self._process is not None and not self._is_signalled:
            self._is_signalled = True
            self._process.send_signal(signal.SIGTERM)

    async def gone(self) -> None:
        """See Machine."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        self.kill_now()
        await asyncio.to_thread(self._clean_up)

    def _clean_up(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
        if self._folder is not None:
            owned_folders.kill_leftovers(self._folder)
            owned_folders.remove_folder(self._folder)

    async def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        if not isinstance(error, SandboxDead) or not self._is_up or self._process is None:
            return error
        deadline_s = time.monotonic() + END_TIMEOUT_S
        while not self._is_killed and time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                return SandboxDead(f"The code inside ended the sandbox. {error}", "program")
            await asyncio.sleep(0.005)
        return error
