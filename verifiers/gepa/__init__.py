"""v0 import path of the prompt search; see `verifiers.prompt_search`. Names load on first use."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.prompt_search.adapter import GEPAConfig as GEPAConfig
    from verifiers.prompt_search.adapter import GEPADisplay as GEPADisplay
    from verifiers.prompt_search.adapter import VerifiersGEPAAdapter as VerifiersGEPAAdapter
    from verifiers.prompt_search.adapter import make_reflection_lm as make_reflection_lm
    from verifiers.prompt_search.saved import save_gepa_results as save_gepa_results

__all__, __getattr__, __dir__ = lazy_names(__name__)
