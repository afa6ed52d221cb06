"""v0 import path of `OpenCodeEnv`."""

from verifiers.envs.agents.open_code_env import (
    DEFAULT_INSTALL_COMMAND,
    DEFAULT_RUN_COMMAND_TEMPLATE,
    DEFAULT_SYSTEM_PROMPT,
    OPENCODE_TOOLS,
    OpenCodeEnv,
    OpenCodeMonitorRubric,
)

__all__ = [
    "DEFAULT_INSTALL_COMMAND",
    "DEFAULT_RUN_COMMAND_TEMPLATE",
    "DEFAULT_SYSTEM_PROMPT",
    "OPENCODE_TOOLS",
    "OpenCodeEnv",
    "OpenCodeMonitorRubric",
]
