"""Task folders in Harbor's format, as rows of a dataset."""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verifiers.errors import DatasetError

logger = logging.getLogger(__name__)


def task_rows(dataset_path: Path, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return one row per task, in the order of the names. Other folders are skipped with a warning.

    Raises FileNotFoundError for a missing folder, and DatasetError if a task cannot be read or no task is left.
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
        wanted = f"; missing: {', '.join(missing)}" if missing else ""
        raise DatasetError(f"No valid Harbor tasks found in {dataset_path}{wanted}.")
    return rows


def _row(folder: Path) -> dict[str, Any]:
    try:
        config = tomllib.loads((folder / "task.toml").read_text("utf-8"))
        instruction = (folder / "instruction.md").read_text("utf-8").strip()
    except ValueError as error:  # errors of tomllib and UTF-8
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
    """Return `timeout_sec` of a section of task.toml."""
    inner = (config or {}).get(section) or {}
    limit_s = inner.get("timeout_sec")
    return float(limit_s) if isinstance(limit_s, int | float) and limit_s > 0 else default_s
