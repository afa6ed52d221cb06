"""`vf-rollouts` as a trainer uses it: the real command, the embedded endpoint, real HTTP."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from verifiers.endpoint import endpoint_process

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "pull_trainer.py"
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from vf_cli.main import rollouts_main as m; sys.exit(m())",
]
SAMPLING = '{"temperature": 1.0, "max_tokens": 64}'
# The embedded model is neither always right nor always wrong on these.
ENVIRONMENT = """
import verifiers as vf


def said_letters(completion, answer):
    return sum(letter in answer for letter in completion[-1]["content"]) / 64


def load_environment(count: int = 20):
    rows = [{"question": f"text {n}", "answer": "aeiou"} for n in range(count)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[said_letters]))
"""


@pytest.fixture(scope="module")
def endpoint():
    with endpoint_process() as running:
        yield running


class Served:
    """A running `vf-rollouts`."""

    def __init__(self, process, url):
        self.process = process
        self.url = url

    def get(self, path, key=None, **headers):
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read() or b"null")

    def end(self, number=signal.SIGTERM):
        """Exit code, and all it said on stderr."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said


@pytest.fixture
def serve(endpoint, tmp_path):
    (tmp_path / "vowels.py").write_text(ENVIRONMENT)
    running = []

    def start(*options):
        command = [*COMMAND, "vowels", "-b", endpoint.url, "-m", "embedded", "-S", SAMPLING]
        command += ["-g", "2", "-r", "4", "-c", "8", "-p", "0", "--json", *options]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        running.append(process)
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        return Served(process, json.loads(text)["url"])

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_example_trainer_takes_its_steps_and_sigterm_ends_the_server_cleanly(serve):
    server = serve()
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), server.url, "--steps", "3"],
        capture_output=True, text=True, check=False, timeout=50,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"step (\d): reward 0\.\d\d, (\d+) of \d+ tokens", done.stdout)
    assert [step for step, _ in steps] == ["1", "2", "3"]
    assert all(int(trained) > 0 for _, trained in steps)
    assert server.get("/info")[1]["version"] == 3
    code, said = server.end()
    assert code == 0
    # The warning depends on what the model sampled: whether the rewards of some group differ.
    assert all("all rollouts have the same reward" in line for line in said.splitlines())


def test_a_state_is_continued_in_another_process(serve, tmp_path):
    server = serve()
    _, first = server.get("/batches/1?timeout_s=30")
    state = server.get("/state")[1]
    assert server.end(signal.SIGINT)[0] == 0
    (tmp_path / "state.json").write_text(json.dumps(state))
    server = serve("--state", str(tmp_path / "state.json"), "--version", "6")
    _, second = server.get("/batches/2?timeout_s=30")
    assert second["version"] == 6
    groups = [{sample["group_id"] for sample in batch["samples"]} for batch in (first, second)]
    assert not groups[0] & groups[1]


def test_away_from_this_machine_a_key_is_needed_and_checked(serve):
    server = serve("--host", "0.0.0.0", "--api-key", "secret")
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    assert server.get("/health")[0] == 200
    for key in (None, "wrong"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.get("/info", key=key)
        assert refused.value.code == 401
        refused.value.close()
    assert server.get("/info", key="secret")[1]["env_id"] == "vowels"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dialect", "tgi"], "prime_rl or vllm; got 'tgi'"),
        (["-S", "{"], "not valid JSON"),
        (["-g", "0"], "--groups-per-batch"),
        (["--state", "nowhere.json"], "nowhere.json cannot be read"),
        (["--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["--host", "0.0.0.0"], "set an api_key"),
    ],
)
def test_bad_options_are_refused_with_what_to_do(run, options, said):
    done = run("rollouts", "reverse-text", "-b", "http://127.0.0.1:9", "-m", "m", *options)
    assert done.code == 2
    assert said in done.err


def test_settings_come_from_a_file_too_and_unknown_ones_are_refused(serve, run, tmp_path):
    path = tmp_path / "source.toml"
    path.write_text('max_off_policy_steps = 2\nadvantage = "leave_one_out"\ngroups_per_batch = 5\n')
    config = serve("--config", str(path)).get("/info")[1]["config"]
    assert (config["max_off_policy_steps"], config["advantage"]) == (2, "leave_one_out")
    assert config["groups_per_batch"] == 2  # as the option says
    path.write_text("group_size = 3\n")
    done = run("rollouts", "reverse-text", "-b", "http://x", "-m", "m", "--config", path)
    assert done.code == 2
    assert "group_size" in done.err


def test_a_port_in_use_says_so(run, endpoint):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("rollouts", "reverse-text", "-b", endpoint.url, "-m", "embedded", "-p", port)
    assert done.code == 2
    assert f"Cannot listen on 127.0.0.1:{port}" in done.err


def test_a_reader_that_stops_reading_holds_up_nobody_else(serve):
    server = serve()
    server.get("/batches/1?timeout_s=30")
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.sendall(b"GET /batches/1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert slow.recv(1)
        # It never reads the rest; another gets the same batch and the next, and the server still ends at once.
        assert server.get("/batches/1")[1]["step"] == 1
        assert server.get("/batches/2?timeout_s=30")[1]["step"] == 2
        begun = time.monotonic()
        assert server.end()[0] == 0
        assert time.monotonic() - begun < 20
