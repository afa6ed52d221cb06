"""The session of a rollout in `RLMEnv`: its paths and values, and the errors of sandboxes and workers."""

from __future__ import annotations

import posixpath
from dataclasses import asdict, dataclass, field
from typing import Any

from verifiers.envs.rlm.repl_process import ReplProcess
from verifiers.errors import EmptyModelResponseError, SandboxError, ToolCallError
from verifiers.interception.doorway import Doorway


class RLMSessionError(SandboxError):
    """A rollout has no session: its setup failed, or it has ended."""


class RLMSetupError(SandboxError):
    """The sandbox of a rollout could not be prepared."""


class RLMWorkerError(SandboxError):
    """The REPL worker could not be started or did not answer."""


class RLMWorkerRecoveryError(RLMWorkerError):
    """The REPL worker could not be restarted."""


class RLMSandboxCommandTimeout(SandboxError):
    """A command of the environment, not of the model, reached its time limit."""


class RLMCodeExecutionTimeout(ToolCallError):
    """Code of the model ran longer than `code_execution_timeout`."""


class SubLLMEmptyModelResponseError(EmptyModelResponseError):
    """A sub-LLM answered with neither text nor tool calls."""


@dataclass(frozen=True)
class RLMExecResult:
    """The reply of the worker to one request: a JSON line in `stdout`."""

    stdout: str
    stderr: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True)
class RLMWorkerPaths:
    """Paths of the worker's files in the control directory. Ours uses `answer_file`; the others are names of v0."""

    base_dir: str
    command_fifo: str
    response_fifo: str
    ready_flag: str
    worker_path: str
    worker_pid_file: str
    context_file: str
    answer_file: str
    log_file: str

    def to_dict(self) -> dict[str, str]:
        """Return the paths by name."""
        return asdict(self)

    @classmethod
    def below(cls, folder: str) -> RLMWorkerPaths:
        """Return the paths in a control directory."""
        names = ("cmd", "res", "ready", "worker.py", "worker.pid", "context.json", "answer.json")
        paths = [posixpath.join(folder, f"rlm_{name}") for name in (*names, "worker.log")]
        return cls(folder, *paths)


@dataclass(eq=False)
class SandboxRLMReplSession:
    """One rollout: its folders on this machine and in the sandbox, its worker and its port to this program."""

    rollout_id: str
    local_rollout_dir: str
    local_fs_root: str
    local_control_dir: str
    sandbox_id: str | None = None
    sandbox_fs_root: str | None = None
    sandbox_control_dir: str | None = None
    paths: RLMWorkerPaths | None = None
    worker: ReplProcess | None = None
    doorway: Doorway | None = None
    start: dict[str, Any] = field(default_factory=dict)
    """Arguments of `ReplProcess.start`, for a restart."""
