"""One benchmark case in a process of its own: `python workload.py CASE --port PORT`; prints one line of JSON.

The script uses nothing but the public v0 API, so it runs unchanged with this library and with the published
`verifiers` 0.1.14. It prints CPU milliseconds (user + system time of this process) per unit of work, wall seconds
and the growth of the peak resident set per rollout. Data sets are built before the clock starts.
"""

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path

# case: (rollouts, in flight, turns, tools, saved)
CASES = {
    "single_64": (2000, 64, 1, False, False),
    "saved_64": (2000, 64, 1, False, True),
    "flight_2000": (2000, 2000, 1, False, False),
    "flight_10000": (10000, 10000, 1, False, False),
    "turns_10": (200, 64, 10, False, False),
    "tools_5": (200, 64, 5, True, False),
}


def environment(turns: int, tools: bool, rollouts: int):
    """The environment of a case, over `rollouts` different questions."""
    from datasets import Dataset

    import verifiers as vf

    rows = [{"question": f"What is {i} + {i}?", "answer": "4"} for i in range(rollouts)]
    dataset = Dataset.from_list(rows)

    def correct(completion, answer) -> float:
        content = completion[-1]["content"]
        return float(answer in (content or ""))

    def brief(completion) -> float:
        return float(len(completion[-1]["content"] or "") < 100)

    rubric = vf.Rubric(funcs=[correct, brief], weights=[1.0, 0.0])
    common = {
        "dataset": dataset,
        "eval_dataset": dataset,
        "rubric": rubric,
        "system_prompt": "Be brief.",
    }
    if tools:

        def add(a: int, b: int) -> int:
            """Add two numbers.

            Args:
                a: the first
                b: the second
            """
            return a + b

        return vf.ToolEnv(tools=[add], max_turns=turns, **common)
    if turns == 1:
        return vf.SingleTurnEnv(**common)

    class Conversation(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": "Are you sure?"}]

    return Conversation(max_turns=turns, **common)


async def measure(env, config, rollouts: int, in_flight: int, folder: str | None) -> dict:
    """Run the rollouts once; CPU, wall time and memory growth."""
    options = {"num_examples": rollouts, "rollouts_per_example": 1, "max_concurrent": in_flight}
    if folder is not None:
        options |= {"save_results": True, "results_path": Path(folder)}
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    results = await env.evaluate(client=config, model="mock", **options)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    outputs = results["outputs"]
    failed = sum(output["error"] is not None for output in outputs)
    if len(outputs) != rollouts or failed:
        raise SystemExit(f"{len(outputs)} of {rollouts} rollouts came back, {failed} failed")
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    return {
        "cpu_s": cpu,
        "wall_s": wall,
        "turns": sum(output["metrics"]["num_turns"] for output in outputs),
        "reward": results["metadata"]["avg_reward"],
        "peak_kb_per_rollout": peak_kb / rollouts,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--port", type=int, required=True)
    chosen = parser.parse_args()
    rollouts, in_flight, turns, tools, saved = CASES[chosen.case]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.environ["BENCH_KEY"] = "none"

    from datasets import disable_progress_bars

    import verifiers as vf

    disable_progress_bars()
    config = vf.ClientConfig(
        api_key_var="BENCH_KEY",
        api_base_url=f"http://127.0.0.1:{chosen.port}/v1",
        connect_timeout=120.0,
    )
    env = environment(turns, tools, rollouts)

    async def run() -> dict:
        warm = environment(turns, tools, 8)
        await warm.evaluate(client=config, model="mock", num_examples=8, max_concurrent=8)
        if not saved:
            return await measure(env, config, rollouts, in_flight, None)
        with tempfile.TemporaryDirectory() as folder:
            return await measure(env, config, rollouts, in_flight, str(Path(folder) / "run"))

    found = asyncio.run(run())
    units = found["turns"] if turns > 1 else rollouts
    found["cpu_ms_per_unit"] = 1000 * found["cpu_s"] / units
    found["version"] = vf.__version__
    print(json.dumps(found))


if __name__ == "__main__":
    main()
