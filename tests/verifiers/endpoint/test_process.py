import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from urllib.parse import urlsplit

import pytest

from verifiers.endpoint import EndpointStartError, endpoint_process, start_endpoint_process
from verifiers.endpoint.weights import save_checkpoint


def get(url: str, key: str | None = None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def open_connection(base_url: str) -> socket.socket:
    """A connection the server holds: reading from it returns when the server is gone."""
    parts = urlsplit(base_url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=30)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b'"ok"' in connection.recv(4096)
    return connection


def test_a_process_serves_until_it_is_closed(folder, make_tensors, tiny_config):
    save_checkpoint(folder, tiny_config, make_tensors(0))
    with endpoint_process(
        weights=folder, model_name="mine", api_key="secret", max_running=3
    ) as endpoint:
        [card] = get(f"{endpoint.base_url}/models", "secret")["data"]
        assert (card["id"], card["max_model_len"]) == ("mine", 64)
        assert get(f"{endpoint.url}/health")["status"] == "ok"
        command_line = subprocess.run(
            ["ps", "-o", "args=", str(endpoint.pid)], capture_output=True, text=True
        )
        assert "secret" not in command_line.stdout
        assert endpoint.is_running
    assert not endpoint.is_running
    endpoint.close()


PARENT = """
import os, signal, sys
from verifiers.endpoint import start_endpoint_process
endpoint = start_endpoint_process()
print(endpoint.base_url, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_process_ends_when_its_parent_is_killed():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", PARENT], **pipes) as parent:
        base_url = parent.stdout.readline().strip()
        with open_connection(base_url) as connection:
            parent.communicate("die\n")
            assert parent.returncode == -signal.SIGKILL
            assert connection.recv(4096) == b""


def test_a_start_that_fails_says_why(tmp_path):
    with pytest.raises(EndpointStartError, match="No such file"):
        start_endpoint_process(weights=tmp_path / "none")
    with pytest.raises(EndpointStartError, match="port=99999"):
        start_endpoint_process(port=99999)


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EndpointStartError, match="address already in use"):
            start_endpoint_process(port=taken.getsockname()[1])


def test_a_silent_process_is_ended(monkeypatch, tmp_path):
    silent = tmp_path / "python"
    silent.write_text('#!/bin/sh\necho $$ > "$0.pid"\nexec sleep 60\n')
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    with pytest.raises(EndpointStartError, match=r"printed nothing within 0\.3 s"):
        start_endpoint_process(start_timeout_s=0.3)
    pid = int((tmp_path / "python.pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_package_imports_nothing_heavy_until_a_name_is_used():
    program = (
        "import sys, verifiers.endpoint; heavy = {'numpy', 'aiohttp', 'orjson', 'torch'} & set(sys.modules); "
        "verifiers.endpoint.EmbeddedEndpoint; print(sorted(heavy), 'torch' in sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[] False\n"
