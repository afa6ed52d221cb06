"""v0 import path of tasksets."""

from verifiers.envs.agents.task_sets import (
    SandboxSpec,
    SandboxTaskSet,
    Task,
    TaskSet,
    discover_sibling_dir,
)

__all__ = ["SandboxSpec", "SandboxTaskSet", "Task", "TaskSet", "discover_sibling_dir"]
