"""v0 import path; see `verifiers.state` and `verifiers.runs.output`."""

from verifiers.runs.output import context_tokens as compute_context_token_metrics
from verifiers.state import StateUsageTracker as StateUsageTracker
from verifiers.state import extract_usage_tokens as extract_usage_tokens

response_usage_tokens = extract_usage_tokens

__all__ = [
    "StateUsageTracker",
    "compute_context_token_metrics",
    "extract_usage_tokens",
    "response_usage_tokens",
]
