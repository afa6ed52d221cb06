"""Former import path of `verifiers.sandbox_server`."""

from __future__ import annotations

from verifiers.sandbox_server import (
    Quota,
    SandboxServer,
    ServerConfig,
    TokenConfig,
    read_tokens_file,
)

__all__ = ["Quota", "SandboxServer", "ServerConfig", "TokenConfig", "read_tokens_file"]
