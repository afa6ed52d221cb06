"""The published `prime-sandboxes` package, unmodified, works against the server."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOKEN = "a-token-for-the-tests"
VERSIONS = {"0.2.6": "JSON exec", "0.2.39": "JSON exec, newer models", "0.5.1": "Connect exec"}


@pytest.fixture(scope="module", params=VERSIONS)
def sdk_python(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("sdk")
    wanted = f"prime-sandboxes=={request.param}"
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if uv is not None:
        make = [uv, "venv", "-q", "--python", sys.executable, str(folder)]
        install = [uv, "pip", "install", "-q", "--python", str(folder / "bin/python"), wanted]
    else:
        make = [sys.executable, "-m", "venv", str(folder)]
        install = [str(folder / "bin/python"), "-m", "pip", "install", "-q", wanted]
    subprocess.run(make, check=True)
    subprocess.run(install, check=True)
    return request.param, folder / "bin" / "python"


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_session_with_the_published_package(
    sdk_python: tuple[str, Path], serving, tmp_path: Path
):
    version, python = sdk_python
    async with serving() as wire:
        url = wire.server.base_url
        process = await asyncio.create_subprocess_exec(
            str(python),
            str(Path(__file__).with_name("sdk_session.py")),
            version,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "PRIME_API_KEY": TOKEN,
                "PRIME_API_BASE_URL": url,
                "PRIME_BASE_URL": url,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()[-4000:]
    seen = json.loads(output)
    wanted = {
        "exec": ["out 1 2\n/tmp\n", "err\n", 3],
        "timeout": "CommandTimeoutError",
        "file": True,
        "missing": True,
        "job": [4, "job\ndone\n"],
        "listed": 1,
        "refused": True,
        "after_delete": True,
        "bulk_ready": ["RUNNING"],
        "bulk_deleted": 3,
        "sync": "sync\n",
    }
    if version == "0.5.1":
        wanted |= {"process": 5, "read_file": "ABC"}
    seen = {name: value for name, value in seen.items() if name in wanted}
    assert seen == wanted
