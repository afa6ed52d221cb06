"""Tasks for agents in sandboxes: instruction, sandbox, preparation and scoring, independent of the agent.

    class Sorting(SandboxTaskSet):
        def get_instruction(self, info): return f"Sort {info['file']} in place."
        def get_sandbox_spec(self, info): return SandboxSpec(memory_gb=1)
        def get_rubric(self): return SortedRubric()
        async def setup(self, state): ...        # upload the file

    ComposableEnv(Sorting(rows), opencode_harness(), keep_sandbox_for_scoring=True)

A rubric of a taskset finds `sandbox_client`, `sandbox_id` and `test_timeout` (seconds) in the state.
"""

from __future__ import annotations

import copy
import importlib
import importlib.resources
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, Self

from verifiers.errors import ConfigError
from verifiers.messages import normalize_messages
from verifiers.types import Messages

Folder = Traversable | Path
DatasetBuilder = Callable[[], Any]

_FILTER_NAMES: dict[str, Any] = {
    "re": re,
    "__builtins__": {
        each.__name__: each for each in (len, all, any, sum, min, max, sorted, set, frozenset)
    },
}
"""Names that the expression of a `filter_fn` may use."""


@dataclass
class SandboxSpec:
    """The sandbox that a task needs, in the terms of v0. (`verifiers.sandboxes.SandboxSpec` is another class.)"""

    image: str = "python:3.11-slim"
    cpu_cores: float = 4
    memory_gb: float = 4
    disk_size_gb: float = 10
    gpu_count: int = 0
    gpu_type: str | None = None
    timeout_minutes: float | None = None
    """Maximum lifetime. None derives it from the time limit of the rollout."""


class Task:
    """One task of a taskset."""

    def __init__(
        self, taskset: TaskSet, prompt: Messages, info: dict[str, Any], answer: str = ""
    ) -> None:
        self._taskset = taskset
        self.prompt = prompt
        self.info = info
        self.answer = answer

    @property
    def sandbox_spec(self) -> SandboxSpec | None:
        """The sandbox of the task; None if the harness or the environment chooses it."""
        return self._taskset.get_sandbox_spec(self.info)

    @property
    def image(self) -> str | None:
        """The image of the sandbox; None without a specification."""
        spec = self.sandbox_spec
        return None if spec is None else spec.image

    @property
    def workdir(self) -> str:
        """The directory in which the agent works."""
        return self._taskset.get_workdir(self.info)

    def __repr__(self) -> str:
        image = self.image
        place = "no sandbox" if image is None else f"image={image!r}"
        return f"Task(taskset={self._taskset.name!r}, {place})"


class TaskSet:
    """Rows with instructions and a rubric. Authors override `get_instruction` and `get_rubric`, and what else differs.

    `dataset` is a `datasets.Dataset`, a list of rows, or a callable that returns either. It is loaded on first use.
    `filter_fn` is the text of a Python expression that gives a predicate on rows, such as
    `"lambda row: len(row['info']['tests']) < 10"`. It may use `re` and a few builtins, and is code: do not accept it
    from strangers. A wrong `filter_fn` raises TypeError or ValueError on first use.
    """

    def __init__(
        self, dataset: Any | DatasetBuilder, name: str = "", filter_fn: str | None = None
    ) -> None:
        self.name = name
        self.filter_fn = filter_fn
        self.dataset_source: DatasetBuilder = dataset if callable(dataset) else lambda: dataset
        """Returns the dataset as it was given, before `filter_fn`."""
        self._dataset: Any = None

    @property
    def dataset(self) -> Any:
        """The rows, after `filter_fn`."""
        if self._dataset is None:
            rows = self.dataset_source()
            self._dataset = (
                rows if self.filter_fn is None else _filtered(rows, _predicate_of(self.filter_fn))
            )
        return self._dataset

    @dataset.setter
    def dataset(self, rows: Any) -> None:
        self._dataset = rows

    # ------------------------------------------------------------------------------------ what authors override

    def get_instruction(self, info: dict[str, Any]) -> str:
        """Return the instruction for the agent."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method get_instruction(info) that returns the instruction for the agent."
        )

    def get_rubric(self) -> Any:
        """Return the rubric that scores the rollouts."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method get_rubric() that returns a vf.Rubric. Or pass rubric=… to the "
            "environment."
        )

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec | None:
        """Return the sandbox of a task, or None to leave the choice to the harness or the environment."""
        return None

    def get_workdir(self, info: dict[str, Any]) -> str:
        """Return the directory in which the agent works: `AGENT_WORKDIR`."""
        return "/app"

    def get_folders(self, info: dict[str, Any]) -> list[str]:
        """Return further directories that the sandbox needs, empty at first, if the image lacks them."""
        return []

    def get_env_vars(self) -> dict[str, str]:
        """Return further environment variables of the sandbox."""
        return {}

    def get_skills_dir(self) -> Folder | None:
        """Return a folder of skills for the agent: `skills` beside the module of this class, unless it is empty."""
        return discover_sibling_dir(type(self), "skills")

    def get_upload_dirs(self) -> dict[str, Folder]:
        """Return name → folder of this machine. The harness chooses the path of each name in the sandbox."""
        skills = self.get_skills_dir()
        return {} if skills is None else {"skills": skills}

    async def setup(self, state: MutableMapping[str, Any]) -> None:
        """Prepare the sandbox `state["sandbox_id"]`, before the agent is installed."""

    async def validate_instance(self, state: MutableMapping[str, Any]) -> bool:
        """Return whether the task can be solved: apply its solution in the prepared sandbox and run its tests."""
        return True

    # ------------------------------------------------------------------------------------------------ rows

    def get_dataset(self) -> Any:
        """Return the rows with a column `prompt`, made from the instruction unless the rows have one."""
        rows = self.dataset
        if isinstance(rows, list):
            return [
                row if "prompt" in row else {**row, "prompt": self._prompt_of(row)} for row in rows
            ]
        if "prompt" in rows.column_names:
            return rows
        return rows.add_column("prompt", [self._prompt_of(row) for row in rows])

    def _prompt_of(self, row: Mapping[str, Any]) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.get_instruction(info_of(row))}]

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, i: int) -> Task:
        row = self.dataset[i]
        answer = row.get("answer")
        return Task(
            self,
            normalize_messages(self._prompt_of(row), field_name="prompt"),
            info_of(row),
            "" if answer is None else answer,
        )

    def filter(self, predicate: Callable[[dict[str, Any]], bool]) -> Self:
        """Return a copy with the rows for which `predicate` is true."""
        return self._with_rows(lambda: _filtered(self.dataset, predicate))

    def take(self, n: int) -> Self:
        """Return a copy with the first `n` rows."""
        return self._with_rows(lambda: _first(self.dataset, n))

    def _with_rows(self, source: DatasetBuilder) -> Self:
        changed = copy.copy(self)
        changed.dataset_source, changed._dataset, changed.filter_fn = source, None, None
        return changed

    async def validate(
        self,
        n: int | None = None,
        concurrency: int = 10,
        *,
        out_path: str | Path | None = None,
        max_retries: int = 0,
        resume: bool = False,
        test_output_tail_chars: int = 2000,
        sandbox_client_max_workers: int | None = None,
    ) -> list[dict[str, Any]]:
        """Check that the first `n` tasks can be solved, and return one dict per task. See `validation.validate`."""
        from verifiers.envs.agents.validation import (
            validate,
        )  # loads sandboxes, which rows do not need

        return await validate(
            self,
            n,
            concurrency,
            out_path=out_path,
            max_retries=max_retries,
            resume=resume,
            test_output_tail_chars=test_output_tail_chars,
        )

    def __repr__(self) -> str:
        return f"TaskSet(name={self.name!r}, len={len(self)})"


