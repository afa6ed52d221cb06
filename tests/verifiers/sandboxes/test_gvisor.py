# ruff: noqa: ASYNC220, ASYNC240 - small local files and short-lived programs do not block for long
"""What is particular to gVisor: its bundle, its leftovers, images in directories, and what it says when it cannot."""

import asyncio
import glob
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from verifiers.sandboxes import (
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxDead,
    SandboxImageError,
    SandboxSpec,
)
from verifiers.sandboxes.gvisor import GVisorBackend, GVisorConfig, container, statx_workaround
from verifiers.sandboxes.gvisor.root import Root, host_root, image_root
from verifiers.sandboxes.gvisor.runsc import build_date
from verifiers.sandboxes.owned_folders import OWNER_MARK, sweep_folders

RUNSC = shutil.which("runsc")
needs_runsc = pytest.mark.skipif(
    RUNSC is None, reason="there is no program `runsc` (Debian, Ubuntu: apt-get install runsc)"
)
HOST = """
    import asyncio
    from verifiers.sandboxes import SandboxSpec
    from verifiers.sandboxes.gvisor import GVisorBackend

    async def main():
        backend = GVisorBackend()
        sandbox = await backend.create(SandboxSpec())
        await sandbox.spawn("trap '' TERM; setsid sleep 1000 & sleep 1000")
        print(backend._host.folder, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


def marked(folder: str) -> list[int]:
    """Processes that work for a directory."""
    found = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            if f"{OWNER_MARK}={folder}".encode() in Path(path).read_bytes().split(b"\0"):
                found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return found


def groups_of(pid: int) -> list[str]:
    return glob.glob(f"/sys/fs/cgroup/**/vf-*-{pid}-*", recursive=True)


async def until_gone(folder: str) -> None:
    async with asyncio.timeout(20):
        while marked(folder):  # noqa: ASYNC110 - other processes give no event
            await asyncio.sleep(0.02)


@needs_runsc
@pytest.mark.parametrize("victims", ["host", "all"])
async def test_a_killed_program_leaves_nothing_that_the_next_start_does_not_remove(victims: str):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOST)], stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdout is not None
        folder = host.stdout.readline().strip()
        assert folder, "the host program did not start"
        assert marked(folder)
        host.kill()
        if victims == "all":
            for pid in marked(folder):
                with_suppressed_kill(pid)
        # The guest sees the end of its stream, and the container ends with it.
        await until_gone(folder)
    assert os.path.exists(folder)
    async with GVisorBackend() as backend, await backend.create(SandboxSpec()) as sandbox:
        assert (await sandbox.exec("echo up")).ok
        assert not os.path.exists(folder)
        assert groups_of(host.pid) == []
        own = backend._host
        assert own is not None
        own_folder = own.folder
    assert not os.path.exists(own_folder)
    assert groups_of(os.getpid()) == []


def with_suppressed_kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


@needs_runsc
async def test_leftovers_that_still_run_are_ended_by_the_sweep(tmp_path: Path):
    # As after a kill of the host at the worst moment: a process carries the mark of a folder whose owner is dead.
    dead = subprocess.Popen(["true"])
    dead.wait()
    namespace = os.stat("/proc/self/ns/pid").st_ino
    folder = Path("/tmp", f"vf-{namespace}-{dead.pid}-1-leftover")
    folder.mkdir()
    with subprocess.Popen(["sleep", "1000"], env={OWNER_MARK: str(folder)}) as left:
        while not marked(str(folder)):  # noqa: ASYNC110 - until it has been executed
            await asyncio.sleep(0)
        sweep_folders()
        assert left.wait() == -signal.SIGKILL
    assert not folder.exists()


@needs_runsc
async def test_a_directory_can_be_the_image_and_nothing_is_written_into_it(tmp_path: Path):
    image = tmp_path / "image"
    for name in ("etc", "bin", "data"):
        (image / name).mkdir(parents=True)
    for folder in ("usr", "lib", "lib64"):
        (image / folder).symlink_to(f"/{folder}")
    # A tree of its own would be hundreds of megabytes: /usr is this machine's, the rest is the image's.
    (image / "data" / "answer").write_text("42\n")
    (image / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nu:x:1000:1000::/box:/bin/sh\n")
    (image / "bin" / "sh").symlink_to("/usr/bin/dash")
    for path in (tmp_path, image):
        path.chmod(0o755)
    before = sorted(str(path) for path in image.rglob("*"))
    root = await asyncio.to_thread(
        image_root, str(tmp_path / "root"), str(image), "/usr/bin/python3", with_shim=True
    )
    assert {each["destination"] for each in root.mounts} >= {"/data", "/bin"}
    assert all("ro" in each["options"] for each in root.mounts)
    assert Path(root.path, "etc", "ld.so.preload").read_text().strip() == "/etc/statx-shim.so"
    assert sorted(str(path) for path in image.rglob("*")) == before
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("needs /usr/bin/python3 to be the image's interpreter")
    spec = SandboxSpec(image=str(image), python="/usr/bin/python3")
    async with GVisorBackend() as backend, await backend.create(spec) as sandbox:
        assert (
            await sandbox.exec("cat /data/answer; id -un; ls -d /data")
        ).text == "42\nu\n/data\n"
        assert not (await sandbox.exec("touch /data/new")).ok
    assert sorted(str(path) for path in image.rglob("*")) == before


@needs_runsc
@pytest.mark.long
async def test_more_files_than_gvisor_can_hold_end_the_sandbox_for_want_of_memory():
    # gVisor counts no files: each costs memory of its own, which only a control group limits.
    code = "import os\nfor i in range(10**9): os.close(os.open(f'f{i}', os.O_CREAT))"
    async with (
        GVisorBackend() as backend,
        await backend.create(SandboxSpec(memory_mb=32)) as sandbox,
    ):
        await sandbox.ready()
        if "from outside" not in sandbox.info.limits["memory"]:
            pytest.skip("no control group limits gVisor here")
        result = await sandbox.exec(["python3", "-c", code], timeout_s=600)
        assert (result.exit_code, result.oom) == (137, True)
        with pytest.raises(SandboxDead) as caught:
            await sandbox.exec("true")
        assert caught.value.reason == "oom"


async def test_what_gvisor_cannot_give_is_refused_in_words(tmp_path: Path):
    async with GVisorBackend() as backend:
        with pytest.raises(IsolationUnavailable, match="vm"):
            await backend.create(SandboxSpec(isolation_min="vm"))
        with pytest.raises(SandboxCapabilityMissing, match="network"):
            await backend.create(SandboxSpec(network="full"))
        with pytest.raises(SandboxImageError, match="packages"):
            await backend.create(SandboxSpec(image="/srv/image", packages="host"))
    cases = {
        "/no/such/runsc": "/no/such/runsc cannot be executed.*apt-get install runsc",
        shutil.which("true") or "/bin/true": "is not runsc",
    }
    for program, message in cases.items():
        async with GVisorBackend(GVisorConfig(program=program)) as backend:
            sandbox = await backend.create(SandboxSpec())
            with pytest.raises(SandboxCreationError, match=message):
                await sandbox.ready()


@needs_runsc
async def test_an_interpreter_or_image_that_is_not_there_is_named():
    async with GVisorBackend() as backend:
        for fields, word in (
            ({"python": "/no/such/python"}, "/no/such/python"),
            ({"packages": "/no/such/venv"}, "/no/such/venv"),
            ({"image": "python:3.11"}, "python:3.11"),
        ):
            sandbox = await backend.create(SandboxSpec.model_validate(fields))
            with pytest.raises(SandboxImageError, match=word):
                await sandbox.ready()


@needs_runsc
async def test_a_platform_that_is_not_there_is_an_error_with_gvisors_words():
    assert RUNSC is not None
    date = build_date(RUNSC)
    if date is None or date >= 20230101:
        pytest.skip("this build of runsc knows all platforms")
    async with GVisorBackend(GVisorConfig(platform="systrap")) as backend:
        sandbox = await backend.create(SandboxSpec())
        with pytest.raises(SandboxCreationError, match="systrap"):
            await sandbox.ready()


def test_the_bundle_gives_no_privileges_and_no_network(tmp_path: Path):
    root = Root(str(tmp_path), [{"destination": "/tmp/venv"}], "/bin", "python3")
    spec = SandboxSpec(memory_mb=512, disk_mb=256, max_processes=7, folders=("/app",))
    made = container.bundle_config(spec, root)
    process = made["process"]
    assert process["user"] == {"uid": 1000, "gid": 1000}
    assert process["noNewPrivileges"] is True
    assert not any(process["capabilities"].values())
    assert made["root"]["readonly"] is True
    assert {"type": "network"} in made["linux"]["namespaces"]
    limits = {limit["type"]: limit["hard"] for limit in process["rlimits"]}
    assert limits["RLIMIT_NPROC"] == 8
    places = [mount["destination"] for mount in made["mounts"]]
    assert {"/box", "/tmp", "/dev/shm", "/app"} <= set(places)
    assert places[-1] == "/tmp/venv"  # after /tmp, which would hide it
    sizes = container.sizes_of(spec)
    assert sizes.workdir == 256
    assert sizes.workdir + 3 * sizes.other <= 512 * 3 // 4


def test_the_view_of_the_host_is_an_allow_list_open_to_all(tmp_path: Path):
    previous = os.umask(0o077)
    try:
        root = host_root(
            str(tmp_path / "root"), [sys.executable, "-I", "-B", "-S"], with_shim=False
        )
    finally:
        os.umask(previous)
    assert "shadow" not in os.listdir(f"{root.path}/etc")
    shown = {mount["destination"] for mount in root.mounts}
    assert "/usr" in shown
    assert not shown & {"/", "/home", "/var", "/etc", "/root", "/run"}
    for folder, folders, _ in os.walk(root.path):
        for name in folders:
            path = os.path.join(folder, name)
            assert os.path.islink(path) or os.stat(path).st_mode & stat.S_IXOTH, path


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the shim is machine code of x86-64")
def test_the_shim_passes_statx_on_without_the_flag(tmp_path: Path):
    shim = tmp_path / "shim.so"
    shim.write_bytes(statx_workaround.shared_object())
    # What the kernel was asked is seen where it matters: gVisor of 2022 refuses the flag. Here: it answers as ever.
    ask = (
        "import ctypes, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "buffer = ctypes.create_string_buffer(256)\n"
        "ok = libc.statx(-100, sys.argv[1].encode(), 0x900, 0x7ff, buffer)\n"
        "print(ok, ctypes.get_errno(), int.from_bytes(buffer[28:30], 'little') & 0o170000)"
    )
    for path, wanted in (("/usr", f"0 0 {stat.S_IFDIR}"), ("/no/such", "-1 2 0")):
        done = subprocess.run(
            [sys.executable, "-S", "-c", ask, path],
            env={"LD_PRELOAD": str(shim)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == wanted
        assert done.stderr == ""
    listed = subprocess.run(
        ["ls", "-l", "/usr"], env={"LD_PRELOAD": str(shim)}, capture_output=True, check=True
    )
    assert listed.stderr == b""
