"""Servers, workers and clients are real processes; the model is a real endpoint that does sums."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from importlib import util
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from verifiers.serve import ServerProcess

_spec = util.spec_from_file_location(
    "answering_endpoint", Path(__file__).parents[2] / "cli" / "answering_endpoint.py"
)
assert _spec is not None
assert _spec.loader is not None
answering_endpoint = util.module_from_spec(_spec)
sys.modules.setdefault("answering_endpoint", answering_endpoint)
_spec.loader.exec_module(answering_endpoint)

ENVIRONMENT = """
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import verifiers as vf


def rows(count):
    return [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(count)]


def is_right(completion, answer):
    return 1.0 if f"<answer>{answer}</answer>" in completion[-1]["content"] else 0.0


def mean_of_group(states):
    return [vf.Score(len(states), explanation=f"{len(states)} rollouts") for _ in states]


class Env(vf.SingleTurnEnv):
    async def setup_state(self, state):
        state["pid"], state["python"] = os.getpid(), sys.executable
        told = dict(state.get("info") or {})
        if notes := told.get("note"):
            with Path(notes).open("a") as file:
                file.write(f"{os.getpid()}\\n")
        if told.get("die") == "always" or (told.get("die") == "once" and not Path(told["mark"]).exists()):
            if mark := told.get("mark"):
                Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if told.get("stand_still"):
            re.match(r"(a+)+$", "a" * 40 + "b")
        if told.get("raise"):
            raise vf.ConfigError("a setting is wrong")
        if told.get("child"):
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(told["child"]).write_text(str(child.pid))
        if wait := told.get("wait"):
            try:
                while not Path(wait).exists():
                    await asyncio.sleep(0.02)
            finally:
                Path(wait + ".left").touch()
        return await super().setup_state(state)


def load_environment(count: int = 6, group: bool = False, broken: bool = False):
    if broken:
        raise RuntimeError("no data on this machine")
    funcs = [is_right, mean_of_group] if group else [is_right]
    return Env(dataset=rows(count), rubric=vf.Rubric(funcs=funcs))
"""

_numbers = count()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder for temporary files whose path leaves room for the name of a socket."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def endpoint() -> Iterator[Any]:
    with answering_endpoint.AnsweringEndpoint() as running:
        yield running


@pytest.fixture
def config(endpoint: Any) -> vf.ClientConfig:
    return vf.ClientConfig(api_base_url=endpoint.url, max_retries=0)


@pytest.fixture
def env_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An environment of this test's own, importable here and so in the workers."""
    name = f"served_{os.getpid()}_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name.replace("_", "-")


@pytest.fixture
async def start(env_id: str) -> AsyncIterator[Callable[..., Any]]:
    """Starts servers that end with the test: `server, client = await start(num_workers=2)`."""
    started: list[ServerProcess] = []

    async def start_one(env_args: dict[str, Any] | None = None, **options: Any) -> Any:
        server = ServerProcess(
            env_id, env_args, **{"health_check_interval": 0.1, "startup_timeout": 40.0, **options}
        )
        started.append(server)
        return server, await server.start()

    yield start_one
    for server in started:
        await server.stop()


@pytest.fixture
def row() -> Callable[..., dict[str, Any]]:
    """Makes dataset rows; `info` tells the environment what to do."""

    def made(number: int = 3, **info: Any) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "prompt": [{"role": "user", "content": f"What is {number} + {number + 1}?"}],
            "answer": str(2 * number + 1),
            "example_id": number,
        }
        return {**fields, "info": info} if info else fields

    return made


@pytest.fixture
def until() -> Callable[..., Any]:
    """Waits for something another process does."""

    async def wait(holds: Callable[[], bool], *, within_s: float = 20.0) -> None:
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110 - no event reaches this process
                await asyncio.sleep(0.01)

    return wait


@pytest.fixture
def is_running() -> Callable[[int], bool]:
    """Whether a process is there and not merely waiting to be collected by its parent."""

    def running(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    return running