class SandboxTaskSet(TaskSet):
    """A taskset whose tasks each name their sandbox."""

    default_workdir: ClassVar[str] = "/app"

    def get_sandbox_spec(self, info: dict[str, Any]) -> SandboxSpec:
        """Return the sandbox of a task."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method get_sandbox_spec(info) that returns a SandboxSpec."
        )

    def get_workdir(self, info: dict[str, Any]) -> str:
        """Return `default_workdir`."""
        return self.default_workdir


def info_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `info` of a row as a dict; JSON text is decoded. Raises ConfigError for anything else."""
    info = row.get("info")
    if isinstance(info, str):
        try:
            info = json.loads(info) if info else {}
        except ValueError as error:
            raise ConfigError(f"The 'info' of a row is not valid JSON: {info!r:.200}") from error
    if info is None:
        return {}
    if not isinstance(info, Mapping):
        raise ConfigError(f"The 'info' of a row must be a dict; got {info!r:.200}")
    return dict(info)


def _predicate_of(filter_fn: Any) -> Callable[[Any], Any]:
    if not isinstance(filter_fn, str):
        raise TypeError(
            f"filter_fn must be the text of a Python expression; got {type(filter_fn).__name__}."
        )
    try:
        predicate = eval(filter_fn, dict(_FILTER_NAMES))
    except Exception as error:
        raise ValueError(f"filter_fn={filter_fn!r} cannot be evaluated: {error!r}") from error
    if not callable(predicate):
        raise TypeError(
            f"filter_fn={filter_fn!r} must give a callable, such as a lambda; got {type(predicate).__name__}."
        )
    return predicate


def _filtered(rows: Any, predicate: Callable[[Any], Any]) -> Any:
    if isinstance(rows, list):
        return [row for row in rows if predicate(row)]
    # Not `rows.filter`, whose cache recognises a lambda by its byte code and not by the values that it refers to.
    return rows.select([index for index, row in enumerate(rows) if predicate(row)])


def _first(rows: Any, n: int) -> Any:
    return rows[:n] if isinstance(rows, list) else rows.select(range(min(n, len(rows))))


def discover_sibling_dir(taskset_cls: type, dirname: str) -> Folder | None:
    """Return the folder `dirname` beside the module that defines a class; None if it is missing or empty."""
    module = sys.modules.get(taskset_cls.__module__)
    if module is None:
        return None
    package = module.__name__ if hasattr(module, "__path__") else (module.__package__ or "")
    if package:
        folder: Folder = importlib.resources.files(package).joinpath(dirname)
    elif getattr(module, "__file__", None):
        folder = Path(str(module.__file__)).resolve().parent / dirname
    else:
        return None
    return folder if folder.is_dir() and any(True for _ in folder.iterdir()) else None


__all__ = [
    "Folder",
    "SandboxSpec",
    "SandboxTaskSet",
    "Task",
    "TaskSet",
    "discover_sibling_dir",
    "info_of",
]
