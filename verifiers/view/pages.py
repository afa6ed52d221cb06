"""The pages: from a source of runs to HTML. The methods of `Viewer` block and may be called from threads."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotReady
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from verifiers.errors import ConfigError, Error
from verifiers.runs.output import encode_value
from verifiers.runs.store import RunNotFound
from verifiers.view import transcript
from verifiers.view.columns import RunColumns, natural
from verifiers.view.comparing import Comparisons, RunComparison, answers
from verifiers.view.descriptions import (
    RunRow,
    error_view,
    facts,
    note_of,
    run_row,
    settings,
    sort_key,
)
from verifiers.view.filters import Filter, FilterError
from verifiers.view.notes import Note, NoteRefused, labels_of, note_key
from verifiers.view.overview import Overview, cost_of, example_means, overview, quoted
from verifiers.view.rendering import Links, render
from verifiers.view.search import Scan, Snippet, TextSearch
from verifiers.view.sources import Run, RunSource

PAGE = 50
"""Rows of a table per page."""
MAX_METRICS = 6
"""Maximum number of metrics in a table of rollouts."""
MAX_GROUP = 64
"""Maximum number of rollouts of one example that are shown side by side."""
FIRST_PAINT_S = 0.4
"""Time after which a run that is still being opened is shown with the numbers of its metadata."""
SCAN_S = 3.0
"""Time that one page may search, in seconds."""
MAX_SCANS = 16
PREVIEW_BYTES = 1 << 20
"""Maximum size of a line whose text a table shows."""
RAW_BYTES = 4 << 20
"""Maximum size of a rollout that is shown with indentation; larger ones are sent as saved."""


class StillOpening(Exception):
    """A large run is being opened."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.name)
        self.run = run


