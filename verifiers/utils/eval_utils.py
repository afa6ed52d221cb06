"""v0 import path: running evaluations, their configuration files, printing results."""

from verifiers.evaluate.config_file import (
    invalid_ablation_sweep_fields as invalid_ablation_sweep_fields,
)
from verifiers.evaluate.config_file import load_toml_config as load_toml_config
from verifiers.evaluate.registry import load_endpoints as load_endpoints
from verifiers.evaluate.registry import registry_file as resolve_endpoints_file
from verifiers.evaluate.run import run_evaluation as run_evaluation
from verifiers.evaluate.run import run_evaluations as run_evaluations
from verifiers.example_datasets import quiet_datasets as quiet_datasets
from verifiers.runs.publish import get_hf_hub_dataset_name as get_hf_hub_dataset_name
from verifiers.runs.publish import make_dataset as make_dataset
from verifiers.v0.utilities import print_results as print_results

__all__ = [
    "get_hf_hub_dataset_name",
    "load_endpoints",
    "load_toml_config",
    "make_dataset",
    "print_results",
]
__all__ += ["resolve_endpoints_file", "run_evaluation", "run_evaluations"]
