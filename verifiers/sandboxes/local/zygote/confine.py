"""The steps from a cloned child to the confined first process of a sandbox. Their order matters; comments say why."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ...guest.loop import GuestSettings
from ...guest.processes import SocketMemory, Throttle, address_space_bytes
from . import cgroups, linux, rootfs

CONTAINER_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
)
PROXY_PORT = 3128
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40
_MAX_OPEN_FILES = 1024


class BoxRequest(NamedTuple):
    """One requested sandbox: the JSON of a create request."""

    box: int
    host_uid: int | None
    """The host's user id for the user inside; None = that of the zygote."""
    memory_bytes: int
    disk_bytes: int
    max_files: int
    max_processes: int
    cpu_cores: float | None
    env: dict[str, str]
    workdir: str
    proxy: bool
    """Listen for proxy clients inside and pass the listening socket to the host."""


class SetupError(Exception):
    """A step of the confinement failed."""


def step(name: str, action: Callable[..., Any], *arguments: Any) -> Any:
    """Run one step. An OSError becomes a SetupError that names the step."""
    try:
        return action(*arguments)
    except OSError as error:
        raise SetupError(f"{name}: {error}") from error


def write_id_maps(pid: int, inside: int, uid: int, gid: int) -> None:
    """Map one user and one group into the user namespace of a waiting child."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def confine_container(
    request: BoxRequest,
    template: rootfs.Template,
    filters: linux.SystemCallFilter,
    oom_counter: int | None,
    has_cpu_group: bool,
    proxy_channel: socket.socket | None,
) -> GuestSettings:
    """Confine this process, the first of its namespaces, permanently; return the settings of its guest."""
    inside = rootfs.USER_ID
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    step("set group", os.setresgid, inside, inside, inside)
    step("set user", os.setresuid, inside, inside, inside)
    # After the change of user, which clears the setting.
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    # After this process has entered its group, a new namespace shows it as "/" in /proc/self/cgroup.
    step("cgroup namespace", linux.unshare, linux.CLONE_NEWCGROUP)
    disk = (request.disk_bytes, request.max_files, request.workdir)
    step("writable file system", rootfs.add_writable, template, *disk)
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    step("proc", linux.mount, "proc", "/proc", "proc", flags)
    step("loopback", _loopback_up)
    if request.proxy and proxy_channel is not None:
        step("proxy listener", _listen_for_proxy, proxy_channel)
    step("hostname", linux.set_hostname, "sandbox")
    step("user namespace limit", _forbid_user_namespaces)
    if oom_counter is None:
        _limit_tcp_buffers()
    # After the change of user, this process is not dumpable and its files in /proc belong to root.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
    oom_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    # Commands must not change their OOM score: with the guest's score, the kernel would not kill them before the guest.
    step("read-only proc", linux.mount, "proc", "/proc", "proc", flags | linux.MS_RDONLY)
    os.chdir(request.workdir)
    os.umask(0o022)
    step("limits", set_limits, request, oom_counter is not None)
    sockets = None
    if oom_counter is None:
        sockets = SocketMemory()
    # Commands run as the same user: they must not trace this process or read its memory.
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    step("capabilities", linux.drop_capabilities)
    step("system call filter", filters.install)
    env = {
        "PATH": template.path_variable,
        "HOME": request.workdir,
        "USER": rootfs.USER_NAME,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        **(_proxy_env() if request.proxy else {}),
        **request.env,
    }
    throttle = None if has_cpu_group else Throttle(os.cpu_count() or 1)
    settings = guest_settings(request, env, oom_counter, oom_score)
    return settings._replace(
        throttle=throttle, socket_memory=None if sockets is None else sockets.used_bytes
    )


def guest_settings(
    request: BoxRequest, env: dict[str, str], oom_counter: int | None, oom_score: int | None
) -> GuestSettings:
    """Return the guest's settings for a confined process."""

    def set_oom_score(score: int) -> None:
        if oom_score is not None:
            os.write(oom_score, str(score).encode())

    def oom_kills() -> int:
        return 0 if oom_counter is None else cgroups.count_oom_kills(oom_counter)

    def prepare_fork() -> None:
        linux.prctl(linux.PR_SET_DUMPABLE, 1)

    return GuestSettings(
        workdir=request.workdir,
        env=env,
        is_init=True,
        watched_memory_bytes=request.memory_bytes if oom_counter is None else None,
        oom_kills=oom_kills,
        set_oom_score=set_oom_score,
        prepare_fork=prepare_fork,
    )


def set_limits(request: BoxRequest, has_cgroup: bool) -> None:
    """Set the resource limits of every process; without a memory group, also the address space of each."""
    limits = {
        resource.RLIMIT_NPROC: request.max_processes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _open_files(),
        resource.RLIMIT_FSIZE: request.disk_bytes,
        resource.RLIMIT_MEMLOCK: 64 << 10,
        resource.RLIMIT_MSGQUEUE: 64 << 10,
        resource.RLIMIT_SIGPENDING: 1024,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    if not has_cgroup:
        # The prepared interpreter occupies some already, which must not count against the program.
        limits[resource.RLIMIT_AS] = request.memory_bytes + address_space_bytes()
    for which, amount in limits.items():
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            amount = min(amount, hard)
        resource.setrlimit(which, (amount, amount))


def _open_files() -> int:
    # Lower than the host's limit: the kernel compares the descriptors in flight of all processes of a user with the
    # limit of the sender.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, hard // 2)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH14s", b"lo", _IFF_UP | _IFF_RUNNING, b"")
        fcntl.ioctl(handle, _SIOCSIFFLAGS, request)


def _listen_for_proxy(channel: socket.socket) -> None:
    # A socket belongs to the network namespace in which it was made. The host accepts on this one from outside, so the
    # traffic does not pass through this process.
    listener = socket.socket()
    listener.bind(("127.0.0.1", PROXY_PORT))
    listener.listen(128)
    socket.send_fds(channel, [b"L"], [listener.fileno()])
    listener.close()
    channel.close()


def _proxy_env() -> dict[str, str]:
    address = f"http://127.0.0.1:{PROXY_PORT}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return dict.fromkeys(names, address) | {"no_proxy": "localhost,127.0.0.1"}


def _limit_tcp_buffers() -> None:
    """Limit the TCP buffers of one connection, because the watchdog that counts them runs only every 50 ms."""
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            descriptor = os.open(f"/proc/sys/net/ipv4/{name}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            continue  # the host mounts /proc/sys read-only
        try:
            os.write(descriptor, b"4096 65536 262144")
        finally:
            os.close(descriptor)


def _forbid_user_namespaces() -> None:
    try:
        descriptor = os.open("/proc/sys/user/max_user_namespaces", os.O_WRONLY | os.O_CLOEXEC)
        os.write(descriptor, b"0")
        os.close(descriptor)
    except OSError as error:
        # The host mounts /proc/sys read-only: the system call filter also forbids user namespaces.
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
