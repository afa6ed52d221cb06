"""v0 import path of `HarborEnv`."""

from verifiers.envs.harbor_env import (
    NETWORK_TRANSPORTS,
    HarborEnv,
    HarborMCPHealthcheck,
    HarborMCPMixin,
    HarborMCPServer,
    VerifierError,
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
