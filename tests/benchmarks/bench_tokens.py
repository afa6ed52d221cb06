"""What token data costs: long rollouts with an instant client, here and in the published 0.1.14.

    python tests/benchmarks/bench_tokens.py [--public PYTHON | --without-public] [--rounds 3]

64 rollouts of 20 turns (then 41), 512 new tokens a turn of which 384 are sampled. The model answers at once, so all
that is measured is the library. Figures are CPU time of this process. The published package runs the same script, in
turn with this one.

    client   answers as our clients hand them over: decoded, and read by the clients' own `response_of`
    wire     the whole client over an instant transport: requests are rendered, answers decoded from JSON text
    lists    a client of somebody else that makes `ResponseTokens` of Python lists; this is what 0.1.14 is given
"""

import argparse
import asyncio
import ctypes
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
LEAST_TURNS_PER_S, LEAST_RATIO, MOST_BYTES, MOST_GROWTH = 1500, 15.0, 8.0, 1.2
CASES = ("client", "wire", "lists")
ALONE = [1, 2]
"""Ids of the stand-in answer that `/tokenize` is asked for."""


class Answers:
    """Ids of every turn of a rollout, made before the clock starts."""

    def __init__(self, turns: int):
        self.prompts, self.shown, self.completions = [], [], []
        context = []
        for turn in range(turns):
            first = 1000 + turn * 600
            self.shown.append(list(range(first, first + SHOWN)))
            self.completions.append(list(range(first + SHOWN, first + SHOWN + SAMPLED)))
            context = context + self.shown[-1]
            self.prompts.append(context)
            context = context + self.completions[-1]

    def payload(self, turn: int) -> dict:
        """A chat completion as vLLM words it."""
        ids = self.completions[turn]
        content = [{"token": "t", "logprob": -0.25, "bytes": None, "top_logprobs": []} for _ in ids]
        return {
            "id": "0",
            "created": 0,
            "model": "m",
            "prompt_token_ids": self.prompts[turn],
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "ok"},
                    "token_ids": ids,
                    "logprobs": {"content": content},
                }
            ],
            "usage": {"prompt_tokens": len(self.prompts[turn]), "completion_tokens": len(ids)},
        }


def instant_client(vf, respond):
    """A client whose answer to turn k is `respond(k)`."""

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
            return respond(len(prompt) // 2)

    return Instant(None)


def lists_client(vf, answers, clock):
    """Makes `ResponseTokens` of lists, with either package."""
    from verifiers.types import ResponseMessage, ResponseTokens, Usage

    prompt_masks = [[0] * len(prompt) for prompt in answers.prompts]
    completion_mask, logprobs = [1] * SAMPLED, [-0.25] * SAMPLED
    make = getattr(ResponseTokens, "of", None)

    def respond(turn):
        clock.append((turn, time.process_time()))
        ids, said = answers.prompts[turn], answers.completions[turn]
        fields = {
            "prompt_ids": ids,
            "prompt_mask": prompt_masks[turn],
            "completion_ids": said,
            "completion_mask": completion_mask,
            "completion_logprobs": logprobs,
        }
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(said)}
        return vf.Response(
            id="0",
            created=0,
            model="m",
            usage=Usage(reasoning_tokens=0, total_tokens=len(ids) + len(said), **usage),
            message=ResponseMessage(
                content="ok",
                finish_reason="stop",
                is_truncated=False,
                tokens=make(fields) if make else ResponseTokens(**fields),
            ),
        )

    return instant_client(vf, respond)


def decoded_client(vf, answers, clock):
    """Hands decoded answers to the clients' own `response_of`; prompts are int32 arrays, as it makes them."""
    from verifiers.dialects.chat_completions import response_of

    payloads = [answers.payload(turn) for turn in range(len(answers.prompts))]
    for payload in payloads:
        payload["prompt_token_ids"] = array("i", payload["prompt_token_ids"])

    def respond(turn):
        clock.append((turn, time.process_time()))
        return response_of(payloads[turn])

    return instant_client(vf, respond)


def wire_client(vf, answers, clock):
    """The token client itself; only the network is missing."""
    from verifiers.clients import resolve_client
    from verifiers.clients.transport import HttpReply

    answered = [
        json.dumps(answers.payload(turn), separators=(",", ":")).encode()
        for turn in range(len(answers.prompts))
    ]
    tokenized = [
        json.dumps({"count": 0, "max_model_len": 0, "tokens": [*ALONE, *shown]}).encode()
        for shown in [*answers.shown, []]
    ]

    class InstantTransport:
        async def post(self, url, body, headers, *, proxy=None, timeout_s=None):
            said = body.rfind(b"go on ")  # the last message says which turn is asked for
            turn = int(body[said + 6 : body.index(b'"', said)]) if said >= 0 else 0
            if url.path.endswith("/tokenize"):
                return HttpReply(200, tokenized[turn if said >= 0 else -1], {})
            clock.append((turn, time.process_time()))
            return HttpReply(200, answered[turn], {})

        async def aclose(self):
            return None

    os.environ["BENCH_KEY"] = "none"
    client = resolve_client(
        vf.ClientConfig(
            client_type="openai_chat_completions_token",
            api_base_url="http://127.0.0.1:1/v1",
            api_key_var="BENCH_KEY",
        )
    )
    client._channel.transport = InstantTransport()
    return client


CLIENTS = {"lists": lists_client, "client": decoded_client, "wire": wire_client}


