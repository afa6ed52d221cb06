"""`vf-sandboxes`: a real server process, listed and stopped from the command line."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

SCRIPT = "import sys; from vf_cli.main import sandboxes_main; sys.exit(sandboxes_main())"
TOKEN = "a-token-for-the-tests"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("VF_SANDBOXES_TOKEN", TOKEN)
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "serve", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "}\n")
            facts = json.loads("".join(lines) + "}")
            monkeypatch.setenv("VF_SANDBOXES_URL", facts["base_url"])
            yield facts
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_sandboxes_of_a_server_are_listed_and_stopped(
    served: dict[str, Any], run: Callable[..., Any]
):
    assert "token" not in served  # it was given, so it is not shown again
    body = {"name": "made\x1b[31m", "docker_image": "host", "labels": ["x"]}
    made = httpx.post(
        served["base_url"] + "/api/v1/sandbox",
        json=body,
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=60,
    ).json()
    listed = command("list")
    assert (listed.returncode, made["id"] in listed.stdout) == (0, True)
    assert "\x1b" not in listed.stdout
    assert [each["id"] for each in run("sandboxes", "list", "--json").json] == [made["id"]]
    stopped = run("sandboxes", "stop", made["id"], "no-such")
    assert (stopped.code, stopped.out) == (1, "1 ended\n")
    assert "no-such" in stopped.err
    assert run("sandboxes", "list", "--json").json == []
    assert run("sandboxes", "stop", "--all").code == 0
    assert run("sandboxes", "stop").code == 2
    wrong = run("sandboxes", "list", "--token", "some-other-token-16")
    assert (wrong.code, "does not accept this token" in wrong.err) == (2, True)


def test_wrong_usage_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Callable[..., Any]
):
    monkeypatch.delenv("VF_SANDBOXES_TOKEN", raising=False)
    twice = tmp_path / "tokens.toml"
    twice.write_text("".join(f"[{name}]\ntoken = 'one-token-for-two'\n" for name in ("a", "b")))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        busy = command("serve", "--port", port)
    assert (busy.returncode, f"Cannot listen on 127.0.0.1:{port}" in busy.stderr) == (2, True)
    for arguments, complaint in [
        (["list"], "VF_SANDBOXES_TOKEN"),
        (["list", "--token", "t", "--url", "nonsense"], "http://"),
        (["serve", "--network", "some"], "none or full"),
        (["serve", "--tokens", "/no/such/file"], "/no/such/file"),
        (["serve", "--tokens", str(twice)], "two tokens have the same token: a, b"),
        (["serve", "--public-url", "not a url"], "'not a url' is not the address of a server"),
    ]:
        done = run("sandboxes", *arguments)
        assert (done.code, complaint in done.err) == (2, True), done.err
        assert "sha256" not in done.err
    gone = run("sandboxes", "list", "--token", "t", "--url", "http://127.0.0.1:9")
    assert (gone.code, "does not answer" in gone.err) == (1, True)
