"""Where runs lie: `{base}/evals/{env_id}--{model}/{8 hex digits}`, the layout of 0.1.14.

The base is the output folder the user names; else `environments/{env}/outputs` when the environment's folder is
here; else `outputs`.
"""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.runs.encoding import jsonable

if TYPE_CHECKING:
    from verifiers.configs import EvalConfig

RESULTS_FILE = "results.jsonl"
METADATA_FILE = "metadata.json"


def base_folder(
    env_id: str, env_dir_path: str | Path = "./environments", output_dir: str | Path | None = None
) -> Path:
    """The folder under which everything an environment puts out is kept."""
    if output_dir is not None:
        return Path(output_dir)
    local = Path(env_dir_path) / env_id.replace("-", "_")
    return local / "outputs" if local.is_dir() else Path("outputs")


def named_folder(
    env_id: str, model: str, base_path: Path = Path("outputs"), subdir: str = "evals"
) -> Path:
    """A new name for one run; nothing is created."""
    return base_path / subdir / f"{env_id}--{model.replace('/', '--')}" / secrets.token_hex(4)


def runs_folder(
    env_id: str,
    model: str,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """The folder that holds all runs of one environment with one model."""
    return named_folder(env_id, model, base_folder(env_id, env_dir_path, output_dir)).parent


def new_run_folder(
    env_id: str,
    model: str,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """A name that no run has yet; nothing is created."""
    while True:
        folder = named_folder(env_id, model, base_folder(env_id, env_dir_path, output_dir))
        if not folder.exists():
            return folder


def folder_for(config: EvalConfig) -> Path:
    """A new name for the run that `config` describes."""
    return new_run_folder(config.env_id, config.model, config.env_dir_path, config.output_dir)


def is_run_folder(path: Path) -> bool:
    """Whether `path` is a folder with both files of a run."""
    return (path / RESULTS_FILE).is_file() and (path / METADATA_FILE).is_file()


def saved_runs(folder: Path) -> list[Path]:
    """The run folders directly inside `folder`, the one written to last first."""
    if not folder.is_dir():
        return []
    runs = [path for path in folder.iterdir() if is_run_folder(path)]
    return sorted(
        runs, key=lambda path: ((path / RESULTS_FILE).stat().st_mtime_ns, path.name), reverse=True
    )


def find_latest_incomplete(
    env_id: str,
    model: str,
    num_examples: int,
    rollouts_per_example: int,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
) -> Path | None:
    """The run written to last that these settings could continue and that has rollouts missing; else None.

    A run can be continued by the same environment and model with at least as many examples and rollouts each, and
    with equal `settings` (`env_args`, `sampling_args`), those that it has saved.
    """
    wanted = num_examples * rollouts_per_example
    for folder in saved_runs(runs_folder(env_id, model, env_dir_path, output_dir)):
        metadata = _metadata_or_none(folder)
        if (
            metadata is not None
            and metadata.get("env_id") == env_id
            and metadata.get("model") == model
            and _at_most(metadata.get("num_examples"), num_examples)
            and _at_most(metadata.get("rollouts_per_example"), rollouts_per_example)
            and all(
                name not in metadata or metadata[name] == jsonable(value)
                for name, value in (settings or {}).items()
            )
            and sum(1 for _ in _complete_lines(folder / RESULTS_FILE)) < wanted
        ):
            return folder
    return None


def _at_most(saved: Any, wanted: int) -> bool:
    return isinstance(saved, int) and saved <= wanted


def _metadata_or_none(folder: Path) -> dict[str, Any] | None:
    """A run whose metadata cannot be read is passed over in a search; opening it by name says what is wrong."""
    try:
        metadata = json.loads((folder / METADATA_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return metadata if isinstance(metadata, dict) else None


def _complete_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"}\n") or line.endswith(b"}"):
                yield line


def write_temp_file(content: str, suffix: str = ".txt") -> str:
    """The path of a new file with this text in the folder for temporary files; it is the caller's to delete."""
    with tempfile.NamedTemporaryFile("w", suffix=suffix, delete=False, encoding="utf-8") as file:
        file.write(content)
    return file.name


def prompt_search_folder(
    env_id: str,
    model: str,
    env_dir_path: str | Path = "./environments",
    output_dir: str | Path | None = None,
) -> Path:
    """A new name for a search for a better system prompt: `{base}/gepa/{env_id}--{model}/{8 hex digits}`."""
    return named_folder(env_id, model, base_folder(env_id, env_dir_path, output_dir), "gepa")
