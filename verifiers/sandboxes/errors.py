"""Errors of sandboxes.

    Error
    ├── InfraError
    │   └── SandboxError                      the infrastructure failed; never a verdict on the model
    │       ├── SandboxCreationError          a sandbox did not start
    │       │   ├── SandboxImageError         (also ValueError) the image cannot be used
    │       │   ├── SandboxRateLimited        the provider refused for now
    │       │   └── IsolationUnavailable      this machine cannot provide the requested isolation
    │       ├── SandboxDead                   the sandbox has ended: `reason`, and `by_program` if its code did it
    │       └── SandboxUnresponsive           (also TimeoutError) it did not respond in time and was killed
    ├── SandboxFileError                      (also OSError) a path inside cannot be read or written
    │   ├── SandboxFileNotFound               (also FileNotFoundError)
    │   └── SandboxFileTooLarge
    └── AuthorError
        └── SandboxCapabilityMissing          (also NotImplementedError) this back end cannot do that

A command that fails, times out or floods its output is not an error: it is an `ExecResult`. File errors are
not below `InfraError`, because usually the model's program did not write the file.
"""

from __future__ import annotations

from typing import Literal

from verifiers.errors import AuthorError, Error, SandboxError

OTHER_BACKEND = (
    "Choose a back end with images: `vf-eval … --sandbox-backend docker` (or podman, prime), the environment variable "
    'VF_SANDBOX_BACKEND=docker, or the argument backend="docker" of the environment.'
)
"""Advice for an image that a back end does not have."""

DeathReason = Literal["oom", "program", "ttl", "terminated", "crashed", "protocol"]
"""Why a sandbox has ended: its code used up the memory; its code ended it in another way; its lifetime is over; its
owner terminated it; the infrastructure lost it; it sent bytes that are not frames.
"""


class SandboxCreationError(SandboxError):
    """A sandbox did not start."""


class SandboxImageError(SandboxCreationError, ValueError):
    """The requested image, interpreter or virtual environment cannot be used."""


class SandboxRateLimited(SandboxCreationError):
    """The provider refused to create a sandbox for now."""


class IsolationUnavailable(SandboxCreationError):
    """This machine cannot provide the isolation of the specification."""


class SandboxDead(SandboxError):
    """The sandbox was running and has ended."""

    def __init__(self, message: str, reason: DeathReason = "crashed"):
        super().__init__(message, reason)
        self.reason: DeathReason = reason

    @property
    def by_program(self) -> bool:
        """Whether the code inside caused the end. It is then an outcome with a score, not a failure of the
        infrastructure.
        """
        return self.reason in ("oom", "program", "protocol")

    def __str__(self) -> str:
        return str(self.args[0])


class SandboxUnresponsive(SandboxError, TimeoutError):
    """The sandbox did not respond within the time limit plus a grace period, and was killed."""


class SandboxFileError(Error, OSError):
    """A path inside the sandbox cannot be read or written."""


class SandboxFileNotFound(SandboxFileError, FileNotFoundError):
    """The path does not exist inside the sandbox."""


class SandboxFileTooLarge(SandboxFileError):
    """A file inside the sandbox is larger than the caller's limit."""


class SandboxCapabilityMissing(AuthorError, NotImplementedError):
    """This back end does not support the request."""
