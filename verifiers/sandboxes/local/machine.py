"""One local sandbox and what it enforces: made by a zygote, or a restricted process where the caller accepts one."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from verifiers.sandboxes.connection import GuestConnection
from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCreationError,
    SandboxDead,
    SandboxImageError,
)
from verifiers.sandboxes.guest_sandbox import Started
from verifiers.sandboxes.local.plain_process import PlainProcessMachine
from verifiers.sandboxes.local.zygote import landlock
from verifiers.sandboxes.local.zygote.cgroups import TCP_SHARE
from verifiers.sandboxes.local.zygote_process import ZygoteFacts, ZygoteProcess
from verifiers.sandboxes.proxy import FilteringProxy
from verifiers.sandboxes.sandbox import SandboxInfo
from verifiers.sandboxes.spec import ProxyNetwork, SandboxSpec

GONE_TIMEOUT_S = 10.0


class Assignment(NamedTuple):
    """Resources that the back end assigns to one sandbox."""

    backend: str
    number: int
    host_uid: int
    python: str
    with_packages: bool
    zygote: Callable[[], Awaitable[ZygoteProcess]]


class LocalMachine:
    """One sandbox of a zygote: the `Machine` of its `GuestSandbox`."""

    def __init__(self, spec: SandboxSpec, assignment: Assignment) -> None:
        self._spec = spec
        self._assignment = assignment
        self._number = assignment.number
        self._zygote: ZygoteProcess | None = None
        self._is_killed = False
        self._is_up = False
        self._proxy: FilteringProxy | None = None

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        zygote = await self._assignment.zygote()
        async with zygote.starting:
            if self._is_killed:
                raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
            with ExitStack() as stack:
                host_socket, guest_socket = socket.socketpair()
                stack.enter_context(guest_socket)
                stack.callback(host_socket.close)
                sent_sockets = [guest_socket]
                proxy_channel = None
                if self._spec.network != "none":
                    proxy_channel, guest_socket = socket.socketpair()
                    sent_sockets.append(stack.enter_context(guest_socket))
                    stack.enter_context(proxy_channel)
                zygote.create(self._request(), sent_sockets)
                self._zygote = zygote
                for each in sent_sockets:
                    each.close()  # the zygote has duplicates; an open copy here would keep a dead sandbox's stream open
                host_socket.setblocking(False)
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: GuestConnection(on_closed), sock=host_socket.dup()
                )
                try:
                    await connection.ready
                    if proxy_channel is not None:
                        await self._serve_proxy(proxy_channel)
                except BaseException as error:
                    connection.fail(error if isinstance(error, Exception) else EOFError())
                    raise
        self._is_up = True
        return Started(connection, self._info(zygote))

    async def _serve_proxy(self, channel: socket.socket) -> None:
        # The channel holds the socket: it was sent before the guest reported ready.
        channel.setblocking(False)
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not descriptors:  # the kernel drops descriptors when this program has reached its limit
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        policy = self._spec.network if isinstance(self._spec.network, ProxyNetwork) else "full"
        self._proxy = FilteringProxy(policy)
        await self._proxy.serve(socket.socket(fileno=descriptors[0]))

    def _request(self) -> dict[str, object]:
        spec = self._spec
        return {
            "box": self._number,
            "host_uid": self._assignment.host_uid,
            "memory_bytes": spec.memory_mb << 20,
            "disk_bytes": disk_mb(spec) << 20,
            "max_files": spec.max_files,
            "max_processes": spec.max_processes,
            "cpu_cores": spec.cpu_cores,
            "env": spec.env,
            "workdir": spec.workdir,
            "proxy": spec.network != "none",
        }

    def _info(self, zygote: ZygoteProcess) -> SandboxInfo:
        return describe(self._assignment.backend, self._spec, zygote.facts)

    def kill_now(self) -> None:
        """See Machine."""
        self._is_killed = True
        if self._proxy is not None:
            self._proxy.close()
        if self._zygote is not None:
            self._zygote.kill(self._number)

    async def gone(self) -> None:
        """See Machine."""
        if self._proxy is not None:
            await self._proxy.closed()
        if self._zygote is None:
            return
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                await self._zygote.exited(self._number)
        except TimeoutError:
            raise SandboxDead(
                f"Sandbox {self._number} was killed, but did not end within {GONE_TIMEOUT_S:g} s.",
                "terminated",
            ) from None
        finally:
            self._zygote.forget(self._number)

    async def why_dead(self, error: Exception) -> Exception:
        """See Machine. The zygote's report decides. It may come after the end of the stream."""
        if not isinstance(error, SandboxDead) or self._zygote is None or self._is_killed:
            return error
        self._zygote.kill(self._number)  # without its stream, the sandbox is unusable
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                exit_ = await self._zygote.exited(self._number)
        except TimeoutError:
            return error
        if exit_.problem:
            return SandboxCreationError(exit_.problem)
        if exit_.oom:
            return SandboxDead(
                f"The sandbox was killed for using more than its {self._spec.memory_mb} MiB of memory.",
                "oom",
            )
        if self._zygote.is_dead:
            return error
        if not self._is_up:
            return SandboxCreationError(
                f"The sandbox ended while it came up (exit code {exit_.exit_code}). {error}"
            )
        return SandboxDead(f"The code inside ended the sandbox. {error}", "program")


