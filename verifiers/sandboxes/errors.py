"""What can go wrong with a sandbox.

    Error
    ├── InfraError
    │   └── SandboxError                      the machinery failed; never a verdict on the model
    │       ├── SandboxCreationError          a sandbox did not come up
    │       │   ├── SandboxImageError         (also ValueError) the image cannot be used
    │       │   ├── SandboxRateLimited        the provider refused for now
    │       │   └── IsolationUnavailable      this machine cannot isolate as strongly as was asked
    │       ├── SandboxDead                   it was there and is gone: `reason` says why, `by_program` who did it
    │       └── SandboxUnresponsive           (also TimeoutError) it did not answer in time and was killed
    ├── SandboxFileError                      (also OSError) a path inside cannot be read or written
    │   ├── SandboxFileNotFound               (also FileNotFoundError)
    │   └── SandboxFileTooLarge
    └── AuthorError
        └── SandboxCapabilityMissing          (also NotImplementedError) this back end cannot do that

A command that fails, runs out of time or floods its output is no error: it is an `ExecResult`. File errors are
not under `InfraError`, because usually the model's program simply did not write the file.
"""

from __future__ import annotations

from typing import Literal

from verifiers.errors import AuthorError, Error, SandboxError

OTHER_BACKEND = (
    "Choose a back end with images: `vf-eval … --sandbox-backend docker` (or podman, prime), the environment variable "
    'VF_SANDBOX_BACKEND=docker, or the argument backend="docker" of the environment.'
)
"""What to do about an image that a back end does not have."""

DeathReason = Literal["oom", "program", "ttl", "terminated", "crashed", "protocol"]
"""Why a sandbox is gone: its code used up the memory; its code ended it in another way; its lifetime has passed; it was
terminated by its owner; the machinery lost it; it sent bytes that are not frames."""


class SandboxCreationError(SandboxError):
    """A sandbox did not come up."""


class SandboxImageError(SandboxCreationError, ValueError):
    """The image, interpreter or virtual environment asked for cannot be used."""


class SandboxRateLimited(SandboxCreationError):
    """The provider refused to create a sandbox for now."""


class IsolationUnavailable(SandboxCreationError):
    """This machine cannot isolate as strongly as the specification asks."""


class SandboxDead(SandboxError):
    """The sandbox was running and is gone."""

    def __init__(self, message: str, reason: DeathReason = "crashed"):
        super().__init__(message, reason)
        self.reason: DeathReason = reason

    @property
    def by_program(self) -> bool:
        """Whether the code inside caused it: then it is an outcome with a score, not a failure of the machinery."""
        return self.reason in ("oom", "program", "protocol")

    def __str__(self) -> str:
        return str(self.args[0])


class SandboxUnresponsive(SandboxError, TimeoutError):
    """The sandbox did not answer within the time limit plus grace, and was killed."""


class SandboxFileError(Error, OSError):
    """A path inside the sandbox cannot be read or written."""


class SandboxFileNotFound(SandboxFileError, FileNotFoundError):
    """There is no such path inside the sandbox."""


class SandboxFileTooLarge(SandboxFileError):
    """A file inside the sandbox is larger than the caller allows."""


class SandboxCapabilityMissing(AuthorError, NotImplementedError):
    """This back end cannot do what was asked."""
