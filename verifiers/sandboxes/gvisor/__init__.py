"""Sandboxes with their own kernel in user space: gVisor's `runsc`, called directly, without Docker.

Read in this order: `backend` (`GVisorBackend`) · `runsc` (its options, and state shared by all sandboxes) ·
`container`
(one sandbox) · `root` (visible files) · `statx_workaround` (a fault of old builds).
"""

from verifiers.sandboxes.gvisor.backend import GVisorBackend
from verifiers.sandboxes.gvisor.runsc import GVisorConfig

__all__ = ["GVisorBackend", "GVisorConfig"]
