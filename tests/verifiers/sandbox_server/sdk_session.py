"""Run by the interpreter of a virtual environment with the published `prime-sandboxes`: a session of a user.

usage: python sdk_session.py VERSION

Prints one JSON object of what it saw. The server's address and token come from the environment.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import prime_sandboxes as sdk


async def main() -> dict[str, object]:
    seen: dict[str, object] = {}
    client = sdk.AsyncSandboxClient()
    request = sdk.CreateSandboxRequest(
        name="session", docker_image="python:3.11-slim", labels=["sdk"], environment_vars={"X": "1"}
    )
    box = await client.create(request)
    await client.wait_for_creation(box.id)
    result = await client.execute_command(
        box.id, "echo out $X $Y; pwd; echo err >&2; exit 3", working_dir="/tmp", env={"Y": "2"}
    )
    seen["exec"] = [result.stdout, result.stderr, result.exit_code]
    try:
        await client.execute_command(box.id, "sleep 60", timeout=1)
    except sdk.CommandTimeoutError:
        seen["timeout"] = "CommandTimeoutError"
    data = bytes(range(256)) * 4000
    await client.upload_bytes(box.id, "/box/dir/file", data, "file")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "back")
        await client.download_file(box.id, "/box/dir/file", str(path))
        seen["file"] = path.read_bytes() == data  # noqa: ASYNC240 - a small local file
        try:
            await client.download_file(box.id, "/box/no", str(path))
        except sdk.APIError as error:
            seen["missing"] = "404" in str(error)
    job = await client.start_background_job(box.id, "echo job; sleep 0.2; echo done; exit 4")
    status = await client.get_background_job(box.id, job)
    while not status.completed:
        await asyncio.sleep(0.1)
        status = await client.get_background_job(box.id, job)
    seen["job"] = [status.exit_code, status.stdout]
    if sys.argv[1] >= "0.5":
        process = await client.open_process(box.id, "read x; echo [$x]; exit 5")
        await process.write_stdin(b"hello\n")
        seen["process"] = await process.wait()
        text = (await client.read_file(box.id, "/box/dir/file", offset=65, length=3)).content
        seen["read_file"] = text
    seen["listed"] = (await client.list(labels=["sdk"])).total
    try:
        await client.create(request.model_copy(update={"docker_image": "ubuntu:20.04"}))
    except sdk.APIError as error:
        seen["refused"] = "is not available" in str(error)
    await client.delete(box.id)
    try:
        await client.execute_command(box.id, "true")
    except (sdk.APIError, sdk.SandboxNotRunningError) as error:
        seen["after_delete"] = "terminated" in str(error).lower()
    more = [(await client.create(request)).id for _ in range(3)]
    seen["bulk_ready"] = sorted(set((await client.bulk_wait_for_creation(more)).values()))
    seen["bulk_deleted"] = len((await client.bulk_delete(more)).succeeded)
    await client.aclose()
    sync = sdk.SandboxClient(sdk.APIClient())
    box = sync.create(request)
    sync.wait_for_creation(box.id)
    seen["sync"] = sync.execute_command(box.id, "echo sync").stdout
    sync.delete(box.id)
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main())))
