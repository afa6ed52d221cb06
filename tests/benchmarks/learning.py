"""The learning curve of docs/train-a-model.md: `vf-train --demo` for several seeds, one after another.

    python tests/benchmarks/learning.py [CONFIG] [--seeds 0 1 2 3 4] [--out FOLDER] [--plot FILE.svg]

Exits with code 1 if the last five steps of a seed have a mean reward below 0.85, or less than 0.25 above that of its
first five. A complete run in FOLDER is not repeated.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from verifiers.training.reference.config import DEMO
from verifiers.training.reference.curve import write_curve

LEAST_LAST, LEAST_GAIN, WINDOW = 0.85, 0.25, 5
COMMAND = "import sys; from vf_cli.main import train_main; sys.exit(train_main())"


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("config", nargs="?", default=DEMO)
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--out", type=Path, default=Path("outputs/learning"))
    arguments.add_argument("--plot", type=Path)
    options = arguments.parse_args()
    curves, is_good = {}, True
    for seed in options.seeds:
        folder = options.out / f"seed_{seed}"
        seconds = train(options.config, seed, folder)
        rewards, shown = rewards_of(folder)
        first, last = sum(rewards[:WINDOW]) / WINDOW, sum(rewards[-WINDOW:]) / WINDOW
        is_good &= last >= LEAST_LAST and last - first >= LEAST_GAIN
        curves[f"seed {seed}"] = rewards
        print(f"| {seed} | {first:.3f} | {last:.3f} | {shown} | {seconds:.0f} |", flush=True)
        if options.plot:
            options.plot.parent.mkdir(parents=True, exist_ok=True)
            write_curve(options.plot, curves, title=f"{options.config}: mean reward by step")
    return 0 if is_good else 1


def train(config: str, seed: int, folder: Path) -> float:
    """Return the wall seconds of the run; 0 if it existed already."""
    if (folder / "done").exists():
        return float((folder / "done").read_text())
    begun = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-c",
            COMMAND,
            config,
            "--seed",
            str(seed),
            "--output",
            str(folder),
            "--json",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.monotonic() - begun
    (folder / "done").write_text(f"{seconds:.1f}")
    return seconds


def rewards_of(folder: Path) -> tuple[list[float], str]:
    """Return the mean reward of every step, and the mismatch KL of step 1 and its maximum."""
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "step"]
    mismatch = [line["trainer/mismatch_kl"] for line in steps]
    return [line["reward"] for line in steps], f"{mismatch[0]:.0e} | {max(mismatch):.0e}"


if __name__ == "__main__":
    sys.exit(main())
