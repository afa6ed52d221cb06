"""Progress of up- and downloads: bars on a terminal, a line a step elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from vf_cli import output
from vf_cli.prime.command import chosen, is_json


class Transfers:
    """Shows steps and the bytes of files while it is entered."""

    def __init__(self) -> None:
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._step: Any = None

    def __enter__(self) -> Self:
        if output.stderr().is_terminal and not chosen().is_plain:
            from rich import progress

            self._bars = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(30),
                progress.DownloadColumn(),
                progress.TransferSpeedColumn(),
                progress.TimeRemainingColumn(),
                console=output.stderr(),
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def step(self, text: str) -> None:
        """Something begins."""
        if self._bars is None:
            if not is_json():
                output.note(f"{text} …")
            return
        self._bars.console.print(output.safe(f"{text} …"), style="dim")

    def progress(self, name: str, done: int, total: int | None) -> None:
        """So many bytes of a file are through."""
        if self._bars is None:
            return
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(output.safe(name)[:40], total=total)
        self._bars.update(self._tasks[name], completed=done, total=total)
