"""The run folder: rollouts appended durably, metadata replaced atomically, one writer at a time.

    results.jsonl       one finished rollout per line
    metadata.json       description and summary of the run so far
    results.index       one short line per rollout, for readers that do not load the whole run
    results.jsonl.cut   a half-written last line after a crash (only if that happened)
    superseded.jsonl    rollouts that were run again, with the reason (only if that happened)
    .lock               names the process that writes; absent otherwise

A rollout counts as saved when `append` returns: its line is then on the disk, not only in a cache. Groups that
finish during a write share the next write and its fsync. A separate thread writes, so neither the event loop nor the
reward functions in the default pool wait for the disk. Reading needs no lock, also while a run is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from verifiers.errors import Error
from verifiers.files import remove_leftovers, replace_file, replacement, sync, write_all
from verifiers.runs.folders import (
    LOCK_FILE,
    METADATA_FILE,
    RESULTS_FILE,
    FolderLock,
    not_a_run,
)
from verifiers.runs.index import (
    HEADER,
    INDEX_FILE,
    IndexedRollout,
    IndexWriter,
    Place,
    decode_entry,
    encode_entry,
    fits,
    short_output,
)
from verifiers.runs.output import decode_line, encode_document, encode_line
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
"""Version of the run folder's format. Folders of 0.1.14 have no version and are read as version 0."""


class RunStoreError(Error, OSError):
    """A run folder could not be created, read or written."""


class DamagedLine(NamedTuple):
    """A line of `results.jsonl` that is not a rollout."""

    number: int
    """Position in the file; the first line is 1."""
    reason: str


class RunDamaged(RunStoreError, ValueError):
    """A line of `results.jsonl`, other than the last, cannot be read."""


class RunNotFound(RunStoreError, FileNotFoundError):
    """There is no run at this path."""


def iterate_outputs(
    folder: Path, damaged: list[DamagedLine] | None = None
) -> Iterator[RolloutOutput]:
    """Yield the saved rollouts in the order in which they were saved.

    A half-written last line is skipped with a warning. Any other line that cannot be read raises RunDamaged with its
    number, or is added to `damaged` if a list is given.
    """
    for _, output in _read(_results_path(folder), damaged):
        yield output


def _read(
    path: Path, damaged: list[DamagedLine] | None, start: int = 0
) -> Iterator[tuple[Place, RolloutOutput]]:
    """Yield the rollouts from byte `start` on, each with its place; see `iterate_outputs`."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise RunNotFound(f"There is no run at {path.parent}: {path} does not exist.") from error
    with file:
        file.seek(start)
        for number, line in enumerate(file, start=1):
            offset, start = start, start + len(line)
            if line.isspace():
                continue
            try:
                yield Place(offset, len(line)), decode_line(line)
            except ValueError as error:
                if not line.endswith(b"\n"):
                    logger.warning(
                        "%s: line %d was cut off while it was written; skipped.", path, number
                    )
                elif damaged is None:
                    raise RunDamaged(
                        f"{path}, line {number} cannot be read: {error}. The other lines are intact; remove this "
                        "line, or resume the run, which reports the line and runs its rollout again."
                    ) from error
                else:
                    damaged.append(DamagedLine(number, str(error)))


def iterate_index(folder: Path, start: int = 0) -> Iterator[IndexedRollout]:
    """Yield every rollout of a run in short form with its place in the file, in the order in which they were saved.

    The run may be written at the same time, or have been written by the public 0.1.14. An index that is missing or does
    not fit the results is replaced, unless the run is being written or the folder cannot be. Lines that cannot be read
    are skipped with a warning. From `start` > 0, the end of a line in bytes, the results themselves are read: the
    rollouts that were saved since.
    """
    may_save = not start and not (folder / LOCK_FILE).exists()
    return _iterate_index(_results_path(folder), may_save=may_save, end=start)


def _iterate_index(results: Path, *, may_save: bool, end: int = 0) -> Iterator[IndexedRollout]:
    index = results.with_name(INDEX_FILE)
    is_trusted = not end and fits(index, results)
    if is_trusted:
        with index.open("rb") as file:
            file.readline()
            for line in file:
                if not line.endswith(b"\n"):
                    break  # its writer has not finished it
                rollout = decode_entry(line)
                end = sum(rollout.place)
                yield rollout
    damaged: list[DamagedLine] = []
    entries: list[bytes] = []
    for place, output in _read(results, damaged, end):
        entry = encode_entry(place, short_output(output))
        entries.append(entry)
        yield decode_entry(entry)
    for number, reason in damaged:
        logger.warning("%s, line %d cannot be read and is skipped: %s", results, number, reason)
    if may_save and (entries or not is_trusted):
        with contextlib.suppress(OSError):  # a folder that cannot be written stays without
            kept = index.read_bytes() if is_trusted else HEADER
            replace_file(index, b"".join([kept[: kept.rfind(b"\n") + 1], *entries]))


def complete_index(folder: Path) -> None:
    """Bring the index of a run up to date. The caller must hold the lock of the folder."""
    for _ in _iterate_index(_results_path(folder), may_save=True):
        pass


def read_output(folder: Path, place: Place) -> RolloutOutput:
    """Return the rollout at a place of `results.jsonl`. Raises RunDamaged if there is none."""
    path = _results_path(folder)
    with path.open("rb") as file:
        file.seek(place.offset)
        line = file.read(place.length)
    try:
        return decode_line(line)
    except ValueError as error:
        raise RunDamaged(
            f"{path} has no rollout at byte {place.offset}: {error}. The file has changed; open the run again."
        ) from error


def load_outputs(results_path: Path) -> list[RolloutOutput]:
    """Return all saved rollouts of the run in this folder; see `iterate_outputs`."""
    return list(iterate_outputs(results_path))


def load_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of a run. Raises RunNotFound without a run, RunStoreError if the metadata cannot be used."""
    path = Path(folder) / METADATA_FILE
    try:
        metadata = dict(decode_line(path.read_bytes()))
    except FileNotFoundError as error:
        raise RunNotFound(not_a_run(Path(folder))) from error
    except ValueError as error:
        raise RunStoreError(
            f"{path} cannot be read: {error}. The rollouts beside it are intact."
        ) from error
    version = metadata.get("format_version", 0)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise RunStoreError(
            f"{folder} has format version {version!r}; this library reads versions up to {FORMAT_VERSION}. "
            "Use the version of verifiers that wrote it, or a newer one."
        )
    return metadata


