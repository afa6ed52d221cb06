"""`RLMEnv` with a scripted model: rollouts per second, and the cost of one call of a sub-LLM by code.

    python tests/benchmarks/bench_rlm.py [ROLLOUTS] [--json FILE]

A rollout copies its data, starts a sandbox, a port and a worker, runs code once and ends. The model answers at once, so
all time is ours. CPU is user and system time of everything together, sandboxes included; on a busy machine it decides
about the first bound: 20 rollouts per second on two cores are 100 ms of CPU time each. A call is measured by the code
itself, in the sandbox, from the call of `llm_batch` to its result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from cpu_meter import CpuMeter

import verifiers as vf
from verifiers.envs.rlm import RLMEnv
from verifiers.testing import ScriptedClient, call

CONCURRENT = 16
CALLS = 200
MAX_CPU_S = 2 / 20
MAX_CALL_S = 0.003
DONE = {
    "python": "answer['content'] = '42'; answer['ready'] = True",
    "bash": "export ANSWER_CONTENT=42 ANSWER_READY=1",
}
TIMED = {
    "python": """
import time
times = []
for _ in range(%d):
    begun = time.perf_counter()
    llm_batch(["x"] * %d)
    times.append((time.perf_counter() - begun) / %d)
answer["content"] = str(sorted(times)[len(times) // 2]); answer["ready"] = True
""",
    "bash": """
prompts=$(seq %d)
for _ in $(seq %d); do
  begun=${EPOCHREALTIME/./}; llm_batch $prompts > /dev/null; echo $(( ${EPOCHREALTIME/./} - begun ))
done | sort -n > times
export ANSWER_CONTENT=$(sed -n "$(( $(wc -l < times) / 2 + 1 ))p" times) ANSWER_READY=1
""",
}


async def is_right(state: vf.State, answer: str) -> float:
    return float(state.get("final_answer") == answer)


def made(language: str) -> RLMEnv:
    rows = [{"question": "q", "answer": "42", "info": {"context": "data"}}]
    return RLMEnv(
        dataset=rows,
        rubric=vf.Rubric(funcs=[is_right]),
        repl_language=language,  # type: ignore[arg-type]
        sandbox_memory_gb=0.25,
    )


async def rollouts(meter: CpuMeter, language: str, count: int) -> dict[str, Any]:
    async with made(language) as env:

        async def played(number: int) -> float:
            code = call(f"call_{language}_repl", code=DONE[language])
            began, cpu = time.perf_counter(), meter.seconds()
            results = await env.evaluate(
                ScriptedClient(lambda _: code),
                "scripted",
                rollouts_per_example=number,
                max_concurrent=CONCURRENT,
            )
            assert all(output["reward"] == 1.0 for output in results["outputs"])
            nonlocal cpu_s
            after = meter.seconds()
            cpu_s = None if cpu is None or after is None else (after - cpu) / number
            return (time.perf_counter() - began) / number

        cpu_s: float | None = None
        await played(CONCURRENT)
        wall_s = await played(count)
    cost_s = wall_s if cpu_s is None else cpu_s
    bound_s = MAX_CPU_S / 2 if cpu_s is None else MAX_CPU_S
    print(
        f"{language:7} {1 / wall_s:6.1f} rollouts/s  {wall_s * 1000:6.1f} ms wall  "
        f"{'-' if cpu_s is None else f'{cpu_s * 1000:.1f}':>6} ms CPU each (bound {bound_s * 1000:.0f} ms)"
    )
    return {"rollouts_per_s": 1 / wall_s, "cpu_s": cpu_s, "is_met": cost_s <= bound_s}


async def calls(language: str, size: int) -> dict[str, Any]:
    rounds = CALLS // size
    pieces = (rounds, size, size) if language == "python" else (size, rounds)
    async with made(language) as env:
        code = call(f"call_{language}_repl", code=TIMED[language] % pieces)
        model = ScriptedClient(lambda prompt: "ok" if prompt[0]["role"] == "system" else code)
        results = await env.evaluate(model, "scripted", state_columns=["final_answer"])
    (output,) = results["outputs"]
    number = float(output["final_answer"])
    call_s = number if language == "python" else number / 1e6 / size
    print(
        f"{language:7} {call_s * 1000:6.2f} ms per sub-LLM in batches of {size} "
        f"(bound {MAX_CALL_S * 1000:.0f} ms)"
    )
    return {"call_s": call_s, "is_met": call_s <= MAX_CALL_S}


async def main(count: int) -> dict[str, Any]:
    meter = CpuMeter().start()
    figures: dict[str, Any] = {}
    try:
        for language in DONE:
            figures[f"{language} rollouts"] = await rollouts(meter, language, count)
        for language in DONE:
            for size in (1, 5):
                figures[f"{language} calls of {size}"] = await calls(language, size)
    finally:
        meter.close()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rollouts", nargs="?", type=int, default=80)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    measured = asyncio.run(main(chosen.rollouts))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(measured))
    sys.exit(not all(figure["is_met"] for figure in measured.values()))
