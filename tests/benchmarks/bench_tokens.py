"""What token data costs: long rollouts with an instant client, here and in the published 0.1.14.

    python tests/benchmarks/bench_tokens.py [--public PYTHON] [--rounds 3]

64 rollouts of 20 turns (then 40), 512 new tokens a turn of which 384 are sampled. The client answers at once, so all
that is measured is the library: the loop, and what it does with the ids. Figures are CPU time of this process. With
`--public` the same script runs under that interpreter (which has `verifiers==0.1.14`) in turn with this one.

`lists` are ids as Python lists, as a JSON answer gives them; `arrays` are int32 buffers, which only this library takes.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from array import array

SAMPLED, SHOWN = 384, 128


class Answers:
    """Prompt and completion ids of every turn of a rollout, made before the clock starts."""

    def __init__(self, turns: int, arrays: bool):
        self.prompts, self.completions = [], []
        context = []
        for turn in range(turns):
            first = 1000 + turn * 600
            context = context + list(range(first, first + SHOWN))
            completion = list(range(first + SHOWN, first + SHOWN + SAMPLED))
            self.prompts.append(array("i", context) if arrays else context)
            self.completions.append(array("i", completion) if arrays else completion)
            context = context + completion
        self.logprobs = array("f", [-0.25] * SAMPLED) if arrays else [-0.25] * SAMPLED
        lengths = [len(prompt) for prompt in self.prompts]
        self.prompt_masks = [bytes(n) if arrays else [0] * n for n in lengths]
        self.completion_mask = bytes([1]) * SAMPLED if arrays else [1] * SAMPLED


def instant_client(vf, answers, clock):
    """A client whose answer to turn k is known; `clock` gets the CPU time at the end of every turn's answer."""
    from verifiers.types import ResponseMessage, ResponseTokens, Usage

    class Instant(vf.Client):
        def setup_client(self, config):
            return None

        async def to_native_tool(self, tool):
            return tool

        async def to_native_prompt(self, messages):
            return messages, {}

        async def raise_from_native_response(self, response):
            return None

        async def from_native_response(self, response):
            return response

        async def close(self):
            return None

        async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
            turn = len(prompt) // 2
            clock.append((turn, time.process_time()))
            ids, said = answers.prompts[turn], answers.completions[turn]
            fields = {
                "prompt_ids": ids,
                "prompt_mask": answers.prompt_masks[turn],
                "completion_ids": said,
                "completion_mask": answers.completion_mask,
                "completion_logprobs": answers.logprobs,
            }
            make = getattr(ResponseTokens, "of", None)
            return vf.Response(
                id="0",
                created=0,
                model=model,
                usage=Usage(
                    prompt_tokens=len(ids),
                    reasoning_tokens=0,
                    completion_tokens=len(said),
                    total_tokens=len(ids) + len(said),
                ),
                message=ResponseMessage(
                    content="ok",
                    finish_reason="stop",
                    is_truncated=False,
                    tokens=make(fields) if make else ResponseTokens(**fields),
                ),
            )

    return Instant(None)


def measure(turns: int, rollouts: int, arrays: bool) -> dict:
    import verifiers as vf

    class Conversation(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": "go on"}]

    def right(completion) -> float:
        return 1.0

    from datasets import Dataset

    rows = Dataset.from_list([{"question": "x", "answer": "y"}])
    env = Conversation(dataset=rows, max_turns=turns, rubric=vf.Rubric(funcs=[right]))
    row = env.get_dataset()[0]
    answers = Answers(turns, arrays)

    async def play(clock):
        """One rollout as prime-rl asks for it."""
        client = instant_client(vf, answers, clock)
        return await env.run_rollout(
            vf.RolloutInput(**row), client, "m", {}, state_columns=["trajectory"]
        )

    async def play_all(count):
        return await asyncio.gather(*[play([]) for _ in range(count)])

    asyncio.run(play_all(2))  # warm
    gc.collect()
    before = resident_bytes()
    start = time.process_time()
    outputs = asyncio.run(play_all(rollouts))
    cpu_s = time.process_time() - start
    gc.collect()
    resident = resident_bytes() - before
    # One at a time for the cost of single turns.
    by_turn: dict[int, list[float]] = {}
    for _ in range(10):
        clock: list[tuple[int, float]] = []
        asyncio.run(play(clock))
        for (turn, began), (_, ended) in itertools.pairwise(clock):
            by_turn.setdefault(turn, []).append(ended - began)
    tokens = rollouts * turns * (SAMPLED + SHOWN)
    found = {
        "version": vf.__version__,
        "turns_per_s": rollouts * turns / cpu_s,
        "resident_bytes_per_token": resident / tokens,
        "turn_us": {str(t): 1e6 * min(costs) for t, costs in by_turn.items()},
    }
    if not all(len(one["trajectory"]) == turns and not one.get("error") for one in outputs):
        raise SystemExit(f"a rollout failed: {outputs[0].get('error')}")
    last = outputs[-1]["trajectory"][-1]["tokens"]
    if last["completion_ids"] != list(answers.completions[-1]):
        raise SystemExit("the tokens did not come back")
    graph = getattr(last, "graph", None)
    if graph is not None:
        found["stored_bytes_per_token"] = graph.resident_bytes / (turns * (SAMPLED + SHOWN))
    return found


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def run(python: str, *options: str) -> dict:
    command = [python, __file__, "--one", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--public", help="interpreter with verifiers==0.1.14")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--arrays", action="store_true")
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.turns, chosen.rollouts, chosen.arrays)))
        return
    cases = {"lists": (sys.executable,), "arrays": (sys.executable, "--arrays")}
    if chosen.public:
        cases["public"] = (chosen.public,)
    results: dict[str, list[dict]] = {name: [] for name in cases}
    for _ in range(chosen.rounds):
        for name, (python, *options) in cases.items():
            results[name].append(
                run(
                    python,
                    *options,
                    "--turns",
                    str(chosen.turns),
                    "--rollouts",
                    str(chosen.rollouts),
                )
            )
    what = f"{chosen.rollouts} rollouts x {chosen.turns} turns x {SAMPLED + SHOWN} tokens"
    print(f"{what}, load {os.getloadavg()[0]:.1f}")
    rate = {}
    for name, found in results.items():
        rate[name] = statistics.median(one["turns_per_s"] for one in found)
        resident = statistics.median(one["resident_bytes_per_token"] for one in found)
        stored = found[0].get("stored_bytes_per_token")
        print(
            f"{name:8} {found[0]['version']:8} {rate[name]:8.0f} turns/CPU s   "
            f"{resident:6.1f} bytes resident a token"
            + (f" ({stored:.1f} of them in the graph)" if stored else "")
        )
    if chosen.public:
        lists, arrays = rate["lists"] / rate["public"], rate["arrays"] / rate["public"]
        print(f"ours / public: {lists:.1f} (lists), {arrays:.1f} (arrays)")
    for name, options in (("lists", ()), ("arrays", ("--arrays",))):
        long = run(sys.executable, *options, "--turns", "41", "--rollouts", "4")["turn_us"]
        print(
            f"{name}: a turn in us: 2nd {long['1']:.0f}, 20th {long['19']:.0f}, 40th {long['39']:.0f}; "
            f"40th / 2nd = {long['39'] / long['1']:.2f}"
        )


if __name__ == "__main__":
    main()
