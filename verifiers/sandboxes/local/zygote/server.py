"""The zygote's loop: receives requests from the host, forks children, reports their ends.

All messages are JSON datagrams. The host sends `ZygoteSettings`, then requests: `{"op": "create", …BoxRequest}`
with the sandbox's stream attached (and, for a proxy, a channel for the listening socket), or `{"op": "kill",
"box"}`. The zygote sends `{"event": "ready"|"failed"}`, then `{"event": "exited", "box", "exit_code", "oom"}`. The
zygote ends when the host closes the socket or ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, NamedTuple

# Imported before any fork, whether used or not.
from ...guest import archive, files, frames, interpreter, launch, loop, seccomp  # noqa: F401  # pyright: ignore[reportUnusedImport]
from . import cgroups, confine, linux, rootfs

MAX_MESSAGE_BYTES = 128 << 10
_TIDY_INTERVAL_S = 0.02
_MAX_DESCRIPTORS = 4096
"""Above the number of descriptors that this process opens: a handful, and two per sandbox while it is made."""


class ZygoteSettings(NamedTuple):
    """Settings that all sandboxes of one zygote share."""

    preload: list[str]
    run_as: int | None
    """Switch from root to this user first. None: keep the user."""
    use_cgroups: bool
    host_pid: int
    trial_uid: int
    """User id on the host of the trial sandbox."""
    folders: list[str]
    """Additional directories that each sandbox can write."""
    host_names: list[str]
    """Names that lead to a sandbox's own loopback interface."""


