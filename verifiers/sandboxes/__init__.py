"""Isolated machines for code that a model writes.

Read in this order: `sandbox` (the interface and contract) · `spec`, `results`, `errors` (its values) · `open` and
`pool` (how to get one) · `local` (the back end of this machine's kernel) · `containers`, `prime` (others) ·
`carried_guest` (how the guest gets into those) · `guest` (our process inside a sandbox) · `connection`, `jobs`,
`agent_sandbox` (the host's side of it) · `proxy` (filtered network) · `contract` (the promises as checks).
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
from verifiers.sandboxes.open import backend_by_name, open_sandbox
from verifiers.sandboxes.pool import SandboxPool
from verifiers.sandboxes.results import CellError, CellResult, ExecResult, SandboxInfo, Snapshot
from verifiers.sandboxes.sandbox import (
    TIMEOUT_FROM_SPEC,
    Process,
    PythonSession,
    Sandbox,
    SandboxBackend,
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
