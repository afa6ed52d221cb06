"""`Harness`: how one agent is installed and started in a sandbox, independent of the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from verifiers.envs.agents.task_sets import Folder, SandboxSpec
from verifiers.types import TrajectoryStep


@dataclass
class Harness:
    """The scripts, paths and settings of an agent. `ComposableEnv` runs it on the tasks of a `TaskSet`."""

    install_script: str | None = None
    """Shell script that installs the agent. An exit code other than 0 fails the rollout."""
    install_timeout: int = 300
    """Time limit of the two scripts, in seconds."""
    run_command: str = ""
    """Shell command of the agent. `AGENT_WORKDIR` holds the directory of the task."""
    system_prompt: str | None = None
    system_prompt_path: str = "/task/system_prompt.txt"
    instruction_path: str = "/task/instruction.md"
    log_path: str | None = None
    """File whose text is stored as `state["agent_logs"]` after the agent has ended."""
    sandbox_spec: SandboxSpec | None = None
    """The sandbox for tasks that name none."""
    skills_path: str | None = None
    """Where the `skills` of a taskset go."""
    upload_dir_mapping: dict[str, str] | None = None
    """Name of an upload folder → its path in the sandbox. Folders of other names are not uploaded."""
    get_upload_dirs: Callable[[], Mapping[str, Folder] | None] | None = None
    """Returns name → folder of this machine, in addition to those of the taskset."""
    metrics_path: str | None = None
    """JSON file in the sandbox with metrics of the agent; a pattern of the shell, in which `{workdir}` is replaced."""
    metrics_prefix: str = ""
    metrics_key: str | None = None
    """Key of the object in that file that holds the metrics."""
    metrics_keys: list[str] | None = None
    """Metrics to keep; None keeps all."""
    tool_names: list[str] | None = None
    """Tools of the agent whose calls are counted as metrics."""
    environment_vars: Callable[[Any], Mapping[str, str] | None] | None = None
    """Returns further environment variables for a state."""
    post_install_uploads: dict[str, str] | None = None
    """Path in the sandbox → text, written after the installation."""
    post_install_script: str | None = None
    keep_trajectory_step: Callable[[TrajectoryStep, Any, dict[str, str]], bool] | None = None
    """Receives a step, the state and the headers of the agent's request (lower-case names). False leaves the step out
    of the trajectory.
    """
    render_completion: Callable[[Any], Any] | None = None
    """Sets `state["completion"]`, instead of the messages after the prompt."""

    def get_effective_upload_dir_mapping(self) -> dict[str, str] | None:
        """Return `upload_dir_mapping` with the path of `skills`; None if there is nothing to upload."""
        mapping = dict(self.upload_dir_mapping or {})
        if self.skills_path:
            mapping.setdefault("skills", self.skills_path)
        return mapping or None


__all__ = ["Harness"]
