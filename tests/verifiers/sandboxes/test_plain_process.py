# ruff: noqa: ASYNC220, ASYNC240 - small local files and short-lived programs do not block for long
"""Sandboxes without namespaces clean up after themselves by hand."""

import asyncio
import glob
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from verifiers.sandboxes import IsolationUnavailable, SandboxDead, SandboxSpec, open_sandbox
from verifiers.sandboxes.local import LocalBackend
from verifiers.sandboxes.local.machine import is_mapped
from verifiers.sandboxes.owned_folders import remove_folder, sweep_folders
from verifiers.sandboxes.unsafe_local import UnsafeLocalBackend

SPEC = SandboxSpec(isolation_min="none")


def marked(folder: str) -> list[int]:
    """Processes that show a sandbox's variables."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if folder.encode() in Path(path).read_bytes():
                found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return found


async def test_the_unsafe_back_end_must_be_asked_for_twice():
    with pytest.raises(IsolationUnavailable, match="isolation_min='none'"):
        async with open_sandbox(SandboxSpec(), backend="unsafe-local"):
            pass
    async with open_sandbox(SPEC, backend="unsafe-local") as sandbox:
        assert (await sandbox.exec("echo up")).ok
        assert sandbox.info.isolation == "none"


async def test_nothing_is_left_of_a_terminated_sandbox():
    async with UnsafeLocalBackend() as backend:
        sandbox = await backend.create(SPEC)
        await sandbox.ready()
        folder = os.path.dirname(sandbox.info.workdir)
        session = await sandbox.python()
        stuck = asyncio.create_task(session.run("open('started', 'w')\nwhile True: pass"))
        await sandbox.spawn("setsid sleep 1000 & (setsid sleep 1000 &) ; sleep 1000")
        await sandbox.exec("mkdir -p closed/inner; touch closed/inner/x; chmod 000 closed")
        while b"started" not in (await sandbox.exec("ls")).stdout:
            pass
        assert len(marked(folder)) >= 4
        await sandbox.terminate()
        with pytest.raises(SandboxDead):
            await stuck
        assert marked(folder) == []
        assert not os.path.exists(folder)


async def test_a_killed_guest_leaves_nothing_either():
    async with UnsafeLocalBackend() as backend, await backend.create(SPEC) as sandbox:
        await sandbox.ready()
        folder = os.path.dirname(sandbox.info.workdir)
        process = await sandbox.spawn("sleep 1000")
        await sandbox.exec("true")
        [guest] = [
            p for p in marked(folder) if "start.py" in Path(f"/proc/{p}/cmdline").read_text()
        ]
        os.kill(guest, signal.SIGKILL)
        with pytest.raises(SandboxDead):
            await process.wait()
        await sandbox.terminate()
        assert marked(folder) == []
        assert not os.path.exists(folder)


HOST = """
    import asyncio
    from verifiers.sandboxes import SandboxSpec, open_sandbox

    async def main():
        async with open_sandbox(SandboxSpec(isolation_min="none"), backend="unsafe-local") as sandbox:
            await sandbox.spawn("setsid sleep 1000 & sleep 1000")
            await sandbox.exec("true")
            print(sandbox.info.workdir, flush=True)
            await asyncio.sleep(600)

    asyncio.run(main())
"""


async def test_a_killed_host_leaves_no_process_and_its_directory_is_swept():
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST)], stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout is not None
        folder = os.path.dirname(host.stdout.readline().strip())
        assert folder, "the host program did not start"
        host.kill()
        async with asyncio.timeout(5):
            while marked(folder):  # noqa: ASYNC110 - other processes give no event
                await asyncio.sleep(0.01)
    assert os.path.exists(folder)
    await asyncio.to_thread(sweep_folders)
    assert not os.path.exists(folder)


async def test_a_container_is_preferred_where_restricted_is_accepted():
    async with (
        LocalBackend() as backend,
        await backend.create(SandboxSpec(isolation_min="restricted")) as sandbox,
    ):
        await sandbox.ready()
        assert sandbox.info.isolation == "container"


def test_a_directory_goes_however_deep_and_closed_its_content_is(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("kept")
    folder = tmp_path / "folder"
    folder.mkdir()
    home = os.open(".", os.O_RDONLY)
    for name in ("d", "n" * 250):
        os.chdir(folder)
        for _ in range(1500 if name == "d" else 60):
            os.mkdir(name)
            os.chdir(name)
            os.symlink(outside, "link")
    os.fchdir(home)
    os.close(home)
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0)
    remove_folder(str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert ((outside / "file").read_text(), outside.stat().st_mode & 0o777) == ("kept", 0o755)


def test_directories_of_living_programs_are_not_swept():
    from verifiers.sandboxes.local.zygote import cgroups

    own = tempfile.mkdtemp(prefix=cgroups.owner_name(os.getpid()) + "-")
    sweep_folders()
    assert os.path.exists(own)
    os.rmdir(own)


@pytest.mark.parametrize(
    "module",
    ["unsafe_local", "local", "local.plain_process", "open", "contract", "proxy", "guest_sandbox"],
)
def test_every_module_can_be_imported_first(module: str):
    subprocess.run([sys.executable, "-c", f"import verifiers.sandboxes.{module}"], check=True)


@pytest.mark.parametrize(
    ("id_map", "mapped"),
    [
        ("         0          0 4294967295\n", {0, 65534, 2147137760}),
        ("         0       1000          1\n", {0}),
        ("         0       1000          1\n         1     100000      65536\n", {0, 65534}),
    ],
)
def test_root_of_a_user_namespace_has_the_users_that_are_mapped(id_map: str, mapped: set[int]):
    assert {uid for uid in (0, 65534, 2147137760) if is_mapped(uid, id_map)} == mapped
