"""The folder of a run: its files, and how they survive interruptions.

config.json                     the complete configuration
metrics.jsonl                   one line for every step
evaluations.json                mean reward on the evaluation rows, before and after reinforcement learning
curve.svg                       mean reward by step
checkpoints/warm_start_000120   one folder per checkpoint, complete or absent
checkpoints/step_000010/        trainer.pt   weights, optimizers, random numbers
                                source.json  examples drawn, unfinished groups
                                model/       model folder for vf-endpoint, transformers and vLLM
weights/                        the latest versions of the server's weights
trainer.log                     stderr of the trainer process
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from verifiers.errors import ConfigError
from verifiers.files import replace_file, sync
from verifiers.training.reference.config import TrainConfig, parse_config

PHASES = ("warm_start", "step")
"""First part of a checkpoint's name, in the order of the phases."""
FORMAT = 1
WEIGHTS_KEPT = 2
"""The server may still read the last version but one."""


class Checkpoint(NamedTuple):
    """A checkpoint on disk."""

    folder: Path
    phase: str
    step: int

    @property
    def model(self) -> Path:
        """The model folder inside the checkpoint."""
        return self.folder / "model"

    def source_state(self) -> dict[str, Any] | None:
        """State of the source; None before reinforcement learning."""
        file = self.folder / "source.json"
        return json.loads(file.read_text()) if file.exists() else None


class RunFolder:
    """The files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics_file = path / "metrics.jsonl"
        self.curve_file = path / "curve.svg"
        self.evaluations_file = path / "evaluations.json"
        self.trainer_log = path / "trainer.log"

    @classmethod
    def new(cls, config: TrainConfig) -> RunFolder:
        """Create the folder. If it contains a run already, use the next free name (`run-2`, `run-3`, …)."""
        path, number = config.output, 1
        while (path / "config.json").exists():
            number += 1
            path = config.output.with_name(f"{config.output.name}-{number}")
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        replace_file(
            path / "config.json",
            json.dumps({"format": FORMAT, "config": config.model_dump(mode="json")}, indent=2),
            is_durable=True,
        )
        return folder

    @classmethod
    def existing(cls, path: Path) -> tuple[RunFolder, dict[str, Any]]:
        """Return a run's folder and the fields of its configuration. Raise ConfigError if it is not a run's folder."""
        try:
            saved = json.loads((path / "config.json").read_text())
            fields = dict(saved["config"])
        except FileNotFoundError as error:
            raise ConfigError(
                f"{path} is not the folder of a run: it has no config.json."
            ) from error
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
        """Return the folder for one version of the weights. Remove all versions older than the last but one."""
        folder = self.path / "weights"
        kept = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime)
        for old in kept[: max(0, len(kept) - WEIGHTS_KEPT)]:
            shutil.rmtree(old)
        return folder / name

    # ------------------------------------------------------------------------------------------ checkpoints

    def checkpoints(self) -> list[Checkpoint]:
        """Return the complete checkpoints, the newest last."""
        checkpoints = []
        for folder in (self.path / "checkpoints").glob("*_*"):
            phase, _, number = folder.name.rpartition("_")
            if phase in PHASES and number.isdigit():
                checkpoints.append(Checkpoint(folder, phase, int(number)))
        return sorted(
            checkpoints, key=lambda checkpoint: (PHASES.index(checkpoint.phase), checkpoint.step)
        )

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint."""
        return next(iter(reversed(self.checkpoints())), None)

    @contextmanager
    def new_checkpoint(self, phase: str, step: int, *, keep: int) -> Iterator[Path]:
        """Return a folder to fill.

        It becomes a checkpoint when the block ends without an error; the newest `keep` stay.
        """
        root = self.path / "checkpoints"
        part = root / f".{phase}_{step:06}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                sync(file)
        final = root / f"{phase}_{step:06}"
        if final.exists():  # a resumed run repeats the step
            shutil.rmtree(final)
        part.rename(final)
        sync(root)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old.folder)

    # ------------------------------------------------------------------------------------------ metrics

    def metrics(self) -> list[dict[str, Any]]:
        """Return every line; an incomplete last line is left out."""
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
        """Append a line."""
        with open(self.metrics_file, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def evaluation(self, when: str) -> float | None:
        """Return the mean reward of the evaluation "before" or "after" reinforcement learning; None if there is none.
        Return the mean reward of the evaluation "before" or "after" reinforcement learning; None if there is none."""
        try:
            found = json.loads(self.evaluations_file.read_text()).get(when)
        except (FileNotFoundError, ValueError, AttributeError):
            return None
        return float(found) if isinstance(found, int | float) else None

    def add_evaluation(self, when: str, mean_reward: float) -> None:
        """Store the mean reward of an evaluation for the summary of a resumed run."""
        every = {name: self.evaluation(name) for name in ("before", "after")} | {when: mean_reward}
        replace_file(self.evaluations_file, json.dumps(every), is_durable=True)

    def forget_after(self, checkpoint: Checkpoint | None) -> None:
        """Remove the lines of steps that will be repeated."""
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
        replace_file(self.metrics_file, text, is_durable=True)
