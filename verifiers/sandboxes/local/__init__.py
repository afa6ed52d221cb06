"""The local back end: sandboxes from the Linux kernel of this machine, with nothing to install.

Read in this order: `backend` (`LocalBackend`) · `machine` (one sandbox, and what it enforces) · `zygote_process` (the
host's handle on a zygote) · `plain_process` (sandboxes without namespaces) · `zygote` (the process that makes
sandboxes).
"""

from verifiers.sandboxes.local.backend import LocalBackend, LocalConfig

__all__ = ["LocalBackend", "LocalConfig"]
