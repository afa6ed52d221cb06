"""What `vf-train` shows, drawn from the lines that a run writes."""

import io
from pathlib import Path

from rich.console import Console

from verifiers.training.reference.config import TrainConfig
from verifiers.training.reference.run_folder import Checkpoint, RunFolder
from vf_cli.train_progress import COLUMNS, SHOWN_STEPS, LiveTable, PlainTable

CONFIG = TrainConfig.model_validate(
    {
        "steps": 30,
        "environment": {"id": "my-env"},
        "source": {"groups_per_batch": 1, "rollouts_per_group": 2},
        "warm_start": {"steps": 60},
    }
)
ABOUT = {
    "parameters": 117568,
    "device": "cpu",
    "phase": "reinforcement",
    "step": 4,
    "pids": {"trainer": 11, "server": 12},
}


def step(number: int) -> dict:
    values = {name: 0.25 for _, name, _ in COLUMNS}
    return {**values, "step": number, "reward": number / 100, "elapsed_s": 61.0}


def tell(table: LiveTable | PlainTable) -> None:
    table.started(RunFolder(Path("run")), ABOUT)
    table.demonstrated(40, 0.5, 0.25)
    table.warm_start_step({"step": 60, "loss": 1.25, "is_noisy": 1.0})
    table.evaluated("before", 0.125)
    for number in range(1, 31):
        table.step(step(number))
    table.saved(Checkpoint(Path("run/checkpoints/step_000030"), "step", 30))


def test_a_live_table_keeps_the_last_steps():
    table = LiveTable(CONFIG)
    tell(table)
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    text = console.file.getvalue()
    assert "my-env   117,568 parameters on cpu   run   from reinforcement 4" in text
    assert "trainer 11, server 12" in text
    rows = [line.split() for line in text.splitlines() if "/30" in line]
    assert [row[0] for row in rows] == [f"{n}/30" for n in range(31 - SHOWN_STEPS, 31)]
    assert rows[-1][1] == "0.300"
    assert "checkpoint run/checkpoints/step_000030" in text


def test_lines_tell_the_first_step_every_fifth_and_the_last():
    lines: list[str] = []
    tell(PlainTable(CONFIG, lines.append))
    assert lines[1] == "40 demonstrations with noise 0.25, which score 0.500"
    assert lines[2] == "warm start, step 60: loss 1.250 on noisy replies"
    assert lines[3] == "held-out reward before reinforcement 0.125"
    told = [line.split()[1] for line in lines if line.startswith("step ")]
    assert told == [f"{n}/30" for n in (1, 5, 10, 15, 20, 25, 30)]
    assert "reward 0.300" in lines[-2]
