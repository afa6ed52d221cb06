"""Promises of `read`, `write`, `upload`, `download` and `snapshot`."""

# ruff: noqa: D103, ASYNC240 - the name of a behaviour is the promise; small local files do not block for long
from __future__ import annotations

import os
import tempfile
from pathlib import Path

from verifiers.sandboxes.contract.bench import Bench, Collection, expect, expect_error, expect_true
from verifiers.sandboxes.errors import SandboxFileError, SandboxFileNotFound, SandboxFileTooLarge

BEHAVIOURS = Collection()
promise, promise_if = BEHAVIOURS.promise, BEHAVIOURS.promise_if


@promise
async def what_is_written_can_be_read(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        data = bytes(range(256)) * 5000
        await sandbox.write("data", data)
        expect(await sandbox.read("data") == data, True, "the content")
        expect((await sandbox.exec("wc -c < data")).text.strip(), str(len(data)))


@promise
async def an_empty_file_can_be_written_and_read(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.write("empty", b"")
        expect(await sandbox.read("empty"), b"")


@promise
async def writing_makes_parents_and_replaces_content_and_mode(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.write("a/b/c", b"a long content", mode=0o600)
        await sandbox.write("a/b/c", b"short", mode=0o755)
        expect(await sandbox.read("a/b/c"), b"short")
        expect((await sandbox.exec("stat -c %a a/b/c")).text.strip(), "755")


@promise
async def relative_paths_begin_at_the_work_directory(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.write("here", b"x")
        expect(await sandbox.read(f"{sandbox.info.workdir}/here"), b"x")


@promise
async def odd_names_are_ordinary(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        for name in ("with space", "-rf", "ü😀", "a'b\"c", "new\nline", "$(touch x)", "x" * 255):
            await sandbox.write(name, name.encode())
            expect(await sandbox.read(name), name.encode(), repr(name))
        expect((await sandbox.exec("ls -A | wc -l")).text.strip(), "8", "lines of ls")


@promise
async def a_missing_file_is_file_not_found(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        error = await expect_error(SandboxFileNotFound, sandbox.read("no/such"), "read")
        expect_true(isinstance(error, FileNotFoundError), "it is also a FileNotFoundError")
        expect_true("no/such" in str(error), f"the path is in the message: {error}")
        with tempfile.TemporaryDirectory() as folder:
            await expect_error(
                SandboxFileNotFound, sandbox.download("no/such", Path(folder, "x")), "download"
            )


@promise
async def what_is_no_regular_file_is_refused_without_hanging(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.exec("mkdir dir; mkfifo fifo; ln -s fifo link; ln -s loop loop")
        for name in ("dir", "fifo", "link", "loop", "/dev/zero"):
            await expect_error(SandboxFileError, sandbox.read(name), f"read {name}")
        for name in ("dir", "fifo", "link", "loop"):
            await expect_error(SandboxFileError, sandbox.write(name, b"x"), f"write {name}")
        expect((await sandbox.exec("echo alive")).stdout, b"alive\n")


@promise
async def a_file_over_the_limit_is_refused_without_being_copied(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await sandbox.exec("truncate -s 200M huge; head -c 1001 /dev/zero > small")
        await expect_error(SandboxFileTooLarge, sandbox.read("huge"), "a sparse file of 200 MiB")
        await expect_error(SandboxFileTooLarge, sandbox.read("small", max_bytes=1000), "1001 bytes")
        expect(len(await sandbox.read("small", max_bytes=1001)), 1001)


@promise
async def what_may_not_be_written_is_refused(bench: Bench) -> None:
    async with bench.sandbox() as sandbox:
        await expect_error(SandboxFileError, sandbox.write("/usr/bin/evil", b"x"), "/usr")
        await expect_error(SandboxFileError, sandbox.write("/proc/1/mem", b"x"), "/proc/1/mem")
        await expect_error(ValueError, sandbox.write("", b"x"), "an empty path")
        await expect_error(ValueError, sandbox.read("a\0b"), "a zero byte")


@promise
async def a_full_disk_is_an_error_and_the_sandbox_lives_on(bench: Bench) -> None:
    async with bench.sandbox(disk_mb=8) as sandbox:
        await expect_error(SandboxFileError, sandbox.write("big", bytes(20 << 20)), "20 of 8 MiB")
        await sandbox.exec("rm -f big")
        await sandbox.write("small", b"fits")


@promise
async def links_planted_inside_lead_nowhere_outside(bench: Bench) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        secret = Path(folder, "secret")
        secret.write_text("host secret")
        async with bench.sandbox() as sandbox:
            await sandbox.exec(["ln", "-s", str(secret), "link"])
            await expect_error(SandboxFileError, sandbox.read("link"), "a link to a host file")
            await expect_error(SandboxFileError, sandbox.read(f"../..{secret}"), "dots")
            expect(secret.read_text(), "host secret")


@promise
async def a_directory_goes_in_and_comes_out(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        (source / "deep" / "empty").mkdir(parents=True)
        (source / "deep" / "file").write_bytes(b"\0\xff" * 100_000)
        (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (source / "run.sh").chmod(0o755)
        (source / "link").symlink_to("deep/file")
        async with bench.sandbox() as sandbox:
            await sandbox.upload(source, "copy/of/it")
            expect((await sandbox.exec("copy/of/it/run.sh")).stdout, b"ran\n")
            expect((await sandbox.exec("wc -c < copy/of/it/link")).text.strip(), "200000")
            await sandbox.download("copy/of/it", Path(folder, "back"))
        back = Path(folder, "back")
        expect(
            sorted(str(p.relative_to(back)) for p in back.rglob("*")),
            ["deep", "deep/empty", "deep/file", "link", "run.sh"],
        )
        expect((back / "deep" / "file").read_bytes(), b"\0\xff" * 100_000)
        expect(os.readlink(back / "link"), "deep/file")
        expect((back / "run.sh").stat().st_mode & 0o777, 0o755)


@promise
async def a_single_file_goes_in_and_comes_out(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "one").write_bytes(b"1" * 70_000)
        async with bench.sandbox() as sandbox:
            await sandbox.upload(Path(folder, "one"), "two")
            await sandbox.download("two", Path(folder, "three"))
            await expect_error(
                FileNotFoundError, sandbox.upload(Path(folder, "no"), "x"), "no file"
            )
        expect(Path(folder, "three").read_bytes(), b"1" * 70_000)


@promise
async def a_download_leaves_out_what_could_do_harm(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with bench.sandbox() as sandbox:
            await sandbox.exec(
                "mkdir -p d/e; cd d; echo ok > file; ln -s /etc/passwd abs; ln -s ../../x up; "
                "ln -s e inside; mkfifo fifo; ln -s self self; echo x > setuid; chmod 4755 setuid"
            )
            await sandbox.download("d", Path(folder, "d"))
        got = sorted(p.name for p in Path(folder, "d").iterdir())
        expect(got, ["e", "file", "inside", "self", "setuid"])
        expect(Path(folder, "d", "setuid").stat().st_mode & 0o7000, 0, "special mode bits")


@promise
async def a_download_over_the_limit_is_refused(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with bench.sandbox() as sandbox:
            await sandbox.exec("mkdir d; truncate -s 3M d/a; truncate -s 200M d/b")
            target = Path(folder, "d")
            await expect_error(
                SandboxFileTooLarge, sandbox.download("d", target, max_bytes=4 << 20), "200 MiB"
            )


@promise
async def files_of_the_specification_are_there_from_the_start(bench: Bench) -> None:
    async with bench.sandbox(files={"a/b.txt": b"one", "empty": b""}) as sandbox:
        expect((await sandbox.exec("cat a/b.txt; ls")).text, "onea\nempty\n")


@promise_if("snapshot")
async def a_snapshot_starts_another_sandbox_with_the_same_files(bench: Bench) -> None:
    async with bench.sandbox() as first:
        await first.exec(
            "mkdir d; echo content > d/file; ln -s d/file link; chmod 700 d/file; ln -s /usr/bin/env out; "
            "echo temporary > ${TMPDIR:-/tmp}/file; touch -d @1000000000 d/file"
        )
        snapshot = await first.snapshot()
        await first.exec("echo changed > d/file")
    async with bench.sandbox(snapshot=snapshot) as second:
        result = await second.exec("cat link; stat -c '%a %Y' d/file; readlink out")
        expect(result.text, "content\n700 1000000000\n/usr/bin/env\n")
        expect((await second.exec("cat ${TMPDIR:-/tmp}/file")).text, "temporary\n")


@promise_if("snapshot")
async def a_snapshot_does_not_fail_by_what_a_program_has_left(bench: Bench) -> None:
    """Deep directories, names that are not UTF-8, missing rights, fifos, large files of zeros."""
    async with bench.sandbox() as first:
        result = await first.exec(["python3", "-c", _ODD_FILES], timeout_s=30)
        expect(result.error_text, "", "making odd files")
        snapshot = await first.snapshot()
        expect_true(snapshot.size_bytes < 8 << 20, f"{snapshot.size_bytes} bytes of snapshot")
    async with bench.sandbox(snapshot=snapshot) as second:
        expect((await second.exec("cat good; stat -c %s sparse")).text, "good\n104857600\n")


_ODD_FILES = """
import os, socket
open("good", "w").write("good\\n")
open(b"\\xff\\xfe", "w").close()
os.symlink(b"\\xff", "link-to-bytes")
os.mkfifo("fifo")
with open("sparse", "w") as file:
    file.truncate(100 << 20)
os.mkdir("closed")
open("closed/file", "w").close()
os.chmod("closed", 0)
open("unreadable", "w").close()
os.chmod("unreadable", 0)
for name in ("d", "n" * 250):
    home = os.open(".", os.O_RDONLY)
    for _ in range(1500 if name == "d" else 60):
        os.mkdir(name)
        os.chdir(name)
    os.fchdir(home)
    os.close(home)
"""
