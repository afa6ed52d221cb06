"""Runs one program against test cases, each in its own fork: the part of `CodeEnv` inside the sandbox.

The host starts it in the prepared interpreter (`Sandbox.run_python`) with a batch on stdin; see `main`. It prints
lines of JSON on stdout. This side receives inputs and never expected outputs. It does not trust the program:
neither its output nor that it can be killed.

The cost of a fork depends on memory: some 2 microseconds for each page that either process writes to afterwards,
and in Python, reading an object also writes to it. Hence three parts. `_prepare` does everything once that each
test's process would otherwise do. `_run_each` does nothing between two forks that can happen before the first or
after the last. `_outcome` reads a test's files, usually after all tests have ended.
"""

from __future__ import annotations

import atexit
import builtins
import errno
import gc
import importlib
import io
import json
import marshal
import math
import os
import re
import resource
import select
import signal
import stat
import struct
import sys
import time
import traceback
import types
import typing
from os import _exit  # a program may replace os._exit

try:
    import ctypes

    _prctl = ctypes.CDLL(None).prctl  # looked up once, before any fork
except (ImportError, OSError, AttributeError):
    _prctl = None
try:
    from . import seccomp

    _filter_code = seccomp.assemble(seccomp.of_tests(os.uname().machine))
except (ImportError, KeyError, ValueError):
    _filter_code = b""

SHOWN_ERROR_CHARS = 2000
MAX_SWEEP_S = 2.0
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
VALUE, REPORTS, FIRST_FREE = 3, 4, 5
"""Descriptors above the standard streams: a function's return value (in its process only), and the stream to the host.
"""
MAX_OPEN_TESTS, MAX_OPEN_BYTES = 32, 1 << 20
"""Tests whose files are open at the same time, and the maximum size of those files: of input before the tests, of
output after them.
"""
_HARMLESS = (
    r"(?:array|bisect|cmath|collections|copy|dataclasses|datetime|decimal|enum|fractions|functools|hashlib|heapq|io|"
    r"itertools|json|math|numbers|operator|os|queue|random|re|statistics|string|struct|sys|textwrap|threading|time|typing)"
)
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(.*)", re.MULTILINE)
_IMPORTED_BEFORE = re.compile(rf"\b{_HARMLESS}\b")
"""Harmless modules of the standard library. They are imported before the tests of a program that mentions them."""
_MODULE, _NAME = rf"{_HARMLESS}(?: +as +\w+)?", r"\w+(?: +as +\w+)?"
_LEADING = re.compile(
    rf"(?:(?:import +{_MODULE}(?: *, *{_MODULE})*|from +{_HARMLESS} +import +(?:\*|{_NAME}(?: *, *{_NAME})*))?"
    r" *(?:#.*)?\r?\n)*"
)
"""Leading lines of a program that import only such modules. They define the same names in every test."""

_program: types.CodeType | None = None
_main = types.ModuleType("__main__")
_limits: dict[str, typing.Any] = {}
_resource_limits: list[tuple[int, tuple[int, int]]] = []
_cpu_timer_s = 0.0
"""Limit of CPU time if it is not a whole number of seconds. A program can turn off this timer."""
_stdout: typing.TextIO = sys.stdout
_CPU_SIGNALS = (signal.SIGXCPU, signal.SIGPROF)
"""Also wait statuses: the low bits hold the signal that ended a process."""
_temporary = "/tmp"
_folder = "/tmp/test"
"""Directory in which a test starts. Each test gets a new one."""
_writable_folders: dict[str, tuple[int, frozenset[str]]] = {}
"""Writable folder → its mode, and the names in it before the first test."""


