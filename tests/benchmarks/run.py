"""`make bench`: every figure that is promised, one program after the other.

    python tests/benchmarks/run.py [NAME ...]

Each program prints its table, can be run by itself and says by its exit code whether a bound was missed.
"""

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = {
    "library": "rollouts beside the published package and the bare floor",
    "tokens": "token data in long rollouts, beside the published package",
    "source": "the rollout source with thousands in flight",
    "endpoint": "the embedded endpoint",
    "sandboxes": "local sandboxes beside local processes",
    "code_env": "programs and their tests",
    "rlm": "recursive language models",
    "hub": "the hub",
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all")
    chosen = parser.parse_args(argv)
    if unknown := [name for name in chosen.names if name not in NAMES]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(NAMES)}")
    missed = []
    for name in chosen.names or NAMES:
        print(f"\n=== {name}: {NAMES[name]}", flush=True)
        # A process each: memory is measured, and no benchmark finds the heap of another.
        done = subprocess.run([sys.executable, str(HERE / f"bench_{name}.py")], check=False)
        if done.returncode:
            missed.append(name)
    print("\nall bounds are met" if not missed else f"\nMISSED in: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
