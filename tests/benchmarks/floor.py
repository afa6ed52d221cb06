"""The floor: the requests of a benchmark case by a bare asyncio + aiohttp + orjson loop that keeps the same values.

`python floor.py CASE --port PORT`; prints the same line of JSON as `workload.py`. Nothing but the requests: no
environment, no state, no scoring, no retries.
"""

import argparse
import asyncio
import json
import resource
import time

import aiohttp
import orjson
from workload import CASES


async def conversation(session, url: str, question: str, turns: int, kept: list) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    for _ in range(turns):
        body = orjson.dumps({"model": "mock", "messages": messages, "n": 1})
        async with session.post(
            url, data=body, headers={"Content-Type": "application/json"}
        ) as response:
            answer = orjson.loads(await response.read())
        message = answer["choices"][0]["message"]
        kept.append((messages, message, answer["usage"]))
        messages = [*messages, message, {"role": "user", "content": "Are you sure?"}]


async def run(rollouts: int, in_flight: int, turns: int, port: int) -> dict:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    kept: list = []
    limit = asyncio.Semaphore(in_flight)

    async def one(question: str) -> None:
        async with limit:
            await conversation(session, url, question, turns, kept)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        await asyncio.gather(*(one("warm up") for _ in range(8)))
        kept.clear()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(one(f"What is {i} + {i}?") for i in range(rollouts)))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    return {
        "cpu_s": cpu,
        "wall_s": wall,
        "cpu_ms_per_unit": 1000 * cpu / (rollouts * turns),
        "peak_kb_per_rollout": peak_kb / rollouts,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--port", type=int, required=True)
    chosen = parser.parse_args()
    rollouts, in_flight, turns, _, _ = CASES[chosen.case]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(run(rollouts, in_flight, turns, chosen.port))))


if __name__ == "__main__":
    main()
