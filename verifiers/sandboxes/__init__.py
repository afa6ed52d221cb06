"""Isolated machines for code that a model writes.

Read in this order: `sandbox` (the interface, which is the contract) · `spec`, `errors` (its values) · `open` (how to
get a sandbox) · `local` (the back end of this machine's kernel) · `backend`, `guest_sandbox`, `connection` (the host's
side, the same for all back ends) · `guest` (our process inside a sandbox) · `containers`, `gvisor`, `prime`,
`unsafe_local` (other back ends) · `carried_guest` (how the guest gets into those) · `proxy` (filtered network) ·
`contract` (the promises as checks).
"""

from verifiers.sandboxes.errors import (
    IsolationUnavailable,
    SandboxCapabilityMissing,
    SandboxCreationError,
    SandboxDead,
    SandboxFileError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxImageError,
    SandboxRateLimited,
    SandboxUnresponsive,
)
from verifiers.sandboxes.open import SandboxPool, backend_by_name, open_sandbox
from verifiers.sandboxes.sandbox import (
    TIMEOUT_FROM_SPEC,
    CellError,
    CellResult,
    ExecResult,
    Process,
    PythonSession,
    Sandbox,
    SandboxBackend,
    SandboxInfo,
    Snapshot,
)
from verifiers.sandboxes.spec import IsolationLevel, ProxyNetwork, SandboxSpec

__all__ = [
    "TIMEOUT_FROM_SPEC",
    "CellError",
    "CellResult",
    "ExecResult",
    "IsolationLevel",
    "IsolationUnavailable",
    "Process",
    "ProxyNetwork",
    "PythonSession",
    "Sandbox",
    "SandboxBackend",
    "SandboxCapabilityMissing",
    "SandboxCreationError",
    "SandboxDead",
    "SandboxFileError",
    "SandboxFileNotFound",
    "SandboxFileTooLarge",
    "SandboxImageError",
    "SandboxInfo",
    "SandboxPool",
    "SandboxRateLimited",
    "SandboxSpec",
    "SandboxUnresponsive",
    "Snapshot",
    "backend_by_name",
    "open_sandbox",
]
