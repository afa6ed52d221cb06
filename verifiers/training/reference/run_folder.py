"""The folder of a run: what is written, and how it survives being interrupted.

config.json                     the configuration, complete
metrics.jsonl                   a line for every step
evaluations.json                mean reward on the evaluation rows, before and after reinforcement
curve.svg                       mean reward by step
checkpoints/warm_start_000120   one folder a checkpoint, complete or not there
checkpoints/step_000010/        trainer.pt   weights, optimizers, random numbers
                                source.json  examples drawn, groups under way
                                model/       what vf-endpoint, transformers and vLLM load
weights/                        the versions that the server was last given
trainer.log                     what the trainer's process said
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.errors import ConfigError
from verifiers.training.reference.config import TrainConfig, parse_config

PHASES = ("warm_start", "step")
"""First part of a checkpoint's name, in the order they come."""
FORMAT = 1
WEIGHTS_KEPT = 2
"""The server may still read the last but one."""


class Checkpoint(NamedTuple):
    """A checkpoint on disk."""

    folder: Path
    phase: str
    step: int

    @property
    def model(self) -> Path:
        """The model folder in it."""
        return self.folder / "model"

    def source_state(self) -> dict[str, Any] | None:
        """State of the source; None before reinforcement."""
        file = self.folder / "source.json"
        return json.loads(file.read_text()) if file.exists() else None


class RunFolder:
    """See the module."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_file = path / "metrics.jsonl"
        self.curve_file = path / "curve.svg"
        self.evaluations_file = path / "evaluations.json"
        self.trainer_log = path / "trainer.log"

    @classmethod
    def new(cls, config: TrainConfig) -> RunFolder:
        """Make the folder; when one with a run is there already, the next free name (`run-2`, `run-3`, …)."""
        path, number = config.output, 1
        while (path / "config.json").exists():
            number += 1
            path = config.output.with_name(f"{config.output.name}-{number}")
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        write_atomically(
            path / "config.json",
            json.dumps({"format": FORMAT, "config": config.model_dump(mode="json")}, indent=2),
        )
        return folder

    @classmethod
    def existing(cls, path: Path) -> tuple[RunFolder, dict[str, Any]]:
        """A run's folder and its configuration's fields. Raises ConfigError when it is none."""
        try:
            saved = json.loads((path / "config.json").read_text())
            fields = dict(saved["config"])
        except FileNotFoundError as error:
            raise ConfigError(f"{path} is no folder of a run: it has no config.json.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path / 'config.json'} is damaged: {error}.") from error
        if saved.get("format") != FORMAT:
            raise ConfigError(
                f"{path} has format {saved.get('format')!r}; this version reads {FORMAT}."
            )
        parse_config(fields, name=str(path / "config.json"))
        return cls(path), fields

    # ------------------------------------------------------------------------------------------ weights

    def weights(self, name: str) -> Path:
        """The folder for one version of the weights; older ones than the last but one are removed."""
        folder = self.path / "weights"
        kept = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime)
        for old in kept[: max(0, len(kept) - WEIGHTS_KEPT)]:
            shutil.rmtree(old)
        return folder / name

    # ------------------------------------------------------------------------------------------ checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        """Complete ones, the newest last."""
        found = []
        for folder in (self.path / "checkpoints").glob("*_*"):
            phase, _, number = folder.name.rpartition("_")
            if phase in PHASES and number.isdigit():
                found.append(Checkpoint(folder, phase, int(number)))
        return sorted(found, key=lambda one: (PHASES.index(one.phase), one.step))

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        return next(iter(reversed(self.checkpoints())), None)

    @contextmanager
    def new_checkpoint(self, phase: str, step: int, *, keep: int) -> Iterator[Path]:
        """A folder to fill; it becomes the checkpoint when the block ends well, then only the newest `keep` stay."""
        root = self.path / "checkpoints"
        part = root / f".{phase}_{step:06}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                _sync(file)
        final = root / f"{phase}_{step:06}"
        if final.exists():  # the same step again, after going on from an older checkpoint
            shutil.rmtree(final)
        part.rename(final)
        _sync(root)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old.folder)

    # ------------------------------------------------------------------------------------------ metrics

    def metrics(self) -> list[dict[str, Any]]:
        """Every line; a last one that was cut short is left out."""
        if not self.metrics_file.exists():
            return []
        lines = []
        for text in self.metrics_file.read_text().splitlines():
            try:
                lines.append(json.loads(text))
            except ValueError:
                break
        return lines

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """One more line."""
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def evaluation(self, when: str) -> float | None:
        """Mean reward of the evaluation "before" or "after" reinforcement; None when there was none."""
        try:
            found = json.loads(self.evaluations_file.read_text()).get(when)
        except (FileNotFoundError, ValueError, AttributeError):
            return None
        return float(found) if isinstance(found, int | float) else None

    def add_evaluation(self, when: str, mean_reward: float) -> None:
        """Keep the mean reward of an evaluation for the summary of a run that goes on."""
        every = {name: self.evaluation(name) for name in ("before", "after")} | {when: mean_reward}
        write_atomically(self.evaluations_file, json.dumps(every))

    def forget_after(self, checkpoint: Checkpoint | None) -> None:
        """Drop the lines of steps that will be taken again."""
        if checkpoint is None:
            kept: list[dict[str, Any]] = []
        else:
            last = (PHASES.index(checkpoint.phase), checkpoint.step)
            kept = [
                line
                for line in self.metrics()
                if (PHASES.index(line["phase"]), line["step"]) <= last
            ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.metrics_file, text)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file: readers see the old one or the new one."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    _sync(part)
    part.replace(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
