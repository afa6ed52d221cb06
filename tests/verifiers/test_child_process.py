import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verifiers.child_process import (
    ChildProcess,
    described_exit,
    get_free_port,
    guarded,
    log_tail,
    start_python,
    stop_process,
)

SLEEPER = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(600)"]


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pid: int, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} is still running"
        os.sched_yield()


def test_a_line_is_sent_and_a_line_comes_back():
    child = ChildProcess([sys.executable, "-c", "print(input()[::-1])"])
    child.send(b"abc\n")
    assert child.read_line(30.0) == b"cba\n"
    assert child.read_line(30.0) == b""
    child.close(30.0)
    assert (child.exit_code, child.is_running) == (0, False)
    child.close()


def test_a_silent_child_gives_no_line_and_is_killed():
    with ChildProcess([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        assert child.read_line(0.01) is None
        child.close()
        assert child.exit_code == -signal.SIGKILL


def test_a_child_that_reads_its_stdin_ends_when_the_pipe_closes():
    child = ChildProcess([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(7)"])
    child.close(30.0)
    assert child.exit_code == 7


def test_data_that_a_dead_child_did_not_read_is_dropped():
    child = ChildProcess(["true"])
    assert child.read_line(30.0) == b""
    child._process.wait()
    child._process.stdin.write(b"the question")  # stays in the buffer, and cannot be sent
    child.close()


def test_a_guarded_command_keeps_its_exit_code():
    for program, code in (("exit 3", 3), ("kill -9 $$", 128 + 9)):
        child = ChildProcess(guarded(["sh", "-c", program]), own_group=True)
        child._process.wait(30.0)
        assert child.exit_code == code
        child.close()


def test_a_guarded_command_gets_sigterm_when_its_child_process_is_closed():
    program = "trap 'echo ended; exit' TERM; echo started; while :; do sleep 0.02; done"
    child = ChildProcess(guarded(["sh", "-c", program], 20.0), own_group=True)
    assert child.read_line(30.0) == b"started\n"
    child._process.stdin.close()
    assert child.read_line(30.0) == b"ended\n"
    child.close(20.0)


def test_a_program_that_does_not_exist_cannot_be_guarded():
    with pytest.raises(FileNotFoundError, match="'no-such-program' is not on the PATH"):
        guarded(["no-such-program"])


PARENT = """
import sys
from verifiers.child_process import ChildProcess, guarded
child = ChildProcess(guarded(["sh", "-c", {program!r}], {grace_s}), own_group=True)
print(int(child.read_line(30.0)), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "program", ["echo $$; exec sleep 600", "trap '' TERM; echo $$; while :; do sleep 0.1; done"]
)
def test_a_guarded_command_ends_when_its_parent_is_killed(program):
    source = PARENT.format(program=program, grace_s=0.2)
    with subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
    wait_for_end(pid)


async def test_a_python_child_receives_its_settings_and_ends_by_itself(tmp_path, monkeypatch):
    (tmp_path / "echo_settings.py").write_text(
        "import sys\n"
        "from verifiers.child_process import read_settings\n"
        "def main():\n"
        "    print(read_settings()['key'], flush=True)\n"
        "    sys.stdin.read()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with (tmp_path / "log").open("wb") as log:
        process = await start_python("echo_settings", {"key": "value"}, log=log)
    assert os.getpgid(process.pid) == process.pid
    assert await stop_process(process, 30.0)
    assert process.returncode == 0
    assert log_tail(tmp_path / "log") == "value"


async def test_a_python_child_that_does_not_end_is_killed(tmp_path, monkeypatch):
    (tmp_path / "deaf.py").write_text("import time\ndef main(): time.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    process = await start_python("deaf", {})
    assert not await stop_process(process, 0.05)
    assert process.returncode == -signal.SIGKILL


def test_exits_are_described():
    assert described_exit(None) == "is gone"
    assert described_exit(3) == "ended with code 3"
    assert described_exit(-9) == "was ended by SIGKILL"


def test_a_free_port_can_be_bound():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", get_free_port()))
