"""v0 import path of `CliAgentEnv`."""

from verifiers.envs.cli_agent_env import (
    AgentError,
    CliAgentEnv,
    CliAgentMonitorRubric,
    make_agent_error,
)

__all__ = ["AgentError", "CliAgentEnv", "CliAgentMonitorRubric", "make_agent_error"]