def closed_to_others(path: str) -> str | None:
    """Return the first directory on the path of a file that other users cannot enter; None if there is none."""
    parents = [*reversed(Path(path).parents), *reversed(Path(os.path.realpath(path)).parents)]
    for folder in parents:
        if not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return None


def is_mapped(uid: int, id_map: str) -> bool:
    """Whether a user exists in a user namespace, given its /proc/self/uid_map."""
    ranges = (map(int, line.split()) for line in id_map.splitlines())
    return any(first <= uid < first + count for first, _, count in ranges)


class RestrictedMachine:
    """The `Machine` of a sandbox at level "restricted", or at "container" if `first` succeeds."""

    def __init__(
        self, spec: SandboxSpec, assignment: Assignment, first: LocalMachine | None
    ) -> None:
        self._first = first
        self._spec = spec
        self._assignment = assignment
        self._current: LocalMachine | PlainProcessMachine | None = first
        self._is_killed = False

    async def start(self, on_closed: Callable[[Exception], None]) -> Started:
        """See Machine."""
        if self._first is not None:
            try:
                return await self._first.start(on_closed)
            except IsolationUnavailable as refusal:
                self._current = self._restricted(str(refusal))
        else:
            self._current = self._restricted("Namespaces were not requested.")
        if self._is_killed:
            raise SandboxDead("The sandbox was terminated before it was up.", "terminated")
        return await self._current.start(on_closed)

    def _restricted(self, reason: str) -> PlainProcessMachine:
        version = landlock.abi()
        if version < landlock.MIN_ABI:
            raise IsolationUnavailable(
                f"{reason} The level 'restricted' needs Landlock {landlock.MIN_ABI} (Linux 6.7), not {version}."
            )
        if self._spec.network != "none":
            raise IsolationUnavailable(f"{reason} The level 'restricted' has network='none' only.")
        if self._spec.folders:
            raise IsolationUnavailable(
                f"{reason} The level 'restricted' cannot add the folders {', '.join(self._spec.folders)}."
            )
        flags = ["-I", "-B"] if self._assignment.with_packages else ["-I", "-B", "-S"]
        uid = self._assignment.host_uid if os.getuid() == 0 else None
        if uid is not None and not is_mapped(uid, Path("/proc/self/uid_map").read_text()):
            raise IsolationUnavailable(
                f"{reason} At level 'restricted' each sandbox of root is a separate user, and the user namespace of "
                f"this program does not have user {uid}. Run it as an ordinary user, or map all users into it."
            )
        if (
            uid is not None
            and (closed_folder := closed_to_others(self._assignment.python)) is not None
        ):
            raise SandboxImageError(
                f"The interpreter {self._assignment.python} cannot be used at level 'restricted', where each "
                f"sandbox is a separate user: {closed_folder} is closed to other users. Name another one, such as "
                "SandboxSpec(python='/usr/bin/python3')."
            )
        return PlainProcessMachine(
            self._spec,
            python=[self._assignment.python, *flags],
            uid=uid,
            restrict=True,
            info=lambda workdir: describe_restricted(
                self._assignment.backend, self._spec, workdir, version, uid is not None
            ),
        )

    def kill_now(self) -> None:
        """See Machine."""
        self._is_killed = True
        if self._current is not None:
            self._current.kill_now()

    async def gone(self) -> None:
        """See Machine."""
        if self._current is not None:
            await self._current.gone()

    async def why_dead(self, error: Exception) -> Exception:
        """See Machine."""
        return error if self._current is None else await self._current.why_dead(error)


