"""Ready-made harnesses."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.agents.harnesses.mini_swe_agent import (
        mini_swe_agent_harness as mini_swe_agent_harness,
    )
    from verifiers.envs.agents.harnesses.open_code import opencode_harness as opencode_harness
    from verifiers.envs.agents.harnesses.rlm import rlm_harness as rlm_harness

__all__, __getattr__, __dir__ = lazy_names(__name__)
