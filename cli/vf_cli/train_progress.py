"""The progress of a training run: a live table on a terminal, lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from verifiers.training.reference.orchestrator import Listener
from vf_cli import output
from vf_cli.progress import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from verifiers.training.reference.config import TrainConfig
    from verifiers.training.reference.run_folder import Checkpoint, RunFolder

SHOWN_STEPS = 12
PLAIN_EVERY_STEPS = 5
PLAIN_EVERY_WARM_STEPS = 50

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward", "{:.3f}"),
    ("reward std", "reward/std", "{:.3f}"),
    ("entropy", "trainer/entropy", "{:.3f}"),
    ("mismatch KL", "trainer/mismatch_kl", "{:.1e}"),
    ("masked", "trainer/masked_fraction", "{:.1%}"),
    ("grad", "trainer/grad_norm", "{:.2f}"),
    ("stale", "staleness/mean", "{:.1f}"),
    ("tokens", "tokens/trained", "{:,.0f}"),
    ("wait s", "time/waiting_s", "{:.1f}"),
    ("train s", "time/training_s", "{:.1f}"),
)
"""Heading, name in `metrics.jsonl`, format."""


class PlainTable(Listener):
    """Prints lines of text: the first step, every fifth step, the last step."""

    def __init__(self, config: TrainConfig, write: Callable[[str], None]) -> None:
        self._config = config
        self._write = write

    def started(self, folder: RunFolder, about: dict[str, Any]) -> None:
        """Print the processes."""
        self._write(heading(self._config, folder, about))

    def demonstrated(self, count: int, mean_reward: float, noise: float) -> None:
        """Print the demonstrations."""
        self._write(demonstrated_text(count, mean_reward, noise))

    def warm_start_step(self, line: dict[str, Any]) -> None:
        """Print a supervised step."""
        if line["step"] % PLAIN_EVERY_WARM_STEPS == 0 or line["is_noisy"]:
            self._write(warm_start_text(line))

    def evaluated(self, when: str, mean_reward: float) -> None:
        """Print an evaluation."""
        self._write(f"held-out reward {when} reinforcement {mean_reward:.3f}")

    def step(self, line: dict[str, Any]) -> None:
        """Print a step of reinforcement learning."""
        number = line["step"]
        if number == 1 or number % PLAIN_EVERY_STEPS == 0 or number == self._config.steps:
            cells = "  ".join(f"{title} {form.format(line[name])}" for title, name, form in COLUMNS)
            self._write(f"step {number}/{self._config.steps}  {cells}")

    def saved(self, checkpoint: Checkpoint) -> None:
        """Print a checkpoint."""
        self._write(f"checkpoint {checkpoint.folder}")


class LiveTable(Listener):
    """Keeps a table of the last steps on the terminal, with Rich."""

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self._title = "Starting the trainer …"
        self._state = ""
        self._steps: deque[dict[str, Any]] = deque(maxlen=SHOWN_STEPS)
        self.live: Live | None = None

    def _refresh(self) -> None:
        if self.live is not None:
            self.live.refresh()

    def started(self, folder: RunFolder, about: dict[str, Any]) -> None:
        """Show the processes."""
        self._title = heading(self._config, folder, about)
        self._refresh()

    def demonstrated(self, count: int, mean_reward: float, noise: float) -> None:
        """Show the demonstrations."""
        self._state = demonstrated_text(count, mean_reward, noise)
        self._refresh()

    def warm_start_step(self, line: dict[str, Any]) -> None:
        """Show a supervised step."""
        self._state = warm_start_text(line)
        self._refresh()

    def evaluated(self, when: str, mean_reward: float) -> None:
        """Show an evaluation."""
        self._state = f"held-out reward {when} reinforcement {mean_reward:.3f}"
        self._refresh()

    def step(self, line: dict[str, Any]) -> None:
        """Show a step of reinforcement learning."""
        self._steps.append(line)
        left = self._config.steps - line["step"]
        self._state = f"{left} steps left, {duration(line['elapsed_s'])} so far"
        self._refresh()

    def saved(self, checkpoint: Checkpoint) -> None:
        """Show a checkpoint."""
        self._state = f"checkpoint {checkpoint.folder}"
        self._refresh()

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(expand=False, box=None, padding=(0, 1))
        table.add_column("step", justify="right")
        for title, _, _ in COLUMNS:
            table.add_column(title, justify="right")
        for line in self._steps:
            cells = [form.format(line[name]) for _, name, form in COLUMNS]
            table.add_row(f"{line['step']}/{self._config.steps}", *cells)
        parts: list[Any] = [Text(output.safe(self._title))]
        if self._steps:
            parts.append(table)
        parts.append(Text(output.safe(self._state), style="dim"))
        return Group(*parts)


@contextmanager
def shown_live(config: TrainConfig) -> Iterator[LiveTable]:
    """Show a live table on the terminal while the block runs."""
    table = LiveTable(config)
    with output.live(table) as live:
        table.live = live
        yield table


def heading(config: TrainConfig, folder: RunFolder, about: dict[str, Any]) -> str:
    """Return environment, model, folder and processes as text."""
    went_on = f"   from {about['phase'].replace('_', ' ')} {about['step']}" if about["step"] else ""
    pids = about["pids"]
    return (
        f"{config.environment.id}   {about['parameters']:,} parameters on {about['device']}   "
        f"{folder.path}{went_on}   processes: trainer {pids['trainer']}, server {pids['server']}"
    )


def demonstrated_text(count: int, mean_reward: float, noise: float) -> str:
    """Return the number of demonstrations and their score as text."""
    with_noise = f" with noise {noise:g}" if noise else ""
    return f"{count} demonstrations{with_noise}, which score {mean_reward:.3f}"


def warm_start_text(line: dict[str, Any]) -> str:
    """Return the progress of the warm start as text."""
    which = "noisy" if line["is_noisy"] else "right"
    return f"warm start, step {line['step']}: loss {line['loss']:.3f} on {which} replies"