class _Test:
    """One test with its files and its result."""

    __slots__ = ("files", "function", "in_time", "outcome", "request", "usage", "wait_status")

    def __init__(self, request: dict[str, typing.Any]) -> None:
        self.request = request
        self.function: str | None = request.get("function")
        # New files for the standard streams and the value: no test reads another's.
        self.files = [_new_file() for _ in range(3 if self.function is None else 4)]
        if self.function is None:
            _write_all(self.files[0], request["stdin"].encode("utf-8", "surrogateescape"))
            os.lseek(self.files[0], 0, os.SEEK_SET)
        self.in_time, self.wait_status = True, 0
        self.usage: tuple[resource.struct_rusage, resource.struct_rusage] | None = None
        """Resource usage of all processes that have ended, before and after this test."""
        self.outcome: dict[str, typing.Any] | None = None

    def settle(self) -> dict[str, typing.Any]:
        """Return the outcome and close the test's files."""
        if self.outcome is None:
            self.outcome = _outcome(self)
            self.close()
        return self.outcome

    def close(self) -> None:
        """Close the test's files."""
        while self.files:
            os.close(self.files.pop())


def main(batch: bytes | None = None) -> None:
    """Run a batch. Without `batch`, read it from stdin.

    A batch is a marshalled tuple (source, limits, tests, whether to stop at an error). A test is {"stdin": text} or
    {"function": name, "arguments": list}. `main` prints two lines: {"worker": "ready"}, then one of {"error": text}
    if the program does not compile, {"outcomes": list} in the order of the tests (up to the first that is not "ok"
    if the batch stops at an error), or {"failed": [type, message]} after an error of the runner itself.
    """
    global _program
    os.dup2(1, REPORTS, inheritable=False)
    _report({"worker": "ready"})  # from here on, the program causes every failure
    try:
        if _prctl is not None:  # otherwise the processes end with the sandbox
            # Deny the program's processes access to this process's memory, and adopt the processes that they leave
            # behind.
            _prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
            _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        if batch is None:
            with open(0, "rb", buffering=0, closefd=False) as file:
                batch = file.readall()
        source, limits, requests, stop_at_error = marshal.loads(batch)
        try:
            _program = compile(source, "<program>", "exec")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as caught:
            _report({"error": "".join(traceback.format_exception_only(type(caught), caught))})
            return
        _prepare(source, limits)
        _report({"outcomes": _run_tests(requests, stop_at_error)})
    except BaseException as error:  # noqa: BLE001 - the host judges any error
        _report({"failed": [type(error).__name__, str(error)[:SHOWN_ERROR_CHARS]]})


def _prepare(source: str, limits: dict[str, typing.Any]) -> None:
    """Do everything once that each test's process would otherwise do."""
    global _cpu_timer_s, _stdout, _temporary, _folder
    _temporary = os.environ.get("TMPDIR") or _temporary
    _folder = f"{_temporary}/test-{os.getpid()}"
    for name in _IMPORTED_BEFORE.findall(" ".join(_IMPORT.findall(source))):
        importlib.import_module(name)
    _limits.update(limits)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    _record_folders()
    descriptor = _new_file()
    for number in (0, 1, 2):  # a stream examines its descriptor when it is made
        os.dup2(descriptor, number)
    os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__ = _streams()
    _stdout = sys.stdout
    for number in (0, 1, 2, VALUE):
        os.dup2(null, number)
    os.closerange(FIRST_FREE, 4096)
    _main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = _main
    sys.argv = ["program.py"]
    cpu_s = math.ceil(limits["cpu_limit_s"])
    if cpu_s != limits["cpu_limit_s"]:
        _cpu_timer_s = limits["cpu_limit_s"]
    with open("/proc/self/statm", "rb") as file:
        own_bytes = int(file.read().split()[0]) * resource.getpagesize()
    for which, amount, grace in (
        (resource.RLIMIT_CPU, cpu_s, 1),
        (resource.RLIMIT_AS, own_bytes + limits["memory_bytes"], 0),
        (resource.RLIMIT_FSIZE, limits["max_file_bytes"], 0),
    ):
        hard_limit = resource.getrlimit(which)[1]
        if hard_limit == resource.RLIM_INFINITY:
            hard_limit = amount + grace
        _resource_limits.append((which, (min(amount, hard_limit), min(amount + grace, hard_limit))))
    os.chdir("/")
    _install_test_filter()
    _run_leading_imports(source)