def _results_path(folder: Path) -> Path:
    folder = Path(folder)
    return folder if folder.suffix == ".jsonl" else folder / RESULTS_FILE


CUT_FILE = RESULTS_FILE + ".cut"
SUPERSEDED_FILE = "superseded.jsonl"


def write_metadata(folder: Path, metadata: Mapping[str, Any]) -> None:
    """Replace `metadata.json`. A crash leaves either the old or the new file, never a part.

    `path_to_save` is omitted, as in 0.1.14, because a run folder may be moved. Blocks for about two fsyncs.
    """
    fields = {key: value for key, value in metadata.items() if key != "path_to_save"}
    _replace(folder / METADATA_FILE, encode_document({"format_version": FORMAT_VERSION, **fields}))


def _replace(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content, is_durable=True)
    except OSError as error:
        raise RunStoreError(
            f"{path} could not be written: {_cause(error)}. The file is unchanged, and so are the saved rollouts."
        ) from error


def _cause(error: OSError) -> str:
    return error.strerror or str(error)


class _Batch:
    """Lines that share one write and one fsync."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.shorts: list[dict[str, Any]] = []
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # a waiter that is cancelled must not cancel the write of the others


class RunStore:
    """A run folder that this process writes, from `create`, `open` or `create_or_open`."""

    def __init__(
        self, folder: Path, lock: FolderLock, descriptor: int, metadata: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.metadata = metadata
        """The metadata last written or read."""
        self.damaged_lines: list[DamagedLine] = []
        """Lines that the last call of `outputs` could not read; their rollouts count as missing."""
        self.saved_count = 0
        """Number of rollouts that this store has appended."""
        self._lock = lock
        self._descriptor = descriptor
        self._size_bytes = os.fstat(descriptor).st_size
        self._index = IndexWriter(folder)
        self._pending = _Batch()
        self._is_writing = False
        self._is_closed = False
        self._guard = threading.Lock()
        self._writer: ThreadPoolExecutor | None = None

    @classmethod
    def create(cls, folder: str | Path, metadata: Mapping[str, Any]) -> Self:
        """Create a run at `folder`, with parent folders as needed.

        Raises RunStoreError if a run already exists there or the folder cannot be written, RunLocked if another
        process creates the same run.
        """
        folder = Path(folder)
        if (folder / RESULTS_FILE).exists():
            raise RunStoreError(
                f"{folder} already contains a run; open it to continue it, or name another folder."
            )
        with _explained(folder, "be created"):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(folder)
            lock.acquire()
        try:
            write_metadata(folder, metadata)
            with _explained(folder, "be created"):
                descriptor = _open_results(folder)
                sync(folder)
                sync(folder.parent)
            return cls(folder, lock, descriptor, dict(metadata))
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open the run at `folder` to continue it. A half-written last line is cut off and kept in a file beside it.

        Raises RunNotFound without a run, RunLocked if another process writes it.
        """
        folder = Path(folder)
        metadata = load_metadata(folder)
        with _explained(folder, "be opened for writing"):
            lock = FolderLock(folder)
            lock.acquire()
        try:
            with _explained(folder, "be opened for writing"):
                descriptor = _open_results(folder)
                for name in (METADATA_FILE, RESULTS_FILE):  # left by a crash before their renaming
                    remove_leftovers(folder / name)
                _repair_last_line(folder, descriptor)
            complete_index(folder)
            return cls(folder, lock, descriptor, metadata)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def create_or_open(cls, folder: str | Path, metadata: Mapping[str, Any]) -> Self:
        """`open` if `folder` already contains a run, else `create`."""
        if (Path(folder) / METADATA_FILE).exists():
            return cls.open(folder)
        return cls.create(folder, metadata)

    # --- appending

    async def append(self, outputs: Sequence[RolloutOutput]) -> None:
        """Save finished rollouts. When the call returns, they survive a crash of the machine.

        The lines of one call are written together. Cancelling the call does not undo the write. Raises RunStoreError if
        the disk refuses; the file then contains nothing of this call, and the rollouts saved before are intact.
        """
        if outputs:
            await asyncio.wrap_future(self._enqueue(outputs))

    def append_and_wait(self, outputs: Sequence[RolloutOutput]) -> None:
        """`append` for code without an event loop; blocks until the rollouts are on the disk."""
        if outputs:
            self._enqueue(outputs).result()

    def _enqueue(self, outputs: Sequence[RolloutOutput]) -> Future[None]:
        lines = [encode_line(output) for output in outputs]
        shorts = [short_output(output) for output in outputs]
        with self._guard:
            if self._is_closed:
                raise RunStoreError(
                    f"The run at {self.folder} is closed; {len(lines)} rollouts were not saved."
                )
            batch = self._pending
            batch.lines += lines
            batch.shorts += shorts
            if not self._is_writing:
                self._is_writing = True
                if self._writer is None:
                    self._writer = ThreadPoolExecutor(1, thread_name_prefix="run-store")
                self._writer.submit(self._write_batches)
            return batch.done

    def _write_batches(self) -> None:
        """Write the waiting lines until none is left. Runs in the writer's thread."""
        while True:
            with self._guard:
                batch = self._pending
                if not batch.lines:
                    self._is_writing = False
                    return
                self._pending = _Batch()
            try:
                self._write(batch)
            except BaseException as error:  # noqa: BLE001  # every waiter receives the error
                batch.done.set_exception(error)
            else:
                self.saved_count += len(batch.lines)
                batch.done.set_result(None)

    def _write(self, batch: _Batch) -> None:
        content = b"".join(batch.lines)
        try:
            write_all(self._descriptor, content)
            os.fsync(self._descriptor)
        except OSError as error:
            raise RunStoreError(
                f"{len(batch.lines)} finished rollouts could not be saved in {self.folder / RESULTS_FILE}: "
                f"{_cause(error)}. {self._took_back()} Free space or fix the permissions, then resume the run."
            ) from error
        self._index.append(self._size_bytes, batch.lines, batch.shorts)
        self._size_bytes += len(content)

    def _took_back(self) -> str:
        """Remove the remains of a failed write, so that the file ends with a whole line. Return a sentence about the
        result.
        """
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
            os.fsync(self._descriptor)
        except OSError as error:
            cause = _cause(error)
            return f"Rollouts saved before are intact; a partial line may follow them ({cause}), and resuming cuts it."
        return "All rollouts saved before are intact, and the file is whole."

    # --- the rest

    def outputs(self) -> Iterator[RolloutOutput]:
        """Yield the saved rollouts in the order in which they were saved; unreadable lines go to `damaged_lines`."""
        self.damaged_lines = []
        yield from iterate_outputs(self.folder, self.damaged_lines)
        for number, reason in self.damaged_lines:
            logger.warning(
                "%s, line %d cannot be read and is skipped: %s",
                self.folder / RESULTS_FILE,
                number,
                reason,
            )

    def write_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata; see `write_metadata` of this module. In an event loop use `asyncio.to_thread`."""
        write_metadata(self.folder, metadata)
        self.metadata = dict(metadata)

    def supersede(self, positions: Mapping[int, str]) -> None:
        """Move rollouts that will be run again from `results.jsonl` to `superseded.jsonl`.

        `positions` count the rollouts that `outputs` yields, from 0; the text is the reason. The order of the steps
        ensures that a crash can at worst duplicate a line in `superseded.jsonl`. No rollout may be appended at the
        same time.
        """
        if not positions:
            return
        date = datetime.now(UTC).isoformat(timespec="seconds")
        with self._changing("moved"), (self.folder / SUPERSEDED_FILE).open("ab") as moved:

            def kept(position: int, output: RolloutOutput) -> RolloutOutput | None:
                if position not in positions:
                    return output
                entry = {"reason": positions[position], "date": date, "output": output}
                moved.write(encode_line(entry))
                return None

            self._rewrite(kept, moved)

    def replace(self, outputs: Mapping[int, RolloutOutput]) -> None:
        """Replace saved rollouts in their places, for example after new scoring. See `supersede` for the positions.

        A crash leaves either the old file or the new file. No rollout may be appended at the same time.
        """
        if outputs:
            with self._changing("replaced"):
                self._rewrite(lambda position, output: outputs.get(position, output))

    @contextlib.contextmanager
    def _changing(self, how: str) -> Generator[None]:
        with self._guard:
            if self._is_writing:
                raise RunStoreError(
                    f"Rollouts of {self.folder} cannot be {how} while others are being saved."
                )
            with _explained(self.folder, "be changed"):
                yield

    def _rewrite(
        self,
        change: Callable[[int, RolloutOutput], RolloutOutput | None],
        also_sync: IO[bytes] | None = None,
    ) -> None:
        """Rewrite `results.jsonl`: `change` receives every rollout with its position and returns it, another one, or
        None to leave it out. Lines that are not rollouts stay. `also_sync` is on the disk before the file is replaced.
        """
        path = self.folder / RESULTS_FILE
        position = -1
        with (
            replacement(path, is_durable=True) as temporary,
            path.open("rb") as old,
            temporary.open("wb") as new,
        ):
            for line in old:
                output = _output_or_none(line)
                if output is None:
                    new.write(line)
                    continue
                position += 1
                changed = change(position, output)
                if changed is not None:
                    new.write(line if changed is output else encode_line(changed))
            if also_sync is not None:
                also_sync.flush()
                os.fsync(also_sync.fileno())
        self._index.close()
        complete_index(self.folder)
        self._index = IndexWriter(self.folder)
        os.close(self._descriptor)
        self._descriptor = _open_results(self.folder)
        self._size_bytes = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Wait until all appended rollouts are on the disk, then release the lock. Closing twice has no effect."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.shutdown(wait=True)
        self._index.close()
        os.close(self._descriptor)
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


# --- writers of v0


def save_outputs(outputs: Iterable[RolloutOutput], results_path: Path, mode: str = "w") -> None:
    """Write rollouts to the run folder `results_path` without a store: replace the file ("w") or add to it ("a")."""
    folder = Path(results_path)
    with _explained(folder, "be written"):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / RESULTS_FILE).open("ab" if mode == "a" else "wb") as file:
            file.writelines(encode_line(output) for output in outputs)
            file.flush()
            os.fsync(file.fileno())


def save_new_outputs(new_outputs: Iterable[RolloutOutput], results_path: Path) -> None:
    """Add rollouts to the run folder `results_path`."""
    save_outputs(new_outputs, results_path, mode="a")


def save_metadata(metadata: Mapping[str, Any], result_path: Path) -> None:
    """Write the metadata of the run folder `result_path`, which is created if needed."""
    folder = Path(result_path)
    with _explained(folder, "be written"):
        folder.mkdir(parents=True, exist_ok=True)
    write_metadata(folder, metadata)


# --- parts


class _explained:
    """Turn an OSError of the block into a RunStoreError with the folder; the library's own errors pass."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, OSError) and not isinstance(error, Error):
            raise RunStoreError(
                f"The run at {self.folder} cannot {self.what}: {_cause(error)}."
            ) from error


