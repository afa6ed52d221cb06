"""v0 import path of tasksets, harnesses and `ComposableEnv`."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.agents.composable_env import ComposableEnv as ComposableEnv
    from verifiers.envs.agents.harness import Harness as Harness
    from verifiers.envs.agents.task_sets import SandboxSpec as SandboxSpec
    from verifiers.envs.agents.task_sets import SandboxTaskSet as SandboxTaskSet
    from verifiers.envs.agents.task_sets import Task as Task
    from verifiers.envs.agents.task_sets import TaskSet as TaskSet
    from verifiers.envs.agents.task_sets import discover_sibling_dir as discover_sibling_dir

__all__, __getattr__, __dir__ = lazy_names(__name__)
