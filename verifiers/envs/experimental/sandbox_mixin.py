"""v0 import path of `SandboxMixin`."""

from verifiers.envs.sandbox_client import AdvancedConfigs, CreateSandboxRequest
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
