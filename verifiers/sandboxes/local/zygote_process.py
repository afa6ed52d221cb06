"""The host's handle on one zygote: start it, request sandboxes from it, and receive reports of their ends."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCreationError,
    SandboxDead,
    SandboxImageError,
)

START_TIMEOUT_S = 60.0
"""Time limit for the start: importing large modules on a busy machine is slow."""
MAX_STARTING = 32
"""Number of sandboxes that start at the same time; more would only slow down each of them."""
MAX_MESSAGE_BYTES = 64 << 10
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS, errno.EUSERS)
_OF_ONE_MESSAGE = (errno.ETOOMANYREFS, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors that concern one message and not the zygote."""
_SCRIPT = Path(__file__).parent / "zygote" / "start.py"
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    # Numerical libraries start a thread per core when imported, and a process with threads cannot fork safely.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    # Resolve symbols once, here, instead of at their first use in each fork.
    "LD_BIND_NOW": "1",
}


class ZygoteKind(NamedTuple):
    """Properties in which zygotes differ."""

    python: str
    with_packages: bool
    preload: tuple[str, ...]
    run_as: int | None
    use_cgroups: bool
    trial_uid: int
    folders: tuple[str, ...]
    host_names: tuple[str, ...]


class Exit(NamedTuple):
    """How a sandbox's first process ended."""

    exit_code: int
    oom: bool
    problem: str = ""
    """Why the request could not be sent."""


class _Message(NamedTuple):
    """One datagram to the zygote."""

    data: bytes
    descriptors: list[int]
    box: int | None = None
    """Number of the sandbox that the message requests."""


class ZygoteFacts(NamedTuple):
    """Facts about this machine that a zygote reported."""

    is_root: bool
    cgroups: dict[str, str]
    cgroup_problems: list[str]


