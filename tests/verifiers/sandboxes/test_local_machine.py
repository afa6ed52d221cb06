# ruff: noqa: ASYNC240 - small local files do not block for long
"""The local back end on machines of all kinds: groups, refusals, interpreters."""

import asyncio
import os
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from pathlib import Path

import pytest

from verifiers.sandboxes import (
    IsolationUnavailable,
    ProxyNetwork,
    SandboxCreationError,
    SandboxImageError,
    SandboxSpec,
    backend_by_name,
    open_sandbox,
)
from verifiers.sandboxes.local import LocalBackend, LocalConfig, zygote_process
from verifiers.sandboxes.local.zygote import cgroups, landlock

SYSTEM_PYTHON = "/usr/bin/python3"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")


# --- control groups


def test_version_1_groups_are_found():
    mountinfo = (
        "30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
        "31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 25 0:28 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
        "33 25 0:29 / / rw - ext4 /dev/sda rw\n"
    )
    own = "4:memory:/jobs/7\n3:cpu,cpuacct:/\n2:devices:/x\n"
    assert cgroups.find_hierarchies(mountinfo, own) == [
        cgroups.Hierarchy("/sys/fs/cgroup/memory/jobs/7", ("memory",), 1),
        cgroups.Hierarchy("/sys/fs/cgroup/cpu,cpuacct", ("cpu",), 1),
    ]


def test_version_2_groups_are_found_also_beside_version_1():
    mountinfo = (
        "30 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        "31 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"
    )
    own = "1:pids:/\n0::/user.slice/user-1000.slice\n"
    assert cgroups.find_hierarchies(mountinfo, own) == [
        cgroups.Hierarchy("/sys/fs/cgroup/unified/user.slice/user-1000.slice", (), 2),
        cgroups.Hierarchy("/sys/fs/cgroup/pids", ("pids",), 1),
    ]


def test_all_controllers_of_version_2_that_are_needed_are_found():
    text = "cpuset cpu io memory hugetlb pids rdma misc\n"
    assert cgroups.usable_controllers(text) == ["memory", "pids", "cpu"]
    assert cgroups.usable_controllers("cpu memory_of_another pids\n") == ["pids", "cpu"]


def test_a_container_sees_its_group_as_the_root_of_the_mount():
    mountinfo = "30 25 0:26 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    [found] = cgroups.find_hierarchies(mountinfo, "4:memory:/docker/abc\n")
    assert found.path == "/sys/fs/cgroup/memory"


def test_groups_of_dead_owners_are_swept_and_others_are_not(tmp_path: Path):
    with subprocess.Popen(["sleep", "60"]) as dead:
        name = cgroups.owner_name(dead.pid)
        dead.kill()
        while cgroups.is_owner_alive(name):  # a zombie is dead enough
            pass
    mine = cgroups.owner_name(os.getpid())
    foreign = "vf-1-1-1"
    for folder in (f"{name}/3", mine, foreign, "something-else"):
        (tmp_path / folder).mkdir(parents=True)
    assert cgroups.sweep(str(tmp_path)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [mine, foreign, "something-else"]
    )


def test_a_reused_process_number_is_not_the_owner():
    name, _, _ = cgroups.owner_name(os.getpid()).rpartition("-")
    assert not cgroups.is_owner_alive(f"{name}-1")


async def test_without_groups_the_info_says_what_is_weaker():
    async with LocalBackend(LocalConfig(use_cgroups=False)) as backend:
        info = await backend.probe(SandboxSpec(cpu_cores=1))
    assert "watchdog" in info.limits["memory"]
    assert info.limits["cpu"] == "not enforced"
    assert any("cpu_cores=1" in note for note in info.notes)


# --- machines that refuse

REFUSED = """
    import asyncio, ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    uid = os.getuid()
    assert libc.unshare(0x10000000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{uid} {uid} 1")):
        open(f"/proc/self/{name}", "w").write(text)
    open("/proc/sys/user/max_user_namespaces", "w").write("0")
    from verifiers.sandboxes import IsolationUnavailable, open_sandbox

    async def main():
        try:
            async with open_sandbox() as sandbox:
                await sandbox.exec("true")
        except IsolationUnavailable as error:
            print(error)

    asyncio.run(main())
"""


async def test_a_machine_without_user_namespaces_is_told_cause_and_remedy():
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(REFUSED)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "new mount namespace: [Errno 28]" in done.stdout, done
    assert "sysctl user.max_user_namespaces=15000" in done.stdout
    assert "isolation_min='restricted'" in done.stdout


def test_other_systems_are_told_what_to_use(monkeypatch: pytest.MonkeyPatch):
    assert zygote_process.unsupported_reason() is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "Docker" in (zygote_process.unsupported_reason() or "")


async def test_no_back_end_falls_through_to_an_unprotected_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(IsolationUnavailable, match="unsafe-local"):
        async with open_sandbox():
            pass


