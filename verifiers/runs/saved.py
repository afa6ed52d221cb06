"""Reading a run folder. No lock is needed: a run can be read while it is written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.errors import Error
from verifiers.runs.encoding import decode_line
from verifiers.runs.folders import METADATA_FILE, RESULTS_FILE
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Version of the run folder's format. 0.1.14 wrote none; its folders are read as version 0."""


class RunStoreError(Error, OSError):
    """A run folder could not be created, read or written."""


class DamagedLine(NamedTuple):
    """A line of `results.jsonl` that is no rollout."""

    number: int
    """Position in the file; the first line is 1."""
    reason: str


class RunDamaged(RunStoreError, ValueError):
    """A line of `results.jsonl`, not the last one, cannot be read."""


class RunNotFound(RunStoreError, FileNotFoundError):
    """There is no run at this path."""


def iterate_outputs(
    folder: Path, damaged: list[DamagedLine] | None = None
) -> Iterator[RolloutOutput]:
    """The saved rollouts, one at a time, in the order they were saved.

    A half-written last line is left out with a warning. Any other line that cannot be read raises RunDamaged with its
    number, or is added to `damaged` when a list is given.
    """
    path = _results_path(folder)
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise RunNotFound(f"There is no run at {folder}: {path} does not exist.") from error
    with file:
        for number, line in enumerate(file, start=1):
            if line.isspace():
                continue
            try:
                yield decode_line(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    logger.warning(
                        "%s: line %d was cut off while it was written; left out.", path, number
                    )
                elif damaged is None:
                    raise RunDamaged(
                        f"{path}, line {number} cannot be read: {error}. The other lines are unharmed; remove this "
                        "one, or resume the run, which reports it and runs its rollout again."
                    ) from error
                else:
                    damaged.append(DamagedLine(number, str(error)))


def load_outputs(folder: Path) -> list[RolloutOutput]:
    """All saved rollouts of a run; see `iterate_outputs`."""
    return list(iterate_outputs(folder))


def load_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a run. Raises RunNotFound when there is none, RunStoreError when it cannot be used."""
    path = Path(folder) / METADATA_FILE
    try:
        metadata = dict(decode_line(path.read_bytes()))
    except FileNotFoundError as error:
        raise RunNotFound(f"{folder} is not a run folder: it has no {METADATA_FILE}.") from error
    except ValueError as error:
        raise RunStoreError(
            f"{path} cannot be read: {error}. The rollouts beside it are unharmed."
        ) from error
    version = metadata.get("format_version", 0)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise RunStoreError(
            f"{folder} has format version {version!r}; this library reads up to {FORMAT_VERSION}. "
            "Use the version of verifiers that wrote it, or a newer one."
        )
    return metadata


def _results_path(folder: Path) -> Path:
    folder = Path(folder)
    return folder if folder.suffix == ".jsonl" else folder / RESULTS_FILE
