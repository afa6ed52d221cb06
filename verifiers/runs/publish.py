"""A run as a `datasets.Dataset`, and on the Hugging Face hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from verifiers.runs.folders import METADATA_FILE
from verifiers.runs.output import encode_line, jsonable
from verifiers.types import GenerateOutputs

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)


def make_dataset(results: Mapping[str, Any]) -> Dataset:
    """Return the rollouts as a dataset, with a column for every key that some rollout has.

    Arrow requires one type per column. A column of dicts or lists that differ between rollouts becomes JSON text.
    """
    from datasets import Dataset

    rows = [jsonable(output) for output in GenerateOutputs.of(results).outputs]
    columns = {name: None for row in rows for name in row}
    table = {name: [row.get(name) for row in rows] for name in columns}
    as_text = [name for name, values in table.items() if not _fits_one_type(values)]
    for name in as_text:
        table[name] = [None if value is None else json.dumps(value) for value in table[name]]
    if as_text:
        logger.info("Columns whose values differ in type are JSON text: %s", ", ".join(as_text))
    return Dataset.from_dict(table)


def _fits_one_type(values: list[Any]) -> bool:
    import pyarrow

    try:
        pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
        return False
    return True


def get_hf_hub_dataset_name(results: GenerateOutputs) -> str:
    """Return a name for the run's dataset: environment, model, examples, rollouts."""
    metadata = results["metadata"]
    model = metadata.get("model", "").replace("/", "-")
    env_id = metadata.get("env_id", "").replace("/", "-")
    return (
        f"{env_id}_{model}_n{metadata.get('num_examples')}_r{metadata.get('rollouts_per_example')}"
    )


def push_results_to_hf_hub(results: GenerateOutputs, dataset_name: str | None = None) -> str:
    """Upload rollouts and metadata as a dataset of the logged-in Hugging Face account. Return the dataset's name."""
    from huggingface_hub import HfApi

    name = dataset_name or get_hf_hub_dataset_name(results)
    make_dataset(results).push_to_hub(name)
    api = HfApi()
    full_name = name if "/" in name else f"{api.whoami()['name']}/{name}"
    api.upload_file(
        path_or_fileobj=encode_line(sanitize_metadata(results["metadata"])),
        path_in_repo=METADATA_FILE,
        repo_id=full_name,
        repo_type="dataset",
    )
    return full_name


def sanitize_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as it is saved: JSON values, without the path of the run on this machine."""
    return jsonable({key: value for key, value in metadata.items() if key != "path_to_save"})
