"""Commands are run as their entry points run them; the endpoint and the environments are real."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import util
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vf_cli import command as command_line

_spec = util.spec_from_file_location(
    "answering_endpoint", Path(__file__).with_name("answering_endpoint.py")
)
assert _spec is not None
assert _spec.loader is not None
answering_endpoint = util.module_from_spec(_spec)
sys.modules["answering_endpoint"] = answering_endpoint
_spec.loader.exec_module(answering_endpoint)
AnsweringEndpoint = answering_endpoint.AnsweringEndpoint

ENVIRONMENT = """
import verifiers as vf


def rows(count):
    return [{"question": f"What is {a} + {a + 1}?", "answer": str(2 * a + 1)} for a in range(count)]


def is_right(completion, answer):
    return 1.0 if f"<answer>{answer}</answer>" in completion[-1]["content"] else 0.0


def load_environment(count: int = 6, difficulty: str = "easy"):
    return vf.SingleTurnEnv(dataset=rows(count), rubric=vf.Rubric(funcs=[is_right]))
"""

_numbers = count()


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as the one JSON document it is."""
        return json.loads(self.out)


@pytest.fixture
def endpoint() -> Iterator[Any]:
    """An endpoint that answers every sum rightly."""
    with AnsweringEndpoint() as running:
        yield running


@pytest.fixture
def endpoint_that() -> Iterator[Callable[..., Any]]:
    """Endpoints with faults of their own."""
    running: list[Any] = []

    def start(**faults: Any) -> Any:
        running.append(AnsweringEndpoint(**faults).__enter__())
        return running[-1]

    yield start
    for one in running:
        one.__exit__()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command in this process: `run("eval", "my-env", "-n", 3)`."""

    def call(command: str, *arguments: Any) -> Done:
        from importlib import import_module

        capsys.readouterr()
        app = import_module(f"vf_cli.{command}").app
        code = command_line.run(app, f"vf-{command}", [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return call


@pytest.fixture
def ctrl_c_when() -> Iterator[Callable[[threading.Event], None]]:
    """Send SIGINT to this process once an event is set, which must be while a command runs here."""
    threads: list[threading.Thread] = []

    def when(event: threading.Event) -> None:
        def send() -> None:
            if event.wait(60):
                os.kill(os.getpid(), signal.SIGINT)

        threads.append(threading.Thread(target=send, daemon=True))
        threads[-1].start()

    yield when
    for thread in threads:
        thread.join()


@pytest.fixture
def make_environment() -> Callable[..., str]:
    """Write an environment module of its own name under ./environments; gives the path to its folder."""

    def make(source: str = ENVIRONMENT, *, name: str | None = None, suggested: str = "") -> str:
        name = name or f"sums{next(_numbers)}"
        folder = Path("environments") / name
        folder.mkdir(parents=True)
        (folder / f"{name}.py").write_text(source)
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "0.1.0"\n{suggested}'
        )
        return f"./{folder}"

    return make


@pytest.fixture
def start_process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a command in a process of its own, for signals and terminals."""
    started: list[subprocess.Popen[str]] = []

    def start(
        command: str, *arguments: Any, grace_s: float | None = 60.0, **options: Any
    ) -> subprocess.Popen[str]:
        # An orderly end may take longer than the usual grace (None) on a machine that does other things.
        grace = (
            "" if grace_s is None else f"GRACE_S, interrupts.KILL_S = {grace_s}, {grace_s + 0.3}"
        )
        code = (
            f"import sys\nfrom vf_cli import interrupts\n{grace and 'interrupts.' + grace}\n"
            f"from vf_cli.main import {command}_main\nsys.exit({command}_main())"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "default"},
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "stdin": subprocess.DEVNULL,
                **options,
            },
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