def _run_leading_imports(source: str) -> None:
    """Execute the program's leading imports once for all tests."""
    global _program
    leading = _LEADING.match(source)
    lines = leading[0] if leading else ""
    rest = source[len(lines) :]
    if not lines or rest.startswith(("'", '"', "from __future__")):
        return  # the meaning of these depends on their position
    rest_code = compile("\n" * lines.count("\n") + rest, "<program>", "exec")
    try:
        exec(lines, _main.__dict__)
    except ImportError:
        return  # each test reports the error
    _program = rest_code


def _record_folders() -> None:
    device = os.stat(_temporary).st_dev
    for folder in (_temporary, os.environ.get("HOME", _temporary), "/dev/shm"):
        # Elsewhere the folder may belong to others: some back ends share a file system.
        if os.path.isdir(folder) and os.stat(folder).st_dev == device:
            _writable_folders[folder] = (
                os.stat(folder).st_mode & 0o7777,
                frozenset(os.listdir(folder)),
            )


def _restore_folders() -> None:
    """Restore the writable folders themselves: a test may have removed or replaced them or changed their modes."""
    for folder, (mode, _) in _writable_folders.items():
        try:
            now = os.lstat(folder).st_mode
        except FileNotFoundError:
            now = 0
        if not stat.S_ISDIR(now):
            if now:
                os.unlink(folder)
            os.mkdir(folder)
        if stat.S_IMODE(now) != mode:
            os.chmod(folder, mode)


def _clean_folders() -> None:
    """Remove files that a test left behind, so that no other test finds them."""
    _restore_folders()
    for folder, (_, before) in _writable_folders.items():
        top = os.open(folder, _OPEN_FOLDER)
        try:
            _remove(top, set(os.listdir(top)) - before)
        finally:
            os.close(top)


def _remove(top: int, names: typing.Iterable[str]) -> None:
    """Remove entries of an open directory, of any kind and at any depth.

    The function holds one descriptor and uses names relative to it. Paths, call stacks and the number of
    descriptors are limited; the depth of a directory tree is not.
    """
    here = os.dup(top)
    entered: list[str] = []
    waiting = [list(names)]
    try:
        while waiting:
            while waiting[-1]:
                name = waiting[-1].pop()
                if _is_removed(here, name):
                    continue
                os.chmod(name, 0o700, dir_fd=here)
                inner = os.open(name, _OPEN_FOLDER, dir_fd=here)
                os.close(here)
                here = inner
                entered.append(name)
                waiting.append(os.listdir(here))
            waiting.pop()
            if entered:
                outer = os.open("..", _OPEN_FOLDER, dir_fd=here)
                os.close(here)
                here = outer
                os.rmdir(entered.pop(), dir_fd=here)
    finally:
        os.close(here)


def _is_removed(folder: int, name: str) -> bool:
    """Remove one entry, unless it is a directory that is not empty. Return whether it is gone."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
    return True


def _install_test_filter() -> None:
    """Prevent tests from leaving data in the kernel for later tests, and from hiding CPU time.

    System V objects and message queues outlive their process. The kernel does not count the CPU time of a child
    whose parent ignores SIGCHLD.
    """
    if _prctl is None or not _filter_code:
        return  # an interpreter without the guest: the sandbox is the only limit
    import ctypes

    code = ctypes.create_string_buffer(_filter_code, len(_filter_code))
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(code))
    _prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _prctl(PR_SET_SECCOMP, 2, header, 0, 0)


def _reset_folder_metadata() -> None:
    """Reset times and attributes of the writable folders. A test could store data in them."""
    for folder in _writable_folders:
        os.utime(folder, (0, 0))
        for name in os.listxattr(folder):
            os.removexattr(folder, name)


def _streams() -> tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper]:
    """Make the standard streams for every program's process once, so that they cost the forks nothing."""
    writers = [io.BufferedWriter(io.FileIO(number, "w", closefd=False)) for number in (1, 2)]
    return (
        io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8", "replace"),
        io.TextIOWrapper(writers[0], "utf-8", "backslashreplace"),
        io.TextIOWrapper(writers[1], "utf-8", "backslashreplace", line_buffering=True),
    )


