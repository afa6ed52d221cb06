"""v0 import path of `MCPEnv`."""

from verifiers.envs.mcp_env import MCPEnv, MCPServerConfig

__all__ = ["MCPEnv", "MCPServerConfig"]
