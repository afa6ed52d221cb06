"""The figures of the viewer: a run of 100,000 rollouts and 1 GB, and a rollout of 100,000 messages.

python tests/benchmarks/bench_view.py [FOLDER]      keeps the generated runs in FOLDER and uses them again

The viewer runs in its own process, so that its memory is measured alone.
"""

import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from verifiers.runs.index import HEADER, INDEX_FILE, Place, encode_entry, short_output
from verifiers.runs.output import encode_line

ROLLOUTS = 100_000
MESSAGES = 100_000
NEEDLE = "Quetzalcoatlus northropi"
LIMITS = {
    "first paint of the run, s": 1.0,
    "rollout of 100,000 messages, s": 1.0,
    "full-text search, s": 5.0,
    "peak memory of the viewer, MB": 300.0,
}


def outputs() -> Iterator[dict[str, Any]]:
    """Yield rollouts of about 11 kB; one of them contains the needle."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(2000)]
    texts = [" ".join(rng.choices(words, k=400)) for _ in range(200)]
    for number in range(ROLLOUTS):
        example, rollout = divmod(number, 4)
        reward = round(rng.random(), 3)
        completion = [{"role": "assistant", "content": rng.choice(texts)} for _ in range(3)]
        if number == ROLLOUTS - 5:
            completion.append({"role": "assistant", "content": f"It is {NEEDLE}."})
        yield {
            "example_id": example,
            "rollout_index": rollout,
            "prompt": [{"role": "user", "content": f"Question {example}: {texts[example % 200]}"}],
            "completion": completion,
            "answer": str(example),
            "reward": reward,
            "error": None,
            "errors": [],
            "metrics": {"accuracy": float(reward > 0.5), "num_turns": 3.0},
            "timing": {"start_time": 1.79e9 + number, "total": 2.5, "model": {"duration": 2.0}},
            "token_usage": {"input_tokens": 900.0, "output_tokens": 300.0},
            "is_completed": True,
            "is_truncated": False,
            "stop_condition": "max_turns_reached",
            "input_key": f"{example:016x}",
        }


def write(folder: Path, rollouts: Iterator[dict[str, Any]]) -> None:
    """Write a run with its index."""
    folder.mkdir(parents=True)
    offset = 0
    with (
        (folder / "results.jsonl").open("wb") as results,
        (folder / INDEX_FILE).open("wb") as index,
    ):
        index.write(HEADER)
        for output in rollouts:
            line = encode_line(output)
            results.write(line)
            index.write(encode_entry(Place(offset, len(line)), short_output(output)))
            offset += len(line)
    described = {"env_id": folder.name, "model": "m", "avg_reward": 0.5, "num_examples": 25_000}
    (folder / "metadata.json").write_text(json.dumps(described))


def timed(client: httpx.Client, address: str) -> tuple[float, httpx.Response]:
    """Return the seconds of a request and its response."""
    start = time.perf_counter()
    response = client.get(address)
    return time.perf_counter() - start, response


def opened(client: httpx.Client, address: str) -> float:
    """Return the seconds until a page of a run is there, after the run has been opened."""
    while True:
        seconds, response = timed(client, address)
        if response.status_code == 200:
            return seconds
        time.sleep(0.1)


def measure(folder: Path) -> dict[str, float]:
    """Return the figures."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code = "from vf_cli.main import view_main; import sys; sys.exit(view_main())"
    arguments = [sys.executable, "-c", code, str(folder), "-p", str(port), "--no-token"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            assert viewer.stdout is not None
            assert "viewing" in viewer.stdout.readline()
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=120, trust_env=False
            ) as client:
                return figures(client, viewer.pid)
        finally:
            viewer.terminate()


def figures(client: httpx.Client, pid: int) -> dict[str, float]:
    """Return the figures of a running viewer."""
    while (listed := client.get("/")).status_code != 200:
        time.sleep(0.1)
    keys = dict(re.findall(r'href="/runs/(\w+)" data-open><bdi>(\w+)<', listed.text))
    big, long = (
        next(key for key, name in keys.items() if name == wanted) for wanted in ("big", "long")
    )
    paint, _ = timed(client, f"/runs/{big}")
    start = time.perf_counter()
    found = {"first paint of the run, s": paint}
    opened(client, f"/runs/{big}")
    found["all numbers of the run, s"] = paint + time.perf_counter() - start
    found["table of rollouts, s"] = opened(client, f"/runs/{big}/rollouts")
    query = "filter=reward+%3C+0.5+and+accuracy+%3D%3D+0&sort=-reward"
    found["filter and sort, s"] = opened(client, f"/runs/{big}/rollouts?{query}")
    opened(client, f"/runs/{long}")
    found["rollout of 100,000 messages, s"] = opened(client, f"/runs/{long}/rollouts/0")
    start = time.perf_counter()
    while True:  # a page searches for three seconds; the next request continues
        _, page = timed(client, f"/runs/{big}/rollouts?search={NEEDLE.replace(' ', '+')}")
        if "were searched" not in page.text:
            break
    found["full-text search, s"] = time.perf_counter() - start
    assert f"<mark>{NEEDLE}</mark>" in page.text
    status = Path(f"/proc/{pid}/status").read_text()
    found["peak memory of the viewer, MB"] = int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1000
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if not (folder / "big").exists():
            write(folder / "big", outputs())
        if not (folder / "long").exists():
            text = "one message of many, " * 4
            messages = [{"role": "assistant", "content": f"{n} {text}"} for n in range(MESSAGES)]
            write(folder / "long", iter([{"example_id": 0, "reward": 1.0, "completion": messages}]))
        gigabytes = (folder / "big" / "results.jsonl").stat().st_size / 1e9
        print(f"{ROLLOUTS} rollouts, {gigabytes:.2f} GB, {os.cpu_count()} cores")
        found = measure(folder)
    for name, value in found.items():
        limit = LIMITS.get(name)
        print(f"{name:34} {value:8.2f}" + ("" if limit is None else f"   limit {limit:g}"))
    return int(any(found[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
