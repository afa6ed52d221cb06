"""`vf-endpoint`, run as a person runs it."""

import json
import logging
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from verifiers.endpoint.process import BLAS_THREAD_VARIABLES
from vf_cli.main import endpoint_main

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from vf_cli.main import endpoint_main; sys.exit(endpoint_main())",
]


@pytest.fixture
def process_state(monkeypatch):
    """Puts back what a command sets for its whole process."""
    for name in BLAS_THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    logger = logging.getLogger("verifiers")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def run(*arguments: str) -> subprocess.Popen:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*COMMAND, *arguments], **pipes)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_and_stops_cleanly(number):
    with run("--port", "0", "-m", "one", "-m", "two") as process:
        first = process.stdout.readline()
        assert first.startswith("serving    http://127.0.0.1:")
        base_url = first.split()[1]
        with urllib.request.urlopen(f"{base_url}/models") as response:
            assert [card["id"] for card in json.load(response)["data"]] == ["one", "two"]
        process.send_signal(number)
        assert f"vf-eval reverse-text -m one -b {base_url}" in process.stdout.read()
        assert (process.wait(), process.stderr.read()) == (0, "")


def test_programs_get_the_address_as_json():
    with run("--port", "0", "--json") as process:
        lines = iter(process.stdout.readline, "}\n")
        shown = json.loads("".join(lines) + "}")
        assert shown["pid"] == process.pid
        assert shown["models"] == ["embedded"]
        process.terminate()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--port", "70000"), 2, "65535"),
        (("--max-running", "0"), 2, "max-running"),
        (("--weights", "/nowhere"), 1, "Cannot read /nowhere/config.json"),
        (("--api-key", ""), 2, "api_key is empty"),
        (("--modelname", "x"), 2, "No such option"),
    ],
)
def test_wrong_usage_is_explained(process_state, monkeypatch, capsys, arguments, code, words):
    monkeypatch.setattr(sys, "argv", ["vf-endpoint", "--port", "0", *arguments])
    assert endpoint_main() == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err
    assert "Traceback" not in shown.err


def test_a_port_that_is_taken_is_said_with_what_to_do(capsys, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setattr(sys, "argv", ["vf-endpoint", "--port", port])

        assert endpoint_main() == 2

    said = " ".join(capsys.readouterr().err.split())
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use. Choose with --host" in said
