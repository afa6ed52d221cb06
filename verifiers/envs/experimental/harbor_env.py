"""v0 import path of `HarborEnv`."""

from verifiers.envs.harbor.env import HarborEnv, VerifierError
from verifiers.envs.harbor.mcp import (
    NETWORK_TRANSPORTS,
    HarborMCPHealthcheck,
    HarborMCPMixin,
    HarborMCPServer,
    mcp_agent_url,
    mcp_url_port,
    parse_mcp_servers,
)

__all__ = [
    "NETWORK_TRANSPORTS",
    "HarborEnv",
    "HarborMCPHealthcheck",
    "HarborMCPMixin",
    "HarborMCPServer",
    "VerifierError",
    "mcp_agent_url",
    "mcp_url_port",
    "parse_mcp_servers",
]
