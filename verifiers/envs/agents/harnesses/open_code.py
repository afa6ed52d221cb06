"""The harness of OpenCode, a coding agent for the terminal.

    ComposableEnv(taskset, opencode_harness(), sandbox_spec={"network": "full"})    # the installation needs a network

An image with `opencode` on its PATH needs none. Source: https://opencode.ai/docs
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from verifiers.envs.agents.harness import Harness
from verifiers.envs.agents.open_code_config import (
    DEFAULT_RELEASE_REPO,
    DEFAULT_RELEASE_SHA256,
    DEFAULT_RELEASE_VERSION,
    DEFAULT_SYSTEM_PROMPT,
    ENTER_OPENCODE,
    MODEL_ID,
    MODEL_KEY,
    PROVIDER_KEY,
    PROVIDER_TIMEOUT_MS,
    build_install_script,
    build_opencode_config,
)

DEFAULT_DISABLED_TOOLS = [
    "apply_patch",
    "write",
    "multiedit",
    "glob",
    "todowrite",
    "todoread",
    "websearch",
    "task",
    "batch",
    "list",
    "read",
    "question",
    "webfetch",
    "grep",
    "plan_exit",
    "plan_enter",
    "lsp",
    "codesearch",
    "skill",
]
"""Tools to turn off for an agent that works with `bash` and `edit` only."""
OPENCODE_INSTALL_SCRIPT = build_install_script()


def build_opencode_run_command(
    agent_workdir: str = "/app",
    prompt_path: str = "/opencode/prompt.txt",
    log_path: str = "/opencode/logs.txt",
    disabled_tools: Sequence[str] | None = None,
    system_prompt_path: str | None = None,
    disable_compaction: bool = True,
    allow_git: bool = False,
    provider_key: str = PROVIDER_KEY,
    provider_display_name: str | None = None,
    model_id: str = MODEL_ID,
    model_key: str = MODEL_KEY,
    model_display_name: str | None = None,
    provider_timeout_ms: int = PROVIDER_TIMEOUT_MS,
) -> str:
    """Return a `bash -lc` command that configures OpenCode and runs it on the text in `prompt_path`.

    It works in `$AGENT_WORKDIR`, or in `agent_workdir` if that is not set, and copies its output to `log_path`.
    """
    config = build_opencode_config(
        disabled_tools,
        system_prompt_path,
        disable_compaction,
        provider_key,
        provider_display_name,
        model_id,
        model_key,
        model_display_name,
        provider_timeout_ms,
    )
    log_folder = posixpath.dirname(log_path) or "."
    script = f"""\
set -eo pipefail
{ENTER_OPENCODE}\
export OPENCODE_DISABLE_FILETIME_CHECK=true
export ALLOW_GIT={int(allow_git)}
workdir=${{AGENT_WORKDIR:-}}
if [ -z "$workdir" ]; then workdir={shlex.quote(agent_workdir)}; fi
config="${{XDG_CONFIG_HOME:-$HOME/.config}}/opencode"
mkdir -p "$config" {shlex.quote(log_folder)} "$workdir"
cat > "$config/opencode.json" << EOFCONFIG
{config}
EOFCONFIG
cd "$workdir"
cat {shlex.quote(prompt_path)} | opencode run 2>&1 | tee {shlex.quote(log_path)}
"""
    return f"bash -lc {shlex.quote(script)}"


def opencode_harness(
    system_prompt: str | None = DEFAULT_SYSTEM_PROMPT,
    task_system_prompt: str | None = None,
    disabled_tools: Sequence[str] | None = None,
    agent_workdir: str = "/app",
    allow_git: bool = False,
    disable_compaction: bool = True,
    release_repo: str = DEFAULT_RELEASE_REPO,
    release_version: str = DEFAULT_RELEASE_VERSION,
    release_sha256: str = DEFAULT_RELEASE_SHA256,
    instruction_path: str = "/opencode/prompt.txt",
    system_prompt_path: str = "/opencode/system.txt",
    log_path: str = "/opencode/logs.txt",
    provider_key: str = PROVIDER_KEY,
    provider_display_name: str | None = None,
    model_id: str = MODEL_ID,
    model_key: str = MODEL_KEY,
    model_display_name: str | None = None,
    provider_timeout_ms: int = PROVIDER_TIMEOUT_MS,
) -> Harness:
    """Return the harness of OpenCode.

    `task_system_prompt` is added after `system_prompt`. `allow_git` lets a wrapper of git in the image allow commands
    that change the history. The release is installed unless `opencode` is in the sandbox already.
    """
    system_prompt = with_task_prompt(system_prompt, task_system_prompt)
    return Harness(
        install_script=build_install_script(release_repo, release_version, release_sha256),
        run_command=build_opencode_run_command(
            agent_workdir,
            instruction_path,
            log_path,
            disabled_tools,
            system_prompt_path if system_prompt else None,
            disable_compaction,
            allow_git,
            provider_key,
            provider_display_name,
            model_id,
            model_key,
            model_display_name,
            provider_timeout_ms,
        ),
        system_prompt=system_prompt,
        system_prompt_path=system_prompt_path,
        instruction_path=instruction_path,
        log_path=log_path,
    )


def with_task_prompt(system_prompt: str | None, task_system_prompt: str | None) -> str | None:
    """Return both texts, the second one after a newline; one alone stands for itself."""
    if system_prompt and task_system_prompt:
        return f"{system_prompt}\n{task_system_prompt}"
    return task_system_prompt or system_prompt


__all__ = [
    "DEFAULT_DISABLED_TOOLS",
    "OPENCODE_INSTALL_SCRIPT",
    "build_opencode_run_command",
    "opencode_harness",
]
