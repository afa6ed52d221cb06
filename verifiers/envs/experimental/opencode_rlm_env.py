"""v0 import path of `OpenCodeRLMEnv`."""

from verifiers.envs.agents.open_code_rlm_env import (
    RLM_RUN_COMMAND_TEMPLATE,
    OpenCodeRLMEnv,
    OpenCodeRLMMonitorRubric,
)

__all__ = ["RLM_RUN_COMMAND_TEMPLATE", "OpenCodeRLMEnv", "OpenCodeRLMMonitorRubric"]
