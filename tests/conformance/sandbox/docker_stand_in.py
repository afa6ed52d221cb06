"""A stand-in for the programs `docker` and `podman`: `run` starts the image's command in an embedded sandbox.

It understands the arguments that the back end gives and no others, and joins them to a sandbox of the same limits.
`rm --force NAME` ends the program that runs under that name, as an engine would.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path

from verifiers.sandboxes import SandboxSpec
from verifiers.sandboxes.local import LocalBackend

NAMES = Path(os.environ["STAND_IN_FOLDER"])
"""A file for each name that runs."""
KNOWN_IMAGES = ("python:3.11-slim", "owner/image:1")


def main() -> int:
    command, *rest = sys.argv[1:]
    if command == "rm":
        return remove(rest[-1])
    assert command == "run", sys.argv
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--interactive", "--rm", "--read-only"):
        parser.add_argument(flag, action="store_true", required=True)
    for option in (
        "name",
        "pull",
        "workdir",
        "user",
        "pids-limit",
        "memory",
        "memory-swap",
        "shm-size",
    ):
        parser.add_argument(f"--{option}", required=True)
    for option in ("network", "cap-drop", "security-opt", "log-driver"):
        parser.add_argument(f"--{option}", required=True)
    for option in ("cpus", "runtime"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--label", action="append", required=True)
    parser.add_argument("--tmpfs", action="append", required=True)
    parser.add_argument("--ulimit", action="append", required=True)
    parser.add_argument("image")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args(rest)
    assert (options.cap_drop, options.security_opt) == ("ALL", "no-new-privileges")
    if options.image not in KNOWN_IMAGES:
        sys.stderr.write(f"Error response from daemon: No such image: {options.image}\n")
        return 125
    path = NAMES / options.name
    NAMES.mkdir(exist_ok=True)
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(str(os.getpid()))
        held.flush()
        try:
            return asyncio.run(run(options))
        finally:
            path.unlink(missing_ok=True)


def remove(name: str) -> int:
    try:
        os.kill(int((NAMES / name).read_text()), signal.SIGTERM)
    except (OSError, ValueError):
        return 1
    return 0


async def run(options: argparse.Namespace) -> int:
    disk = options.tmpfs[0].partition("size=")[2].partition("m")[0]
    assert options.tmpfs[0].startswith(options.workdir + ":")
    spec = SandboxSpec(
        memory_mb=int(options.memory.removesuffix("m")),
        disk_mb=int(disk),
        max_processes=int(options.pids_limit),
        workdir=options.workdir,
        network="none",
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", 0)
    )
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        process = await sandbox.spawn(options.argv, stdin=True)

        async def feed() -> None:
            try:
                while data := await reader.read(1 << 16):
                    await process.write(data)
            except BrokenPipeError:
                return
            await process.close_stdin()

        async def pass_on() -> None:
            async for stream, data in process.output():
                descriptor = 1 if stream == "stdout" else 2
                view = memoryview(data)
                while view:
                    try:
                        view = view[await asyncio.to_thread(os.write, descriptor, view) :]
                    except BlockingIOError:
                        await asyncio.sleep(
                            0.001
                        )  # stdin and stdout are one socket, non-blocking for the reader

        tasks = [asyncio.create_task(work) for work in (feed(), pass_on(), ended.wait())]
        await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return 0 if ended.is_set() else (await process.wait()).exit_code or 0


if __name__ == "__main__":
    sys.exit(main())
