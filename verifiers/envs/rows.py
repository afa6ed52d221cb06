"""`HasRows`: the data of an environment, from its datasets to the first state of a rollout."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from verifiers.errors import ConfigError
from verifiers.messages import normalize_messages
from verifiers.state import RolloutTiming, State, StateUsageTracker
from verifiers.tasks import RowFormat, TaskSource, with_task_payload
from verifiers.tools.functions import normalize_tool
from verifiers.types import Messages, MessageType, SamplingArgs, Tool

_PER_ROW_TOOLS = ("tool_defs", "oai_tools", "tools")


class HasRows:
    """Datasets, rows and fresh states of an `Environment`."""

    logger: logging.Logger
    system_prompt: str | None
    few_shot: Messages | None
    message_type: MessageType
    map_kwargs: dict[str, Any]
    tool_defs: list[Tool] | None

    def _client_resolver(self) -> Callable[[Any], Any]:
        """Return the function that makes clients."""
        raise NotImplementedError

    _needs_dataset = True
    _sources: dict[str, TaskSource | None]

    # --------------------------------------------------------------------------------------------- datasets

    def _take_datasets(self, dataset: Any, eval_dataset: Any) -> None:
        if dataset is None and eval_dataset is None and self._needs_dataset:
            raise ConfigError("Either dataset or eval_dataset must be provided")
        self._sources = {"train": self._source(dataset), "eval": self._source(eval_dataset)}

    @property
    def row_format(self) -> RowFormat:
        """The format that turns a dataset row into a rollout input."""
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
        """Return the rows of "train" or "eval". Evaluation falls back to the training rows.

        Raises ConfigError if the environment has neither.
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
        """Return the formatted training dataset, and build it if it is a callable."""
        return self.dataset

    def build_eval_dataset(self) -> Any:
        """Return the formatted evaluation dataset, and build it if it is a callable."""
        return self.eval_dataset

    def get_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return the first `n` training rows (all for n < 1), shuffled first if a seed is given."""
        return self.source("train").dataset(n, seed)

    def get_eval_dataset(self, n: int = -1, seed: int | None = None) -> Any:
        """Return the first `n` evaluation rows (all for n < 1), shuffled first if a seed is given."""
        return self.source("eval").dataset(n, seed)

    def format_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the dataset with `prompt` and `example_id`, in this environment's format."""
        return TaskSource(dataset, self.row_format).dataset()

    def _get_eval_inputs(
        self, num_examples: int = -1, rollouts_per_example: int = 1, seed: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the evaluation rows, each repeated `rollouts_per_example` times in a row."""
        if rollouts_per_example < 1:
            raise ConfigError(
                f"rollouts_per_example must be at least 1; got {rollouts_per_example}."
            )
        cls = type(self)
        if (
            cls.get_eval_dataset is HasRows.get_eval_dataset
            and cls.get_dataset is HasRows.get_dataset
        ):
            rows = self.source("eval").inputs(num_examples, seed)
        else:
            given = self.get_eval_dataset(
                n=num_examples, **({} if seed is None else {"seed": seed})
            )
            rows = TaskSource(given, self.row_format).inputs()
        return [row for row in rows for _ in range(rollouts_per_example)]

    # ------------------------------------------------------------------------------------------------ states

    @staticmethod
    def _normalize_tool_defs(tools: Sequence[Any] | None) -> list[Tool] | None:
        return None if tools is None else [normalize_tool(tool) for tool in tools]

    async def init_state(
        self,
        input: Mapping[str, Any],
        client: Any,
        model: str,
        sampling_args: SamplingArgs | None = None,
    ) -> State:
        """Return a fresh state for one dataset row. It shares nothing with other rollouts of the row."""
        row = with_task_payload(input)
        state = State.for_row(row)
        if row is not input or "prompt" not in state:
            state["prompt"] = self.row_format.prompt_of(row, state.get("example_id", 0))
        for key, value in row.items():
            if isinstance(value, dict | list) and key != "prompt":
                state["input"][key] = _copied(value)
        state["prompt"] = [
            deepcopy(message) if isinstance(message.get("content"), list) else message.copy()
            for message in normalize_messages(state["prompt"], field_name="prompt")
        ]
        usage = StateUsageTracker()
        state.begin(
            {
                "client": self._client_resolver()(client),
                "model": model,
                "sampling_args": sampling_args,
                "is_completed": False,
                "is_truncated": False,
                "stop_condition": None,
                "tool_defs": self._tools_for(state),
                "trajectory": [],
                "trajectory_id": _new_id(),
                "completion": None,
                "reward": None,
                "metrics": None,
                "advantage": None,
                "error": None,
                "final_env_response": None,
                "usage": usage,
                "usage_tracker": usage,
                "timing": RolloutTiming(),
            }
        )
        return state

    def _tools_for(self, state: State) -> list[Tool]:
        info = state.get("info")
        if isinstance(info, Mapping):
            for key in _PER_ROW_TOOLS:
                own = info.get(key)
                if own and isinstance(own, Sequence) and not isinstance(own, str):
                    return self._normalize_tool_defs(own) or []
        own = dict.get(state, "tools") if "tools" in state.input_fields else None
        if own and isinstance(own, list) and isinstance(own[0], Mapping):
            return self._normalize_tool_defs(own) or []
        return self.tool_defs or []


def _new_id() -> str:
    """Return 32 random hexadecimal digits, at a fraction of the cost of `uuid4().hex`."""
    return os.urandom(16).hex()


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _copied(value: Any) -> Any:
    """Return a copy without shared mutable values. A flat `info`, the usual case, is copied fast."""
    if type(value) is dict and all(type(item) in _PLAIN for item in value.values()):
        return value.copy()
    return deepcopy(value)
