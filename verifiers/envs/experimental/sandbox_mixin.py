"""v0 import path of `SandboxMixin`, and the provider's classes by which it deletes sandboxes without an event loop."""

from __future__ import annotations

from typing import Any

from verifiers.envs.sandbox_mixin import (
    SandboxCreationError,
    SandboxMixin,
    SandboxMonitorRubric,
    SandboxNotReadyError,
    SandboxSetupError,
    SandboxTimeouts,
    ThreadedAsyncSandboxClient,
    is_retryable_sandbox_api_error,
    is_retryable_sandbox_read_error,
)
from verifiers.envs.sandbox_request import AdvancedConfigs, CreateSandboxRequest
from verifiers.errors import ConfigError

_OF_PROVIDER = ("APIClient", "SandboxClient")


def __getattr__(name: str) -> Any:
    if name not in _OF_PROVIDER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import prime_sandboxes
    except ImportError:
        return _MissingPackage
    return getattr(prime_sandboxes, name)


class _MissingPackage:
    """Stands for a class of a package that is not installed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ConfigError(
            "Sandboxes of a provider are left, and its package is not installed to delete them. Install it: "
            "pip install 'prime-sandboxes>=0.5'"
        )


__all__ = [
    "AdvancedConfigs",
    "CreateSandboxRequest",
    "SandboxCreationError",
    "SandboxMixin",
    "SandboxMonitorRubric",
    "SandboxNotReadyError",
    "SandboxSetupError",
    "SandboxTimeouts",
    "ThreadedAsyncSandboxClient",
    "is_retryable_sandbox_api_error",
    "is_retryable_sandbox_read_error",
]
