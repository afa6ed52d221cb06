"""A stand-in for the programs `docker` and `podman`: `run` starts the image's command in an embedded sandbox.

It understands the arguments that the back end gives and no others, and joins them to a sandbox of the same limits.
`rm --force NAME` ends the program that runs under that name, as an engine would. `build` understands FROM, WORKDIR,
ENV and COPY of one file, `RUN false` fails, and `compose` starts the service `main` only. Every call is written down.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

NAMES = Path(os.environ["STAND_IN_FOLDER"])
"""A file for each name that runs."""
KNOWN_IMAGES = ("python:3.11-slim", "owner/image:1")


IMAGES = NAMES.with_name("images.json")
CALLS = NAMES.with_name("calls.jsonl")
IMAGE_FOLDERS = ("/app", "/work", "/task", "/tests", "/oracle", "/solution", "/logs")
"""What can be written in the stand-in for a writable image."""
IMAGE_CAPABILITIES = 7


def main() -> int:
    with CALLS.open("a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    command, *rest = sys.argv[1:]
    if command == "rm":
        return remove(rest[-1])
    if command == "compose":
        return compose(rest)
    if command == "image":
        assert rest[0] == "inspect", sys.argv
        image = images().get(rest[1])
        sys.stdout.write(
            json.dumps([{"Config": image}]) if image else f"No such image: {rest[1]}" + "\n"
        )
        return 0 if image else 1
    if command == "build":
        return build(rest)
    if command == "pull":
        sys.stdout.write(f"Error response from daemon: manifest unknown: {rest[0]}\n")
        return 1
    assert command == "run", sys.argv
    if "--entrypoint=sh" in rest:  # does the image have Python?
        return 0 if "Python" in images()[rest[-3]].get("Has", "Python") else 127
    return run_container(rest)


def images() -> dict[str, Any]:
    built = json.loads(IMAGES.read_text()) if IMAGES.exists() else {}
    return {**{name: {"WorkingDir": ""} for name in KNOWN_IMAGES}, **built}


def build(arguments: list[str]) -> int:
    tag, context = arguments[arguments.index("--tag") + 1], arguments[-1]
    text = sys.stdin.read() if context == "-" else (Path(context) / "Dockerfile").read_text()
    image: dict[str, Any] = {"WorkingDir": "", "Env": {}, "Files": {}}
    for line in text.splitlines():
        word, _, value = line.partition(" ")
        if word == "FROM" and value.strip() not in images():
            sys.stdout.write(f"pull access denied for {value}\n")
            return 1
        if word == "FROM":
            image |= {key: images()[value.strip()].get(key, image[key]) for key in image}
            image["Has"] = "nothing" if value.strip() == "bare:1" else "Python"
        elif word == "WORKDIR":
            image["WorkingDir"] = value
        elif word == "ENV":
            image["Env"] |= dict([value.split("=")])
        elif word == "COPY":
            source, target = value.split()
            image["Files"][target] = (Path(context) / source).read_text()
        elif line == "RUN false":
            sys.stdout.write("The command '/bin/sh -c false' returned a non-zero code: 1\n")
            return 1
    built = json.loads(IMAGES.read_text()) if IMAGES.exists() else {}
    IMAGES.write_text(json.dumps({**built, tag: image}))
    return 0


def compose(arguments: list[str]) -> int:
    """`compose OPTIONS config|build|up|run|down …` on the merged files."""
    import yaml

    options = [each for each in arguments if each.startswith("--")]
    files = [option.partition("=")[2] for option in options if option.startswith("--file=")]
    at = next(place for place, each in enumerate(arguments) if not each.startswith("--"))
    command, rest = arguments[at], arguments[at + 1 :]
    services: dict[str, dict[str, Any]] = {}
    for file in files:
        text = os.path.expandvars(Path(file).read_text())
        for name, service in yaml.safe_load(text)["services"].items():
            services.setdefault(name, {}).update(service or {})
    if command == "config":
        sys.stdout.write("\n".join(services) + "\n")
    if command == "up" and "broken" in rest:
        sys.stderr.write("dependency failed to start: container broken exited (1)\n")
        return 1
    if command != "run":
        return 0
    place = rest.index("main")
    main_service = services["main"]
    name = next(each for each in rest if each.startswith("--name="))
    program = next(each for each in rest if each.startswith("--entrypoint=")).partition("=")[2]
    image = main_service.get("image") or "python:3.11-slim"
    given = main_service["deploy"]["resources"]["limits"]
    limits = [f"--memory={given['memory'].lower()}", f"--pids-limit={given['pids']}"]
    engine = ["--interactive", "--rm", name, "--label=x", "--pull=never", "--shm-size=64m"]
    engine += [f"--cap-drop={main_service['cap_drop'][0]}", "--security-opt=no-new-privileges"]
    engine += [f"--cap-add={each}" for each in main_service["cap_add"]]
    engine += [
        "--memory-swap=0m",
        "--network=none",
        "--log-driver=none",
        "--ulimit=fsize=67108864:1",
    ]
    return run_container([*engine, *limits, f"--entrypoint={program}", image, *rest[place + 1 :]])


def run_container(rest: list[str]) -> int:
    is_writable = "--read-only" not in rest
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("--interactive", "--rm"):
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("--read-only", action="store_true")
    for option in ("workdir", "user"):
        parser.add_argument(f"--{option}", required=not is_writable)
    for option in (
        "name",
        "pull",
        "pids-limit",
        "memory",
        "memory-swap",
        "shm-size",
    ):
        parser.add_argument(f"--{option}", required=True)
    for option in ("network", "cap-drop", "security-opt", "log-driver"):
        parser.add_argument(f"--{option}", required=True)
    for option in ("cpus", "runtime", "entrypoint"):
        parser.add_argument(f"--{option}")
    for option in ("cap-add", "add-host"):
        parser.add_argument(f"--{option}", action="append", default=[])
    parser.add_argument("--label", action="append", required=True)
    parser.add_argument("--tmpfs", action="append", required=not is_writable)
    parser.add_argument("--ulimit", action="append", required=True)
    parser.add_argument("image")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args(rest)
    assert (options.cap_drop, options.security_opt) == ("ALL", "no-new-privileges")
    assert len(options.cap_add) == (IMAGE_CAPABILITIES if is_writable else 0)
    if options.image not in images():
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
    # Imported here, because most calls of an engine need neither.
    from verifiers.sandboxes import SandboxSpec
    from verifiers.sandboxes.local import LocalBackend

    common: dict[str, Any] = {
        "memory_mb": int(options.memory.removesuffix("m")),
        "max_processes": int(options.pids_limit),
    }
    image = images()[options.image]
    argv = options.argv
    if options.read_only:
        disk = options.tmpfs[0].partition("size=")[2].partition("m")[0]
        assert options.tmpfs[0].startswith(options.workdir + ":")
        spec = SandboxSpec(**common, disk_mb=int(disk), workdir=options.workdir)
    else:
        argv = [options.entrypoint, *argv]
        files = {path: text.encode() for path, text in image.get("Files", {}).items()}
        spec = SandboxSpec(
            **common, folders=IMAGE_FOLDERS, files=files, env=image.get("Env", {}), disk_mb=64
        )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(0), "rb", 0)
    )
    async with LocalBackend() as backend, await backend.create(spec) as sandbox:
        process = await sandbox.spawn(argv, stdin=True)

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
