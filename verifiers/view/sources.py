"""Where runs come from. The pages use `RunSource` and `Run` only, so the hub can serve the same pages."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from verifiers.errors import Error
from verifiers.runs.folders import RESULTS_FILE, is_being_written, is_run_folder
from verifiers.runs.output import decode_line
from verifiers.runs.run_tokens import token_key
from verifiers.runs.store import RunDamaged, RunNotFound, iterate_index, load_metadata
from verifiers.types import RolloutOutput
from verifiers.view.columns import ColumnsBuilder, RunColumns
from verifiers.view.notes import Notes

MAX_DEPTH = 6
"""Maximum depth at which run folders are searched below a folder."""
MAX_RUNS = 5000
LISTING_S = 2.0
"""Time for which a list of run folders is used again, in seconds."""
REFRESH_S = 0.5
"""Minimum time between two looks at the files of a run, in seconds."""
MAX_OPEN = 8
"""Maximum number of runs whose columns are kept in memory."""
MAX_KEPT_BYTES = 24 << 20
"""Maximum size of a line whose decoded rollout is kept for the next page."""


class Run(Protocol):
    """One run."""

    key: str
    """Identifies the run in addresses; contains letters and digits only."""
    name: str
    """Short name for people, such as the path below the folder of all runs."""
    notes: Notes | None
    """None if notes cannot be stored."""
    folder: Path | None
    """The folder of the run on this machine, for comparisons; None if the run is elsewhere."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the run; empty if they cannot be read."""
        ...

    @property
    def problem(self) -> str | None:
        """The reason why the metadata cannot be read, or None."""
        ...

    @property
    def is_live(self) -> bool:
        """Whether the run is being written."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of the results."""
        ...

    def columns(self) -> RunColumns:
        """Return the columns, with the rollouts that were saved since the last call."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes of the results; fewer at the end. Lines are where the columns place them."""
        ...

    def output(self, row: int) -> RolloutOutput:
        """Return one rollout. Raises RunDamaged if the results have changed, IndexError for an unknown row."""
        ...

    def token_steps(self, output: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the saved token data of a rollout, one entry per turn; [] without token data."""
        ...


class RunSource(Protocol):
    """A collection of runs."""

    def runs(self) -> list[Run]:
        """Return all runs, the most recently written first."""
        ...

    def run(self, key: str) -> Run:
        """Return a run. Raises RunNotFound for an unknown key."""
        ...


class FolderRun:
    """A run folder on this machine, also while another process writes it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder: Path | None = folder
        self._folder = folder
        self.key = key_of(folder)
        self.name = name
        self.notes: Notes | None = Notes(folder)
        self.problem: str | None = None
        self._metadata: Mapping[str, Any] = {}
        self._metadata_stamp: int | None = None
        self._guard = threading.Lock()
        self._builder: ColumnsBuilder | None = None
        self._columns: RunColumns | None = None
        self._file_id: tuple[int, int] | None = None
        self._looked_s = 0.0
        self._kept: tuple[str, int, RolloutOutput] | None = None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata, read again when the file has changed."""
        try:
            stamp = (self._folder / "metadata.json").stat().st_mtime_ns
            if stamp != self._metadata_stamp:
                self._metadata, self.problem = load_metadata(self._folder), None
                self._metadata_stamp = stamp
        except (Error, OSError) as error:
            self._metadata, self.problem = {}, str(error)
        return self._metadata

    @property
    def results(self) -> Path:
        """The file with the rollouts."""
        return self._folder / RESULTS_FILE

    @property
    def is_live(self) -> bool:
        """Whether a process holds the lock of the folder."""
        return is_being_written(self._folder)

    @property
    def size_bytes(self) -> int:
        """Size of the results."""
        with suppress(OSError):
            return self.results.stat().st_size
        return 0

    @property
    def written_ns(self) -> int:
        """Time of the last write, for sorting."""
        with suppress(OSError):
            return self.results.stat().st_mtime_ns
        return 0

    def columns(self) -> RunColumns:
        """Return the columns; see `Run`."""
        with self._guard:
            now = time.monotonic()
            if self._columns is not None and now - self._looked_s < REFRESH_S:
                return self._columns
            status = self._status()
            file_id = (status.st_dev, status.st_ino)
            columns = self._columns
            if columns is None or self._builder is None or self._is_replaced(file_id, status):
                self._builder, columns = ColumnsBuilder(), None
            before = self._builder.count
            if columns is None:
                self._builder.extend(iterate_index(self._folder))
            elif status.st_size > columns.end:
                self._builder.extend(iterate_index(self._folder, columns.end))
            if columns is None or self._builder.count != before:
                version = f"{status.st_ino:x}-{self._builder.count}"
                columns = self._builder.columns(version)
            self._columns, self._file_id, self._looked_s = columns, file_id, time.monotonic()
            return columns

    def _status(self) -> os.stat_result:
        try:
            return self.results.stat()
        except FileNotFoundError as error:
            raise RunNotFound(f"The run {self.name} has been deleted or moved.") from error

    def _is_replaced(self, file_id: tuple[int, int], status: os.stat_result) -> bool:
        return (
            file_id != self._file_id or self._columns is None or status.st_size < self._columns.end
        )

    def forget(self) -> None:
        """Release the columns and the rollout that are kept in memory."""
        with self._guard:
            self._builder = self._columns = self._kept = None

    def read_at(self, offset: int, length: int) -> bytes:
        """Return bytes of the results."""
        with self.results.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)

    def line(self, row: int) -> bytes:
        """Return the saved line of a rollout."""
        columns = self.columns()
        if not 0 <= row < columns.count:
            raise IndexError(f"The run has {columns.count} rollouts; there is no rollout {row}.")
        return self.read_at(int(columns.offsets[row]), int(columns.lengths[row]))

    def output(self, row: int) -> RolloutOutput:
        """Return one rollout. The last one is kept, because a reader turns the pages of one rollout."""
        version = self.columns().version
        kept = self._kept
        if kept is not None and kept[:2] == (version, row):
            return kept[2]
        line = self.line(row)
        try:
            output = decode_line(line)
        except ValueError as error:
            raise RunDamaged(
                f"Rollout {row} of {self.name} cannot be read: {error}. The file has changed; load the page again."
            ) from error
        self._kept = (version, row, output) if len(line) <= MAX_KEPT_BYTES else None
        return output

    def token_steps(self, output: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the steps of the token file, else those of a saved trajectory."""
        from verifiers.tokens.token_file import TOKENS_FILE, TokenFile, TokenFileError

        if (self._folder / TOKENS_FILE).exists():
            try:
                with TokenFile(self._folder, read_only=True) as file:
                    key = token_key(output)
                    if key in file:
                        return file.read_steps(key)
            except (TokenFileError, KeyError):
                return []
        steps = output.get("trajectory")
        if not isinstance(steps, list):
            return []
        return [step for step in steps if isinstance(step, dict) and step.get("tokens")]


def key_of(folder: Path) -> str:
    """Return the key of a run folder: a hash of its path, so that no part of an address is a path."""
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:12]


