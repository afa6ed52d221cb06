"""Signals and terminals: `vf-eval` in a process of its own."""

import asyncio
import os
import pty
import re
import resource
import select
import signal
import time
from pathlib import Path

import pytest

from vf_cli import interrupts


def saved_lines() -> int:
    files = list(Path("environments").glob("*/outputs/evals/*/*/results.jsonl"))
    return sum(len(file.read_text().splitlines()) for file in files)


def wait_until(condition, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        select.select([], [], [], 0.01)


def start_and_hold(start_process, endpoint, path, **options):
    """A run that has saved four rollouts and waits for the others."""
    process = start_process(
        *("eval", path, "-b", endpoint.url, "-m", "sums", "-n", 6, "-r", 1, "-c", 2, "-s"),
        **options,
    )
    wait_until(lambda: saved_lines() == 4 and endpoint.is_holding.is_set())
    return process


def test_one_interrupt_keeps_what_is_done_and_says_how_to_resume(
    start_process, endpoint_that, make_environment, run
):
    endpoint, path = endpoint_that(hold_after=4), make_environment()
    process = start_and_hold(start_process, endpoint, path)

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "4 of 6; interrupted" in out
    assert "Traceback" not in err
    [folder] = re.findall(r"--resume (\S+)", out)
    endpoint.release()
    resumed = run(
        "eval", path, "-b", endpoint.url, "-m", "sums", "-n", 6, "-r", 1, "--resume", folder
    )
    assert resumed.code == 0, resumed.err
    assert saved_lines() == 6


def test_sigterm_is_like_one_interrupt(start_process, endpoint_that, make_environment):
    process = start_and_hold(start_process, endpoint_that(hold_after=4), make_environment())

    process.terminate()
    out, _ = process.communicate(timeout=20)

    assert (process.returncode, "--resume" in out) == (130, True)


def test_two_interrupts_stop_a_run_that_does_not_stop_by_itself(
    start_process, endpoint, make_environment
):
    slow = "import asyncio\nimport verifiers as vf\n\nasync def never():\n    print('scoring', flush=True)\n"
    slow += "    await asyncio.Event().wait()\n\ndef load_environment():\n"
    slow += "    return vf.SingleTurnEnv(dataset=[{'question': 'q'}], rubric=vf.Rubric(funcs=[never]))\n"
    process = start_process("eval", make_environment(slow), "-b", endpoint.url, "-n", 1, "-r", 1)
    assert process.stdout is not None
    assert process.stdout.readline() == "scoring\n"

    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    wait_for_line(process.stderr, "Press Ctrl-C again")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    assert process.returncode == 130


def wait_for_line(stream, text: str) -> None:
    for line in stream:
        if text in line:
            return
    raise AssertionError(f"{text!r} was not said")


def test_kill_9_loses_no_saved_rollout(start_process, endpoint_that, make_environment, run):
    endpoint, path = endpoint_that(hold_after=4), make_environment()
    process = start_and_hold(start_process, endpoint, path)

    process.kill()
    process.communicate()
    endpoint.release()
    before = len(endpoint.requests)
    done = run(
        "eval", path, "-b", endpoint.url, "-m", "sums", "-n", 6, "-r", 1, "--resume", "--json"
    )

    assert done.json["evaluations"][0]["summary"]["rollouts"] == 6
    assert len(endpoint.requests) - before == 2


def test_a_full_disk_ends_the_run_with_the_reason_and_keeps_what_was_saved(
    start_process, endpoint, make_environment
):
    """A limit on file sizes stands in for the full disk: the kernel refuses the write in the same way."""
    path = make_environment()
    limits = (12_000, resource.RLIM_INFINITY)
    process = start_process(
        *(
            "eval",
            path,
            "-b",
            endpoint.url,
            "-m",
            "sums",
            "-a",
            '{"count": 40}',
            "-n",
            40,
            "-r",
            1,
            "-c",
            1,
            "-s",
        ),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits),
    )
    _, err = process.communicate(timeout=40)

    assert process.returncode == 1
    assert "could not be saved" in err
    assert "File too large" in err
    assert "Traceback" not in err
    assert 1 <= saved_lines() < 40