def test_masked_proc_is_explained():
    assert "systempaths=unconfined" in zygote_process.likely_cause(
        "proc: mount proc on /proc: EPERM"
    )


# --- specifications that cannot be met


async def test_impossible_specifications_are_refused_at_once():
    async with LocalBackend() as backend:
        for spec, error in (
            (SandboxSpec(isolation_min="gvisor"), IsolationUnavailable),
            (SandboxSpec(image="python:3.12"), SandboxImageError),
            (SandboxSpec(workdir="/usr/x"), SandboxImageError),
        ):
            with pytest.raises(error):
                await backend.create(spec)


def test_specifications_with_nonsense_are_refused():
    for fields in (
        {"memory_mb": 1},
        {"env": {"A=B": "x"}},
        {"workdir": "box"},
        {"cpu": 3},
        {"network": "proxy"},
        {"network": {"allow": ["http://example.org"]}},
        {"ttl_s": 0},
    ):
        with pytest.raises(ValueError, match="validation error"):
            SandboxSpec.model_validate(fields)
    assert ProxyNetwork(allow=("Example.ORG.", "*.x.y", "10.0.0.1")).allow == (
        "example.org",
        "*.x.y",
        "10.0.0.1",
    )
    with pytest.raises(ValueError, match="is not a sandbox back end"):
        backend_by_name("dokcer")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SandboxSpec(python="/no/such/python"), "/no/such/python"),
        (SandboxSpec(packages="/no/such/venv"), "/no/such/venv"),
        (SandboxSpec(preload=("no_such_module",)), "no_such_module"),
        (SandboxSpec(preload=("numpy",)), "standard library"),
    ],
)
async def test_an_unusable_interpreter_or_module_is_named(spec: SandboxSpec, text: str):
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        with pytest.raises(SandboxImageError, match=text):
            await sandbox.exec("true")


async def test_a_preloaded_module_that_starts_threads_is_refused(tmp_path: Path):
    venv = await make_venv(tmp_path / "venv")
    site = next(venv.glob("lib/python*/site-packages"))
    (site / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
    )
    spec = SandboxSpec(packages=str(venv), preload=("threaded",))
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        with pytest.raises(SandboxCreationError, match="1 threads"):
            await sandbox.ready()


# --- interpreters and packages


async def make_venv(path: Path) -> Path:
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "venv", "--without-pip", str(path)], check=True
    )
    site = next(path.glob("lib/python*/site-packages"))
    (site / "chosen_package.py").write_text("answer = 42")
    return path


@pytest.mark.parametrize(
    "place",
    [
        "/tmp",
        pytest.param("/var/tmp", marks=pytest.mark.long),
        pytest.param("/dev/shm", marks=pytest.mark.long),
    ],
)
async def test_a_virtual_environment_works_wherever_it_lies(place: str):
    with tempfile.TemporaryDirectory(dir=place) as folder:
        venv = await make_venv(Path(folder, "venv"))
        spec = SandboxSpec(packages=str(venv), preload=("chosen_package",))
        async with LocalBackend() as backend, await backend.create(spec) as sandbox:
            code = "import chosen_package, sys; print(chosen_package.answer, sys.prefix)"
            assert (await sandbox.run_python(code)).text == f"42 {venv}\n"
            result = await sandbox.exec(["python3", "-c", code])
            assert result.text == f"42 {venv}\n", result.error_text
            assert (await sandbox.exec(["touch", f"{venv}/x"])).exit_code == 1


async def test_packages_of_the_host_are_hidden_unless_chosen():
    code = "import importlib.util as u; print(u.find_spec('pydantic') is not None)"
    async with LocalBackend() as backend:
        async with await backend.create(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["python3", "-c", code])).text == "False\n"
            found = await sandbox.exec("find / -name 'pydantic*' -not -path '/proc/*' 2>/dev/null")
            assert found.text == ""
        async with await backend.create(SandboxSpec(packages="host")) as sandbox:
            assert (await sandbox.exec(["python3", "-c", code])).text == "True\n"


