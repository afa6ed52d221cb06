"""v0 import path: running evaluations, their configuration files, printing results."""

from __future__ import annotations

import logging
from pathlib import Path

from verifiers.errors import ConfigError
from verifiers.evaluate import registry
from verifiers.evaluate.config_file import (
    invalid_ablation_sweep_fields as invalid_ablation_sweep_fields,
)
from verifiers.evaluate.config_file import load_toml_config as load_toml_config
from verifiers.evaluate.registry import registry_file as resolve_endpoints_file
from verifiers.evaluate.run import run_evaluation as run_evaluation
from verifiers.evaluate.run import run_evaluations as run_evaluations
from verifiers.example_datasets import quiet_datasets as quiet_datasets
from verifiers.runs.publish import get_hf_hub_dataset_name as get_hf_hub_dataset_name
from verifiers.runs.publish import make_dataset as make_dataset
from verifiers.types import Endpoints
from verifiers.v0.utilities import print_results as print_results

logger = logging.getLogger(__name__)


def load_endpoints(endpoints_path: str | Path) -> Endpoints:
    """Return the registry at a path: name → replicas. A registry that is not valid counts as empty, as in v0; the log
    has the reason. Commands read the registry with `verifiers.evaluate.registry`, which raises ConfigError.
    """
    try:
        return registry.load_endpoints(endpoints_path)
    except ConfigError as error:
        logger.error("The endpoint registry is not used: %s", error)
        return {}


__all__ = [
    "get_hf_hub_dataset_name",
    "load_endpoints",
    "load_toml_config",
    "make_dataset",
    "print_results",
]
__all__ += ["resolve_endpoints_file", "run_evaluation", "run_evaluations"]
