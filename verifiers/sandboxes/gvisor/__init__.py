"""Sandboxes with a kernel of their own: gVisor's `runsc`, driven directly, without Docker."""

from verifiers.sandboxes.gvisor.backend import GVisorBackend
from verifiers.sandboxes.gvisor.runsc import GVisorConfig

__all__ = ["GVisorBackend", "GVisorConfig"]