def _report(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    _write_all(REPORTS, text + b"\n")


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _batches(requests: list[dict[str, typing.Any]]) -> typing.Iterator[list[_Test]]:
    """Yield groups of tests whose files are open at the same time."""
    tests: list[_Test] = []
    input_bytes = 0
    for request in requests:
        test = _Test(request)
        tests.append(test)
        input_bytes += os.fstat(test.files[0]).st_size
        if len(tests) == MAX_OPEN_TESTS or input_bytes > MAX_OPEN_BYTES:
            yield tests
            tests, input_bytes = [], 0
    if tests:
        yield tests


def _run_tests(
    requests: list[dict[str, typing.Any]], stop_at_error: bool
) -> list[dict[str, typing.Any]]:
    """Return the outcomes in the order of the tests, up to the first that is not "ok" if `stop_at_error`."""
    outcomes: list[dict[str, typing.Any]] = []
    for tests in _batches(requests):
        gc.freeze()  # otherwise each fork's collector would touch, and so copy, every object of this process
        gc.enable()  # programs expect an enabled collector
        _run_each(tests, stop_at_error)
        gc.disable()
        _restore_folders()
        for test in tests:
            if test.usage is not None:
                outcomes.append(test.settle())
            test.close()
            if stop_at_error and outcomes[-1]["status"] != "ok":
                return outcomes
    return outcomes


def _run_each(tests: list[_Test], stop_at_error: bool) -> None:
    """Fork for each test and wait for its end. One function, because a call of another one would cost both processes
    pages.
    """
    folder, temporary, wall_limit_ms = _folder, _temporary, _limits["wall_limit_s"] * 1000
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    open_process, watched, poll = getattr(os, "pidfd_open", None), -1, select.poll()
    free = os.statvfs(temporary)
    free_files, min_free_blocks = (
        free.f_ffree,
        free.f_bfree - MAX_OPEN_BYTES // (free.f_frsize or 4096),
    )
    for test in tests:
        try:
            os.mkdir(folder)
        except OSError:
            _clean_folders()
            os.mkdir(folder)
        pid = os.fork()
        if pid == 0:
            _run_program_process(test)  # never returns
        if open_process is None:
            test.in_time = _wait_watching(pid, wall_limit_ms / 1000)
        else:
            process = open_process(pid)
            if process != watched:
                poll.register(process, select.POLLIN)
                watched = process
            if not poll.poll(wall_limit_ms):
                test.in_time = False
                _kill(os.kill, pid)
            os.close(process)
        _, test.wait_status = os.waitpid(pid, 0)
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass  # the test left no process running, which is the usual case
        else:
            _kill_leftovers(pid)
        before, usage = usage, resource.getrusage(resource.RUSAGE_CHILDREN)  # cheaper than wait4
        test.usage = (before, usage)
        try:
            os.rmdir(folder)
        except OSError:
            _clean_folders()
        free = os.statvfs(temporary)
        if free.f_ffree != free_files:
            _clean_folders()
        _reset_folder_metadata()
        if free.f_bfree < min_free_blocks:
            test.settle()
            free_files = os.statvfs(temporary).f_ffree
        if stop_at_error and (test.wait_status or not test.in_time):
            break


def _outcome(test: _Test) -> dict[str, typing.Any]:
    """Return the fields that the host needs about a finished test."""
    assert test.usage is not None
    before, after = test.usage
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    limit = _limits["max_output_bytes"]
    status = "ok"
    if not test.in_time or cpu_s > _limits["cpu_limit_s"] or test.wait_status in _CPU_SIGNALS:
        status = "timeout"
    elif os.lseek(test.files[1], 0, os.SEEK_END) > limit:
        status = "output_limit"
    elif test.wait_status != 0:
        status = "error"
    stdout = value = error = ""
    if test.function is None:
        stdout = os.pread(test.files[1], limit, 0).decode("utf-8", "replace")
    else:
        value = os.pread(test.files[VALUE], limit, 0).decode("utf-8", "replace")
    if status == "error":
        start = max(0, os.lseek(test.files[2], 0, os.SEEK_END) - SHOWN_ERROR_CHARS)
        error = os.pread(test.files[2], SHOWN_ERROR_CHARS, start).decode("utf-8", "replace")
    names = ("status", "wait_status", "cpu_s", "stdout", "value", "error")
    values = (status, test.wait_status, cpu_s, stdout, value, error)
    return dict(zip(names, values))  # noqa: B905 - strict= needs Python 3.10


def _new_file() -> int:
    """Open a file without a name."""
    try:
        return os.open(_temporary, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EOPNOTSUPP, errno.ENOENT):
            raise
    name = f"{_temporary}/stream-{os.getpid()}"  # a file system without nameless files
    descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(name)
    return descriptor


def _run_program_process(test: _Test) -> None:
    """Become the program's process. Never returns."""
    code = 1
    try:
        os.setsid()
        os.chdir(_folder)
        number = 0
        for descriptor in test.files:
            os.dup2(descriptor, number)
            number += 1
        os.closerange(number, 4096)  # ANSWERS and the files of other tests
        for which, amounts in _resource_limits:
            resource.setrlimit(which, amounts)
        if _cpu_timer_s:
            signal.setitimer(signal.ITIMER_PROF, _cpu_timer_s)
        code = _execute(test.function, test.request)
    except SystemExit as exit_request:
        code = _exit_code(exit_request)
    except BaseException:  # noqa: BLE001 - a program may raise anything
        _print_traceback()
    finally:
        try:
            sys.stdout.flush()
            if _stdout is not sys.stdout:
                _stdout.flush()  # the program had replaced it
        except BaseException:  # noqa: BLE001 - its own stream may raise anything too
            code = code or 1
        _exit(code & 0xFF)


def _execute(function: str | None, request: dict[str, typing.Any]) -> int:
    namespace = _main.__dict__
    if function is not None:
        # The code under `if __name__ == "__main__"` must not read stdin.
        namespace["__name__"] = "program"
    exec(_program, namespace)  # type: ignore[arg-type]  # `load` came first
    if function is not None:
        value = _find_function(namespace, function)(*request["arguments"])
        _write_all(VALUE, json.dumps(value, default=_jsonable).encode())
    # An interpreter does this at its end: wait for threads, run exit functions.
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._shutdown()  # the interpreter's own step, without a public name
    if atexit._ncallbacks():  # pyright: ignore[reportPrivateUsage] - as the interpreter does
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
    return 0


def _find_function(namespace: dict[str, typing.Any], name: str) -> typing.Any:
    """Return a function of the program, or the method of its class `Solution`."""
    function = namespace.get(name)
    if function is None and isinstance(namespace.get("Solution"), type):
        function = getattr(namespace["Solution"](), name, None)
    if function is None:
        raise NameError(f"the program defines no function {name!r}")
    return function


def _jsonable(value: typing.Any) -> list[typing.Any]:
    """Convert a value for JSON: sets become sorted lists, arrays and other iterables lists."""
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__iter__"):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be the result of a test")


