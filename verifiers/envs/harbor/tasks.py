"""A folder of tasks in Harbor's format, as rows of a dataset.

    tasks/hello/task.toml           metadata, limits, image, MCP servers
                instruction.md      what the agent is told
                environment/        how the image is built; not used here
                tests/test.sh       writes /logs/verifier/reward.txt or reward.json
                solution/           a solution, for whoever wants to check the task

Source: https://github.com/harbor-framework/harbor
"""

from __future__ import annotations

import json
import logging
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verifiers.errors import DatasetError

logger = logging.getLogger(__name__)


def task_rows(dataset_path: Path, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One row a task, in the order of their names; folders that are no tasks are left out, with a warning.

    Raises FileNotFoundError for a missing folder, DatasetError when a task cannot be read or none is left.
    """
    if not dataset_path.exists():
        raise FileNotFoundError(f"Dataset path not found: {dataset_path}")
    rows: list[dict[str, Any]] = []
    for folder in sorted(path for path in dataset_path.iterdir() if path.is_dir()):
        if names is not None and folder.name not in names:
            continue
        if not ((folder / "task.toml").is_file() and (folder / "instruction.md").is_file()):
            logger.warning("Skipping %s: missing task.toml or instruction.md", folder.name)
            continue
        rows.append({"example_id": len(rows), **_row(folder)})
    missing = sorted(set(names or ()) - {row["info"]["task_name"] for row in rows})
    if not rows or missing:
        wanted = f"; not there: {', '.join(missing)}" if missing else ""
        raise DatasetError(f"No valid Harbor tasks found in {dataset_path}{wanted}.")
    return rows


def _row(folder: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        instruction = (folder / "instruction.md").read_text("utf-8").strip()
    except ValueError as error:  # what tomllib and UTF-8 complain with
        raise DatasetError(f"The task {folder} cannot be read: {error}") from error
    environment = config.get("environment")
    image = environment.get("docker_image") if isinstance(environment, dict) else None
    return {
        "prompt": [{"role": "user", "content": instruction}],
        "info": {
            "task_name": folder.name,
            "task_dir": str(folder),
            "docker_image": image,
            "config": config,
        },
    }


def time_limit_s(config: Any, section: str, default_s: float) -> float:
    """`timeout_sec` of a section of task.toml."""
    inner = (config or {}).get(section) or {}
    limit_s = inner.get("timeout_sec")
    return float(limit_s) if isinstance(limit_s, int | float) and limit_s > 0 else default_s


def parse_reward(text: str) -> float | None:
    """The reward in a `reward.txt` (a number) or `reward.json` (an object with `reward`); None if there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = float(text)  # "1.", "+1", "1_0" and the like
        except ValueError:
            return None
    if isinstance(found, dict):
        found = found.get("reward")
    if isinstance(found, str):
        try:
            found = float(found)
        except ValueError:
            return None
    if not isinstance(found, int | float):
        return None
    try:
        reward = float(found)
    except OverflowError:
        return None
    return reward if math.isfinite(reward) else None
