"""Search for a better system prompt of an environment with the `gepa` package (extra `gepa`)."""

from verifiers.prompt_search.config_file import load_gepa_toml_config as load_gepa_toml_config
from verifiers.prompt_search.config_file import (
    resolve_gepa_config_args as resolve_gepa_config_args,
)
from verifiers.prompt_search.search import SearchOptions as SearchOptions
from verifiers.prompt_search.search import SearchResult as SearchResult
from verifiers.prompt_search.search import search_prompt as search_prompt
