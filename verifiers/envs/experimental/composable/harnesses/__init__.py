"""v0 import path of harnesses."""

from verifiers.envs.agents.harnesses.mini_swe_agent import (
    MINI_SWE_AGENT_CONFIG,
    MINI_SWE_AGENT_INSTALL_SCRIPT,
    build_mini_swe_agent_install_script,
    build_mini_swe_agent_run_command,
    mini_swe_agent_harness,
)
from verifiers.envs.agents.harnesses.open_code import (
    DEFAULT_DISABLED_TOOLS,
    OPENCODE_INSTALL_SCRIPT,
    build_opencode_run_command,
    opencode_harness,
)
from verifiers.envs.agents.harnesses.rlm import (
    DEFAULT_RLM_EXEC_TIMEOUT,
    DEFAULT_RLM_MAX_TURNS,
    DEFAULT_RLM_REF,
    DEFAULT_RLM_REPO_URL,
    rlm_harness,
)
from verifiers.envs.agents.harnesses.rlm import build_install_script as build_rlm_install_script
from verifiers.envs.agents.harnesses.rlm import build_run_command as build_rlm_run_command
from verifiers.envs.agents.open_code_config import (
    DEFAULT_RELEASE_REPO,
    DEFAULT_RELEASE_SHA256,
    DEFAULT_RELEASE_VERSION,
    DEFAULT_SYSTEM_PROMPT,
    build_opencode_config,
)
from verifiers.envs.agents.open_code_config import (
    build_install_script as build_opencode_install_script,
)

__all__ = [
    "DEFAULT_DISABLED_TOOLS",
    "DEFAULT_RELEASE_REPO",
    "DEFAULT_RELEASE_SHA256",
    "DEFAULT_RELEASE_VERSION",
    "DEFAULT_RLM_EXEC_TIMEOUT",
    "DEFAULT_RLM_MAX_TURNS",
    "DEFAULT_RLM_REF",
    "DEFAULT_RLM_REPO_URL",
    "DEFAULT_SYSTEM_PROMPT",
    "MINI_SWE_AGENT_CONFIG",
    "MINI_SWE_AGENT_INSTALL_SCRIPT",
    "OPENCODE_INSTALL_SCRIPT",
    "build_mini_swe_agent_install_script",
    "build_mini_swe_agent_run_command",
    "build_opencode_config",
    "build_opencode_install_script",
    "build_opencode_run_command",
    "build_rlm_install_script",
    "build_rlm_run_command",
    "mini_swe_agent_harness",
    "opencode_harness",
    "rlm_harness",
]