class Choice(NamedTuple):
    """Which rollouts a table shows, in which order."""

    filter: str = ""
    search: str = ""
    sort: str = ""
    """Name of a column, with `-` before it for descending order; "" for the order in which they were saved."""

    def query(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters of an address."""
        return {**self._asdict(), **changes}


class RolloutRow(NamedTuple):
    """A rollout in a table."""

    row: int
    example: str
    example_code: int
    rollout: float | None
    reward: float | None
    metrics: dict[str, Any]
    error: str | None
    reward_error: str | None
    stop: str | None
    truncated: bool
    output_tokens: float | None
    seconds: float | None
    question: str
    preview: str
    snippet: Snippet | None
    note: Note


@dataclass(frozen=True)
class Table:
    """The rollouts of a page of a table."""

    rows: list[RolloutRow]
    total: int
    """Number of matches so far."""
    page: int
    pages: int
    is_done: bool
    """Whether all rollouts have been searched."""
    searched: int
    """Number of rollouts that have been searched."""
    problem: str | None
    position: int | None = None
    """Character of the filter at which the problem is."""


class Viewer:
    """The pages of a source of runs."""

    def __init__(self, source: RunSource, links: Links, *, may_write: bool = True) -> None:
        self.source = source
        self.links = links
        self.may_write = may_write
        self.patience_s: float | None = FIRST_PAINT_S
        """Maximum time that a page waits for a run to be opened, in seconds; None waits until the run is open."""
        self._scans: OrderedDict[tuple[str, str, str, str], Scan] = OrderedDict()
        self._overviews: OrderedDict[tuple[str, str], Overview] = OrderedDict()
        self._openings: dict[str, Future[RunColumns]] = {}
        self._openers = ThreadPoolExecutor(2, thread_name_prefix="open-run")
        self._comparisons = Comparisons()
        self._guard = threading.Lock()

    def _render(self, template: str, **values: Any) -> str:
        return render(template, self.links, may_write=self.may_write, **values)

    # --- runs

    def runs(self, text: str = "", sort: str = "", label: str = "") -> str:
        """Return the list of runs that contain a text in their names or have a label."""
        rows = [run_row(run) for run in self.source.runs()]
        labels = sorted({item for row in rows for item in row.note.labels})
        words = text.casefold().split()
        rows = [
            row
            for row in rows
            if (not label or label in row.note.labels)
            and all(
                word
                in f"{row.run.name} {row.env_id} {row.model} {' '.join(row.note.labels)}".casefold()
                for word in words
            )
        ]
        key = sort.removeprefix("-")
        if key in RunRow._fields:
            known = [row for row in rows if getattr(row, key) not in (None, "")]
            rest = [row for row in rows if getattr(row, key) in (None, "")]
            known.sort(key=lambda row: sort_key(getattr(row, key)), reverse=sort.startswith("-"))
            rows = [*known, *rest]
        finite = [
            end
            for row in rows
            for end in (row.low, row.high, row.reward or 0.0)
            if math.isfinite(end)
        ]
        span = (min(0.0, *finite), max(1.0, *finite)) if len(finite) > 1 else (0.0, 1.0)
        return self._render(
            "runs.html", rows=rows, text=text, sort=sort, label=label, labels=labels, span=span
        )

    # --- one run

    def run(self, key: str) -> str:
        """Return the page of a run."""
        run = self.source.run(key)
        columns = self._columns(run)
        numbers = self.overview(run, columns)
        cost = cost_of(run.metadata)
        return self._render(
            "run.html",
            run=run,
            row=run_row(run),
            columns=columns,
            numbers=numbers,
            cost=cost,
            settings=settings(run.metadata),
            note=note_of(run, None),
            cell_bins=None
            if self.links.is_static
            else lambda condition: self.links.rollouts(key, filter=condition),
            notes=self._noted(run, columns),
        )

    def _columns(self, run: Run) -> RunColumns:
        """Return the columns. Raises StillOpening after `patience_s`; the run is then opened in the background."""
        with self._guard:
            known = self._openings.get(run.key)
            if known is None or known.done():
                known = self._openings[run.key] = self._openers.submit(run.columns)
        try:
            return known.result(self.patience_s)
        except NotReady:
            raise StillOpening(run) from None

    def opening(self, run: Run) -> str:
        """Return the page of a run that is being opened, with the numbers of its metadata. It loads again by itself."""
        return self._render("opening.html", run=run, row=run_row(run))

    def overview(self, run: Run, columns: RunColumns) -> Overview:
        """Return the numbers of a run."""
        key = (run.key, columns.version)
        with self._guard:
            known = self._overviews.get(key)
        if known is None:
            threshold = run.metadata.get("pass_threshold")
            threshold = threshold if isinstance(threshold, int | float) else 0.5
            known = overview(columns, pass_threshold=threshold)
            with self._guard:
                self._overviews[key] = known
                while len(self._overviews) > MAX_SCANS:
                    self._overviews.popitem(last=False)
        return known

    def _noted(self, run: Run, columns: RunColumns) -> list[tuple[int, Note]]:
        """Return (row, note) of the rollouts that have a note."""
        notes = run.notes.all() if run.notes is not None else {}
        if not set(notes) - {None}:
            return []
        numbers = np.nan_to_num(columns.numbers["rollout_index"]).astype(int)
        names = columns.texts["example_id"]
        wanted = {str(key).rpartition("-")[0] for key in notes if key is not None}
        codes = [code for code, name in enumerate(names.labels) if name in wanted]
        found = []
        for row in np.flatnonzero(np.isin(names.codes, codes)).tolist():
            note = notes.get(f"{names[row]}-{numbers[row]}")
            if note is not None:
                found.append((row, note))
        return found

    def version(self, key: str) -> dict[str, Any]:
        """Return a value that changes when pages of the run change, for pages that follow a run."""
        run = self.source.run(key)
        columns = self._columns(run)
        return {"version": columns.version, "rollouts": columns.count, "live": run.is_live}

    # --- tables

    def rollouts(self, key: str, choice: Choice, page: int = 1) -> str:
        """Return the table of rollouts."""
        run = self.source.run(key)
        columns = self._columns(run)
        table = self._table(run, columns, choice, page)
        return self._render(
            "rollouts.html",
            run=run,
            columns=columns,
            choice=choice,
            table=table,
            metrics=_shown_metrics(columns),
            fields=sorted({*columns.names(), *columns.metrics}),
        )

    def _table(self, run: Run, columns: RunColumns, choice: Choice, page: int) -> Table:
        page = max(1, page)
        problem, position, scan = None, None, None
        try:
            scan = self._scan(run, columns, choice)
        except FilterError as error:
            problem, position = str(error), error.position
        name = columns.column(choice.sort.removeprefix("-")) if choice.sort else None
        if choice.sort and name is None and problem is None:
            problem = f"There is no column {choice.sort.removeprefix('-')!r} to sort by."
        if scan is None:
            return Table([], 0, 1, 1, True, 0, problem, position)
        scan.advance(None if name else page * PAGE + 1, SCAN_S)
        rows = scan.rows
        if name is not None:
            rows = columns.order(rows, name, is_descending=choice.sort.startswith("-"))
        pages = max(1, -(-len(rows) // PAGE))
        page = min(page, pages)
        search = TextSearch(choice.search) if choice.search else None
        shown = [
            self._row(run, columns, int(row), search)
            for row in rows[(page - 1) * PAGE : page * PAGE]
        ]
        return Table(shown, len(rows), page, pages, scan.is_done, scan.next_row, problem)

    def _scan(self, run: Run, columns: RunColumns, choice: Choice) -> Scan:
        """Return the scan of a choice, which keeps the matches of earlier pages. Raises FilterError."""
        key = (run.key, columns.version, choice.filter, choice.search)
        with self._guard:
            if key in self._scans:
                self._scans.move_to_end(key)
                return self._scans[key]
        condition = Filter(choice.filter) if choice.filter.strip() else None
        if condition is not None:
            needs_keys = columns.count and condition.needs_lines(columns)
            condition.check_fields(columns, list(run.output(0)) if needs_keys else [])
        scan = Scan(run, columns, condition, TextSearch(choice.search) if choice.search else None)
        with self._guard:
            self._scans[key] = scan
            while len(self._scans) > MAX_SCANS:
                self._scans.popitem(last=False)
        return scan

    def _row(
        self, run: Run, columns: RunColumns, row: int, search: TextSearch | None = None
    ) -> RolloutRow:
        question = preview = ""
        snippet = None
        if columns.lengths[row] <= PREVIEW_BYTES:
            output = run.output(row)
            question, preview = transcript.question_text(output), transcript.last_text(output)
            snippet = search.snippet(output) if search is not None else None
        numbers, texts = columns.numbers, columns.texts
        rollout = columns.value("rollout_index", row)
        note_name = f"{texts['example_id'][row]}-{int(rollout or 0)}"
        return RolloutRow(
            row,
            texts["example_id"][row] or "",
            int(columns.example_codes[row]),
            rollout,
            columns.value("reward", row),
            {name: columns.value(f"metrics.{name}", row) for name in _shown_metrics(columns)},
            texts["error"][row],
            texts["reward_error"][row],
            texts["stop_condition"][row],
            bool(numbers["is_truncated"][row] == 1),
            _optional(columns, "token_usage.output_tokens", row),
            _optional(columns, "timing.total", row),
            question,
            preview,
            snippet,
            note_of(run, note_name),
        )

    def examples(self, key: str, sort: str = "", page: int = 1) -> str:
        """Return the table of examples."""
        run = self.source.run(key)
        columns = self._columns(run)
        counts, means, deviations = example_means(columns)
        failures = np.bincount(
            columns.example_codes, columns.numbers["has_failed"], minlength=len(counts)
        )
        keys = {"reward": means, "deviation": deviations, "rollouts": counts, "failed": failures}
        order = np.arange(len(counts))
        chosen = keys.get(sort.removeprefix("-"))
        if chosen is not None:
            values = -chosen if sort.startswith("-") else chosen
            order = np.argsort(values, kind="stable")
        elif sort.removeprefix("-") == "example":
            labels = columns.texts["example_id"].labels
            order = np.array(sorted(order, key=lambda code: natural(labels[code])), dtype=np.int64)
            order = order[::-1] if sort.startswith("-") else order
        pages = max(1, -(-len(order) // PAGE))
        page = min(max(1, page), pages)
        rows = [
            (
                int(code),
                columns.texts["example_id"].labels[code],
                int(counts[code]),
                float(means[code]),
                float(deviations[code]),
                int(failures[code]),
                [
                    float(value)
                    for value in columns.counted_rewards()[columns.rows_of_example(code)][:32]
                ],
                self._question(run, columns, code),
            )
            for code in order[(page - 1) * PAGE : page * PAGE].tolist()
        ]
        return self._render(
            "examples.html", run=run, columns=columns, rows=rows, sort=sort, page=page, pages=pages
        )

    def _question(self, run: Run, columns: RunColumns, code: int) -> str:
        row = int(columns.rows_of_example(code)[0])
        if columns.lengths[row] > PREVIEW_BYTES:
            return ""
        return transcript.question_text(run.output(row))

    # --- rollouts

    def example(self, key: str, code: int) -> str:
        """Return all rollouts of one example side by side."""
        run = self.source.run(key)
        columns = self._columns(run)
        if not 0 <= code < len(columns.example_ids):
            raise RunNotFound(
                f"The run has {len(columns.example_ids)} examples; there is no number {code}."
            )
        rows = columns.rows_of_example(code).tolist()
        members = []
        prompt: list[Any] = []
        answer = None
        for place, row in enumerate(rows[:MAX_GROUP]):
            output = run.output(row)
            if not place:
                prompt = transcript.conversation(output)[: transcript.prompt_length(output)]
                answer = output.get("answer")
            start = transcript.prompt_length(output)
            messages = transcript.conversation(output)[start:]
            views = [
                transcript.message_view(message, start + number, is_prompt=False, limit=3000)
                for number, message in enumerate(messages[:12])
            ]
            members.append((self._row(run, columns, row), views, max(0, len(messages) - 12)))
        return self._render(
            "group.html",
            run=run,
            columns=columns,
            code=code,
            example=columns.texts["example_id"].labels[code],
            prompt=[
                transcript.message_view(message, number, is_prompt=True, limit=3000)
                for number, message in enumerate(prompt[:12])
            ],
            answer=None if answer is None else transcript.shown(answer, 2000),
            members=members,
            left_out=max(0, len(rows) - MAX_GROUP),
            codes=len(columns.example_ids),
            metrics=_shown_metrics(columns),
            condition=f"example_id == {quoted(columns.texts['example_id'].labels[code])}",
        )

    def rollout(self, key: str, row: int, choice: Choice | None = None, page: int = 1) -> str:
        """Return the page of a rollout: scores and a portion of its messages."""
        choice = Choice() if choice is None else choice
        run = self.source.run(key)
        columns = self._columns(run)
        _check_row(columns, row)
        output = run.output(row)
        messages = transcript.conversation(output)
        prompts = transcript.prompt_length(output)
        pages = max(1, -(-len(messages) // transcript.PAGE))
        page = min(max(1, page), pages)
        start = (page - 1) * transcript.PAGE
        views = [
            transcript.message_view(message, number, is_prompt=number < prompts)
            for number, message in enumerate(messages[start : start + transcript.PAGE], start)
        ]
        before, after, place, total = self._neighbours(run, columns, choice, row)
        return self._render(
            "rollout.html",
            run=run,
            columns=columns,
            choice=choice,
            row=self._row(run, columns, row),
            length=int(columns.lengths[row]),
            messages=views,
            message_count=len(messages),
            page=page,
            pages=pages,
            before=before,
            after=after,
            place=place,
            total=total,
            scores=transcript.scores(output),
            judged=transcript.judge_replies(output),
            error=error_view(output),
            facts=facts(output),
            timing=[
                (name, value)
                for name in ("setup", "model", "env", "scoring", "overhead")
                if (value := _optional(columns, f"timing.{name}", row))
            ],
            turns=transcript.token_turns(run.token_steps(output)) if page == 1 else [],
            siblings=[
                (
                    int(other),
                    columns.value("rollout_index", int(other)),
                    columns.value("reward", int(other)),
                )
                for other in columns.rows_of_example(int(columns.example_codes[row]))[:MAX_GROUP]
            ],
        )

    def _neighbours(
        self, run: Run, columns: RunColumns, choice: Choice, row: int
    ) -> tuple[int | None, int | None, int | None, int]:
        """Return the rows before and after a row in the chosen table, its place from 1, and the length of the table."""
        rows = np.arange(columns.count)
        try:
            if choice.filter or choice.search:
                scan = self._scan(run, columns, choice)
                rows = scan.rows
            name = columns.column(choice.sort.removeprefix("-")) if choice.sort else None
            if name is not None:
                rows = columns.order(rows, name, is_descending=choice.sort.startswith("-"))
        except FilterError:
            pass
        places = np.flatnonzero(rows == row)
        if not len(places):
            return None, None, None, len(rows)
        place = int(places[0])
        before = int(rows[place - 1]) if place else None
        after = int(rows[place + 1]) if place + 1 < len(rows) else None
        return before, after, place + 1, len(rows)

    def raw(self, key: str, row: int) -> bytes:
        """Return a rollout as JSON, with indentation unless it is large."""
        run = self.source.run(key)
        columns = self._columns(run)
        _check_row(columns, row)
        length = int(columns.lengths[row])
        line = run.read_at(int(columns.offsets[row]), length)
        if length > RAW_BYTES:
            return line
        import json

        return json.dumps(json.loads(line), indent=2, ensure_ascii=True).encode()

    def message_text(self, key: str, row: int, number: int) -> str:
        """Return the whole text of a message with its reasoning and its tool calls, as plain text."""
        run = self.source.run(key)
        _check_row(self._columns(run), row)
        messages = transcript.conversation(run.output(row))
        if not 0 <= number < len(messages):
            raise RunNotFound(
                f"The rollout has {len(messages)} messages; there is no number {number}."
            )
        message = messages[number]
        if not isinstance(message, Mapping):
            return str(message)
        parts = [transcript.reasoning_of(message)]
        content = message.get("content")
        parts.append(content if isinstance(content, str) else encode_value(content).decode())
        if message.get("tool_calls"):
            parts.append(encode_value(message["tool_calls"]).decode())
        return "\n\n".join(part for part in parts if part)

    # --- several runs

    def compare(self, keys: list[str], page: int = 1) -> str:
        """Return the comparison of runs; the first is the baseline."""
        found, _ = self._compared(keys)
        pages = max(1, -(-len(found.examples) // PAGE))
        page = min(max(1, page), pages)
        return self._render(
            "compare.html",
            c=found,
            keys=keys,
            others={key: [other for other in keys if other != key] for key in keys},
            rows=found.examples[(page - 1) * PAGE : page * PAGE],
            page=page,
            pages=pages,
        )

    def compared_example(self, keys: list[str], example: str, rollout: int = 0) -> str:
        """Return the answers of several runs to one example side by side."""
        found, columns = self._compared(keys)
        shown = answers(found, columns, example, max(0, rollout))
        first = next((one for one in shown if one.row is not None), None)
        if first is None or first.row is None:
            raise RunNotFound("No run of the comparison has this example.")
        output = first.compared.run.output(first.row)
        prompts = transcript.prompt_length(output)
        order = [one.key for one in found.examples]
        place = order.index(example) if example in order else -1
        answer = output.get("answer")
        return self._render(
            "compared_example.html",
            keys=keys,
            example=example,
            name=str(output.get("example_id")),
            answers=shown,
            prompt=[
                transcript.message_view(message, number, is_prompt=True, limit=3000)
                for number, message in enumerate(transcript.conversation(output)[:prompts][:12])
            ],
            answer=None if answer is None else transcript.shown(answer, 2000),
            before=order[place - 1] if place > 0 else None,
            after=order[place + 1] if 0 <= place < len(order) - 1 else None,
        )

    def _compared(self, keys: list[str]) -> tuple[RunComparison, list[RunColumns]]:
        runs = [self.source.run(key) for key in dict.fromkeys(keys)]
        columns = [self._columns(run) for run in runs]
        return self._comparisons.of(list(zip(runs, columns, strict=True))), columns

    # --- notes

    def write_note(self, key: str, row: int | None, labels: str, text: str) -> str:
        """Store the labels and the note of a rollout, or of the run. Return the address of its page."""
        run = self.source.run(key)
        if run.notes is None or not self.may_write:
            raise NoteRefused("Notes cannot be stored here.")
        name = None
        if row is not None:
            _check_row(self._columns(run), row)
            name = note_key(run.output(row))
        run.notes.write(name, labels_of(labels), text)
        return self.links.run(key) if row is None else self.links.rollout(key, row)

    def problem(self, title: str, detail: str) -> str:
        """Return a page about a problem."""
        return self._render("problem.html", title=title, detail=detail)


def _check_row(columns: RunColumns, row: int) -> None:
    if not 0 <= row < columns.count:
        raise RunNotFound(f"The run has {columns.count} rollouts; there is no number {row}.")


def _shown_metrics(columns: RunColumns) -> list[str]:
    """Return the names of the metrics that a table shows."""
    return [name for name in columns.metrics if name != "reward"][:MAX_METRICS]


def _optional(columns: RunColumns, name: str, row: int) -> Any:
    return columns.value(name, row) if name in columns.numbers else None


def explain(error: BaseException) -> tuple[int, str, str]:
    """Return HTTP status, title and text for an error of a page."""
    if isinstance(error, RunNotFound | IndexError):
        return 404, "Not found", str(error)
    if isinstance(error, NoteRefused):
        return 400, "The note was not stored", str(error)
    if isinstance(error, ConfigError):
        return 400, "These runs cannot be compared", str(error)
    if isinstance(error, Error | OSError):
        return 409, "The run cannot be read", str(error)
    return 500, "The page failed", f"{type(error).__name__}. The log of vf-view has the details."
