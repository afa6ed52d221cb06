"""Ready-made harnesses."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.envs.agents.harnesses.open_code import opencode_harness as opencode_harness

__all__, __getattr__, __dir__ = lazy_names(__name__)
