"""v0 import path; see `verifiers.prompt_search.adapter`."""

from verifiers.prompt_search.adapter import VerifiersGEPAAdapter as VerifiersGEPAAdapter
from verifiers.prompt_search.adapter import make_reflection_lm as make_reflection_lm
