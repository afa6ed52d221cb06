"""The unmodified public command beside ours: one configuration file, one hub, the same content for the same files."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers.hub.config import HubConfigFile, hub_settings

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
VERSIONS = ["0.7.7", "0.18.0"]


@pytest.fixture(scope="module", params=VERSIONS)
def public(request, tmp_path_factory):
    """The public command, installed from the machine's package index into an environment of its own."""
    uv = Path(sys.executable).with_name("uv")
    found = str(uv) if uv.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("public") / "venv"
    subprocess.run([found, "venv", "-q", "-p", sys.executable, str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run(
        [found, "pip", "install", "-q", "-p", python, f"prime=={request.param}"], check=True
    )

    def run(*arguments, check=True, **variables):
        done = subprocess.run(
            [str(folder / "bin" / "prime"), *map(str, arguments)],
            env={
                **os.environ,
                "PRIME_DISABLE_VERSION_CHECK": "1",
                "NO_PROXY": "127.0.0.1,localhost",
                "COLUMNS": "200",
                "TERM": "dumb",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                **variables,
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
        if check:
            assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def test_the_public_command_reads_the_file_and_the_contexts_that_we_write(prime, public, hub):
    prime("config", "set-base-url", hub.url)
    prime("config", "set-api-key", typed=hub.token + "\n")
    prime("config", "save", "ours")
    assert "alice" in public("whoami").stdout
    assert hub.url in public("config", "view").stdout
    assert "ours" in public("config", "envs").stdout
    prime("config", "use", "production")
    assert HubConfigFile().read()["api_key"] == ""
    assert "alice" in public("-c", "ours", "whoami").stdout
    public("config", "use", "ours")
    assert prime("whoami", "--json").json["slug"] == "alice"


def test_we_read_the_file_and_the_contexts_that_the_public_command_writes(prime, public, hub):
    public("config", "view")
    HubConfigFile().update(current_environment="production")
    assert prime("env", "list").code == 2  # its vendor's address is not the user's choice
    public("config", "set-base-url", f"{hub.url}/api/v1/")
    public("config", "set-api-key", hub.token)
    public("config", "save", "theirs")
    assert (hub_settings().base_url, hub_settings().api_key) == (hub.url, hub.token)
    assert prime("whoami", "--json").json["slug"] == "alice"
    public("config", "use", "production")
    assert prime("env", "list").code == 2
    assert prime("-c", "theirs", "whoami", "--json").json["slug"] == "alice"
    prime("config", "use", "theirs")
    assert "alice" in public("whoami").stdout
    before = json.loads(HubConfigFile().path.read_text())
    prime("config", "set-inference-url", "http://127.0.0.1:1/v1")
    after = json.loads(HubConfigFile().path.read_text())
    assert {key: after[key] for key in before} == {
        **before,
        "inference_url": "http://127.0.0.1:1/v1",
    }


def test_both_commands_publish_the_same_content_under_the_same_hash(
    prime, public, alice, hub, make_project
):
    variables = {"PRIME_API_BASE_URL": hub.url, "PRIME_API_KEY": hub.token}
    for first in ("public", "ours"):
        folder = make_project(
            files={
                "README.md": "# Both",
                "parts/b.py": "X = 2",
                "parts/a.py": "X = 1",
                "parts/data.json": "[]",
                ".gitignore": "skipped/\n",
                "skipped/x.py": "no",
            }
        )
        name = f"alice/{folder.name.replace('_', '-')}"
        if first == "public":
            public("env", "push", "--path", folder, **variables)
            again = prime("env", "push", "-p", folder, "--json")
            assert (again.code, again.json["is_new"]) == (0, False)
        else:
            assert prime("env", "push", "-p", folder).code == 0
            again = public("env", "push", "--path", folder, check=False, **variables)
            assert again.returncode == 1
            assert "already exists" in again.stdout.lower() or "auto-bump" in again.stdout
        assert name in public("env", "list", **variables).stdout
        public("env", "pull", name, "--target", f"{first}-copy", **variables)
        assert Path(f"{first}-copy", "parts", "data.json").read_text() == "[]"
        # What one command noted about the folder, the other knows.
        assert prime("env", "status", f"./{first}-copy", "--json").json["name"] == name[6:]


def test_runs_that_we_push_are_read_by_the_public_command(prime, public, alice, hub, make_project):
    folder = make_project()
    prime("env", "push", "-p", folder)
    name = f"alice/{folder.name.replace('_', '-')}"
    run = Path("run")
    run.mkdir()
    known = {
        "env_id": name,
        "model": "m",
        "avg_reward": 1.0,
        "num_examples": 1,
        "rollouts_per_example": 1,
    }
    (run / "metadata.json").write_text(json.dumps(known))
    (run / "results.jsonl").write_text('{"example_id": 0, "reward": 1.0}\n')
    evaluation = prime("eval", "push", run, "--json").json["evaluation_id"]
    variables = {"PRIME_API_BASE_URL": hub.url, "PRIME_API_KEY": hub.token}
    assert evaluation[:8] in public("eval", "list", **variables).stdout
    assert '"reward": 1.0' in public("eval", "samples", evaluation, **variables).stdout
    public("eval", "get", evaluation, **variables)
