import json
import subprocess
from pathlib import Path

import pytest

from verifiers.envs.agents.open_code_config import (
    DEFAULT_RELEASE_SHA256,
    ENTER_OPENCODE,
    build_install_script,
    build_opencode_config,
)


def expanded(config: str, **variables: str) -> dict:
    """The configuration as a shell of the sandbox writes it."""
    script = f"{ENTER_OPENCODE}\ncat << EOFCONFIG\n{config}\nEOFCONFIG\n"
    env = {"PATH": "/usr/bin:/bin", "HOME": "/root", **variables}
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


VARIABLES = {
    "OPENAI_MODEL": "acme/tiny",
    "OPENAI_BASE_URL": "http://127.0.0.1:8765/v1",
    "OPENAI_API_KEY": "secret",
}


def test_expanded_configuration_leads_to_the_model_of_the_rollout() -> None:
    config = expanded(build_opencode_config(), **VARIABLES)
    assert config["$schema"] == "https://opencode.ai/config.json"
    assert config["model"] == config["small_model"] == "acme/tiny"
    assert config["compaction"] == {"auto": False, "prune": False}
    assert config["agent"] == {"title": {"disable": True}}
    (provider,) = config["provider"].values()
    assert list(config["provider"]) == ["acme"]
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["name"] == "acme"
    assert provider["options"] == {
        "baseURL": "http://127.0.0.1:8765/v1",
        "apiKey": "secret",
        "timeout": 3_600_000,
    }
    assert provider["models"] == {
        "tiny": {
            "name": "tiny",
            "modalities": {"input": ["text", "image"], "output": ["text"]},
            "interleaved": {"field": "reasoning_content"},
        }
    }


def test_a_model_without_provider_and_a_missing_key_are_completed() -> None:
    config = expanded(build_opencode_config(), OPENAI_MODEL="adapter-7", OPENAI_BASE_URL="http://x")
    assert config["model"] == "vllm/adapter-7"
    assert config["provider"]["vllm"]["options"]["apiKey"] == "intercepted"
    assert list(config["provider"]["vllm"]["models"]) == ["adapter-7"]


def test_options_appear_in_the_configuration() -> None:
    text = build_opencode_config(
        disabled_tools=["write", "grep"],
        system_prompt_path="/opencode/system.txt",
        disable_compaction=False,
        provider_key="intercepted",
        provider_display_name="Ours",
        model_id="intercepted/model",
        model_key="model",
        model_display_name="The model",
        provider_timeout_ms=5,
        enable_interleaved=False,
    )
    config = expanded(text, **VARIABLES)
    assert "compaction" not in config
    assert config["model"] == "intercepted/model"
    assert config["agent"]["build"] == {
        "prompt": "{file:/opencode/system.txt}",
        "tools": {"write": False, "grep": False},
    }
    provider = config["provider"]["intercepted"]
    assert (provider["name"], provider["options"]["timeout"]) == ("Ours", 5)
    assert provider["models"]["model"]["name"] == "The model"
    assert provider["models"]["model"]["interleaved"] is False


def install(home: Path, path: str, script: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": path, "HOME": str(home)}
    return subprocess.run(["/bin/bash", "-c", script], env=env, capture_output=True, text=True)


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + text)
    (folder / name).chmod(0o755)


def test_an_installed_opencode_is_left_alone(tmp_path: Path) -> None:
    program(tmp_path / ".opencode/bin", "opencode", "exit 1\n")
    done = install(tmp_path, "/nonexistent", build_install_script())
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / ".opencode/bin/opencode") in done.stdout


@pytest.mark.parametrize("right", [True, False])
def test_release_is_installed_only_with_the_right_checksum(tmp_path: Path, right: bool) -> None:
    """`curl` and `rg` are programs of the test; tar, sha256sum and install are those of the system."""
    program(tmp_path / "release", "opencode", "echo 9.9.9\n")
    archive = tmp_path / "opencode.tar.gz"
    subprocess.run(
        ["tar", "-czf", str(archive), "-C", str(tmp_path / "release"), "opencode"], check=True
    )
    log = tmp_path / "urls"
    fake_curl = f'echo "$@" > {log}\nwhile [ "$1" != -o ]; do shift; done\ncp {archive} "$2"\n'
    program(tmp_path / "bin", "curl", fake_curl)
    program(tmp_path / "bin", "rg", "")
    checksum = subprocess.run(
        ["sha256sum", str(archive)], capture_output=True, text=True, check=True
    )
    script = build_install_script(
        "acme/opencode", "v9.9.9", checksum.stdout.split()[0] if right else DEFAULT_RELEASE_SHA256
    )
    done = install(tmp_path, f"{tmp_path}/bin:/usr/bin:/bin", script)
    assert "https://github.com/acme/opencode/releases/download/v9.9.9/opencode-linux-" in (
        log.read_text()
    )
    assert (done.returncode == 0) is right, done.stderr
    assert (tmp_path / ".opencode/bin/opencode").exists() is right
    assert ("9.9.9" in done.stdout) is right
