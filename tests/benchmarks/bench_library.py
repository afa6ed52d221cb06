"""What a rollout costs: this library, the published 0.1.14 and the bare floor on the same work, interleaved, as ratios.

    python tests/benchmarks/bench_library.py [CASE …] [--rounds N] [--without-public] [--json FILE]

Each measurement is a process of its own on the first core; the mock endpoint runs in another process on the last core.
Every figure is the median of the rounds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from public_package import public_python

HERE = Path(__file__).parent

# case: (what it measures, unit, mock endpoint options, our bound in CPU ms, ratio needed, wall bound in s)
CASES = {
    "single_64": ("2,000 single-turn rollouts, 64 in flight", "rollout", [], 0.5, 12.0, None),
    "flight_2000": (
        "2,000 in flight at once, 1 s latency",
        "rollout",
        ["--latency", "1"],
        0.8,
        40.0,
        4.0,
    ),
    "flight_10000": (
        "10,000 in flight at once, 1 s latency",
        "rollout",
        ["--latency", "1"],
        1.3,
        None,
        20.0,
    ),
    "turns_10": ("10 turns x 200", "turn", [], 0.5, 12.0, None),
    "tools_5": ("tool calls, 5 turns x 200", "turn", ["--tool-turns", "4"], 0.7, 10.0, None),
    "saved_64": ("the first, saved", "rollout", [], None, None, None),
}
STARTS = {
    "import verifiers": ("import verifiers", 0.3),
    "touch the environment classes": (
        "import verifiers as vf; vf.SingleTurnEnv, vf.MultiTurnEnv, vf.ToolEnv, vf.StatefulToolEnv, "
        "vf.EnvGroup, vf.Rubric, vf.JudgeRubric",
        1.0,
    ),
}


@contextmanager
def mock_endpoint(options: list[str]):
    """The port of a mock endpoint in its own process on the last core."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "mock_endpoint.py"), *options],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: (on_core(-1), raise_open_files()),
    )
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def on_core(index: int) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[index]})


def raise_open_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measured(python: Path, script: str, case: str, port: int, limit_s: float) -> dict | None:
    """The figures of one process; None when it did not finish."""
    command = [str(python), str(HERE / script), case, "--port", str(port)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            preexec_fn=lambda: on_core(0),
            env={**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"},
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.stderr.write(done.stderr[-2000:])
        return None
    return json.loads(done.stdout.splitlines()[-1])


def start_cost_s(python: Path, code: str | None, command: str | None = None) -> float:
    """CPU seconds of a fresh process, user + system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [str(python), "-c", code] if code else [str(python.parent / command), "--help"]
    # From elsewhere: `-c` would import this checkout instead of what is installed.
    subprocess.run(argv, capture_output=True, check=True, cwd=os.sep)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def median(rounds: list[dict | None], key: str) -> float | None:
    found = [one[key] for one in rounds if one is not None]
    return statistics.median(found) if found else None


def shown(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def verdict(value: float | None, bound: float | None) -> str:
    if bound is None or value is None:
        return ""
    return "ok" if value <= bound else "MISSED"


def run_case(case: str, rounds: int, public: Path | None) -> dict:
    """Ours, public and floor, interleaved."""
    _, _, options, *_ = CASES[case]
    ours, theirs, floor = [], [], []
    slow = case.startswith("flight")
    for number in range(rounds):
        for python, script, kept in (
            (Path(sys.executable), "floor.py", floor),
            (Path(sys.executable), "workload.py", ours),
            (public, "workload.py", theirs),
        ):
            if python is None or (
                python == public and (case == "flight_10000" or (slow and number))
            ):
                continue  # one round of the slow ones is enough for the published package; 10,000 it never finished
            with mock_endpoint(options) as port:
                kept.append(measured(python, script, case, port, 900.0))
    keys = ("cpu_ms_per_unit", "wall_s", "peak_kb_per_rollout")
    return {
        name: {key: median(kept, key) for key in keys}
        for name, kept in (("ours", ours), ("public", theirs), ("floor", floor))
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without-public", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args(argv)
    raise_open_files()
    public = None if chosen.without_public else public_python()
    print(f"{time.strftime('%Y-%m-%d')}  load {os.getloadavg()[0]:.1f}  rounds {chosen.rounds}")
    print(
        f"{'CPU ms':42}{'ours':>9}{'floor':>9}{'public':>9}{'ratio':>8}{'wall s':>8}{'KB/rollout':>12}"
    )
    results, missed = {}, 0
    for case in chosen.cases or CASES:
        what, unit, _, bound, ratio_needed, wall_bound = CASES[case]
        found = results[case] = run_case(case, chosen.rounds, public)
        ours, theirs = found["ours"], found["public"]
        cpu = ours["cpu_ms_per_unit"]
        ratio = theirs["cpu_ms_per_unit"] / cpu if theirs["cpu_ms_per_unit"] and cpu else None
        words = [verdict(cpu, bound), verdict(ours["wall_s"], wall_bound)]
        words.append(
            "" if not ratio_needed or ratio is None else "ok" if ratio >= ratio_needed else "MISSED"
        )
        missed += "MISSED" in words or cpu is None
        row = f"{what + ', per ' + unit:42.42}{shown(cpu):>9}{shown(found['floor']['cpu_ms_per_unit']):>9}"
        row += f"{shown(theirs['cpu_ms_per_unit']):>9}{shown(ratio, 1):>8}{shown(ours['wall_s'], 1):>8}"
        row += f"{shown(ours['peak_kb_per_rollout'], 1):>12}   {' '.join(dict.fromkeys(filter(None, words)))}"
        print(row, flush=True)
    if {"single_64", "saved_64"} <= set(results):
        extra = {
            name: results["saved_64"][name]["cpu_ms_per_unit"]
            - results["single_64"][name]["cpu_ms_per_unit"]
            for name in ("ours", "public")
            if results["saved_64"][name]["cpu_ms_per_unit"] is not None
        }
        print(
            f"saving results, extra per rollout: ours {shown(extra.get('ours'))} (<= 0.2), "
            f"public {shown(extra.get('public'))}"
        )
        missed += extra.get("ours", 1.0) > 0.2
    for name, (code, bound) in [*STARTS.items(), ("vf-eval --help", (None, 0.5))]:
        costs = {}
        for who, python in (("ours", Path(sys.executable)), ("public", public)):
            if python is not None:
                runs = [start_cost_s(python, code, "vf-eval") for _ in range(chosen.rounds + 1)]
                costs[who] = min(runs)
        words = verdict(costs["ours"], bound)
        missed += words == "MISSED"
        print(
            f"{name + ', CPU s':42}{shown(costs['ours']):>9}{'':>9}{shown(costs.get('public')):>9}"
            f"   {words} (<= {bound})"
        )
        results[name] = costs
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
