"""Results and progress in a notebook, and results as a pandas table. Imports only packages that the notebook has
imported.

Text of models and environments is escaped: a completion cannot run a script in the reader's notebook.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from verifiers.errors import is_void

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_ROWS = 20
"""Number of rollouts in the table of a notebook."""
MAX_CHARS = 200
"""Maximum number of characters per cell."""
REFRESH_S = 0.25
"""Minimum time between two updates of the progress."""


def results_html(outputs: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> str:
    """Return the results of a run as HTML: one line about the run and a table of its first rollouts."""
    metrics = list(dict.fromkeys(name for one in outputs for name in one.get("metrics") or {}))
    headings = ["example", "reward", *metrics, "ended by", "error", "completion"]
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(one, metrics))}</tr>"
        for one in outputs[:MAX_ROWS]
    )
    more = len(outputs) - MAX_ROWS
    rest = (
        f"<p>{more:,} more rollouts: <code>results.to_pandas()</code> has all.</p>"
        if more > 0
        else ""
    )
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    return (
        f"<p>{escape(_headline(len(outputs), metadata))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{rest}"
    )


def _headline(rollouts: int, metadata: Mapping[str, Any]) -> str:
    parts = [str(metadata[name]) for name in ("env_id", "model") if metadata.get(name)]
    parts.append(f"{rollouts:,} rollouts")
    if (mean := metadata.get("avg_reward")) is not None:
        reward = f"reward {mean:.3f}"
        if (error := metadata.get("reward_stderr")) is not None:
            reward += f" ± {error:.3f}"
        if interval := metadata.get("reward_ci95"):
            reward += f", 95 % [{interval[0]:.3f}, {interval[1]:.3f}]"
        parts.append(reward)
    if failed := metadata.get("num_errors"):
        parts.append(f"{failed:,} with an error")
    return " · ".join(parts)


def _cells(output: Mapping[str, Any], metrics: Sequence[str]) -> list[str]:
    values = output.get("metrics") or {}
    return [
        str(output.get("example_id", "")),
        _number(output.get("reward")),
        *(_number(values.get(name)) for name in metrics),
        str(output.get("stop_condition") or ""),
        error_name(output) or "",
        _shortened(_last_text(output.get("completion"))),
    ]


def _number(value: Any) -> str:
    if not isinstance(value, int | float):
        return "" if value is None else _shortened(str(value))
    return "–" if math.isnan(value) else f"{value:.4g}"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


def error_name(output: Mapping[str, Any]) -> str | None:
    """Return the type of a rollout's error; None without an error."""
    error = output.get("error")
    if error is None:
        return None
    return str(error.get("error", "error")) if isinstance(error, Mapping) else str(error)


def _last_text(messages: Any) -> str:
    """Return the text of the last message."""
    if isinstance(messages, str) or not messages:
        return messages or ""
    last = messages[-1]
    content = last.get("content") if hasattr(last, "get") else getattr(last, "content", "")
    if isinstance(content, list | tuple):
        return " ".join(str(part.get("text", "")) for part in content if hasattr(part, "get"))
    return str(content or "")


def results_frame(outputs: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return the results of a run as a pandas table: one row per rollout.

    Columns: `example_id`, `rollout_index`, `reward`, one per metric, `answer`, `error` (its type), `stop_condition`,
    `is_truncated`, `input_tokens`, `output_tokens`, `total_s`, then `prompt`, `completion` and the other keys of the
    rollouts. A missing value is None or NaN.
    """
    import pandas

    metrics = list(dict.fromkeys(name for one in outputs for name in one.get("metrics") or {}))
    rows: list[dict[str, Any]] = []
    counts: dict[Any, int] = {}
    for output in outputs:
        example = output.get("example_id")
        number = counts[example] = counts.get(example, -1) + 1
        usage, timing = output.get("token_usage") or {}, output.get("timing") or {}
        values = output.get("metrics") or {}
        row: dict[str, Any] = {
            "example_id": example,
            "rollout_index": output.get("rollout_index", number),
            "reward": output.get("reward"),
            **{name: values.get(name) for name in metrics},
            "answer": output.get("answer"),
            "error": error_name(output),
            "stop_condition": output.get("stop_condition"),
            "is_truncated": output.get("is_truncated"),
            "input_tokens": usage.get("input_tokens"),
            "output_tokens": usage.get("output_tokens"),
            "total_s": timing.get("total"),
        }
        rows.append({**row, **{name: output[name] for name in output if name not in row}})
    named = ["example_id", "rollout_index", "reward", *metrics]
    return pandas.DataFrame(rows, columns=None if rows else named)


# ------------------------------------------------------------------------------------- progress


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class NotebookProgress:
    """A progress bar below the cell, with the mean reward so far. Its methods are callbacks of `evaluate`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self._shown_s = -math.inf
        self._total = 0
        self._done = 0
        self._rewards = 0.0
        self._errors = 0
        self._handle: Any = None

    def start(self, rows: Sequence[Any], _: Any) -> None:
        """Set the number of rollouts of the run."""
        self._total = len(rows)
        self._show()

    def update(
        self, outputs: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], _: Any
    ) -> None:
        """Count finished rollouts: `outputs` are all so far, `new` the latest."""
        fresh = (
            outputs if self._done == 0 else new
        )  # the first call includes the rollouts of a resumed run
        self._done = len(outputs)
        self._rewards += sum(one.get("reward") or 0.0 for one in fresh if not is_void(one))
        self._errors += sum(one.get("error") is not None for one in fresh)
        if self._clock() - self._shown_s >= REFRESH_S or self._done >= self._total:
            self._show()

    def _show(self) -> None:
        from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]

        self._shown_s = self._clock()
        shown = HTML(self.html())
        if self._handle is None:
            self._handle = display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def html(self) -> str:
        """Show the state of the run."""
        elapsed_s = self._clock() - self._started_s
        text = f"{self._done:,} of {self._total:,} rollouts, {elapsed_s:.0f} s"
        if self._done:
            text += f", reward {self._rewards / self._done:.3f}"
        if self._errors:
            text += f", {self._errors:,} with an error"
        share = f'value="{self._done}" max="{max(self._total, 1)}"'
        return f'<progress {share} style="width:24em"></progress> {escape(text)}'
