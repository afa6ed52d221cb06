"""v0 import path: running evaluations, their configuration files, printing results."""

import sys

from verifiers.evaluate.config_file import load_toml_config as load_toml_config
from verifiers.evaluate.registry import load_endpoints as load_endpoints
from verifiers.evaluate.registry import registry_file as resolve_endpoints_file
from verifiers.evaluate.run import run_evaluation as run_evaluation
from verifiers.evaluate.run import run_evaluations as run_evaluations
from verifiers.runs.publish import get_hf_hub_dataset_name as get_hf_hub_dataset_name
from verifiers.runs.publish import make_dataset as make_dataset
from verifiers.runs.v0 import results_text
from verifiers.types import GenerateOutputs

__all__ = [
    "get_hf_hub_dataset_name",
    "load_endpoints",
    "load_toml_config",
    "make_dataset",
    "print_results",
]
__all__ += ["resolve_endpoints_file", "run_evaluation", "run_evaluations"]


def print_results(results: GenerateOutputs, num_samples: int = 1) -> None:
    """Write `results_text` to stdout."""
    sys.stdout.write(results_text(results, num_samples))
