"""What the embedded endpoint samples for each second of CPU, HTTP, JSON and log-probabilities included.

    python tests/benchmarks/bench_endpoint.py [--requests 64] [--new-tokens 64] [--rounds 5]

All requests are in flight at once, each for that many new tokens. Counted is CPU time of the server's process.
"""

import argparse
import asyncio
import os
import statistics
import sys
from pathlib import Path

import aiohttp

from verifiers.endpoint import endpoint_process

LEAST_TOKENS_PER_CPU_S = 3000.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def ask_all(url: str, requests: int, new_tokens: int) -> int:
    """Tokens sampled for all requests, which are in flight at once."""

    async def ask(session: aiohttp.ClientSession, number: int) -> int:
        body = {
            "model": "embedded",
            "messages": [{"role": "user", "content": f"Reverse the text: {number} and more"}],
            "max_tokens": new_tokens,
            "ignore_eos": True,
            "temperature": 1.0,
            "logprobs": True,
            "return_token_ids": True,
        }
        async with session.post(f"{url}/chat/completions", json=body) as response:
            response.raise_for_status()
            return len((await response.json())["choices"][0]["token_ids"])

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        return sum(await asyncio.gather(*(ask(session, number) for number in range(requests))))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(argv)
    rates = []
    with endpoint_process() as endpoint:
        for number in range(chosen.rounds + 1):
            begun_s = cpu_s(endpoint.pid)
            tokens = asyncio.run(ask_all(endpoint.base_url, chosen.requests, chosen.new_tokens))
            if tokens != chosen.requests * chosen.new_tokens:
                raise SystemExit(f"{tokens} tokens came back")
            if number:  # the first round warms up
                rates.append(tokens / (cpu_s(endpoint.pid) - begun_s))
    rate = statistics.median(rates)
    verdict = "ok" if rate >= LEAST_TOKENS_PER_CPU_S else "MISSED"
    print(
        f"{chosen.requests} requests x {chosen.new_tokens} new tokens, load {os.getloadavg()[0]:.1f}: "
        f"{rate:.0f} tokens a CPU second (>= {LEAST_TOKENS_PER_CPU_S:.0f})   {verdict}"
    )
    return 0 if verdict == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
