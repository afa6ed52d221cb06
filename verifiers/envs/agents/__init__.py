"""Agents that are programs: tasks, harnesses that run an agent on them, and the environment that joins both.

Read in this order: `task_sets` (what to do, and how to score it) · `harness` (how to install and start an agent) ·
`composable_env` · `harnesses/` and `tasksets/` (ready-made ones).
"""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.agents.composable_env import ComposableEnv as ComposableEnv
    from verifiers.envs.agents.harness import Harness as Harness
    from verifiers.envs.agents.task_sets import SandboxSpec as SandboxSpec
    from verifiers.envs.agents.task_sets import SandboxTaskSet as SandboxTaskSet
    from verifiers.envs.agents.task_sets import Task as Task
    from verifiers.envs.agents.task_sets import TaskSet as TaskSet

__all__, __getattr__, __dir__ = lazy_names(__name__)