def run_folders(folder: Path) -> Iterable[Path]:
    """Yield the run folders in a folder, or the folder itself if it is one; links are not followed."""
    if is_run_folder(folder):
        yield folder
        return
    base = len(folder.parts)
    for place, names, files in os.walk(folder):
        path = Path(place)
        if RESULTS_FILE in files and is_run_folder(path):
            names.clear()
            yield path
        elif len(path.parts) - base >= MAX_DEPTH:
            names.clear()
        else:
            names[:] = sorted(
                name
                for name in names
                if not name.startswith(".") and name not in ("node_modules", "__pycache__")
            )


def default_folders(base: Path) -> list[Path]:
    """Return the folders below `base` into which `vf-eval` saves runs."""
    return [base / "outputs", *sorted(base.glob("environments/*/outputs"))]


class FolderSource:
    """The runs in folders of this machine. New runs appear by themselves."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = [Path(folder) for folder in folders]
        self._runs: OrderedDict[str, FolderRun] = OrderedDict()
        self._opened: OrderedDict[str, None] = OrderedDict()
        self._listed_s = -LISTING_S
        self._guard = threading.Lock()

    def runs(self) -> list[Run]:
        """Return all runs, the most recently written first."""
        with self._guard:
            if time.monotonic() - self._listed_s >= LISTING_S:
                self._list()
            newest = sorted(self._runs.values(), key=lambda run: run.written_ns, reverse=True)
            return [*newest]

    def _list(self) -> None:
        found: OrderedDict[str, FolderRun] = OrderedDict()
        for folder in self.folders:
            root = folder.parent if is_run_folder(folder) else folder
            for path in run_folders(folder):
                run = self._runs.get(key_of(path)) or FolderRun(path, _shown_name(path, root))
                found.setdefault(run.key, run)
                if len(found) >= MAX_RUNS:
                    break
        self._runs = found
        self._listed_s = time.monotonic()

    def run(self, key: str) -> Run:
        """Return a run; the runs that were used least recently release their memory."""
        if key not in self._runs:
            self.runs()
        with self._guard:
            run = self._runs.get(key)
            if run is None:
                raise RunNotFound("There is no such run. It may have been deleted or moved.")
            self._opened[key] = None
            self._opened.move_to_end(key)
            while len(self._opened) > MAX_OPEN:
                old, _ = self._opened.popitem(last=False)
                if old in self._runs:
                    self._runs[old].forget()
            return run


def _shown_name(path: Path, root: Path) -> str:
    relative = path.relative_to(root) if path.is_relative_to(root) else path
    return relative.as_posix().removeprefix("evals/")
