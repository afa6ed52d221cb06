"""What `RolloutSource` costs beyond the rollouts themselves.

    python tests/benchmarks/bench_source.py [--in-flight 4096]

An environment whose rollouts do nothing but wait is played twice: by `asyncio` tasks alone that keep the same number in
flight and score with the same rubric, and by the source, which also dispatches, settles, makes samples and batches.
The difference is the source's own cost, as CPU time of the process for each rollout.
"""

import argparse
import asyncio
import os
import sys
import time

import verifiers as vf
from verifiers.envs.play import score
from verifiers.testing import ScriptedClient
from verifiers.tokens import TokenGraph
from verifiers.training.policy import PolicyEndpoint
from verifiers.training.source import RolloutSource
from verifiers.training.source_config import SourceConfig

PROMPT, COMPLETION = list(range(64)), list(range(64, 192))
LOGPROBS = [-0.5] * len(COMPLETION)
WAIT_S = 0.5
MOST_OVERHEAD_MS = 0.2


class Waiting(vf.Environment):
    """A rollout that waits and then has one turn of tokens."""

    async def rollout(self, input, client, model, sampling_args=None):
        state = await self.init_state(input, client, model, sampling_args)
        await asyncio.sleep(WAIT_S)
        tokens = TokenGraph().commit(
            {"prompt_ids": PROMPT, "completion_ids": COMPLETION, "completion_logprobs": LOGPROBS}
        )
        step = {"prompt": [], "completion": [], "response": None, "tokens": tokens, "reward": None}
        state["trajectory"] = [step | {"advantage": None, "is_truncated": False, "extras": {}}]
        state["completion"] = [{"role": "assistant", "content": str(id(state) % 7)}]
        return state


def varied(completion) -> float:
    return float(completion[-1]["content"] > "3")


def environment():
    rows = [{"question": f"q{n}", "answer": ""} for n in range(2000)]
    return Waiting(dataset=rows, rubric=vf.Rubric(funcs=[varied]))


async def bare(in_flight: int, rollouts: int) -> float:
    """CPU seconds of the rollouts alone."""
    env, client = environment(), ScriptedClient()
    rows = env.source("train").inputs()
    left = iter(range(rollouts))

    async def play() -> None:
        for number in left:
            state = await env.rollout(rows[number % len(rows)], client, "m", {})
            await score(env, [state], alone=True)

    start = time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(play())
    return time.process_time() - start


async def sourced(in_flight: int, rollouts: int) -> tuple[float, int]:
    """CPU seconds with the source, and how many rollouts it finished."""
    config = SourceConfig(
        groups_per_batch=64,
        rollouts_per_group=16,
        max_in_flight=in_flight,
        keep_without_signal=True,
    )
    endpoints = [PolicyEndpoint(ScriptedClient())]
    async with RolloutSource(environment(), endpoints, config, model="m") as source:
        start = time.process_time()
        while source._open_dispatch.tally.rollouts_finished < rollouts:
            batch = await source.next_batch()
            await source.set_version(batch.step)
        return time.process_time() - start, source._open_dispatch.tally.rollouts_finished


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--in-flight", type=int, default=4096)
    parser.add_argument("--rollouts", type=int, default=16384)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args(argv)
    costs = []
    for _ in range(chosen.rounds):
        alone = asyncio.run(bare(chosen.in_flight, chosen.rollouts)) / chosen.rollouts
        cpu_s, finished = asyncio.run(sourced(chosen.in_flight, chosen.rollouts))
        costs.append((1000 * alone, 1000 * cpu_s / finished))
    costs.sort(key=lambda pair: pair[1] - pair[0])
    alone, whole = costs[len(costs) // 2]
    is_met = whole - alone <= MOST_OVERHEAD_MS
    print(
        f"{chosen.in_flight} in flight, load {os.getloadavg()[0]:.1f}: rollout and scoring alone {alone:.3f} ms CPU, "
        f"with the source {whole:.3f}, the source {whole - alone:.3f} (<= {MOST_OVERHEAD_MS})   "
        f"{'ok' if is_met else 'MISSED'}"
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
