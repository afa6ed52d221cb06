"""Well-known public data sets as `question`/`answer` rows, by a short name: `vf.load_example_dataset("gsm8k")`.

Loading needs the network the first time and uses the cache of the `datasets` package afterwards.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from verifiers.errors import DatasetError
from verifiers.parsers.answers import extract_boxed_answer, extract_hash_answer

if TYPE_CHECKING:
    from datasets import Dataset

Row = dict[str, Any]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _lettered(question: str, choices: list[str]) -> str:
    lines = [f"{letter}: {choice}" for letter, choice in zip(_LETTERS, choices, strict=False)]
    return "\n".join([f"Question: {question}", "", *lines])


def _gsm8k(row: Row) -> Row:
    return {"question": row["question"], "answer": extract_hash_answer(row["answer"])}


def _competition_math(row: Row) -> Row:
    return {"question": row["problem"], "answer": extract_boxed_answer(row["solution"])}


def _problem(row: Row) -> Row:
    return {"question": row["problem"], "answer": row["answer"]}


def _aime2024(row: Row) -> Row:
    return {"question": row["problem"], "answer": str(int(row["answer"]))}  # "025" means 25


def _aime2025(row: Row) -> Row:
    return {"question": row["question"], "answer": extract_hash_answer(row["answer"])}


def _gpqa(row: Row) -> Row:
    choices = [row["Correct Answer"], *(row[f"Incorrect Answer {n}"] for n in (1, 2, 3))]
    # The right answer always comes first in the data. The shuffled order depends on the question alone.
    random.Random(row["Question"]).shuffle(choices)
    answer = _LETTERS[choices.index(row["Correct Answer"])]
    return {"question": _lettered(row["Question"], choices), "answer": answer}


def _mmlu(row: Row) -> Row:
    choices = row.get("choices") or row["options"]
    answer = row["answer"]
    letter = _LETTERS[answer] if isinstance(answer, int) else answer
    return {"question": _lettered(row["question"], choices), "answer": letter}


def _openbookqa(row: Row) -> Row:
    choices = zip(row["choices"]["label"], row["choices"]["text"], strict=True)
    lines = [f"{label}. {text}" for label, text in choices]
    question = "\n".join([f"Question: {row['question_stem']}", "", "Choices:", *lines])
    return {"question": question, "answer": row["answerKey"]}


def _prime_code(row: Row) -> Row:
    return {"question": row["prompt"], "answer": row["verification_info"]}


class ExampleDataset(NamedTuple):
    """Location of a data set, and the conversion of its rows to questions with answers."""

    path: str
    preprocess: Callable[[Row], Row]
    split: str
    """The default split."""
    configurations: tuple[str | None, ...] = (None,)
    """Names of the configurations; several are concatenated."""
    keep: Callable[[Row], bool] | None = None


EXAMPLE_DATASETS: Mapping[str, ExampleDataset] = {
    "aime2024": ExampleDataset("HuggingFaceH4/aime_2024", _aime2024, "train"),
    "aime2025": ExampleDataset(
        "opencompass/AIME2025", _aime2025, "test", ("AIME2025-I", "AIME2025-II")
    ),
    "amc2023": ExampleDataset("knoveleng/AMC-23", _problem, "train"),
    "gpqa_diamond": ExampleDataset("Idavidrein/gpqa", _gpqa, "train", ("gpqa_diamond",)),
    "gpqa_main": ExampleDataset("Idavidrein/gpqa", _gpqa, "train", ("gpqa_main",)),
    "gsm8k": ExampleDataset("openai/gsm8k", _gsm8k, "test", ("main",)),
    "math": ExampleDataset("chiayewken/competition_math", _competition_math, "train"),
    "math500": ExampleDataset("HuggingFaceH4/MATH-500", _problem, "test"),
    "mmlu": ExampleDataset("cais/mmlu", _mmlu, "dev", ("all",)),
    "mmlu_pro": ExampleDataset("TIGER-Lab/MMLU-Pro", _mmlu, "validation"),
    "openbookqa": ExampleDataset("allenai/openbookqa", _openbookqa, "train", ("main",)),
    "openrs": ExampleDataset("knoveleng/open-rs", _problem, "train"),
    "openrs_easy": ExampleDataset(
        "knoveleng/open-rs", _problem, "train", keep=lambda row: row["level"] == "Easy"
    ),
    "openrs_hard": ExampleDataset(
        "knoveleng/open-rs", _problem, "train", keep=lambda row: row["level"] == "Hard"
    ),
    "prime_code": ExampleDataset(
        "PrimeIntellect/verifiable-coding-problems",
        _prime_code,
        "train",
        keep=lambda row: json.loads(row["verification_info"]).get("language") == "python",
    ),
}


def _known(name: str) -> ExampleDataset:
    if name not in EXAMPLE_DATASETS:
        raise DatasetError(
            f"Dataset {name!r} is not supported; supported: {', '.join(EXAMPLE_DATASETS)}. "
            "Load other datasets with `datasets.load_dataset` and give their rows a 'question' and an 'answer'."
        )
    return EXAMPLE_DATASETS[name]


def get_preprocess_fn(name: str) -> Callable[[Row], Row]:
    """Return the function that converts a row of the named data set to a question with an answer."""
    return _known(name).preprocess


def load_example_dataset(
    name: str = "gsm8k", split: str | None = None, n: int | None = None, seed: int = 0
) -> Dataset:
    """Return the named data set with the columns `question` and `answer`; with `n`, that many rows picked by `seed`.

    Raise DatasetError for an unknown name or split, and when the data can neither be downloaded nor found in the
    cache.
    """
    example = _known(name)
    split = split or example.split
    from datasets import concatenate_datasets, load_dataset

    parts: list[Any] = []
    for configuration in example.configurations:
        where = "/".join(filter(None, (example.path, configuration)))
        try:
            splits: Any = load_dataset(example.path, configuration)
        except Exception as error:
            raise DatasetError(
                f"The dataset {name!r} ({where}) could not be loaded: {type(error).__name__}: {error}. "
                "The first load needs the network; some datasets also need `huggingface-cli login`."
            ) from error
        if split not in splits:
            raise DatasetError(
                f"The dataset {name!r} has no split {split!r}; it has {', '.join(splits)}."
            )
        parts.append(splits[split])
    dataset = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
    if example.keep is not None:
        dataset = dataset.filter(example.keep)
    if n is not None and n > 0:
        dataset = dataset.shuffle(seed=seed).select(range(min(n, len(dataset))))
    return dataset.map(example.preprocess, remove_columns=dataset.column_names)


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Let the package `datasets` log only warnings, and show no progress bars, in the block."""
    from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from datasets.utils import logging as datasets_logging

    level, showed_bars = datasets_logging.get_verbosity(), not are_progress_bars_disabled()
    datasets_logging.set_verbosity_warning()
    disable_progress_bars()
    try:
        yield
    finally:
        datasets_logging.set_verbosity(level)
        if showed_bars:
            enable_progress_bars()
