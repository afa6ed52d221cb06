"""Saved runs as tables: one row per run, per rollout, or per message; for analysis in pandas, polars or Arrow.

Tables are built in Arrow and then converted. Runs and rollouts are read from the metadata and the index of each run;
only messages and requested further columns read the saved lines, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from verifiers.errors import ConfigError
from verifiers.messages import content_text
from verifiers.runs.folders import METADATA_FILE, RESULTS_FILE, is_run_folder
from verifiers.runs.output import encode_value
from verifiers.runs.store import RunNotFound, iterate_index, iterate_outputs, load_metadata

Table: TypeAlias = Any
"""A `pyarrow.Table`; pyarrow has no types."""
Library = Literal["pandas", "polars", "arrow"]

ROLLOUT_COLUMNS = (
    "run",
    "env_id",
    "model",
    "example_id",
    "rollout_index",
    "input_key",
    "reward",
    "error",
    "stop_condition",
    "is_truncated",
    "input_tokens",
    "output_tokens",
    "total_s",
)
"""Columns that every table of rollouts has; one per metric follows, as in `GenerateOutputs.to_pandas`."""
MESSAGE_COLUMNS = (
    "run",
    "example_id",
    "rollout_index",
    "part",
    "position",
    "role",
    "content",
    "reasoning_content",
    "tool_calls",
    "tool_call_id",
)
"""Columns of a table of messages. `part` is "prompt" or "completion", `tool_calls` JSON text."""
BATCH_ROWS = 20_000


def find_runs(places: Iterable[str | Path]) -> list[Path]:
    """Return the run folders at or below these folders, in the order of the arguments, then by path.

    Raises RunNotFound for a folder without a run.
    """
    found: dict[Path, None] = {}
    for place in map(Path, places):
        runs = [place] if is_run_folder(place) else _below(place)
        if not runs:
            raise RunNotFound(
                f"There is no run at or below {place}: no folder has both {RESULTS_FILE} and {METADATA_FILE}."
            )
        found |= dict.fromkeys(runs)
    return list(found)


def _below(place: Path) -> list[Path]:
    return sorted(path.parent for path in place.rglob(RESULTS_FILE) if is_run_folder(path.parent))


def runs_df(*runs: str | Path, library: Library = "pandas") -> Any:
    """Return a table with one row per run at or below these folders.

    Columns: `run` (the folder), the scalar values of the metadata, and the mean of every metric under its name.
    """
    return _converted(_table(map(_run_row, find_runs(runs)), ("run", "env_id", "model")), library)


def _run_row(folder: Path) -> dict[str, Any]:
    metadata = load_metadata(folder)
    scalars = {
        key: value for key, value in metadata.items() if isinstance(value, str | int | float | None)
    }
    metrics = metadata.get("avg_metrics") or {}
    row = {"run": str(folder), **scalars}
    return row | {f"metrics.{key}" if key in row else key: value for key, value in metrics.items()}


def rollouts_df(*runs: str | Path, columns: Sequence[str] = (), library: Library = "pandas") -> Any:
    """Return a table with one row per rollout of the runs at or below these folders.

    `columns` names further fields of the saved rollouts, such as `answer` or `info.level`; dicts and lists become JSON
    text. Without `columns` only the index of each run is read. `error` is the type of the error; a metric with the name
    of another column is `metrics.NAME`. Tokens are counts, `total_s` seconds.
    """
    rows = (row for folder in find_runs(runs) for row in _rollout_rows(folder, columns))
    return _converted(_table(rows, (*ROLLOUT_COLUMNS, *columns)), library)


def _rollout_rows(folder: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    metadata = load_metadata(folder)
    shared = {
        "run": str(folder),
        "env_id": metadata.get("env_id"),
        "model": metadata.get("model"),
    }
    outputs = iterate_outputs(folder, []) if columns else None
    for rollout in iterate_index(folder):
        short = rollout.output
        usage, timing = short.get("token_usage") or {}, short.get("timing") or {}
        error = short.get("error")
        milliseconds = timing.get("total_ms")
        row = {
            **shared,
            "example_id": short.get("example_id"),
            "rollout_index": short.get("rollout_index"),
            "input_key": short.get("input_key"),
            "reward": short.get("reward"),
            "error": error.get("error") if isinstance(error, Mapping) else error,
            "stop_condition": short.get("stop_condition"),
            "is_truncated": short.get("is_truncated"),
            "input_tokens": usage.get("input_tokens"),
            "output_tokens": usage.get("output_tokens"),
            "total_s": timing.get("total") if milliseconds is None else milliseconds / 1000,
        }
        for name, value in short["metrics"].items():
            row[f"metrics.{name}" if name in row else name] = value
        if outputs is not None:
            output = next(outputs)
            row |= {name: _cell(_field(output, name)) for name in columns}
        yield row


def messages_df(*runs: str | Path, library: Library = "pandas") -> Any:
    """Return a table with one row per message of the rollouts of the runs at or below these folders.

    See `MESSAGE_COLUMNS`. The texts of content parts are joined; images and audio are left out.
    """
    rows = (row for folder in find_runs(runs) for row in _message_rows(folder))
    return _converted(_table(rows, MESSAGE_COLUMNS), library)


def _message_rows(folder: Path) -> Iterator[dict[str, Any]]:
    for output in iterate_outputs(folder, []):
        position = 0
        for part in ("prompt", "completion"):
            messages = output.get(part) or ()
            if isinstance(messages, str):
                messages = [
                    {"role": "user" if part == "prompt" else "assistant", "content": messages}
                ]
            for message in messages:
                calls = message.get("tool_calls")
                yield {
                    "run": str(folder),
                    "example_id": output.get("example_id"),
                    "rollout_index": output.get("rollout_index"),
                    "part": part,
                    "position": position,
                    "role": message.get("role"),
                    "content": content_text(message.get("content")),
                    "reasoning_content": message.get("reasoning_content"),
                    "tool_calls": _cell(calls) if calls else None,
                    "tool_call_id": message.get("tool_call_id"),
                }
                position += 1


# --- parts


def _field(output: Mapping[str, Any], path: str) -> Any:
    """Return a value of a nested field such as `info.level`. An `info` that was saved as JSON text is not unpacked."""
    value: Any = output.get(path)
    if value is not None:
        return value
    value = output
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _cell(value: Any) -> Any:
    return encode_value(value).decode().rstrip("\n") if isinstance(value, dict | list) else value


def _table(rows: Iterable[dict[str, Any]], first: Sequence[str]) -> Table:
    """Return rows as a table with the columns `first`, then all others that occur. Missing values are null."""
    import pyarrow

    batches: list[Table] = []
    batch: list[dict[str, Any]] = []
    names = dict.fromkeys(first)
    for row in rows:
        batch.append(row)
        if len(batch) == BATCH_ROWS:
            batches.append(_columns(batch, names))
            batch = []
    batches.append(_columns(batch, names))
    table = pyarrow.concat_tables(batches, promote_options="permissive")
    return table.select(list(names))


def _columns(rows: Sequence[dict[str, Any]], names: dict[str, None]) -> Table:
    import pyarrow

    for row in rows:
        names |= dict.fromkeys(row)
    return pyarrow.table({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> Any:
    """Return a column; values of different types become text."""
    import pyarrow

    try:
        return pyarrow.array(values)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return pyarrow.array([None if value is None else _text(value) for value in values])


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else encode_value(value).decode().rstrip("\n")
    return text.encode("utf-8", "replace").decode()  # Arrow has no lone surrogates


def _converted(table: Table, library: str) -> Any:
    """Return a table of the library that the caller uses."""
    if library == "arrow":
        return table
    converters: dict[str, Callable[[Table], Any]] = {
        "pandas": _to_pandas,
        "polars": _to_polars,
    }
    if library not in converters:
        raise ConfigError(f"library must be pandas, polars or arrow; got {library!r}.")
    try:
        return converters[library](table)
    except ImportError as error:
        raise ConfigError(
            f"The package {library} is not installed. Install it, or use library='arrow'."
        ) from error


def _to_pandas(table: Table) -> Any:
    return table.to_pandas()


def _to_polars(table: Table) -> Any:
    import polars  # pyright: ignore[reportMissingImports]

    return polars.from_arrow(table)


# --- files


def write_table(table: Table, path: Path) -> None:
    """Write a table as .csv, .parquet, .jsonl or .arrow (a stream); a path without a suffix becomes a dataset folder.

    A dataset folder is read by `datasets.load_from_disk`. Raises ConfigError for another suffix or a path that cannot
    be written.
    """
    writers: dict[str, Callable[[Table, Path], object]] = {
        ".csv": _write_csv,
        ".parquet": _write_parquet,
        ".jsonl": _write_jsonl,
        ".arrow": _write_arrow,
        "": _write_dataset,
    }
    if path.suffix not in writers:
        raise ConfigError(
            f"{path} ends in {path.suffix!r}. Use .csv, .parquet, .jsonl, .arrow or .yaml, or a folder without a "
            "suffix for a dataset."
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writers[path.suffix](table, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}.") from error


def _write_csv(table: Table, path: Path) -> None:
    from pyarrow import csv

    csv.write_csv(_without_null_columns(table), path)


def _write_parquet(table: Table, path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(_without_null_columns(table), path)


def _write_jsonl(table: Table, path: Path) -> None:
    with path.open("wb") as file:
        for batch in table.to_batches(BATCH_ROWS):
            file.writelines(encode_value(row) for row in batch.to_pylist())


def _write_arrow(table: Table, path: Path) -> None:
    import pyarrow

    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)


def _write_dataset(table: Table, path: Path) -> None:
    from datasets import Dataset

    Dataset(_without_null_columns(table)).save_to_disk(path)


def _without_null_columns(table: Table) -> Table:
    """Return the table with text in place of columns that have no type, because all of their values are missing."""
    import pyarrow

    fields = [
        pyarrow.field(field.name, pyarrow.string()) if pyarrow.types.is_null(field.type) else field
        for field in table.schema
    ]
    return table.cast(pyarrow.schema(fields))


def write_eval_results(runs: Sequence[str | Path], path: Path, benchmark: str | None) -> int:
    """Write the mean reward of each run for the `.eval_results` folder of a model repository. Return their number.

    `benchmark` is the dataset of the benchmark on Hugging Face, with an optional `:task`. Format: Hugging Face Hub
    documentation, Evaluation Results. Raises ConfigError without a benchmark, and for runs without a mean reward.
    """
    if not benchmark:
        raise ConfigError(
            "A file of results needs the dataset of the benchmark: --benchmark owner/name, or owner/name:task."
        )
    dataset, _, task = benchmark.partition(":")
    entries = []
    for folder in find_runs(runs):
        metadata = load_metadata(folder)
        if metadata.get("avg_reward") is None:
            raise ConfigError(f"The run at {folder} has no mean reward; it has not finished.")
        entries.append(_result_entry(metadata, dataset, task or "default"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(entries), "utf-8")
    return len(entries)


def _result_entry(metadata: Mapping[str, Any], dataset: str, task: str) -> str:
    def quoted(value: Any) -> str:
        return encode_value(value).decode().strip()  # JSON is YAML

    notes = (
        f"{metadata.get('env_id')}, {metadata.get('num_examples')} examples, "
        f"{metadata.get('rollouts_per_example')} rollouts per example, verifiers"
    )
    lines = [
        "- dataset:",
        f"    id: {quoted(dataset)}",
        f"    task_id: {quoted(task)}",
        f"  value: {quoted(metadata['avg_reward'])}",
        f"  date: {quoted(str(metadata.get('date') or '')[:10])}",
        f"  notes: {quoted(notes)}",
    ]
    return "\n".join(lines) + "\n"
