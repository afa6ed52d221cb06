"""Task folders in Harbor's format, as rows of a dataset."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiers.envs.harbor.mcp_servers import parse_mcp_servers
from verifiers.envs.harbor.task_config import TaskConfig, parse_task_config
from verifiers.errors import ConfigError, DatasetError

logger = logging.getLogger(__name__)

TASK_FILE = "task.toml"
INSTRUCTION = "instruction.md"
COMPOSE_FILES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")


@dataclass(frozen=True)
class HarborTask:
    """One task folder and its configuration."""

    folder: Path
    config: TaskConfig

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def step_count(self) -> int:
        """Number of steps. A task without `[[steps]]` has one."""
        return max(1, len(self.config.steps))

    def step_folder(self, number: int) -> Path:
        """Return the folder of a step, which is the task itself in a task without `[[steps]]`."""
        steps = self.config.steps
        return self.folder / "steps" / steps[number].name if steps else self.folder

    def instruction_file(self, number: int = 0) -> Path:
        """Return the path of the instruction of a step."""
        return self.step_folder(number) / INSTRUCTION

    def test_folders(self, number: int = 0) -> list[Path]:
        """Return the folders that become `/tests`; files of later ones replace those of earlier ones."""
        return _folders(self.folder / "tests", self.step_folder(number) / "tests")

    def solution_folders(self, number: int = 0) -> list[Path]:
        """Return the folders of the solution of a step."""
        own = self.step_folder(number) / "solution"
        return _folders(own) or _folders(self.folder / "solution")

    def secret_folders(self) -> list[Path]:
        """Return the folders with tests and solutions, which an agent must not see."""
        steps = [self.folder / "steps" / step.name for step in self.config.steps]
        folders = [each / name for each in (self.folder, *steps) for name in ("tests", "solution")]
        return _folders(*folders)

    def verifier_context(self, number: int) -> Path:
        """Return the folder that may define the image of a separate verifier: the tests of the step, or of the task."""
        own = self.step_folder(number) / "tests"
        has_image = self.dockerfile(own) is not None or self.compose_file(own) is not None
        return own if has_image else self.folder / "tests"

    def dockerfile(self, context: Path | None = None) -> Path | None:
        """Return the Dockerfile in a folder, by default `environment/`."""
        path = (context or self.folder / "environment") / "Dockerfile"
        return path if path.is_file() else None

    def compose_file(self, context: Path | None = None) -> Path | None:
        """Return the Compose file in a folder, by default `environment/`."""
        context = context or self.folder / "environment"
        return next((context / name for name in COMPOSE_FILES if (context / name).is_file()), None)


def has_solution(task: HarborTask) -> bool:
    """Return whether each step of a task has a `solve.sh`."""
    return all(
        any((folder / "solve.sh").is_file() for folder in task.solution_folders(number))
        for number in range(task.step_count)
    )


def _folders(*candidates: Path) -> list[Path]:
    return [path for path in dict.fromkeys(candidates) if path.is_dir()]


def task_of(state: Mapping[str, Any]) -> HarborTask:
    """Return the task of a rollout, from its row's `info`. Raises ConfigError if its configuration is invalid."""
    info = state.get("info") or {}
    folder = Path(state.get("harbor_task_dir") or info.get("task_dir") or "")
    try:
        return HarborTask(folder, parse_task_config(info.get("config") or {}))
    except ConfigError as error:
        raise ConfigError(f"The task {folder} has an invalid task.toml: {error}") from error


def task_rows(
    dataset_path: Path | Iterable[Path], names: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Return one row per task, in the order of the names. `dataset_path` is a folder with tasks, or the tasks.

    Other folders are skipped with a warning. Raises FileNotFoundError for a missing folder, and DatasetError if a task
    cannot be read or no task is left.
    """
    if isinstance(dataset_path, Path):
        if not dataset_path.exists():
            raise FileNotFoundError(f"Dataset path not found: {dataset_path}")
        folders = sorted(path for path in dataset_path.iterdir() if path.is_dir())
        place = str(dataset_path)
    else:
        folders = sorted(dataset_path, key=lambda path: path.name)
        place = "the dataset"
    rows: list[dict[str, Any]] = []
    for folder in folders:
        if names is not None and folder.name not in names:
            continue
        if not is_task(folder):
            logger.warning("Skipping %s: missing task.toml or instruction.md", folder.name)
            continue
        rows.append({"example_id": len(rows), **_row(folder)})
    missing = sorted(set(names or ()) - {row["info"]["task_name"] for row in rows})
    if not rows or missing:
        wanted = f"; missing: {', '.join(missing)}" if missing else ""
        raise DatasetError(f"No valid Harbor tasks found in {place}{wanted}.")
    return rows


def is_task(folder: Path) -> bool:
    """Return whether a folder has a task.toml and an instruction, in the folder itself or in its steps."""
    if not (folder / TASK_FILE).is_file():
        return False
    return (folder / INSTRUCTION).is_file() or any(folder.glob(f"steps/*/{INSTRUCTION}"))


def read_task(folder: Path) -> tuple[HarborTask, dict[str, Any]]:
    """Return a task and the raw contents of its task.toml. Raises DatasetError if a file is missing or invalid."""
    try:
        raw = tomllib.loads((folder / TASK_FILE).read_text("utf-8"))
        task = HarborTask(folder, parse_task_config(raw))
        parse_mcp_servers(raw)
    except (ValueError, OSError) as error:  # errors of tomllib, UTF-8 and ConfigError
        raise DatasetError(f"The task {folder} cannot be read: {error}") from error
    if unknown := list(task.config.unknown_keys()):
        logger.warning("%s: unknown keys in task.toml are ignored: %s", task.name, unknown)
    if task.config.is_newer:
        logger.warning(
            "%s has schema %s; keys that are newer than schema 1.4 are ignored",
            task.name,
            task.config.schema_version,
        )
    for number in range(task.step_count):
        if not task.instruction_file(number).is_file():
            raise DatasetError(
                f"The task {folder} cannot be read: there is no {task.instruction_file(number)}."
            )
    return task, raw


def _row(folder: Path) -> dict[str, Any]:
    task, raw = read_task(folder)
    try:
        instruction = task.instruction_file().read_text("utf-8").strip()
    except ValueError as error:
        raise DatasetError(f"The task {folder} cannot be read: {error}") from error
    return {
        "prompt": [{"role": "user", "content": instruction}],
        "info": {
            "task_name": folder.name,
            "task_dir": str(folder),
            "docker_image": task.config.environment.docker_image or None,
            "config": json.loads(json.dumps(raw, default=str)),  # TOML has dates
        },
    }


def time_limit_s(config: Any, section: str, default_s: float) -> float:
    """Return `timeout_sec` of a section of task.toml."""
    inner = (config or {}).get(section) or {}
    limit_s = inner.get("timeout_sec")
    return float(limit_s) if isinstance(limit_s, int | float) and limit_s > 0 else default_s
