"""v0 import path; see `verifiers.prompt_search.adapter`."""

from verifiers.prompt_search.adapter import GEPADisplay as GEPADisplay
