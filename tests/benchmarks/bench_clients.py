"""CPU time and memory of one model call: our client against a bare aiohttp + orjson loop, same body, same run.

    python tests/benchmarks/bench_clients.py [--requests 2000] [--in-flight 64 2000 10000] [--rounds 3]

The mock endpoint runs in its own process, and each measurement in a fresh one (memory is a process's peak), bare and
client in turn so that a busy machine disturbs both alike. Printed: CPU milliseconds a request (user + system), and
kilobytes of peak memory a request in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

MESSAGES = [
    {"role": "system", "content": "You are a careful calculator. Answer with a number."},
    {"role": "user", "content": "What is two plus two? Think step by step, then answer."},
]
SAMPLING = {"temperature": 0.7, "max_tokens": 64}


async def bare(url: str, requests: int, in_flight: int) -> None:
    import aiohttp
    import orjson

    headers = {"Content-Type": "application/json", "Authorization": "Bearer EMPTY"}
    gate = asyncio.Semaphore(in_flight)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> dict:
            async with gate:
                body = orjson.dumps({"model": "mock", "messages": MESSAGES, **SAMPLING})
                async with session.post(
                    f"{url}/chat/completions", data=body, headers=headers
                ) as answer:
                    return orjson.loads(await answer.read())

        kept = await asyncio.gather(*[one() for _ in range(requests)])
    assert len(kept) == requests


async def client(url: str, requests: int, in_flight: int) -> None:
    from verifiers.clients import resolve_client
    from verifiers.configs import ClientConfig
    from verifiers.types import SystemMessage, UserMessage

    system, user = (m["content"] for m in MESSAGES)
    ours = resolve_client(ClientConfig(api_base_url=url))
    gate = asyncio.Semaphore(in_flight)

    async def one() -> object:
        async with gate:
            prompt = [SystemMessage(content=system), UserMessage(content=user)]
            return await ours.get_response(prompt, "mock", SAMPLING)

    kept = await asyncio.gather(*[one() for _ in range(requests)])
    assert len(kept) == requests


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(what: str, url: str, requests: int, in_flight: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    work = {"bare": bare, "client": client}[what]
    asyncio.run(work(url, 50, 10))  # imports, first connections
    gc.collect()
    memory_kb, cpu_s, wall_s = peak_kb(), time.process_time(), time.perf_counter()
    asyncio.run(work(url, requests, in_flight))
    report = {
        "cpu_ms": 1000 * (time.process_time() - cpu_s) / requests,
        "wall_s": time.perf_counter() - wall_s,
        "kb_in_flight": (peak_kb() - memory_kb) / min(requests, in_flight),
    }
    print(json.dumps(report))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--requests", type=int, default=2000)
    options.add_argument("--in-flight", type=int, nargs="+", default=[64, 2000, 10000])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--measure", nargs=2, metavar=("WHAT", "URL"))
    chosen = options.parse_args()
    if chosen.measure:
        measure(chosen.measure[0], chosen.measure[1], chosen.requests, chosen.in_flight[0])
        return
    mock = Path(__file__).with_name("mock_endpoint.py")
    for in_flight in chosen.in_flight:
        requests = max(chosen.requests, in_flight)
        latency = "0" if in_flight <= 64 else "1"
        with subprocess.Popen(
            [
                "bash",
                "-c",
                f"ulimit -n $(ulimit -Hn); exec {sys.executable} {mock} --latency {latency}",
            ],
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
            reports: dict[str, list[dict]] = {"bare": [], "client": []}
            for _ in range(chosen.rounds):
                for what, found in reports.items():
                    said = subprocess.run(
                        [
                            *(sys.executable, __file__, "--measure", what, url),
                            *("--requests", str(requests), "--in-flight", str(in_flight)),
                        ],
                        stdout=subprocess.PIPE,
                        check=True,
                        env={**os.environ, "OPENAI_API_KEY": ""},
                    )
                    found.append(json.loads(said.stdout))
            server.kill()
        for what, found in reports.items():
            figures = {name: median(report[name] for report in found) for name in found[0]}
            print(
                f"{what:>7} {in_flight:>6} in flight: {figures['cpu_ms']:.3f} ms CPU, "
                f"{figures['kb_in_flight']:.1f} KB, {figures['wall_s']:.1f} s"
            )


if __name__ == "__main__":
    main()
