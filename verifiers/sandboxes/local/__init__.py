"""The embedded back end: sandboxes made by the Linux kernel of this machine, with nothing to install."""

from verifiers.sandboxes.local.backend import LocalBackend, LocalConfig

__all__ = ["LocalBackend", "LocalConfig"]
