"""Export samples and rollouts for trainers: JSONL, Arrow, Parquet, and rows for SFT and preferences."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from verifiers.files import replacement
from verifiers.training.samples import SampleError, TokenSample, failure_of

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

_STREAMS = ("token_ids", "mask", "logprobs", "advantages", "versions")
_SCALARS = (
    "prompt_len",
    "reward",
    "advantage",
    "temperature",
    "example_id",
    "group_id",
    "rollout_id",
    "env_id",
    "is_truncated",
)


def sample_row(sample: TokenSample) -> dict[str, Any]:
    """Return a sample as plain lists and scalars. `advantages` has a value for every token."""
    row: dict[str, Any] = {"token_ids": sample.token_ids.tolist(), "mask": sample.mask.tolist()}
    row["logprobs"] = sample.logprobs.tolist()
    row["advantages"] = sample.token_advantages().tolist()
    row["versions"] = None if sample.versions is None else sample.versions.tolist()
    return row | {name: getattr(sample, name) for name in _SCALARS}


def sample_from_row(row: Mapping[str, Any]) -> TokenSample:
    """Return the sample of a row of `sample_row`. Rows omit fields that trainers do not read (`spans`, images)."""
    mask = np.array(row["mask"], bool)
    advantages = np.array(row["advantages"], np.float32)
    own = advantages[mask]
    uniform = not len(own) or bool((own == np.float32(row["advantage"])).all())
    return TokenSample(
        token_ids=np.array(row["token_ids"], np.int32),
        mask=mask,
        logprobs=np.array(row["logprobs"], np.float32),
        advantages=None if uniform else advantages,
        versions=None if row["versions"] is None else np.array(row["versions"], np.int32),
        **{name: row[name] for name in _SCALARS},
    )


def write_jsonl(samples: Iterable[TokenSample], path: str | Path) -> int:
    """Write one sample per line and return the number of samples. The file is written atomically."""
    path = Path(path)
    count = 0
    with replacement(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(json.dumps(sample_row(sample)) + "\n")
            count += 1
    return count


def read_jsonl(path: str | Path) -> Iterator[TokenSample]:
    """Return the samples of a file written by `write_jsonl`."""
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield sample_from_row(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise SampleError(
                    f"{path}, line {number} is not a valid sample: {error!r}"
                ) from error


def to_arrow(samples: Sequence[TokenSample]) -> pa.Table:
    """Return a table with one row per sample: int32, bool and float32 lists."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("token_ids", pa.list_(pa.int32())),
            ("mask", pa.list_(pa.bool_())),
            ("logprobs", pa.list_(pa.float32())),
            ("advantages", pa.list_(pa.float32())),
            ("versions", pa.list_(pa.int32())),
            ("prompt_len", pa.int32()),
            ("reward", pa.float64()),
            ("advantage", pa.float64()),
            ("temperature", pa.float64()),
            ("example_id", pa.string()),
            ("group_id", pa.string()),
            ("rollout_id", pa.string()),
            ("env_id", pa.string()),
            ("is_truncated", pa.bool_()),
        ]
    )
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for sample in samples:
        for name in _STREAMS:
            stream = sample.token_advantages() if name == "advantages" else getattr(sample, name)
            columns[name].append(stream)
        for name in _SCALARS:
            columns[name].append(getattr(sample, name))
    # Example ids are integers in one environment and text in another; a table needs one type.
    columns["example_id"] = [None if i is None else str(i) for i in columns["example_id"]]
    return pa.table(
        {name: pa.array(columns[name], schema.field(name).type) for name in columns}, schema
    )


def write_parquet(samples: Sequence[TokenSample], path: str | Path) -> None:
    """Write `to_arrow` as a Parquet file, atomically."""
    import pyarrow.parquet as pq

    with replacement(Path(path)) as temporary:
        pq.write_table(to_arrow(samples), temporary)


def read_parquet(path: str | Path) -> list[TokenSample]:
    """Return the samples of a Parquet file; `example_id` is text."""
    import pyarrow.parquet as pq

    return [sample_from_row(row) for row in pq.read_table(path).to_pylist()]


# ------------------------------------------------------------------------------------------------ rollouts as text


def sft_rows(
    outputs: Iterable[Mapping[str, Any]], *, min_reward: float | None = None
) -> list[dict[str, Any]]:
    """Return rows `{"prompt", "completion", "tools", "reward"}` for supervised fine-tuning on successful rollouts.

    `min_reward` keeps rewards of at least that value. Failed rollouts are left out, and so are truncated ones, whose
    responses are incomplete. The format is TRL's conversational prompt-completion format.
    """
    rows = []
    for output in outputs:
        if failure_of(output) is not None or output.get("is_truncated"):
            continue
        if min_reward is not None and output["reward"] < min_reward:
            continue
        rows.append(
            {
                "prompt": _messages(output["prompt"], "user"),
                "completion": _messages(output["completion"]),
                "tools": [dict(tool) for tool in output.get("tool_defs") or []],
                "reward": float(output["reward"]),
            }
        )
    return rows


def preference_rows(
    outputs: Iterable[Mapping[str, Any]], *, min_margin: float = 0.0
) -> list[dict[str, Any]]:
    """Return rows `{"prompt", "chosen", "rejected", "margin"}`: the best against the worst rollout of every example.

    Examples whose rewards differ by `min_margin` or less give no row. The format is TRL's conversational format.
    """
    by_example: dict[Any, list[Mapping[str, Any]]] = {}
    for output in outputs:
        if failure_of(output) is None and not output.get("is_truncated"):
            by_example.setdefault(output["example_id"], []).append(output)
    rows = []
    for group in by_example.values():
        best = max(group, key=lambda output: output["reward"])
        worst = min(group, key=lambda output: output["reward"])
        margin = float(best["reward"] - worst["reward"])
        if margin > min_margin:
            rows.append(
                {
                    "prompt": _messages(best["prompt"], "user"),
                    "chosen": _messages(best["completion"]),
                    "rejected": _messages(worst["completion"]),
                    "margin": margin,
                }
            )
    return rows


def to_dataset(rows: Sequence[Mapping[str, Any]]) -> Dataset:
    """Return rows of `sft_rows` or `preference_rows` as a `datasets.Dataset`.

    Messages get the same keys in every row, because Arrow has one schema: `role`, `content`, and all other keys in
    use. Tool definitions are JSON text for the same reason.
    """
    from datasets import Dataset

    return Dataset.from_list([_arrow_row(row) for row in rows])


def _arrow_row(row: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = dict(row)
    for name in ("prompt", "completion", "chosen", "rejected"):
        if name in changed:
            changed[name] = [_arrow_message(message) for message in changed[name]]
    if "tools" in changed:
        changed["tools"] = json.dumps(changed["tools"])
    return changed


def _arrow_message(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    fields = {**message, "content": content if isinstance(content, str) else json.dumps(content)}
    if message.get("tool_calls"):
        fields["tool_calls"] = json.dumps(message["tool_calls"])
    return fields


def _messages(messages: Any, role: str = "assistant") -> list[dict[str, Any]]:
    if isinstance(messages, str):  # of a text-completion environment
        return [{"role": role, "content": messages}]
    return [{key: value for key, value in m.items() if value is not None} for m in messages]
