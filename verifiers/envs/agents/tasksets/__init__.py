"""Ready-made tasksets."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.agents.tasksets.cp import CPTaskSet as CPTaskSet
    from verifiers.envs.agents.tasksets.harbor import HarborDatasetTaskSet as HarborDatasetTaskSet
    from verifiers.envs.agents.tasksets.harbor import HarborTaskSet as HarborTaskSet
    from verifiers.envs.agents.tasksets.lean import LeanTaskSet as LeanTaskSet
    from verifiers.envs.agents.tasksets.math import MathTaskSet as MathTaskSet
    from verifiers.envs.agents.tasksets.swe import R2EGymTaskSet as R2EGymTaskSet
    from verifiers.envs.agents.tasksets.swe import SWEBenchTaskSet as SWEBenchTaskSet
    from verifiers.envs.agents.tasksets.swe import make_swe_taskset as make_swe_taskset

__all__, __getattr__, __dir__ = lazy_names(__name__)