def make_interpreter(prefix: Path) -> Path:
    """An interpreter of its own below `prefix`, with packages and environments of every kind beside it."""
    base = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib")).relative_to(base)
    subprocess.run(["mkdir", "-p", prefix / "bin", prefix / library.parent], check=True)
    source = os.path.realpath(sys.executable)
    subprocess.run(["cp", source, prefix / "bin" / "python3"], check=True)
    skipped = {"site-packages", "test", "__pycache__", "idlelib", "ensurepip", "turtledemo"}
    (prefix / library).mkdir()
    wanted = [entry for entry in (base / library).iterdir() if entry.name not in skipped]
    subprocess.run(["cp", "-r", *wanted, prefix / library], check=True)
    for place in (
        library / "site-packages",
        Path("envs/other") / library / "site-packages",
        Path("envs/other/src"),
        Path("venvs/tool") / library / "site-packages",
        Path("pkgs/some-1.0") / library / "site-packages",
        Path("pipx/tool") / library / "site-packages",
    ):
        (prefix / place).mkdir(parents=True)
        (prefix / place / "secret_env.py").write_text("answers = [4711]")
    return prefix / "bin" / "python3"


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("/tmp", marks=pytest.mark.long),
        pytest.param("/var/tmp", marks=pytest.mark.long),
        "/dev/shm",
    ],
)
async def test_no_packages_beside_a_wanted_interpreter_can_be_seen(place: str):
    with tempfile.TemporaryDirectory(dir=place) as folder:
        prefix = Path(folder, "python")
        python = await asyncio.to_thread(make_interpreter, prefix)
        find = "find / -name 'secret_env*' -not -path '/proc/*' 2>/dev/null"
        async with LocalBackend() as backend:
            async with await backend.create(SandboxSpec(python=str(python))) as sandbox:
                shown = await sandbox.run_python("import sys; print(sys.prefix)")
                assert shown.text == f"{prefix}\n", shown.error_text
                assert (await sandbox.exec(find)).text == ""
            chosen = prefix / "envs" / "chosen"
            command = [str(python), "-m", "venv", "--without-pip", str(chosen)]
            await asyncio.to_thread(subprocess.run, command, check=True)
            (next(chosen.glob("lib/python*/site-packages")) / "chosen_package.py").touch()
            async with await backend.create(SandboxSpec(packages=str(chosen))) as sandbox:
                result = await sandbox.exec(
                    ["python3", "-c", "import chosen_package, sys; print(sys.prefix)"]
                )
                assert result.text == f"{chosen}\n", result.error_text
                assert (await sandbox.exec(find)).text == ""


async def test_packages_cannot_be_read_at_level_restricted_either():
    if landlock.abi() < landlock.MIN_ABI:
        pytest.skip("needs Landlock")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        python = await asyncio.to_thread(make_interpreter, Path(folder, "python"))
        spec = SandboxSpec(python=str(python), isolation_min="restricted")
        config = LocalConfig(level="restricted")
        async with LocalBackend(config) as backend, await backend.create(spec) as sandbox:
            read = await sandbox.exec(
                f"find {folder} -name 'secret_env*' -exec cat {{}} + ; "
                "cat /usr/lib/python3*/dist-packages/*.py /usr/local/lib/python3*/*-packages/*.py"
            )
            assert read.text == ""
            works = "import json, decimal, sysconfig; print(json.dumps(1))"
            assert (await sandbox.exec(["python3", "-c", works])).text == "1\n"


# --- an ordinary user, from start to end

AS_USER = """
    import asyncio, os
    from verifiers.sandboxes import SandboxSpec, open_sandbox

    async def main():
        assert os.getuid() == 65534, os.getuid()
        async with open_sandbox(SandboxSpec(python="/usr/bin/python3")) as sandbox:
            result = await sandbox.exec("id -u; cat /proc/1/environ; ls /root")
            print(result.text, sandbox.info.notes)
            print((await sandbox.run_python("print(6 * 7)")).text)

    asyncio.run(main())
"""


@as_root
@pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason="needs a system interpreter")
async def test_a_whole_program_of_an_ordinary_user_works(tmp_path: Path):
    version = await asyncio.to_thread(
        subprocess.check_output,
        [SYSTEM_PYTHON, "-c", "import sys; print(sys.version_info[:2])"],
        text=True,
    )
    if version.strip() != str(sys.version_info[:2]):
        pytest.skip("the system's interpreter cannot import this environment's packages")
    import pydantic

    repository = Path(__file__).parents[3]
    packages = Path(pydantic.__file__).parents[1]
    done = await asyncio.to_thread(
        subprocess.run,
        [SYSTEM_PYTHON, "-c", textwrap.dedent(AS_USER)],
        env={"PYTHONPATH": f"{repository}:{packages}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1000\n ")
    assert "42" in done.stdout
    assert "only namespaces separate them" in done.stdout


def owners_of(command_line: bytes) -> set[int]:
    owners = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if command_line in path.read_bytes():
                owners.add(path.stat().st_uid)
        except OSError:
            continue
    return owners


@as_root
async def test_every_sandbox_of_root_is_another_user_of_the_host():
    async with LocalBackend() as backend:
        owners: set[int] = set()
        for _ in range(3):
            async with await backend.create(SandboxSpec()) as sandbox:
                process = await sandbox.spawn("sleep 4711.25")
                while not (found := owners_of(b"sleep\x004711.25")):
                    await sandbox.exec("true")
                owners |= found
                await process.kill()
        assert len(owners) == 3
        assert min(owners) >= 0x7000_0000