def test_a_terminal_sees_progress_and_a_pipe_sees_lines(
    start_process, endpoint_that, make_environment
):
    endpoint, path = endpoint_that(hold_after=4), make_environment()
    terminal, other_end = pty.openpty()
    process = start_and_hold(start_process, endpoint, path, stderr=other_end)
    os.close(other_end)

    shown = read_until(terminal, "4/6")
    for _ in range(5):  # which frame the last rollouts show up in depends on the machine
        if re.search(r"reward.*1\.000.*running.*2", shown, re.DOTALL):
            break
        shown += read_until(terminal, "running")
    endpoint.release()
    out, _ = process.communicate(timeout=20)
    read_until(terminal, "")
    os.close(terminal)

    assert re.search(r"4/6 +67%", shown)
    assert re.search(r"reward.*1\.000.*running.*2", shown, re.DOTALL)
    assert (process.returncode, "1.000 ± 0.000" in out) == (0, True)


def read_until(terminal: int, text: str, seconds: float = 90.0) -> str:
    """What a terminal was sent, until `text` is in it without colours; for "" what is there now."""
    shown, end = "", time.monotonic() + seconds
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.2)
        if not ready and not text:
            break
        if ready:
            try:
                shown += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
        if text and text in plain:
            return plain
    assert not text, f"{text!r} was not shown: {shown!r}"
    return shown


def naming(pid: int) -> list[str]:
    """The processes whose command line has a process id, as that of a guardian has."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(pid).encode() in words:
            found.append(str(path))
    return found


def test_without_a_terminal_there_are_plain_lines_and_the_guardian_ends_with_its_command(
    start_process, endpoint, make_environment
):
    process = start_process("eval", make_environment(), "-b", endpoint.url, "-n", 2, "-r", 1)
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0
    assert "2/2" in err
    assert "\x1b[" not in out + err
    wait_until(lambda: not naming(process.pid))


def test_a_reader_that_goes_away_is_no_error_message(start_process, endpoint, make_environment):
    reader, writer = os.pipe()
    os.close(reader)
    process = start_process(
        "eval", make_environment(), "-b", endpoint.url, "-n", 1, "-r", 1, stdout=writer
    )
    os.close(writer)
    _, err = process.communicate(timeout=30)

    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_two_interrupts_stop_a_run_whose_tool_never_returns(
    start_process, endpoint, make_environment
):
    spins = "import verifiers as vf\n\nclass Spins(vf.MultiTurnEnv):\n"
    spins += "    def env_response(self, messages, state, **kwargs):\n        print('spinning', flush=True)\n"
    spins += "        while True:\n            pass\n\ndef load_environment():\n"
    spins += "    return Spins(dataset=[{'question': 'q'}], rubric=vf.Rubric())\n"
    process = start_process("eval", make_environment(spins), "-b", endpoint.url, "-n", 1, "-r", 1)
    assert process.stdout is not None
    assert process.stdout.readline() == "spinning\n"

    process.send_signal(signal.SIGINT)
    wait_until(lambda: not pending(process.pid, signal.SIGINT))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)

    assert process.returncode == 130
    assert "Traceback" not in err


def pending(pid: int, number: int) -> bool:
    """Whether the kernel still holds the signal back from the process."""
    masks = re.findall(
        r"^(?:SigPnd|ShdPnd):\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M
    )
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


HOGS = {
    "python": "    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n",
    "sleep": "    import time\n    while True:\n        try: time.sleep(60)\n        except BaseException: pass\n",
    "c": "    import collections, itertools\n    collections.deque(itertools.count(), maxlen=0)\n",
    "thread": (
        "    import asyncio, threading\n    def hog():\n        while True:\n"
        "            try: threading.Event().wait()\n            except BaseException: pass\n"
        "    await asyncio.to_thread(hog)\n"
    ),
    "deaf": (
        "    import asyncio\n    while True:\n        try: await asyncio.sleep(60)\n"
        "        except BaseException: pass\n"
    ),
}
HOG = """
import os
import verifiers as vf


{keyword}def hogs(completion, info):
    if not info["hog"]:
        return 1.0
    print("hogging", os.getpid(), flush=True)
    with open("hogging", "w") as file:
        file.write(str(os.getpid()))
{body}