MAX_OPEN_FILES = 1024
"""Maximum number of open files per process inside."""


def disk_mb(spec: SandboxSpec) -> int:
    """Return the size of the file system. It is in memory, so a full one must leave memory for processes."""
    return min(spec.disk_mb, max(1, spec.memory_mb * 3 // 4))


def describe(backend: str, spec: SandboxSpec, facts: ZygoteFacts) -> SandboxInfo:
    """Return what a sandbox of a zygote enforces."""
    groups = facts.cgroups
    notes = []
    if groups:
        memory = f"{spec.memory_mb} MiB together ({groups['memory']})"
        if groups["memory"] == "cgroup v1":
            memory += f", and {spec.memory_mb // TCP_SHARE} MiB for buffers of TCP"
        processes = f"{spec.max_processes} ({groups['pids']}, RLIMIT_NPROC)"
    else:
        memory = f"{spec.memory_mb} MiB per process (RLIMIT_AS), together by a watchdog"
        processes = f"{spec.max_processes} (RLIMIT_NPROC)"
        notes.append(
            "No control groups: a watchdog checks the memory of processes and sockets every 50 ms; memfd_create and "
            "System V memory, semaphores and messages are refused."
        )
        notes.append(
            "Not in the memory limit: buffers of pipes (64 MiB for all sandboxes of this user, then 8 KiB per "
            f"pipe), and epoll, inotify and event objects. Their number is limited by {spec.max_processes} processes "
            f"with {MAX_OPEN_FILES} descriptors each."
        )
        notes += [f"Control groups: {problem}" for problem in facts.cgroup_problems]
    if spec.cpu_cores is None:
        cpu = (
            f"fair share ({groups['cpu']})"
            if "cpu" in groups
            else "fair share (throttled when busy)"
        )
    elif "cpu" in groups:
        cpu = f"{spec.cpu_cores:g} cores ({groups['cpu']})"
    else:
        cpu = "not enforced"
        notes.append(
            f"cpu_cores={spec.cpu_cores:g} is not enforced: this machine has no cpu control group."
        )
    if not facts.is_root:
        notes.append(
            "All sandboxes are the same user of this machine; only namespaces separate them."
        )
    limits = {
        "memory": memory,
        "processes": processes,
        "cpu": cpu,
        "disk": f"{disk_mb(spec)} MiB, {spec.max_files} files (tmpfs)",
    }
    return SandboxInfo(backend, "container", spec.workdir, limits, tuple(notes))


def describe_restricted(
    backend: str, spec: SandboxSpec, workdir: str, landlock_version: int, has_own_user: bool
) -> SandboxInfo:
    """Return what a sandbox without namespaces enforces."""
    notes = [
        "No namespaces: the processes of the machine and its system files are visible.",
        "Files: the size of each file is limited, but neither their number nor their sum.",
        "No sockets, only socket pairs.",
    ]
    if landlock_version < 6:
        notes.append("Signals to processes of the same user are not confined (Linux before 6.12).")
    if not has_own_user:
        notes.append("Sandboxes run as the same user of this machine as this program.")
    limits = {
        "memory": f"{spec.memory_mb} MiB per process (RLIMIT_AS), together by a watchdog",
        "processes": f"{spec.max_processes} (RLIMIT_NPROC)",
        "cpu": "not enforced",
        "disk": f"{spec.disk_mb} MiB per file (RLIMIT_FSIZE)",
    }
    return SandboxInfo(backend, "restricted", workdir, limits, tuple(notes))