def measure(turns: int, rollouts: int, case: str) -> dict:
    import verifiers as vf

    class Conversation(vf.MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return [{"role": "user", "content": f"go on {len(messages) // 2}"}]

    def right(completion) -> float:
        return 1.0

    from datasets import Dataset

    rows = Dataset.from_list([{"question": "x", "answer": "y"}])
    env = Conversation(dataset=rows, max_turns=turns, rubric=vf.Rubric(funcs=[right]))
    row = env.get_dataset()[0]
    answers = Answers(turns)

    clock: list[tuple[int, float]] = []
    client = CLIENTS[case](vf, answers, clock)

    async def play():
        """One rollout as prime-rl asks for it."""
        return await env.run_rollout(
            vf.RolloutInput(**row), client, "m", {}, state_columns=["trajectory"]
        )

    outputs = []

    async def play_one():
        await play()

    async def play_all(count):
        # Not returned: on its way out `asyncio.run` makes the repr of its task, and with it of the result.
        outputs[:] = await asyncio.gather(*[play() for _ in range(count)])

    asyncio.run(play_all(2))  # warm
    outputs.clear()
    before = resident_bytes()
    start = time.process_time()
    asyncio.run(play_all(rollouts))
    cpu_s = time.process_time() - start
    resident = resident_bytes() - before
    # One at a time for the cost of single turns.
    by_turn: dict[int, list[float]] = {}
    for _ in range(20):
        clock.clear()
        asyncio.run(play_one())
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
    if (
        last["prompt_ids"] != answers.prompts[-1]
        or last["completion_ids"] != answers.completions[-1]
    ):
        raise SystemExit("the tokens did not come back")
    graph = getattr(last, "graph", None)
    if graph is not None:
        if len(graph.chains) != 1:
            raise SystemExit(f"the turns are {len(graph.chains)} chains")
        found["stored_bytes_per_token"] = graph.resident_bytes / (turns * (SAMPLED + SHOWN))
    return found


def resident_bytes() -> int:
    """What is held, without pages that are free and only wait to be used again."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def run(python: str, *options: str) -> dict:
    command = [python, __file__, "--one", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def growth(case: str, rounds: int) -> tuple[float, str]:
    """Cost of the 40th turn over that of the 2nd, each the least of all rounds, and a line about it."""
    found = [
        run(sys.executable, "--case", case, "--turns", "41", "--rollouts", "2")["turn_us"]
        for _ in range(rounds)
    ]
    second, middle, last = (min(one[turn] for one in found) for turn in ("1", "19", "39"))
    line = f"{case:8} a turn in us: 2nd {second:.0f}, 20th {middle:.0f}, 40th {last:.0f}"
    return last / second, f"{line}; 40th / 2nd = {last / second:.2f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--public", help="interpreter with verifiers==0.1.14")
    parser.add_argument("--without-public", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--rollouts", type=int, default=64)
    parser.add_argument("--case", choices=CASES, default="lists")
    parser.add_argument("--one", action="store_true", help="measure in this process and print JSON")
    chosen = parser.parse_args(argv)
    if chosen.one:
        print(json.dumps(measure(chosen.turns, chosen.rollouts, chosen.case)))
        return 0
    plan = {case: (sys.executable, "--case", case) for case in CASES}
    if chosen.public is None and not chosen.without_public:
        from public_package import public_python

        found = public_python()
        chosen.public = None if found is None else str(found)
    if chosen.public:
        plan["public"] = (chosen.public,)
    sizes = ("--turns", str(chosen.turns), "--rollouts", str(chosen.rollouts))
    results: dict[str, list[dict]] = {name: [] for name in plan}
    for _ in range(chosen.rounds):
        for name, command in plan.items():
            results[name].append(run(*command, *sizes))
    what = f"{chosen.rollouts} rollouts x {chosen.turns} turns x {SAMPLED + SHOWN} tokens"
    print(f"{what}, load {os.getloadavg()[0]:.1f}")
    rates, missed = {}, []
    for name, found in results.items():
        rates[name] = statistics.median(one["turns_per_s"] for one in found)
        resident = statistics.median(one["resident_bytes_per_token"] for one in found)
        stored = found[0].get("stored_bytes_per_token")
        ratio = f"{rates[name] / rates['public']:6.1f} x public" if "public" in rates else ""
        print(
            f"{name:8} {found[0]['version']:8} {rates[name]:8.0f} turns/CPU s   {resident:6.1f} bytes resident a token"
            + (f" ({stored:.1f} of them its data, the rest messages and steps)" if stored else "")
            + ratio
        )
        if name != "public" and (stored or 0.0) > MOST_BYTES:
            missed.append(f"{name}: more than {MOST_BYTES:g} bytes a token")
    if "public" in rates:
        by_round = zip(results["client"], results["public"], strict=True)
        ratio = statistics.median(
            our["turns_per_s"] / their["turns_per_s"] for our, their in by_round
        )
        print(f"client / public: {ratio:.1f} (>= {LEAST_RATIO:g})")
        if ratio < LEAST_RATIO:
            missed.append(f"client: {ratio:.1f} times the published package")
    if rates["client"] < LEAST_TURNS_PER_S:
        missed.append(f"client: {rates['client']:.0f} turns/s")
    for case in CASES:
        grown, line = growth(case, chosen.rounds)
        print(line + (f" (<= {MOST_GROWTH})" if case == "client" else ""))
        if case == "client" and grown > MOST_GROWTH:
            missed.append(f"{case}: turn 40 costs {grown:.2f} times turn 2")
    print("ok" if not missed else "MISSED: " + "; ".join(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
