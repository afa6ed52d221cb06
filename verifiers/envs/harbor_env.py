"""Former import path of `HarborEnv`; `verifiers.envs.harbor` has the code."""

from verifiers.envs.harbor.env import TASK_DIR, HarborEnv
from verifiers.envs.harbor.mcp_servers import (
    NETWORK_TRANSPORTS,
    HarborMCPHealthcheck,
    HarborMCPMixin,
    HarborMCPServer,
    mcp_agent_url,
    mcp_url_port,
    parse_mcp_servers,
)
from verifiers.envs.harbor.task_files import task_rows, time_limit_s
from verifiers.envs.harbor.verifier import REWARD_DIR, TestRun, VerifierError, parse_reward

__all__ = [
    "NETWORK_TRANSPORTS",
    "REWARD_DIR",
    "TASK_DIR",
    "HarborEnv",
    "HarborMCPHealthcheck",
    "HarborMCPMixin",
    "HarborMCPServer",
    "TestRun",
    "VerifierError",
    "mcp_agent_url",
    "mcp_url_port",
    "parse_mcp_servers",
    "parse_reward",
    "task_rows",
    "time_limit_s",
]