class ZygoteProcess:
    """One running zygote. `start` starts it; after its death it makes no more sandboxes."""

    def __init__(self, kind: ZygoteKind, on_death: Callable[[ZygoteProcess], None]) -> None:
        self.kind = kind
        self.starting = asyncio.Semaphore(MAX_STARTING)
        self._on_death = on_death
        self._executing: asyncio.Future[subprocess.Popen[bytes]] | None = None
        self._control: socket.socket | None = None
        self._outbox: deque[_Message] = deque()
        self._exits: dict[int, asyncio.Future[Exit]] = {}
        self._facts: asyncio.Future[ZygoteFacts] = asyncio.get_running_loop().create_future()

    @property
    def is_dead(self) -> bool:
        """Whether the zygote has ended."""
        return self._facts.done() and self._control is None

    async def start(self) -> None:
        """Execute the zygote and wait until it can make sandboxes. Raises SandboxCreationError."""
        host_socket, zygote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host_socket.setblocking(False)
        self._control = host_socket
        asyncio.get_running_loop().add_reader(host_socket.fileno(), self._on_message)
        settings = {
            "preload": list(self.kind.preload),
            "run_as": self.kind.run_as,
            "use_cgroups": self.kind.use_cgroups,
            "host_pid": os.getpid(),
            "trial_uid": self.kind.trial_uid,
            "folders": list(self.kind.folders),
            "host_names": list(self.kind.host_names),
        }
        self._send(settings)
        try:
            # Popen blocks until the new program has been executed. After a cancellation there is still a process to
            # reap. Not a task: tasks are cancelled when a loop ends, and the process would be lost.
            self._executing = asyncio.get_running_loop().run_in_executor(
                None, self._execute, zygote_socket.detach()
            )
            await asyncio.shield(self._executing)
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(self._facts)
        except TimeoutError:
            self._die(
                SandboxCreationError(f"The zygote was not ready after {START_TIMEOUT_S:g} s.")
            )
            raise self._facts.exception() or AssertionError from None
        except OSError as error:
            problem = SandboxImageError(f"Cannot execute {self.kind.python!r}: {error.strerror}")
            self._die(problem)
            raise problem from error
        except BaseException:
            self._die(SandboxCreationError("The start of the zygote was cancelled."))
            raise
        finally:
            zygote_socket.close()
        self._facts.result()

    @property
    def facts(self) -> ZygoteFacts:
        """The zygote's report at its start."""
        return self._facts.result()

    def _execute(self, descriptor: int) -> subprocess.Popen[bytes]:
        # This thread owns the zygote's end of the socket: it stays open until the new program has its copy.
        flags = ["-I", "-B"] if self.kind.with_packages else ["-I", "-B", "-S"]
        try:
            return subprocess.Popen(
                [self.kind.python, *flags, str(_SCRIPT), "zygote", str(descriptor)],
                env=_ENVIRONMENT,
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                # Ctrl-C in a terminal signals the whole process group.
                start_new_session=True,
            )
        finally:
            os.close(descriptor)

    # --- requests

    def create(self, request: dict[str, object], sockets: list[socket.socket]) -> None:
        """Request a sandbox. The function sends duplicates of the sockets; the caller closes its own at once."""
        number = request["box"]
        assert isinstance(number, int)
        descriptors: list[int] = []
        self._exits[number] = asyncio.get_running_loop().create_future()
        message = {"op": "create", **request}
        if len(json.dumps(message)) > MAX_MESSAGE_BYTES:
            del self._exits[number]
            raise SandboxCreationError(
                f"The specification is too long: its variables must fit into {MAX_MESSAGE_BYTES} bytes."
            )
        try:
            for socket_ in sockets:
                descriptors.append(os.dup(socket_.fileno()))
        except OSError:
            _close_all(descriptors)
            del self._exits[number]
            raise
        self._send(message, descriptors, number)

    def kill(self, number: int) -> None:
        """Request the immediate end of a sandbox. Safe in any thread or signal handler, and after the sandbox's end."""
        if number in self._exits and self._control is not None:
            message = json.dumps({"op": "kill", "box": number}).encode()
            if self._outbox:
                self._outbox.append(
                    _Message(message, [])
                )  # the request to create the sandbox may still be in the outbox
                return
            with contextlib.suppress(OSError):
                self._control.send(message)

    async def exited(self, number: int) -> Exit:
        """Wait for the end of a sandbox. Returns at once if it has ended or never existed."""
        future = self._exits.get(number)
        return Exit(0, False) if future is None else await asyncio.shield(future)

    def forget(self, number: int) -> None:
        """Drop the record of an ended sandbox."""
        self._exits.pop(number, None)

    def _send(
        self,
        message: Mapping[str, object],
        descriptors: Sequence[int] = (),
        box: int | None = None,
    ) -> None:
        self._outbox.append(_Message(json.dumps(message).encode(), list(descriptors), box))
        self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outbox and self._control is not None:
            message = self._outbox[0]
            try:
                _send_fds(self._control, message.data, message.descriptors)
            except BlockingIOError:
                loop.add_writer(self._control.fileno(), self._flush)
                return
            except OSError as error:
                if message.box is None or error.errno not in _OF_ONE_MESSAGE:
                    self._die(SandboxDead(f"The zygote cannot be reached: {error}"))
                    return
                self._refuse(message.box, error)
            self._outbox.popleft()
            _close_all(message.descriptors)
        if self._control is not None:
            loop.remove_writer(self._control.fileno())

    def _refuse(self, number: int, error: OSError) -> None:
        """Report that one request could not be sent. The zygote and its other sandboxes are not affected."""
        future = self._exits.get(number)
        if future is not None and not future.done():
            problem = f"The sandbox could not be created: {error.strerror}."
            if error.errno == errno.ETOOMANYREFS:
                problem += (
                    " Processes of this user have too many descriptors in flight between sockets; raise the limit of "
                    "open files (`ulimit -n`)."
                )
            future.set_result(Exit(-1, False, problem))

    # --- reports

    def _on_message(self) -> None:
        while self._control is not None:
            try:
                data = self._control.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._die(SandboxDead("The zygote has died, and all its sandboxes with it."))
                return
            self._handle(json.loads(data))

    def _handle(self, message: dict[str, object]) -> None:
        event = message.pop("event")
        if event == "ready" and not self._facts.done():
            fields = {name: message[name] for name in ZygoteFacts._fields}
            self._facts.set_result(ZygoteFacts(**fields))  # pyright: ignore[reportArgumentType] # our own JSON
        elif event == "failed":
            self._die(explain_failure(str(message["reason"]), self.kind))
        elif event == "exited":
            number, code = message["box"], message["exit_code"]
            assert isinstance(number, int)
            assert isinstance(code, int)
            future = self._exits.get(number)
            if future is not None and not future.done():
                future.set_result(Exit(code, message["oom"] is True))

    def _die(self, error: Exception) -> None:
        if self._control is None:
            return
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        asyncio.get_running_loop().remove_writer(self._control.fileno())
        self._control.close()
        self._control = None
        for message in self._outbox:
            _close_all(message.descriptors)
        self._outbox.clear()
        if not self._facts.done():
            self._facts.set_exception(error)
            self._facts.exception()
        for future in self._exits.values():
            if not future.done():
                future.set_result(Exit(-9, False))
        self._on_death(self)

    async def aclose(self) -> None:
        """End the zygote and all its sandboxes; return when they are gone. Idempotent."""
        self._die(SandboxDead("The back end was closed.", "terminated"))
        if self._executing is not None:
            try:
                process = await self._executing
            except OSError:
                return  # the process was never started
            # The zygote ends when its socket closes. Waiting blocks.
            try:
                await asyncio.to_thread(process.wait, 10)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)