class Zygote:
    """Makes sandboxes for one host."""

    def __init__(self, control: socket.socket, settings: ZygoteSettings) -> None:
        self._control = control
        self._settings = settings
        self._uid, self._gid = os.getuid(), os.getgid()
        self._groups = cgroups.ControlGroups()
        self._boxes: dict[int, int] = {}  # pid → number of the sandbox
        self._pids: dict[int, int] = {}  # the reverse
        self._has_leftovers = False

    def prepare(self) -> dict[str, Any]:
        """Do everything that is done once, and return facts for the host. Raises SetupError, ImportError."""
        for module in self._settings.preload:
            importlib.import_module(module)
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (hard, hard)
        )  # descriptors in flight are counted per user
        os.environ.clear()  # not earlier: it has the thread limits for numerical libraries
        self._host = os.pidfd_open(self._settings.host_pid)
        if self._settings.use_cgroups and self._settings.run_as is None:
            self._groups.open()
        self._is_root = self._become_user()
        unbounded = not self._groups
        program = seccomp.instructions(linux.MACHINE, deny_unbounded_memory=unbounded)
        self._filters = linux.SystemCallFilter(seccomp.assemble(program))
        namespaces = linux.CLONE_NEWNS if self._is_root else linux.CLONE_NEWNS | linux.CLONE_NEWUSER
        uid, gid = os.getuid(), os.getgid()
        confine.step("new mount namespace", linux.unshare, namespaces)
        if not self._is_root:
            confine.step("map the own user", confine.write_id_maps, os.getpid(), uid, uid, gid)
        self._template = confine.step(
            "read-only view of the host",
            rootfs.build_template,
            tuple(self._settings.folders),
            tuple(self._settings.host_names),
        )
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            modules = ", ".join(self._settings.preload)
            raise confine.SetupError(
                f"the preloaded modules ({modules}) started {threads - 1} threads; forking would be unsafe"
            )
        self._uid, self._gid = uid, gid
        launch.prepare_forks()
        launch.warm_up()
        self._try_once()
        gc.collect()
        linux.trim_memory()  # every fork pays for each page of memory
        gc.freeze()
        gc.disable()
        return {
            "is_root": self._is_root,
            "cgroups": self._groups.describe() if self._groups else {},
            "cgroup_problems": self._groups.problems,
            "swept_cgroups": self._groups.swept,
        }

    def _try_once(self) -> None:
        """Make one sandbox and discard it, so that a step that the machine forbids fails now, with its name."""
        host_socket, guest_socket = socket.socketpair()
        request = confine.BoxRequest(
            box=0,
            host_uid=self._settings.trial_uid,
            memory_bytes=256 << 20,
            disk_bytes=1 << 20,
            max_files=100,
            max_processes=8,
            cpu_cores=None,
            env={},
            workdir="/box",
            proxy=False,
        )
        with host_socket:
            with guest_socket:
                self._create(request, guest_socket, None)
            reader = frames.FrameReader(frames.AGENT_KINDS)
            replies = list(reader.feed(host_socket.recv(1 << 16)))
        for pid in list(self._boxes):
            os.waitpid(pid, 0)  # the sandbox ends because its stream is closed
            self._groups.release(str(self._boxes.pop(pid)))
            self._has_leftovers = True
        self._pids.clear()
        if not replies or replies[0].kind != frames.READY:
            reason = replies[0].payload.decode() if replies else "the first child died silently"
            raise confine.SetupError(reason)

    def _become_user(self) -> bool:
        """Switch to the requested user. Return whether this process can assign a separate user id to each sandbox."""
        run_as = self._settings.run_as
        if os.getuid() == 0:
            try:
                os.setgroups([])
            except PermissionError:
                pass  # root of a namespace that denies setgroups: it has no foreign groups
        if run_as is not None and run_as != os.getuid():
            os.setresgid(run_as, run_as, run_as)
            os.setresuid(run_as, run_as, run_as)
            # This user must be able to write this process's files in /proc, for the id maps.
            linux.prctl(linux.PR_SET_DUMPABLE, 1)
        if os.getuid() != 0:
            return False
        with open("/proc/self/uid_map") as file:
            return any(int(line.split()[2]) > 1 << 16 for line in file)

    def serve(self) -> None:
        """Serve requests until the host ends."""
        wakeup_out, wakeup_in = os.pipe()
        for descriptor in (wakeup_out, wakeup_in):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_in, warn_on_full_buffer=False)
        poll = select.epoll()
        for descriptor in (self._control.fileno(), self._host, wakeup_out):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            events = dict(poll.poll(_TIDY_INTERVAL_S if self._has_leftovers else -1))
            if self._host in events:
                return
            if wakeup_out in events:
                os.read(wakeup_out, 4096)
            self._reap()
            if self._control.fileno() in events and not self._take_request():
                return
            if self._has_leftovers:
                self._has_leftovers = self._groups.tidy()

    def _take_request(self) -> bool:
        """Serve one message. Return False when the host has closed the socket."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE_BYTES, 2)
        except ConnectionResetError:
            return False
        if not data:
            return False
        request = json.loads(data)
        operation = request.pop("op")
        if operation == "create":
            box = confine.BoxRequest(**request)
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            try:
                # Descriptors are missing if this process had reached its limit.
                if len(sockets) == 1 + box.proxy:
                    self._create(box, sockets[0], sockets[1] if box.proxy else None)
            except OSError as error:
                _report_failure(sockets[0], f"a new sandbox: {error}")
            finally:
                for each in sockets:
                    each.close()
            if box.box not in self._pids:
                self.report({"event": "exited", "box": box.box, "exit_code": 1, "oom": False})
        elif operation == "kill":
            pid = self._pids.get(request["box"])
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        return True

    def _create(
        self, request: confine.BoxRequest, stream: socket.socket, proxy: socket.socket | None
    ) -> None:
        go_out, go_in = os.pipe()
        try:
            pid = linux.clone(confine.CONTAINER_NAMESPACES)
        except OSError as error:
            os.close(go_out)
            os.close(go_in)
            _report_failure(stream, f"new namespaces: {error}")
            return
        if pid == 0:
            os.close(go_in)
            self._be_sandbox(request, stream, proxy, go_out)
        os.close(go_out)
        self._boxes[pid] = request.box
        self._pids[request.box] = pid
        try:
            uid, gid = self._uid, self._gid
            if self._is_root and request.host_uid is not None:
                uid = gid = request.host_uid
            confine.write_id_maps(pid, rootfs.USER_ID, uid, gid)
            if self._groups:
                # One more than the commands may have: the guest itself.
                processes = request.max_processes + 1
                limits = cgroups.GroupLimits(request.memory_bytes, processes, request.cpu_cores)
                self._groups.confine(str(request.box), pid, limits)
            os.write(go_in, b"1")
        except OSError as error:
            _report_failure(stream, f"prepare the child from outside: {error}")
        finally:
            os.close(go_in)

    def _be_sandbox(
        self,
        request: confine.BoxRequest,
        stream: socket.socket,
        proxy: socket.socket | None,
        go: int,
    ) -> None:
        """In the child: wait for the parent's steps, confine this process, serve. Never returns."""
        try:
            if os.read(go, 1) != b"1":
                os._exit(1)
            counter = None
            if self._groups:
                counter = self._groups.open_oom_counter(str(request.box))
            _forget_parent([stream.fileno(), proxy and proxy.fileno(), counter])
            settings = confine.confine_container(
                request, self._template, self._filters, counter, self._groups.limits_cpu, proxy
            )
            loop.serve(stream, settings)
        except confine.SetupError as error:
            _report_failure(stream, str(error))
        except BaseException:  # noqa: BLE001 - nothing of the zygote may run on in a child
            _report_failure(stream, traceback.format_exc())
        finally:
            os._exit(0)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            box = self._boxes.pop(pid, None)
            if box is None:
                continue
            del self._pids[box]
            oom = False
            if self._groups:
                oom = self._count_oom_kills(str(box)) > 0
                self._groups.release(str(box))
                self._has_leftovers = True
            code = os.waitstatus_to_exitcode(status)
            self.report({"event": "exited", "box": box, "exit_code": code, "oom": oom})

    def _count_oom_kills(self, box: str) -> int:
        try:
            counter = self._groups.open_oom_counter(box)
        except OSError:
            return 0  # the sandbox failed before it had a group
        try:
            return cgroups.count_oom_kills(counter)
        finally:
            os.close(counter)

    def report(self, message: dict[str, Any]) -> None:
        """Send a report to the host."""
        try:
            self._control.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionError):
            pass  # the host has ended; the next iteration notices it

    def close(self) -> None:
        """End every sandbox and remove all groups."""
        for pid in self._boxes:
            os.kill(pid, signal.SIGKILL)
        for pid in list(self._boxes):
            os.waitpid(pid, 0)
            self._groups.release(str(self._boxes.pop(pid)))
        for _ in range(50):
            if not self._groups.tidy():
                break
            time.sleep(0.01)
        self._groups.close()


