"""v0 import path of the OpenCode harness."""

from verifiers.envs.agents.harnesses.open_code import (
    DEFAULT_DISABLED_TOOLS,
    OPENCODE_INSTALL_SCRIPT,
    build_opencode_run_command,
    opencode_harness,
)
from verifiers.envs.agents.open_code_config import (
    DEFAULT_RELEASE_REPO,
    DEFAULT_RELEASE_SHA256,
    DEFAULT_RELEASE_VERSION,
    DEFAULT_SYSTEM_PROMPT,
    build_install_script,
    build_opencode_config,
)

__all__ = [
    "DEFAULT_DISABLED_TOOLS",
    "DEFAULT_RELEASE_REPO",
    "DEFAULT_RELEASE_SHA256",
    "DEFAULT_RELEASE_VERSION",
    "DEFAULT_SYSTEM_PROMPT",
    "OPENCODE_INSTALL_SCRIPT",
    "build_install_script",
    "build_opencode_config",
    "build_opencode_run_command",
    "opencode_harness",
]
