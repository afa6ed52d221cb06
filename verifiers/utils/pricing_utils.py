"""v0 import path; see `verifiers.runs.prices`."""

from verifiers.runs.prices import EvalCost as EvalCost
from verifiers.runs.prices import ModelPrice as ModelPricing
from verifiers.runs.prices import compute_cost_usd as compute_cost_usd
from verifiers.runs.prices import compute_eval_cost as compute_eval_cost
from verifiers.runs.prices import format_cost_usd as format_cost_usd

__all__ = ["ModelPricing"]