def _exit_code(exit_request: SystemExit) -> int:
    if exit_request.code is None or isinstance(exit_request.code, int):
        return int(exit_request.code or 0)
    sys.stderr.write(f"{exit_request.code}\n")
    return 1


def _print_traceback() -> None:
    try:
        kind, error, frames = sys.exc_info()
        while frames is not None and frames.tb_frame.f_code.co_filename != "<program>":
            frames = frames.tb_next
        sys.stderr.write("".join(traceback.format_exception(kind, error, frames)))
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - out of memory, or an exception whose text raises
        os.write(2, b"error\n")


def _wait_watching(pid: int, limit_s: float) -> bool:
    """Wait for the end of a process where no pidfd exists. Return False if it had to be killed after the limit."""
    deadline, pause_s = time.monotonic() + limit_s, 0.0005
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            _kill(os.kill, pid)
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)
    return True


def _kill_leftovers(leader: int) -> None:
    """Kill every process that the program left behind."""
    deadline = time.monotonic() + MAX_SWEEP_S
    _kill(os.killpg, leader)
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            for child in file.read().split():
                _kill(os.kill, int(child))
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if time.monotonic() > deadline:
            # The leftovers cannot be removed here: the host judges that the program failed and terminates the sandbox.
            _exit(1)
        time.sleep(0.001)


def _kill(send: typing.Callable[[int, int], None], pid: int) -> None:
    try:
        send(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
