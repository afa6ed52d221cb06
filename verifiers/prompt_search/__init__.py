"""Search for a better system prompt of an environment with the `gepa` package (extra `gepa`)."""

from typing import TYPE_CHECKING

from verifiers.lazy_names import lazy_names

if TYPE_CHECKING:
    from verifiers.prompt_search.adapter import GEPAConfig as GEPAConfig
    from verifiers.prompt_search.adapter import GEPADisplay as GEPADisplay
    from verifiers.prompt_search.adapter import VerifiersGEPAAdapter as VerifiersGEPAAdapter
    from verifiers.prompt_search.adapter import make_reflection_lm as make_reflection_lm
    from verifiers.prompt_search.config_file import load_gepa_toml_config as load_gepa_toml_config
    from verifiers.prompt_search.config_file import (
        resolve_gepa_config_args as resolve_gepa_config_args,
    )
    from verifiers.prompt_search.saved import save_gepa_results as save_gepa_results
    from verifiers.prompt_search.search import SearchOptions as SearchOptions
    from verifiers.prompt_search.search import SearchResult as SearchResult
    from verifiers.prompt_search.search import search_prompt as search_prompt

__all__, __getattr__, __dir__ = lazy_names(__name__)