def load_environment():
    rows = [{{"question": f"What is {{n}} + 1?", "info": {{"hog": n == 2}}}} for n in range(3)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[hogs]))
"""


def start_hog(start_process, endpoint, make_environment, how, *options):
    """A run that has saved two rollouts and scores a third that never ends; gives the process and who scores."""
    keyword = "async " if how in ("thread", "deaf") else ""
    path = make_environment(HOG.format(keyword=keyword, body=HOGS[how]))
    process = start_process(
        *("eval", path, "-b", endpoint.url, "-n", 3, "-r", 1, "-c", 1, "-s", "-m", "sums"),
        *options,
        grace_s=0.4,
    )
    wait_until(lambda: Path("hogging").exists() and Path("hogging").read_text(), 90)
    return process, int(Path("hogging").read_text())


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# A worker is ended by its parent, whatever it does: code in C, which no handler reaches, stands for the others.
WITH_WORKERS = [
    pytest.param(how, ("-w", 1), marks=[] if how == "c" else [pytest.mark.long]) for how in HOGS
]


@pytest.mark.parametrize(("how", "workers"), [*((how, ()) for how in HOGS), *WITH_WORKERS])
def test_one_sigterm_ends_the_process_and_its_workers_whatever_author_code_does(
    start_process, endpoint, make_environment, how, workers
):
    process, scoring = start_hog(start_process, endpoint, make_environment, how, *workers)

    process.terminate()
    process.communicate(timeout=20)

    assert process.returncode in (130, -signal.SIGKILL)
    wait_until(lambda: not is_running(scoring))
    # The second rollout may be on its way to the disk when code that never returns takes the event loop.
    assert saved_lines() in (1, 2)


@pytest.mark.parametrize(
    "how", ["c", *(pytest.param(how, marks=pytest.mark.long) for how in ("python", "thread"))]
)
def test_a_second_interrupt_ends_the_process_whatever_author_code_does(
    start_process, endpoint, make_environment, how
):
    process, _ = start_hog(start_process, endpoint, make_environment, how)

    process.send_signal(signal.SIGINT)
    wait_until(lambda: not pending(process.pid, signal.SIGINT))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    assert process.returncode in (130, -signal.SIGKILL)
    # The second rollout may be on its way to the disk when code that never returns takes the event loop.
    assert saved_lines() in (1, 2)


@pytest.mark.parametrize("command", ["validate", "eval"])
def test_a_hog_at_load_time_is_ended_too(start_process, endpoint, make_environment, command):
    source = f"open('hogging', 'w').write('x')\ndef hog():\n{HOGS['python']}\nhog()\n"
    options = ("-b", endpoint.url) if command == "eval" else ()
    process = start_process(command, make_environment(source), *options, grace_s=None)
    wait_until(lambda: Path("hogging").exists(), 60)

    process.terminate()
    process.communicate(timeout=20)

    assert process.returncode in (130, -signal.SIGKILL)


async def _never() -> None:
    await asyncio.Event().wait()


def test_one_signal_cancels_the_coroutine_of_a_command_in_its_loop():
    ended = []

    async def work() -> None:
        async def hit() -> None:
            signal.raise_signal(signal.SIGINT)
            ended.append("the code that the signal interrupted")

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(hit())
                group.create_task(_never())
        finally:
            await asyncio.sleep(0)
            ended.append("the clean-up")

    with pytest.raises(KeyboardInterrupt):
        interrupts.run(work())

    assert ended == ["the code that the signal interrupted", "the clean-up"]


def test_an_error_of_a_cancelled_coroutine_is_an_interrupt_too():
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await _never()
        finally:
            raise RuntimeError("the connection is closed")

    with pytest.raises(KeyboardInterrupt) as interrupted:
        interrupts.run(work())

    assert str(interrupted.value.__cause__) == "the connection is closed"


def test_a_second_signal_interrupts_code_that_blocks_the_loop():
    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the second signal was ignored")

    forever = 1e7  # the time until the guard ends this process
    with interrupts.guarded(grace_s=forever), pytest.raises(KeyboardInterrupt):
        interrupts.run(work())


def test_without_a_signal_a_coroutine_of_a_command_returns_or_raises():
    async def work(text: str) -> int:
        return int(text)

    assert interrupts.run(work("3")) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        interrupts.run(work("x"))
