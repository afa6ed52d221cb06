"""Sandboxes of this machine for other machines: an HTTP server that speaks the Prime Sandboxes protocol.

Read in this order: `config` (limits, tokens, quotas) · `requests` (what a client asks for, as a specification) ·
`inventory` (the sandboxes there are, whose they are and when they end) · `control` (routes that make and end them) ·
`gateway` and `command_sessions` (routes that use them) · `protobuf` and `connect` (the binary wire format of the
latter) · `metrics` · `app` (all of it as one server).
"""

from verifiers.sandbox_server.app import SandboxServer
from verifiers.sandbox_server.config import Quota, ServerConfig, TokenConfig, read_tokens_file

__all__ = ["Quota", "SandboxServer", "ServerConfig", "TokenConfig", "read_tokens_file"]