def _open_results(folder: Path) -> int:
    return os.open(
        folder / RESULTS_FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
    )


def _output_or_none(line: bytes) -> RolloutOutput | None:
    if line.isspace():
        return None
    try:
        return decode_line(line)
    except ValueError:
        return None


def _repair_last_line(folder: Path, descriptor: int) -> None:
    """End the file with a whole line: complete a line that lacks only its line break, cut off a broken line."""
    start, tail = _last_line(descriptor)
    if not tail or tail.endswith(b"\n"):
        return
    if _output_or_none(tail) is not None:
        os.write(descriptor, b"\n")
    else:
        with (folder / CUT_FILE).open("ab") as file:
            file.write(tail + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.ftruncate(descriptor, start)
        logger.warning(
            "%s ended in a half-written line (%d bytes); it was cut off and kept in %s. Its rollout will run again.",
            folder / RESULTS_FILE,
            len(tail),
            CUT_FILE,
        )
    os.fsync(descriptor)


def _last_line(descriptor: int, block_bytes: int = 1 << 16) -> tuple[int, bytes]:
    """Return the position and the bytes of the last line, read from the end of the file."""
    end = os.fstat(descriptor).st_size
    start, tail = end, b""
    while start > 0:
        step = min(block_bytes, start)
        start -= step
        block_bytes *= 2  # a line of many megabytes must not be joined from thousands of pieces
        tail = os.pread(descriptor, step, start) + tail
        cut = tail.rfind(b"\n", 0, len(tail) - 1)
        if cut >= 0:
            return start + cut + 1, tail[cut + 1 :]
    return 0, tail
