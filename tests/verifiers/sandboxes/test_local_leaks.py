"""Nothing is left behind, however a program ends."""

import asyncio
import glob
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from verifiers.sandboxes import SandboxDead, SandboxSpec
from verifiers.sandboxes.local import LocalBackend
from verifiers.sandboxes.local.zygote import cgroups

GONE_WITHIN_S = 2.0

# A host program with sandboxes full of processes that do not want to end.
HOST = """
    import asyncio, os, sys
    from verifiers.sandboxes import SandboxSpec
    from verifiers.sandboxes.local import LocalBackend

    STUBBORN = "trap '' TERM INT HUP; setsid sh -c 'trap \\"\\" TERM; sleep TOKEN' & sleep TOKEN"

    async def main():
        async with LocalBackend() as backend:
            sandboxes = [await backend.create(SandboxSpec()) for _ in range(6)]
            for sandbox in sandboxes:
                await sandbox.spawn(STUBBORN.replace("TOKEN", sys.argv[1]))
                await sandbox.exec("while [ $(pgrep -fc '^sleep') != 2 ]; do :; done")
            if "fork" in sys.argv and os.fork() == 0:
                os.execvp("sleep", ["sleep", "30"]) if "exec" in sys.argv else __import__("time").sleep(30)
                os._exit(0)
            print("up", flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


def pids_with(text: str) -> list[int]:
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                if text.encode() in file.read():
                    found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def zygotes_of(pid: int) -> list[int]:
    return [child for child in pids_with("zygote/start.py") if parent_of(child) == pid]


def mount_count() -> int:
    with open("/proc/self/mountinfo") as file:
        return len(file.readlines())


def parent_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


async def until(condition: Callable[[], bool], what: str, limit_s: float = GONE_WITHIN_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        await asyncio.sleep(0.01)


@contextmanager
def running_host(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A host program that is up, and the command line of the processes in its sandboxes."""
    token = str(100_000 + uuid.uuid4().int % 800_000)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST), token, *arguments],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process, f"sleep\0{token}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        for pid in pids_with(token):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("victim", ["host", "zygote", "both"])
async def test_killing_with_minus_nine_leaves_no_process(victim: str):
    with running_host() as (host, sleeper):
        [zygote] = zygotes_of(host.pid)
        assert len(pids_with(sleeper)) == 12
        mounts_before = mount_count()
        for pid in {"host": [host.pid], "zygote": [zygote], "both": [zygote, host.pid]}[victim]:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not pids_with(sleeper), "processes of sandboxes live on")
        await until(lambda: not zygotes_of(host.pid), "the zygote lives on")
        assert mount_count() <= mounts_before


async def test_a_fork_of_the_host_does_not_keep_sandboxes_alive():
    # Data loaders fork a trainer; their copies of our sockets must not matter.
    with running_host("fork") as (host, sleeper):
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: not pids_with(sleeper), "processes of sandboxes live on")


async def test_ctrl_c_ends_the_host_and_everything_else():
    with running_host() as (host, sleeper):
        host.send_signal(signal.SIGINT)
        await until(lambda: host.poll() is not None, "the host does not end", 10)
        assert pids_with(sleeper) == []


def groups_of(owner: str) -> list[str]:
    return glob.glob(f"/sys/fs/cgroup/**/{owner}", recursive=True)


async def test_groups_of_a_killed_zygote_are_swept_at_the_next_start():
    with running_host() as (host, sleeper):
        [zygote] = zygotes_of(host.pid)
        owner = cgroups.owner_name(zygote)
        if not groups_of(owner):
            pytest.skip("no control groups here")
        os.kill(zygote, signal.SIGKILL)
        os.kill(host.pid, signal.SIGKILL)
        await until(lambda: not pids_with(sleeper), "processes of sandboxes live on")
        host.wait()
    assert groups_of(owner)
    async with LocalBackend() as backend:
        await backend.probe()
    assert groups_of(owner) == []


async def test_a_closed_backend_leaves_no_group_no_descriptor_and_no_process():
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async with LocalBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        await sandbox.ready()
    before = descriptors()
    async with LocalBackend() as backend:
        for _ in range(3):
            sandboxes = [await backend.create(SandboxSpec()) for _ in range(20)]
            await asyncio.gather(*(sandbox.exec("true") for sandbox in sandboxes))
            session = await sandboxes[0].python()
            await session.run("1")
            await asyncio.gather(*(sandbox.terminate() for sandbox in sandboxes))
    assert descriptors() == before
    assert zygotes_of(os.getpid()) == []
    mine = [
        path
        for path in glob.glob("/sys/fs/cgroup/**/vf-*", recursive=True)
        if f"-{os.getpid()}-" in path
    ]
    assert mine == []


async def test_after_the_death_of_its_zygote_a_backend_starts_a_new_one():
    async with LocalBackend() as backend:
        sandbox = await backend.create(SandboxSpec())
        running = asyncio.create_task(sandbox.exec("sleep 1000"))
        await sandbox.exec("true")
        [zygote] = zygotes_of(os.getpid())
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(SandboxDead):
            await running
        with pytest.raises(SandboxDead):
            await sandbox.exec("true")
        async with await backend.create(SandboxSpec()) as another:
            assert (await another.exec("echo up")).stdout == b"up\n"


async def test_a_backend_that_was_never_used_starts_nothing():
    async with LocalBackend():
        assert zygotes_of(os.getpid()) == []


async def test_creating_is_cancelled_by_closing_the_backend():
    backend = LocalBackend()
    sandboxes = [await backend.create(SandboxSpec()) for _ in range(50)]
    await backend.aclose()
    for sandbox in sandboxes:
        with pytest.raises(SandboxDead):
            await sandbox.ready()
    assert zygotes_of(os.getpid()) == []


# A program whose loop ends while a zygote is just starting: nobody closes the back end.
SUDDEN_END = """
    import asyncio, sys
    from verifiers.sandboxes import SandboxSpec
    from verifiers.sandboxes.local import LocalBackend

    async def main():
        await LocalBackend().create(SandboxSpec(env={"TOKEN": sys.argv[1]}))
        for _ in range(int(sys.argv[2])):
            await asyncio.sleep(0)

    asyncio.run(main())
"""


@pytest.mark.parametrize("rounds_of_the_loop", [0, 1, 2, 3, 5, 50])
async def test_a_loop_that_ends_while_a_zygote_starts_leaves_nothing_and_says_nothing(
    rounds_of_the_loop: int,
):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(SUDDEN_END),
        "token",
        str(rounds_of_the_loop),
        stderr=asyncio.subprocess.PIPE,
    )
    (
        _,
        said,
    ) = await process.communicate()  # the zygote has this pipe too: it ends when both are gone
    assert (process.returncode, said) == (0, b"")
    assert zygotes_of(process.pid) == []


async def test_ids_are_unique_among_all_back_ends_of_a_process():
    async with LocalBackend() as one, LocalBackend() as two:
        made = [await backend.create(SandboxSpec()) for backend in (one, two, one, two)]
        assert len({sandbox.id for sandbox in made}) == 4
        await asyncio.gather(*(sandbox.ready() for sandbox in made))
