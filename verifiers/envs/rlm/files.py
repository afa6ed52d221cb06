"""The data of a rollout in `RLMEnv`: a folder of this machine, from `info["context_dir"]` or `info["context"]`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from verifiers.errors import DatasetError

MAX_BYTES = 1_000_000_000
"""Maximum size of a context directory, which is copied for each rollout."""


def fill_folder(
    state: MutableMapping[str, Any], folder: str, *, dir_key: str, data_key: str
) -> None:
    """Write the data of a rollout into a folder. Set `rlm_fs_source` and `rlm_fs_has_data` in the state.

    Raises DatasetError, a ValueError, for data that cannot be used.
    """
    info = state.get("info")
    info = info if isinstance(info, Mapping) else {}
    source, data = info.get(dir_key), info.get(data_key)
    state["rlm_fs_source"] = None
    state["rlm_fs_has_data"] = source is not None or data is not None
    if source is not None:
        state["rlm_fs_source"] = str(source)
        copy_directory(str(source), folder, dir_key)
    elif data is not None:
        write_data(data, folder, data_key)


def copy_directory(source: str, folder: str, key: str = "context_dir") -> None:
    """Copy the content of a directory. Raises DatasetError if it has links, is too large, or is not a directory."""
    if not os.path.isdir(source) or os.path.islink(source):
        raise DatasetError(
            f"{key} must be a directory without links; {source!r} is not. Set info[{key!r}] to an existing directory."
        )
    size = _size_of(source, key)
    if size > MAX_BYTES:
        raise DatasetError(
            f"{key} {source!r} has {size:,} bytes. A rollout copies it, so at most {MAX_BYTES:,} bytes are allowed."
        )
    shutil.copytree(source, folder, dirs_exist_ok=True)


def _size_of(source: str, key: str) -> int:
    """Return the size of all files. Raises DatasetError for a link, which could lead out of the directory."""
    size = 0
    for parent, folders, files in os.walk(source):
        for name in (*folders, *files):
            path = os.path.join(parent, name)
            if os.path.islink(path):
                raise DatasetError(
                    f"{key} contains a symlink, which is not allowed: {path}. Replace it by a copy of its target."
                )
        size += sum(os.path.getsize(os.path.join(parent, name)) for name in files)
    return size


def write_data(data: object, folder: str, key: str = "context") -> None:
    """Write text to `context.txt`, and any other value as JSON to `context.json`. Raises DatasetError."""
    if isinstance(data, str):
        (Path(folder) / "context.txt").write_text(data, "utf-8", "surrogatepass")
        return
    try:
        text = json.dumps(data, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise DatasetError(
            f"info[{key!r}] must be text or JSON; got {type(data).__name__}: {error}. Convert it in the dataset."
        ) from error
    (Path(folder) / "context.json").write_text(text, "utf-8", "surrogatepass")


__all__ = ["copy_directory", "fill_folder", "write_data"]
