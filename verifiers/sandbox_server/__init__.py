"""Sandboxes of this machine for other machines: an HTTP server with the Prime Sandboxes protocol.

Read in this order: `config` (limits, tokens, quotas) · `requests` (requests of clients, checked) · `inventory` (the
sandboxes, their owners and their ends) · `command_sessions` (commands that outlive a request) · `control` (routes that
create and end sandboxes) · `gateway` (routes that use them) · `connect` (the binary wire format of its streams) ·
`metrics` · `app` (the server).
"""

from verifiers.sandbox_server.app import SandboxServer
from verifiers.sandbox_server.config import Quota, ServerConfig, TokenConfig, read_tokens_file

__all__ = ["Quota", "SandboxServer", "ServerConfig", "TokenConfig", "read_tokens_file"]