def _send_fds(control: socket.socket, data: bytes, descriptors: list[int]) -> None:
    """Send a message with descriptors.

    The kernel counts descriptors in flight per user and refuses to send more than the sender may have open. If all
    sandboxes are the same user, one of them can use up the usual 1024; no sandbox may have more. Therefore this
    call raises the sender's limit to its maximum while it sends.
    """
    try:
        socket.send_fds(control, [data], descriptors)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            socket.send_fds(control, [data], descriptors)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def explain_failure(reason: str, kind: ZygoteKind) -> SandboxCreationError:
    """Return the error for a zygote that could not prepare: the machine forbids it, or an import failed."""
    if "ModuleNotFoundError" in reason or "ImportError" in reason:
        where = (
            ""
            if kind.with_packages
            else " Without `packages`, only the standard library is available."
        )
        return SandboxImageError(f"Cannot preload {list(kind.preload)}: {reason}.{where}")
    if any(f"[Errno {number}]" in reason for number in _REFUSALS):
        return IsolationUnavailable(explain(reason))
    return SandboxCreationError(f"The zygote could not prepare: {reason}")


SUPPORTED_MACHINES = ("x86_64", "aarch64")
_OTHER_WAYS = "Or use another back end (Docker, Podman, a remote one), or accept less with isolation_min='restricted'."


def unsupported_reason() -> str | None:
    """Return why local sandboxes cannot work on this kind of machine at all, or None."""
    if sys.platform != "linux":
        return (
            f"Local sandboxes need Linux, this is {sys.platform}. Use a Docker or Podman back end, or a remote "
            "one. Code never runs unprotected unless you request the back end 'unsafe-local' by name."
        )
    machine = os.uname().machine
    if machine not in SUPPORTED_MACHINES:
        return (
            f"Local sandboxes support {' and '.join(SUPPORTED_MACHINES)}, this is {machine}. "
            "Use a Docker or Podman back end, or a remote one."
        )
    return None


def explain(reason: str) -> str:
    """Return the zygote's reason with the most likely cause and its remedies."""
    return f"This machine cannot make sandboxes: {reason}. {likely_cause(reason)} {_OTHER_WAYS}"


def likely_cause(reason: str) -> str:
    """Return which setting forbids the step that failed."""
    if reason.startswith("proc:"):
        return (
            "A new /proc may only be mounted where all of /proc is visible, but here parts of it are masked, as in "
            "most containers. Start the container with `--security-opt systempaths=unconfined` (Kubernetes: "
            "procMount: Unmasked)."
        )
    if _setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" and os.getuid():
        return (
            "AppArmor restricts unprivileged user namespaces here (Ubuntu 23.10 and newer). An administrator can "
            "run `sysctl kernel.apparmor_restrict_unprivileged_userns=0` or add an AppArmor profile for this "
            "interpreter."
        )
    if _setting("/proc/sys/kernel/unprivileged_userns_clone") == "0" and os.getuid():
        return "An administrator can run `sysctl kernel.unprivileged_userns_clone=1` (Debian's switch)."
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
        if _setting(f"/proc/sys/user/max_{kind}_namespaces") == "0":
            return (
                f"The limit of {kind} namespaces is 0. An administrator can run "
                f"`sysctl user.max_{kind}_namespaces=15000`."
            )
    if _is_in_container():
        return (
            "This process is in a container whose profile forbids new namespaces. Start it with `docker run "
            "--security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt "
            "systempaths=unconfined`, or with the matching securityContext of a Kubernetes pod."
        )
    return "The kernel or a security module forbids it."


def _setting(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _is_in_container() -> bool:
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return True
    return "KUBERNETES_SERVICE_HOST" in os.environ
