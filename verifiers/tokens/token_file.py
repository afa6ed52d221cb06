"""`TokenFile`: the token graphs of many rollouts in one file beside a run.

    tokens.arrow     an Arrow IPC stream that any Arrow reader opens; one row per rollout, one record batch per append
    tokens.index     one line of JSON per rollout: its key, and the position of its record batch

A batch is on disk before its index lines are written, and both files only grow. After a crash, an incomplete batch is
cut off, and index lines that are missing are rebuilt from the batches. Reading one rollout reads one batch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from verifiers.errors import Error
from verifiers.files import write_all
from verifiers.tokens.graph import Chain, StepTokens, TokenGraph, stored_steps

TOKENS_FILE = "tokens.arrow"
INDEX_FILE = "tokens.index"
FORMAT = b"verifiers-tokens-1"

_OWN_COLUMNS = frozenset(["completion_mask", "prompt_mask", "versions", "routed_experts"])


class TokenFileError(Error, OSError):
    """A token file cannot be read or written."""


class _Entry(NamedTuple):
    """Position of the tokens of a rollout."""

    offset: int
    size_bytes: int
    row: int


class TokenFile:
    """Tokens of rollouts by key. Use it as a context manager. One process may write, any number may read.

    with TokenFile(folder) as file:
        file.append({"0-3": state["trajectory"]})
        steps = file.read("0-3")
    """

    def __init__(self, folder: str | Path, *, read_only: bool = False) -> None:
        self.folder = Path(folder)
        self.read_only = read_only
        self._entries: dict[str, _Entry] = {}
        self._tokens = -1
        self._index = -1
        self._size_bytes = 0

    def __enter__(self) -> Self:
        if self.read_only and not (self.folder / TOKENS_FILE).exists():
            raise TokenFileError(f"There are no saved tokens at {self.folder / TOKENS_FILE}.")
        flags = os.O_RDONLY if self.read_only else os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            if not self.read_only:
                self.folder.mkdir(parents=True, exist_ok=True)
            self._tokens = os.open(self.folder / TOKENS_FILE, flags | os.O_CLOEXEC, 0o644)
            self._begin()
        except OSError as error:
            self.close()
            if isinstance(error, Error):
                raise
            raise TokenFileError(
                f"{self.folder / TOKENS_FILE} cannot be opened: {error.strerror or error}."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. A second call has no effect."""
        for name in ("_tokens", "_index"):
            if (descriptor := getattr(self, name)) >= 0:
                os.close(descriptor)
            setattr(self, name, -1)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        """Return the keys in the order of saving."""
        return iter(list(self._entries))

    # ------------------------------------------------------------------------------------------ writing

    def append(
        self, trajectories: Mapping[str, Sequence[Mapping[str, Any]]], *, sync: bool = True
    ) -> None:
        """Save the tokens of rollouts under their keys; with `sync` they survive a crash of the machine.

        An existing key is superseded: readers get its latest trajectory. Raise TokenFileError when the data cannot be
        written; earlier data is intact.
        """
        if self._tokens < 0 or self.read_only:
            raise TokenFileError(f"{self.folder / TOKENS_FILE} is not open for writing.")
        if not trajectories:
            return
        import pyarrow as pa

        rows = [_row(key, trajectory) for key, trajectory in trajectories.items()]
        batch = pa.RecordBatch.from_pylist(rows, _schema())
        content = batch.serialize()
        offset = self._write(self._tokens, content, sync)
        entries = {key: _Entry(offset, content.size, row) for row, key in enumerate(trajectories)}
        # The index can be rebuilt from the batches, so it is not forced to disk.
        self._write(self._index, _index_lines(entries), sync=False)
        self._entries |= entries

    def _write(self, descriptor: int, content: Any, sync: bool) -> int:
        """Append bytes and return their position; a failed write leaves nothing behind."""
        begin = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, memoryview(content))
            if sync:
                os.fsync(descriptor)
        except OSError as error:
            with contextlib.suppress(OSError):  # then the next opening cuts off the incomplete part
                os.ftruncate(descriptor, begin)
            raise TokenFileError(
                f"Tokens could not be saved in {self.folder}: {error.strerror or error}. Tokens saved earlier are "
                "intact. Free space or fix the permissions, then resume."
            ) from error
        return begin

    # ------------------------------------------------------------------------------------------ reading

    def read(self, key: str) -> list[StepTokens | None]:
        """Return the tokens of a rollout's steps, None for a step without tokens. Raise KeyError for an unknown key."""
        return [step["tokens"] for step in self.read_steps(key)]

    def read_steps(self, key: str) -> list[dict[str, Any]]:
        """Return the steps of a rollout with the fields that training needs: `tokens`, `advantage`, `is_truncated`
        and `extras` (whether the step is trainable). Raise KeyError for an unknown key.
        """
        import pyarrow as pa

        entry = self._entries[key]
        content = os.pread(self._tokens, entry.size_bytes, entry.offset)
        try:
            batch = pa.ipc.read_record_batch(pa.py_buffer(content), _schema())
            return _steps(batch.slice(entry.row, 1).to_pylist()[0])
        except (pa.ArrowInvalid, IndexError, OSError) as error:
            raise TokenFileError(
                f"The tokens of {key!r} in {self.folder / TOKENS_FILE} cannot be read: {error}. "
                f"If the files were copied by hand, delete {INDEX_FILE}; it is rebuilt."
            ) from error

    # ------------------------------------------------------------------------------------------ opening

    def _begin(self) -> None:
        schema = _schema().serialize().to_pybytes()
        size = os.fstat(self._tokens).st_size
        found = os.pread(self._tokens, len(schema), 0)
        if found != schema:
            if not schema.startswith(found):
                raise TokenFileError(
                    f"{self.folder / TOKENS_FILE} is not a token file of this version; move it away."
                )
            if self.read_only:
                return  # the writer has not written the schema yet
            os.ftruncate(self._tokens, 0)
            self._write(self._tokens, schema, sync=True)
            size = len(schema)
        indexed = self._read_index(len(schema), size)
        found_entries, whole = self._scan(indexed, size)
        self._entries |= found_entries
        if self.read_only:
            return
        if whole < size:
            os.ftruncate(self._tokens, whole)
        self._index = os.open(
            self.folder / INDEX_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )
        os.ftruncate(self._index, self._index_bytes)
        self._write(self._index, _index_lines(found_entries), sync=False)

    def _read_index(self, start: int, size: int) -> int:
        """Keep the index lines that fit the file and return the end of the batches they describe."""
        self._index_bytes = 0
        end = start
        try:
            lines = (self.folder / INDEX_FILE).read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return end
        for line in lines:
            try:
                key, *place = json.loads(line)
                entry = _Entry(*place)
            except (ValueError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            if entry.offset + entry.size_bytes > size or entry.offset + entry.size_bytes < end:
                break
            self._entries[key] = entry
            end = entry.offset + entry.size_bytes
            self._index_bytes += len(line)
        return end

    def _scan(self, start: int, size: int) -> tuple[dict[str, _Entry], int]:
        """Yield rollouts in batches from `start` on, and the end of the last complete batch."""
        if start >= size:
            return {}, start
        import pyarrow as pa

        entries: dict[str, _Entry] = {}
        with pa.OSFile(str(self.folder / TOKENS_FILE), "rb") as source:
            source.seek(start)
            while start < size:
                try:
                    message = pa.ipc.read_message(source)
                    batch = pa.ipc.read_record_batch(message, _schema())
                    batch.validate(full=True)
                except (pa.ArrowInvalid, EOFError, OSError):
                    break  # the end of a write that was cut short by a crash
                end = source.tell()
                for row, key in enumerate(batch.column("key").to_pylist()):
                    entries[key] = _Entry(start, end - start, row)
                start = end
        return entries, start


def _index_lines(entries: Mapping[str, _Entry]) -> bytes:
    return b"".join(json.dumps([key, *entry]).encode() + b"\n" for key, entry in entries.items())


# ------------------------------------------------------------------------------------------------ rows


def _schema() -> Any:
    import pyarrow as pa

    chain = pa.struct(
        [
            ("parent", pa.int32()),
            ("shared", pa.int32()),
            ("ids", pa.list_(pa.int32())),
            ("logprobs", pa.list_(pa.float32())),
        ]
    )
    step = pa.struct(
        [
            ("chain", pa.int32()),
            ("prompt_length", pa.int32()),
            ("length", pa.int32()),
            ("first_logprob", pa.int32()),
            ("prompt_mask", pa.binary()),
            ("completion_mask", pa.binary()),
            ("versions", pa.list_(pa.int32())),
            ("routed_experts", pa.binary()),
            ("routed_experts_shape", pa.list_(pa.int32())),
            ("details", pa.binary()),
            ("advantage", pa.float64()),
            ("is_truncated", pa.bool_()),
            ("trainable", pa.bool_()),
        ]
    )
    fields = [("key", pa.string()), ("chains", pa.list_(chain)), ("steps", pa.list_(step))]
    return pa.schema(fields, metadata={b"format": FORMAT})


def _row(key: str, trajectory: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import numpy as np

    stored = stored_steps([step.get("tokens") for step in trajectory])
    chains: list[Chain] = []
    places: dict[int, int] = {}

    def place_of(chain: Chain | None) -> int:
        if chain is None:
            return -1
        if id(chain) not in places:
            parent = place_of(chain.parent)
            places[id(chain)] = len(chains)
            chains.append(chain)
            parents.append(parent)
        return places[id(chain)]

    parents: list[int] = []
    steps = [
        _step_row(tokens, place_of(tokens.chain if tokens else None)) | _about(step)
        for tokens, step in zip(stored, trajectory, strict=True)
    ]
    return {
        "key": key,
        "chains": [
            {
                "parent": parent,
                "shared": chain.shared,
                "ids": np.frombuffer(bytes(chain.ids), np.int32),
                "logprobs": np.frombuffer(bytes(chain.logprobs), np.float32),
            }
            for chain, parent in zip(chains, parents, strict=True)
        ],
        "steps": steps,
    }


def _about(step: Mapping[str, Any]) -> dict[str, Any]:
    extras = step.get("extras")
    advantage = step.get("advantage")
    return {
        "advantage": None if advantage is None else float(advantage),
        "is_truncated": bool(step.get("is_truncated")),
        "trainable": not (isinstance(extras, Mapping) and extras.get("trainable") is False),
    }


def _step_row(step: StepTokens | None, chain: int) -> dict[str, Any]:
    if step is None:
        return {"chain": -1}
    import numpy as np
    import orjson

    details = dict(step.details or {})
    row: dict[str, Any] = {
        "chain": chain,
        "prompt_length": step.prompt_length,
        "length": step.length,
        "first_logprob": step.first_logprob,
        "prompt_mask": details.get("prompt_mask"),
        "completion_mask": details.get("completion_mask"),
    }
    if (versions := details.get("versions")) is not None:
        row["versions"] = [versions] if isinstance(versions, int) else list(versions)
    if (experts := details.get("routed_experts")) is not None:
        array = np.asarray(experts, np.int32)
        row["routed_experts"], row["routed_experts_shape"] = array.tobytes(), list(array.shape)
    rest = {name: value for name, value in details.items() if name not in _OWN_COLUMNS}
    if rest:
        row["details"] = orjson.dumps(rest, default=repr, option=orjson.OPT_SERIALIZE_NUMPY)
    return row


def _steps(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "tokens": tokens,
            "advantage": fields["advantage"],
            "is_truncated": fields["is_truncated"],
            "extras": {} if fields["trainable"] else {"trainable": False},
        }
        for tokens, fields in zip(_step_tokens(row), row["steps"], strict=True)
    ]


def _step_tokens(row: Mapping[str, Any]) -> list[StepTokens | None]:
    import numpy as np
    import orjson

    graph = TokenGraph()
    for fields in row["chains"]:
        parent = graph.chains[fields["parent"]] if fields["parent"] >= 0 else None
        chain = Chain(parent, fields["shared"])
        chain.ids += np.array(fields["ids"], np.int32).tobytes()
        chain.logprobs += np.array(fields["logprobs"], np.float32).tobytes()
        graph.chains.append(chain)
    steps: list[StepTokens | None] = []
    for fields in row["steps"]:
        if fields["chain"] < 0:
            steps.append(None)
            continue
        details: dict[str, Any] = orjson.loads(fields["details"]) if fields["details"] else {}
        for name in ("prompt_mask", "completion_mask"):
            if fields[name] is not None:
                details[name] = fields[name]
        if (versions := fields["versions"]) is not None:
            details["versions"] = versions[0] if len(versions) == 1 else versions
        if (experts := fields["routed_experts"]) is not None:
            shape = fields["routed_experts_shape"]
            details["routed_experts"] = np.frombuffer(experts, np.int32).reshape(shape).tolist()
        steps.append(
            StepTokens(
                graph,
                graph.chains[fields["chain"]],
                fields["prompt_length"],
                fields["length"],
                fields["first_logprob"],
                details,
            )
        )
    return steps