def _forget_parent(keep: list[int | None]) -> None:
    """Close all inherited descriptors except `keep`; standard streams lead to /dev/null."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT):
        # The first process of a pid namespace receives only signals that it handles, so it must handle none.
        signal.signal(number, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    kept = sorted({2, *(each for each in keep if each is not None)})
    for lower, upper in zip(kept, [*kept[1:], _MAX_DESCRIPTORS]):  # noqa: B905 - strict= needs Python 3.10
        os.closerange(lower + 1, upper)


def _report_failure(stream: socket.socket, reason: str) -> None:
    try:
        stream.setblocking(True)
        stream.sendall(frames.encode(frames.FAILED, 0, reason.encode("utf-8", "replace")))
    except OSError:
        pass  # the host has closed the stream


def main(descriptor: int) -> None:
    """Serve the host on an inherited socket until the host closes it."""
    control = socket.socket(fileno=descriptor)
    first = control.recv(MAX_MESSAGE_BYTES)
    if not first:
        return  # the host has already ended
    settings = ZygoteSettings(**json.loads(first))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host to handle
    zygote = Zygote(control, settings)
    try:
        facts = zygote.prepare()
    except Exception as error:  # noqa: BLE001 - the host receives any error
        reason = str(error) if isinstance(error, confine.SetupError) else repr(error)
        zygote.report({"event": "failed", "reason": reason})
        sys.exit(1)
    try:
        zygote.report({"event": "ready", **facts})
        zygote.serve()
    finally:
        zygote.close()
