"""Texts that install OpenCode in a sandbox and configure it: shell scripts, the configuration, the system prompt.

The configuration is JSON that the shell of the sandbox expands, because the URL of the model, its name and the key
exist only there: `$OPENAI_BASE_URL`, `$OPENAI_MODEL`, `$OPENAI_API_KEY`.

Source: https://opencode.ai/docs/config
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

SCHEMA_URL = "https://opencode.ai/config.json"
API_KEY = "${OPENAI_API_KEY:-intercepted}"
"""The key of the interception server, which requires it. OpenCode does not start without a key."""
PROVIDER_KEY = "${OPENAI_MODEL%%/*}"
MODEL_ID = "$OPENAI_MODEL"
MODEL_KEY = "${OPENAI_MODEL##*/}"
PROVIDER_TIMEOUT_MS = 3_600_000

DEFAULT_RELEASE_REPO = "PrimeIntellect-ai/opencode"
DEFAULT_RELEASE_VERSION = "1.1.63-rl2"
DEFAULT_RELEASE_SHA256 = "47f4102796da50769e27d2c9ea6a9cf7941f76898390cb497278cab39c4b6ed4"

DEFAULT_SYSTEM_PROMPT = """\
You are OpenCode, a coding agent. You work in a terminal, alone, on one task, with the tools that you have.

# Work
- Read the relevant files before you change anything. Follow the conventions of the code around your change.
- Make the smallest change that solves the whole task. Edit existing files; create a file only if the task needs it.
- Check your work: run the program, the tests or a short script. Fix the cause of a failure, not its symptom.
- You receive no answers to questions. If the task is unclear, choose the most plausible reading and finish the task.

# Replies
- Use tools to act, and text to report. Commands and comments in code are not a place for messages to the user.
- Be short and exact. Report what you did and what remains. Do not use emojis, praise or filler.
- State facts. If an assumption of the user is wrong, say so; if you do not know something, find out.
"""

ENTER_OPENCODE = """\
export PATH="$HOME/.opencode/bin:$PATH"
case "$OPENAI_MODEL" in
  */*) ;;
  *) export OPENAI_MODEL="vllm/$OPENAI_MODEL" ;;
esac
SCHEMA_DOLLAR='$'
"""
"""Shell lines before the configuration is written. OpenCode requires a model name of the form `provider/model`."""

APT_INSTALL = """\
apt_install() {
  for attempt in 1 2 3; do
    if apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" > /dev/null; then
      return 0
    fi
    sleep 2
  done
  echo "The packages $* could not be installed. Use an image that has them, or allow the sandbox network access." >&2
  return 1
}
"""
"""Shell function that installs packages of Debian and Ubuntu, with three attempts."""


def build_opencode_config(
    disabled_tools: Sequence[str] | None = None,
    system_prompt_path: str | None = None,
    disable_compaction: bool = True,
    provider_key: str = PROVIDER_KEY,
    provider_display_name: str | None = None,
    model_id: str = MODEL_ID,
    model_key: str = MODEL_KEY,
    model_display_name: str | None = None,
    provider_timeout_ms: int = PROVIDER_TIMEOUT_MS,
    enable_interleaved: bool = True,
) -> str:
    """Return OpenCode's configuration. Expanded by a shell after `ENTER_OPENCODE`, it is valid JSON.

    `provider_timeout_ms` limits one model call. `enable_interleaved` sends `reasoning_content` of earlier turns back
    to the model. Titles of conversations are off, because their model calls would be turns of the rollout.
    """
    model = {
        "name": model_display_name or model_key,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
        "interleaved": {"field": "reasoning_content"} if enable_interleaved else False,
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": provider_display_name or provider_key,
        "options": {
            "baseURL": "$OPENAI_BASE_URL",
            "apiKey": API_KEY,
            "timeout": provider_timeout_ms,
        },
        "models": {model_key: model},
    }
    config: dict[str, Any] = {
        "${SCHEMA_DOLLAR}schema": SCHEMA_URL,
        "provider": {provider_key: provider},
        "model": model_id,
        "small_model": model_id,
    }
    if disable_compaction:
        config["compaction"] = {"auto": False, "prune": False}
    build: dict[str, Any] = {}
    if system_prompt_path:
        build["prompt"] = f"{{file:{system_prompt_path}}}"
    if disabled_tools:
        build["tools"] = dict.fromkeys(disabled_tools, False)
    config["agent"] = {"title": {"disable": True}, **({"build": build} if build else {})}
    return json.dumps(config, indent=2)


def build_install_script(
    release_repo: str = DEFAULT_RELEASE_REPO,
    release_version: str = DEFAULT_RELEASE_VERSION,
    release_sha256: str = DEFAULT_RELEASE_SHA256,
    install_ripgrep: bool = True,
) -> str:
    """Return a shell script that installs a release of OpenCode in `~/.opencode/bin`.

    The script does nothing if `opencode` is there. It downloads the release from GitHub and compares its SHA-256.
    """
    tag = f"v{release_version.removeprefix('v')}"
    releases = shlex.quote(f"https://github.com/{release_repo}/releases/download/{tag}")
    ripgrep = (
        "\ncommand -v rg > /dev/null || apt_install ripgrep || true" if install_ripgrep else ""
    )
    return f"""\
set -e
export PATH="$HOME/.opencode/bin:$PATH"
if command -v opencode > /dev/null; then
  echo "OpenCode is there: $(command -v opencode)"
  exit 0
fi
{APT_INSTALL}
command -v curl > /dev/null && command -v tar > /dev/null || apt_install ca-certificates curl tar{ripgrep}
case "$(uname -m)" in
  x86_64) arch=x64 ;;
  aarch64 | arm64) arch=arm64 ;;
  *) echo "OpenCode has no release for the architecture $(uname -m)." >&2; exit 1 ;;
esac
folder=$(mktemp -d)
curl -fsSL --retry 3 {releases}/opencode-linux-$arch.tar.gz -o "$folder/opencode.tar.gz"
echo {shlex.quote(release_sha256)}"  $folder/opencode.tar.gz" | sha256sum -c -
tar -xzf "$folder/opencode.tar.gz" -C "$folder"
mkdir -p "$HOME/.opencode/bin"
install -m 755 "$folder/opencode" "$HOME/.opencode/bin/opencode"
rm -rf "$folder"
"$HOME/.opencode/bin/opencode" --version
"""


__all__ = [
    "API_KEY",
    "APT_INSTALL",
    "DEFAULT_RELEASE_REPO",
    "DEFAULT_RELEASE_SHA256",
    "DEFAULT_RELEASE_VERSION",
    "DEFAULT_SYSTEM_PROMPT",
    "ENTER_OPENCODE",
    "MODEL_ID",
    "MODEL_KEY",
    "PROVIDER_KEY",
    "PROVIDER_TIMEOUT_MS",
    "build_install_script",
    "build_opencode_config",
]
