"""v0 import path; see `verifiers.prompt_search.saved`."""

from verifiers.prompt_search.saved import GEPA_EVAL_KIND as GEPA_EVAL_KIND
from verifiers.prompt_search.saved import GEPA_OPTIMIZATION_TARGET as GEPA_OPTIMIZATION_TARGET
from verifiers.prompt_search.saved import GEPA_SCHEMA_VERSION as GEPA_SCHEMA_VERSION
from verifiers.prompt_search.saved import save_gepa_results as save_gepa_results
