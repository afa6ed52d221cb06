"""v0 import path: answers in text, example data sets, formatting a dataset."""

from collections.abc import Mapping
from typing import Any

from verifiers.example_datasets import get_preprocess_fn as get_preprocess_fn
from verifiers.example_datasets import load_example_dataset as load_example_dataset
from verifiers.parsers.answers import BOXED_SYSTEM_PROMPT as BOXED_SYSTEM_PROMPT
from verifiers.parsers.answers import THINK_BOXED_SYSTEM_PROMPT as THINK_BOXED_SYSTEM_PROMPT
from verifiers.parsers.answers import extract_boxed_answer as extract_boxed_answer
from verifiers.parsers.answers import extract_hash_answer as extract_hash_answer
from verifiers.parsers.answers import strip_non_numeric as strip_non_numeric
from verifiers.tasks import RowFormat, TaskSource


def format_dataset(
    dataset: Any,
    system_prompt: str | None = None,
    few_shot: Any = None,
    question_key: str = "question",
    answer_key: str = "answer",
    map_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """The dataset with the columns `prompt` and `example_id`."""
    row_format = RowFormat(
        system_prompt, list(few_shot or []), question_key=question_key, answer_key=answer_key
    )
    return TaskSource(dataset, row_format, **(map_kwargs or {})).dataset()
