"""The rows of an environment: training and evaluation datasets, formatted when they are taken."""

from __future__ import annotations

import logging
from typing import Any

from verifiers.errors import ConfigError
from verifiers.tasks import RowFormat, TaskSource
from verifiers.types import Messages, MessageType


class HasDatasets:
    """What `Environment` offers about its datasets."""

    logger: logging.Logger
    system_prompt: str | None
    few_shot: Messages | None
    message_type: MessageType
    map_kwargs: dict[str, Any]

    _needs_dataset = True
    _sources: dict[str, TaskSource | None]

    def _take_datasets(self, dataset: Any, eval_dataset: Any) -> None:
        if dataset is None and eval_dataset is None and self._needs_dataset:
            raise ConfigError("Either dataset or eval_dataset must be provided")
        self._sources = {"train": self._source(dataset), "eval": self._source(eval_dataset)}

    @property
    def row_format(self) -> RowFormat:
        """How a dataset row becomes a rollout input."""
        return RowFormat(
            system_prompt=self.system_prompt,
            few_shot=self.few_shot or [],
            message_type=self.message_type,
            question_key=getattr(self, "question_key", "question"),
            answer_key=getattr(self, "answer_key", "answer"),
        )

    def _source(self, dataset: Any) -> TaskSource | None:
        if dataset is None or isinstance(dataset, TaskSource):
            return dataset
        return TaskSource(dataset, self.row_format, **self.map_kwargs)

    def source(self, split: str) -> TaskSource:
        """The rows of "train" or "eval"; evaluation falls back to the training rows.

        Raises ConfigError when the environment has none.
        """
        found = self._sources[split]
        if found is None and split == "eval":
            self.logger.info("eval_dataset is not set, falling back to train dataset")
            found = self._sources["train"]
        if found is None:
            raise ConfigError(
                "dataset is not set" if split == "train" else "eval_dataset is not set"
            )
        return found

    @property
    def dataset(self) -> Any:
        """The formatted training dataset, or None."""
        return None if self._sources["train"] is None else self._sources["train"].dataset()

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        self._sources["train"] = self._source(dataset)

    @property
    def eval_dataset(self) -> Any:
        """The formatted evaluation dataset, or None."""
        return None if self._sources["eval"] is None else self._sources["eval"].dataset()

    @eval_dataset.setter
    def eval_dataset(self, dataset: Any) -> None:
        self._sources["eval"] = self._source(dataset)

    def build_dataset(self) -> Any:
        """The formatted training dataset, built now if it was given as a callable."""
        return self.dataset

    def build_eval_dataset(self) -> Any:
        """The formatted evaluation dataset, built now if it was given as a callable."""
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """The first `n` training rows (all for n < 1), shuffled first when a seed is given; nothing stored changes."""
        return self.source("train").dataset(n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """The first `n` evaluation rows (all for n < 1), shuffled first when a seed is given."""
        return self.source("eval").dataset(n, seed)

    def format_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """The dataset with `prompt` and `example_id`, in this environment's format."""
        return TaskSource(dataset, self.row_format).dataset()

    _format_dataset = format_dataset
