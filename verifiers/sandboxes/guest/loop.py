"""The guest's event loop: one thread, one epoll, one framed stream to the host.

The guest trusts the host and nothing else. As the first process of a pid namespace it reaps orphans, and all
processes inside end with it.

Blame follows one rule: after READY, the jobs cause every failure. `_guarded` runs each step that depends on a job.
An exception in such a step ends the job, or all jobs if no single job is to blame, and each of them gets a result.
The guest continues to serve, so the sandbox stays usable.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from . import frames, launch, processes
from .jobs import GuestJob, JobRequest

READ_BYTES = 64 << 10
MAX_DRAIN_BYTES = 1 << 20
"""Maximum content of a pipe after its writer has ended (the kernel's limit for F_SETPIPE_SZ)."""
OUTBOX_HIGH_BYTES, OUTBOX_LOW_BYTES = 1 << 20, 256 << 10
MAX_JOBS = 256
WATCH_INTERVAL_S, IDLE_WATCH_INTERVAL_S = 0.05, 0.25
"""Interval between two scans of all processes, with and without a running job."""
RELEASE_GRACE_S = 0.5
MAX_CLEARANCE_S = 1.0
MAX_POLL_S = 3600.0
"""epoll receives its timeout in milliseconds as an `int`."""
FAULT_EXIT_CODE = 137
"""Exit code of a job that an internal error ended. It equals that of a killed process."""


class GuestSettings(NamedTuple):
    """Properties of the sandbox, as the guest needs them."""

    workdir: str
    env: dict[str, str]
    is_init: bool
    """Whether this process is the first one in its pid namespace."""
    watched_memory_bytes: int | None = None
    """Memory limit of all jobs together that the guest enforces itself, because no control group does."""
    used_memory_bytes: Callable[[], int] | None = None
    """Returns the memory that commands and files use now, where the machine reports it. None: the guest sums up
    processes.
    """
    socket_memory: Callable[[int], int] | None = None
    """Returns the memory of all sockets, given the limit. None: a control group counts sockets."""
    throttle: processes.Throttle | None = None
    """Shares CPU time fairly. None: a control group does."""
    oom_kills: Callable[[], int] = lambda: 0
    """Returns how many processes the kernel's OOM killer has ended here."""
    is_oom_counter_shared: bool = False
    """The OOM counter also counts other machines' kills. Only a job with exit code 137 then counts as out of memory."""
    set_oom_score: Callable[[int], None] = lambda score: None
    """Sets the OOM score of this process; children inherit it."""
    prepare_fork: Callable[[], None] = lambda: None
    """Runs first in every forked child."""


class PipeStream:
    """Two one-way descriptors with the interface of a socket."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    def setblocking(self, flag: bool) -> None:
        """See socket."""
        os.set_blocking(self._incoming, flag)
        os.set_blocking(self._outgoing, flag)

    def fileno(self) -> int:
        """Return the descriptor for input."""
        return self._incoming

    def output_fileno(self) -> int:
        """Return the descriptor for output."""
        return self._outgoing

    def send(self, data: bytes | bytearray) -> int:
        """See socket."""
        return os.write(self._outgoing, memoryview(data)[:READ_BYTES])

    def detach(self) -> None:
        """See socket."""


class _HungUp(Exception):
    """The host closed the stream."""


class Guest:
    """Serves one host connection until it ends."""

    def __init__(self, stream: socket.socket | PipeStream, settings: GuestSettings) -> None:
        self._stream = stream
        self._output = (
            stream.fileno() if isinstance(stream, socket.socket) else stream.output_fileno()
        )
        self._settings = settings
        self._jobs: dict[int, GuestJob] = {}
        self._by_pid: dict[int, GuestJob] = {}
        self._reader = frames.FrameReader(frames.HOST_KINDS)
        self._inbox = bytearray(READ_BYTES)
        self._outbox = bytearray()
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._is_choked = False
        self._paused_pipes: dict[int, GuestJob] = {}
        self._paused_controls: list[GuestJob] = []
        self._owners: dict[int, GuestJob] = {}
        """Descriptor → the job that its handler works for."""
        self._oom_kills_seen = 0
        self._has_children = False
        self._next_watch_s = 0.0
        self._next_kill_s = 0.0

    def run(self) -> None:
        """Serve until the host closes the stream."""
        self._stream.setblocking(False)
        wakeup_out, wakeup_in = os.pipe()
        os.set_blocking(wakeup_out, False)
        os.set_blocking(wakeup_in, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_in, warn_on_full_buffer=False)
        if not launch.are_forks_prepared():
            launch.prepare_forks()
        os.environ.update(self._settings.env)
        self._watch(wakeup_out, select.EPOLLIN, self._on_child)
        self._watch(self._stream.fileno(), select.EPOLLIN, self._on_stream)
        version = ".".join(map(str, sys.version_info[:3]))
        self._send(frames.READY, 0, json.dumps({"python": version, "pid": os.getpid()}).encode())
        try:
            while True:
                for descriptor, events in self._epoll.poll(self._poll_timeout_s()):
                    # An earlier event of the same round may have closed the descriptor.
                    handler = self._handlers.get(descriptor)
                    if handler is not None:
                        self._guarded(handler, events, job=self._owners.get(descriptor))
                self._guarded(self._enforce)
        except (EOFError, _HungUp):
            pass
        finally:
            self._end_everything()

    # --- blame for failures

    def _guarded(
        self, step: Callable[..., None], *arguments: object, job: GuestJob | None = None
    ) -> None:
        """Run a step. An exception ends `job`, or all jobs when the step belongs to no single job."""
        try:
            step(*arguments)
        except (EOFError, _HungUp):
            raise
        except Exception as error:
            failed_jobs = list(self._jobs.values()) if job is None else [job]
            if not failed_jobs:
                raise  # no job is to blame, so the sandbox is unusable
            reason = f"{type(error).__name__}: {error}"
            del error
            for each in failed_jobs:
                self._fail_job(each, reason)

    def _fail_job(self, job: GuestJob, reason: str) -> None:
        """Kill a job and report that it failed."""
        if self._jobs.get(job.channel) is not job:
            return
        del self._jobs[job.channel]
        self._by_pid.pop(job.pid, None)
        self._forget_descriptors(job)
        job.close()
        if job.pid:
            _signal_group(job.pid, signal.SIGKILL)
            try:
                self._kill_tree(job)
            except Exception:  # noqa: BLE001 - /proc cannot be read: without looking, everything
                self._end_everything()
        if not job.timed_out and not job.overflowed:
            job.exit_code = FAULT_EXIT_CODE
        note = f"sandbox: the command was ended: {reason}\n".encode("utf-8", "replace")
        self._send(frames.STDERR, job.channel, note[:4096])
        self._send(frames.EXIT, job.channel, job.report())

    # --- epoll

    def _watch(
        self,
        descriptor: int,
        events: int,
        handler: Callable[[int], None],
        job: GuestJob | None = None,
    ) -> None:
        self._epoll.register(descriptor, events)
        self._handlers[descriptor] = handler
        if job is not None:
            self._owners[descriptor] = job

    def _unwatch(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        self._owners.pop(descriptor, None)
        self._paused_pipes.pop(descriptor, None)

    def _forget_descriptors(self, job: GuestJob) -> None:
        for descriptor in (*job.pipes, job.stdin):
            if descriptor is not None:
                self._unwatch(descriptor)
        if job.control is not None:
            self._unwatch(job.control.fileno())
            if job in self._paused_controls:
                self._paused_controls.remove(job)

    def _poll_timeout_s(self) -> float:
        nearest_s = min((job.deadline_s for job in self._jobs.values()), default=float("inf"))
        if self._is_watching:
            nearest_s = min(nearest_s, self._next_watch_s)
        if nearest_s == float("inf"):
            return -1
        return min(max(0.0, nearest_s - time.monotonic()), MAX_POLL_S)

    @property
    def _is_watching(self) -> bool:
        """Whether all processes must be scanned repeatedly. Detached processes eventually become children too."""
        settings = self._settings
        has_duty = settings.watched_memory_bytes is not None or settings.throttle is not None
        return has_duty and self._has_children

    # --- to the host

    def _send(self, kind: int, channel: int, payload: bytes = b"") -> None:
        self._outbox += frames.encode(kind, channel, payload)
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                sent = self._stream.send(self._outbox)
            except BlockingIOError:
                break
            except ConnectionError:
                raise _HungUp from None
            del self._outbox[:sent]
        self._watch_output()
        if len(self._outbox) > OUTBOX_HIGH_BYTES:
            self._is_choked = True
        elif self._is_choked and len(self._outbox) < OUTBOX_LOW_BYTES:
            self._is_choked = False
            self._resume_pipes()

    def _watch_output(self) -> None:
        if self._output == self._stream.fileno():
            events = select.EPOLLIN | (select.EPOLLOUT if self._outbox else 0)
            self._epoll.modify(self._output, events)
        elif not self._outbox:
            self._unwatch(self._output)
        elif self._output not in self._handlers:
            self._watch(self._output, select.EPOLLOUT, lambda _: self._flush())

    # --- from the host

    def _on_stream(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if not events & ~select.EPOLLOUT:
            return
        try:
            count = os.readv(self._stream.fileno(), [self._inbox])
        except BlockingIOError:
            return
        except ConnectionError:
            count = 0
        if not count:
            raise _HungUp
        with memoryview(self._inbox)[:count] as data:
            for frame in self._reader.feed(data):
                self._guarded(self._handle, frame, job=self._jobs.get(frame.channel))
            data[:] = bytes(count)

    def _handle(self, frame: frames.Frame) -> None:
        kind, channel, payload = frame
        if kind == frames.START:
            self._start(channel, payload)
            return
        if kind == frames.PING:
            self._send(frames.PONG, 0)
            return
        if kind == frames.SIGNAL and channel == 0:
            processes.kill_all_but(set(), set(), self._settings.is_init)
            self._reap()
            return
        job = self._jobs.get(channel)
        if job is None:
            return  # the job has just ended
        if kind == frames.STDIN:
            if payload:
                job.stdin_pending += payload
                launch.wipe(payload)
            else:
                job.stdin_ends = True
            self._feed_stdin(job)
        elif kind == frames.CONTROL:
            job.control_pending += payload
            self._feed_control(job)
        elif kind == frames.CREDIT:
            job.window_bytes += frames.count_of(payload)
            self._resume_pipes()
        elif kind == frames.SIGNAL:
            if payload[0] == frames.KILL_TREE:
                self._kill_tree(job)
            else:
                _signal_group(job.pid, payload[0])

    def _start(self, channel: int, payload: bytes) -> None:
        job = GuestJob(channel, JobRequest.parse(payload))
        self._oom_kills_seen = max(self._oom_kills_seen, self._settings.oom_kills())
        try:
            if len(self._jobs) >= MAX_JOBS:
                raise launch.CannotStart(
                    launch.CANNOT_START, f"the maximum of {MAX_JOBS} concurrent jobs is reached"
                )
            self._settings.set_oom_score(1000)
            try:
                self._start_job(job)
            finally:
                self._settings.set_oom_score(0)
        except Exception as error:  # noqa: BLE001 - a request that cannot be met is a result
            job.exit_code = getattr(error, "exit_code", launch.CANNOT_START)
            reason = getattr(error, "reason", str(error) or type(error).__name__)
            if job.pid:
                _signal_group(job.pid, signal.SIGKILL)
            self._send(frames.STDERR, channel, f"sandbox: {reason}\n".encode("utf-8", "replace"))
            self._send(frames.EXIT, channel, job.report())
            return
        if not self._has_children:
            self._has_children = True
            self._next_watch_s = time.monotonic() + WATCH_INTERVAL_S
        self._jobs[channel] = job
        self._by_pid[job.pid] = job
        self._guarded(self._watch_job, job, job=job)

    def _watch_job(self, job: GuestJob) -> None:
        for descriptor in job.pipes:
            self._watch_pipe(descriptor, job)
        if job.control is not None:
            self._watch_control(job)

    def _start_job(self, job: GuestJob) -> None:
        start = (self._settings.env, self._settings.workdir, self._prepare_fork)
        try:
            job.start(*start)
        except (launch.CannotStart, OSError) as error:
            if job.pid or not _is_process_limit(error):
                raise
            self._make_room(job, start)

    def _make_room(
        self, job: GuestJob, start: tuple[dict[str, str], str, Callable[[], None]]
    ) -> None:
        """Kill processes that earlier jobs left running and that leave no room for this job; then start it."""
        deadline_s = time.monotonic() + MAX_CLEARANCE_S
        while True:
            processes.kill_all_but(
                {other.pid for other in self._jobs.values()},
                {other.mark for other in self._jobs.values()},
                self._settings.is_init,
            )
            self._reap()
            try:
                return job.start(*start)
            except (launch.CannotStart, OSError) as error:
                # A killed process counts against the limit until it has ended.
                if not _is_process_limit(error) or time.monotonic() > deadline_s:
                    raise
            time.sleep(0.005)

    def _prepare_fork(self) -> None:
        self._stream.detach()  # the descriptor itself is closed with all others
        self._settings.prepare_fork()

    # --- stdin and control stream of a job

    def _feed_stdin(self, job: GuestJob) -> None:
        if job.stdin is None:
            if job.stdin_pending:
                job.stdin_pending.clear()
                self._send_count(frames.STDIN_TAKEN, job, frames.STDIN_CLOSED)
            return
        taken = 0
        is_gone = False
        while job.stdin_pending:
            try:
                written = os.write(job.stdin, memoryview(job.stdin_pending)[:READ_BYTES])
            except BlockingIOError:
                break
            except OSError:
                is_gone = True
                break
            taken += written
            job.stdin_pending[:written] = bytes(written)
            del job.stdin_pending[:written]
        if taken:
            self._send_count(frames.STDIN_TAKEN, job, taken)
        if is_gone:
            job.stdin_pending.clear()
            self._send_count(frames.STDIN_TAKEN, job, frames.STDIN_CLOSED)
        if is_gone or (job.stdin_ends and not job.stdin_pending):
            self._unwatch(job.stdin)
            os.close(job.stdin)
            job.stdin = None
        elif job.stdin_pending and job.stdin not in self._handlers:
            self._watch(job.stdin, select.EPOLLOUT, lambda _: self._feed_stdin(job), job)
        elif not job.stdin_pending:
            self._unwatch(job.stdin)

    def _send_count(self, kind: int, job: GuestJob, count: int) -> None:
        self._outbox += frames.encode_count(kind, job.channel, count)
        self._flush()

    def _feed_control(self, job: GuestJob) -> None:
        if job.control is None:
            return
        try:
            while job.control_pending:
                sent = job.control.send(job.control_pending)
                del job.control_pending[:sent]
        except BlockingIOError:
            pass
        except OSError:
            job.control_pending.clear()
        self._watch_control(job)

    def _watch_control(self, job: GuestJob) -> None:
        """Watch the control stream for what it can do now. A cell that writes endlessly must not fill the outbox."""
        if job.control is None or job.is_control_over:
            return
        descriptor = job.control.fileno()
        events = 0 if self._is_choked else select.EPOLLIN
        events |= select.EPOLLOUT if job.control_pending else 0
        if self._is_choked and job not in self._paused_controls:
            self._paused_controls.append(job)
        if not events:
            self._unwatch(descriptor)
        elif descriptor in self._handlers:
            self._epoll.modify(descriptor, events)
        else:
            self._watch(descriptor, events, lambda ev: self._on_control(job, ev), job)

    def _on_control(self, job: GuestJob, events: int) -> None:
        if job.control is None:
            return
        if events & select.EPOLLOUT:
            self._feed_control(job)
        if not events & ~select.EPOLLOUT:
            return
        if self._is_choked:
            self._watch_control(job)
            return
        try:
            data = job.control.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        # The interpreter flushes a cell's output before it reports, so the output is in the pipes and must go first.
        self._drain(job)
        if data:
            self._send(frames.CONTROL_OUT, job.channel, data)
            if self._is_choked:
                self._watch_control(job)
        else:
            job.is_control_over = True
            self._unwatch(job.control.fileno())

    # --- output of a job

    def _watch_pipe(self, descriptor: int, job: GuestJob) -> None:
        if self._is_choked or not job.may_send:
            self._paused_pipes[descriptor] = job
        else:
            self._watch(descriptor, select.EPOLLIN, lambda _: self._pump(job, descriptor), job)

    def _resume_pipes(self) -> None:
        for descriptor, job in list(self._paused_pipes.items()):
            if job.may_send and not self._is_choked:
                del self._paused_pipes[descriptor]
                self._watch_pipe(descriptor, job)
        if not self._is_choked:
            paused, self._paused_controls = self._paused_controls, []
            for job in paused:
                self._watch_control(job)

    def _pump(self, job: GuestJob, descriptor: int) -> None:
        self._read_pipe(job, descriptor)
        if descriptor in job.pipes and (self._is_choked or not job.may_send):
            self._unwatch(descriptor)
            self._paused_pipes[descriptor] = job

    def _read_pipe(self, job: GuestJob, descriptor: int) -> int:
        """Pass on the data of one read. Return its length, 0 if there is none now."""
        which = job.pipes[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._unwatch(descriptor)
            os.close(descriptor)
            del job.pipes[descriptor]
            return 0
        was_overflowed = job.overflowed
        head = job.take_output(which, data)
        if head:
            self._send(frames.STDERR if which else frames.STDOUT, job.channel, head)
        if job.overflowed and not was_overflowed:
            self._kill_tree(job)
        return len(data)

    def _drain(self, job: GuestJob) -> None:
        for descriptor in list(job.pipes):
            left_bytes = MAX_DRAIN_BYTES
            while left_bytes > 0 and (count := self._read_pipe(job, descriptor)):
                left_bytes -= count

    # --- ends

    def _on_child(self, events: int) -> None:
        for descriptor, handler in self._handlers.items():
            if handler == self._on_child:
                try:
                    os.read(descriptor, 4096)
                except BlockingIOError:
                    pass
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self._has_children = False
                return
            if not pid:
                return
            job = self._by_pid.pop(pid, None)
            if job is not None:
                code = os.waitstatus_to_exitcode(status)
                self._guarded(self._finish, job, 128 - code if code < 0 else code, job=job)

    def _finish(self, job: GuestJob, exit_code: int) -> None:
        self._drain(job)
        self._forget_descriptors(job)
        job.close()
        kills = self._settings.oom_kills()
        may_be_oom = exit_code == 137 or not self._settings.is_oom_counter_shared
        if kills > self._oom_kills_seen and may_be_oom:
            job.oom = True
        job.exit_code = None if job.timed_out or job.overflowed else exit_code
        for which, kind in ((0, frames.STDOUT_TAIL), (1, frames.STDERR_TAIL)):
            tail = job.kept[which].tail()
            for start in range(0, len(tail), frames.MAX_PAYLOAD_BYTES):
                piece = tail[start : start + frames.MAX_PAYLOAD_BYTES]
                self._send(kind, job.channel, piece)
        del self._jobs[job.channel]
        self._send(frames.EXIT, job.channel, job.report())

    def _kill_tree(self, job: GuestJob) -> None:
        others = [other for other in self._jobs.values() if other is not job]
        processes.kill_all_but(
            {other.pid for other in others},
            {other.mark for other in others},
            self._settings.is_init,
        )

    def _enforce(self) -> None:
        """Enforce time limits, and the memory limit where no control group does."""
        now_s = time.monotonic()
        for job in list(self._jobs.values()):
            if now_s >= job.deadline_s:
                job.timed_out = True
                job.deadline_s = float("inf")
                self._kill_tree(job)
        if self._is_watching and now_s >= self._next_watch_s:
            self._watch_processes()
            interval_s = WATCH_INTERVAL_S if self._jobs else IDLE_WATCH_INTERVAL_S
            self._next_watch_s = time.monotonic() + interval_s

    def _watch_processes(self) -> None:
        if self._settings.is_init:
            running = processes.running_processes()
            running.pop(os.getpid(), None)
        else:
            running = processes.own_descendants()
        if self._settings.throttle is not None:
            self._settings.throttle.tick(running)
        if self._settings.watched_memory_bytes is not None:
            self._enforce_memory(self._settings.watched_memory_bytes, running)

    def _enforce_memory(self, limit_bytes: int, running: dict[int, processes.ProcessFacts]) -> None:
        measure_all = self._settings.used_memory_bytes
        if measure_all is not None and measure_all() <= limit_bytes:
            return
        sizes = {pid: processes.own_memory_bytes(pid) for pid in running}
        if self._settings.socket_memory is not None:
            processes.add_socket_shares(sizes, self._settings.socket_memory(limit_bytes))
        used_bytes = sum(sizes.values())
        if measure_all is not None and used_bytes <= limit_bytes:
            # The excess is files, or memory that a killed process still holds: gVisor releases it with a delay.
            if time.monotonic() < self._next_kill_s:
                return
            used_bytes = measure_all()
        while sizes and used_bytes > limit_bytes:
            largest = max(sizes, key=lambda pid: sizes[pid])
            used_bytes -= sizes.pop(largest)
            self._next_kill_s = time.monotonic() + RELEASE_GRACE_S
            for job in self._jobs.values():
                if largest in processes.family({job.pid}, {job.mark}, running):
                    job.oom = True
            leader = self._by_pid.get(largest)
            if leader is not None:
                # The command itself: its children must not continue after it used up the memory.
                self._kill_tree(leader)
                return
            try:
                os.kill(largest, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _end_everything(self) -> None:
        processes.kill_all_but(set(), set(), self._settings.is_init)


def _is_process_limit(error: BaseException) -> bool:
    cause = error.__context__ if isinstance(error, launch.CannotStart) else error
    return isinstance(cause, OSError) and cause.errno == errno.EAGAIN


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError, OSError):
        pass


def serve(stream: socket.socket, settings: GuestSettings) -> None:
    """Run a guest until the host closes the stream."""
    Guest(stream, settings).run()
