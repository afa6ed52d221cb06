"""What asynchronous rollouts and in-flight weight updates save, simulated event by event at the size of a real run.

    python tests/benchmarks/simulate_source.py [--steps 12] [--plot FILE.png]      the plot needs matplotlib

512 prompts x 16 rollouts a step, lengths with a long tail, three ways to schedule the same work:

    synchronous    play a batch, wait for its last rollout, train, load the weights, again
    asynchronous   the next batch is played while the last one trains; weights are loaded when nothing is in flight
    in-flight      a rollout that ends is replaced at once; weights are loaded under the rollouts in flight

The third is `Dispatch`, the state machine that `RolloutSource` runs on, with simulated time in the place of servers.
Rollouts decode in one continuous batch: a step of decoding takes longer the more of them there are. Nothing here was
measured on GPUs; times are those of the constants below, ratios are what to look at.
"""

import argparse
import heapq
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from verifiers.training.difficulty import ExampleSampler
from verifiers.training.dispatch import Dispatch
from verifiers.training.source_config import SourceConfig

GROUPS, ROLLOUTS = 512, 16
SERVERS = 64
MEDIAN_TOKENS, SPREAD, MOST_TOKENS = 5_000, 1.0, 64_000
"""Lengths are log-normal: half of the rollouts have at most the median, one in a hundred ten times as many."""
DECODE_S, DECODE_S_PER_SEQUENCE = 0.010, 0.00012
"""Of one token for every sequence on a server, and what each sequence on it adds."""
TRAIN_S, LOAD_S = 180.0, 10.0
LONG_TOKENS = 50_000
LEAST_SPEEDUP = 2.0
"""INTELLECT-3 (https://arxiv.org/abs/2512.16144): without in-flight updates a step took more than twice as long."""


class Mode(NamedTuple):
    """What was simulated of one way to schedule."""

    step_ends_s: list[float]
    in_flight: list[tuple[float, int]]
    """Rollouts in flight from a time on."""
    dropped: int
    """Groups that became too old."""
    staleness: float
    """Mean policy versions between beginning and training."""
    long_share: float = 1.0
    """Share of rollouts of LONG_TOKENS or more among those trained on, over their share among all that were begun."""

    @property
    def step_s(self) -> float:
        """Mean time of a step after the first two, in which everything fills up."""
        ends = self.step_ends_s[1:]
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    @property
    def used(self) -> float:
        """Mean share of the most rollouts that may be in flight, after the first two steps."""
        begin, area = self.step_ends_s[1], 0.0
        for (start, count), (end, _) in zip(self.in_flight, self.in_flight[1:], strict=False):
            area += count * max(0.0, end - max(start, begin))
        return area / (self.in_flight[-1][0] - begin) / (GROUPS * ROLLOUTS)


class Engine:
    """All servers: sequences decode together, so one count of decoded tokens says when each of them ends."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.in_flight: list[tuple[float, int]] = [(0.0, 0)]
        self._random = random.Random(seed)
        self._decoded = 0.0
        self._ends: list[tuple[float, int]] = []
        self._running: set[int] = set()

    def start(self, ticket: int) -> float:
        """Begin a rollout of a random length, and give the length."""
        length = min(MOST_TOKENS, self._random.lognormvariate(0.0, SPREAD) * MEDIAN_TOKENS)
        heapq.heappush(self._ends, (self._decoded + length, ticket))
        self._running.add(ticket)
        return length

    def stop(self, ticket: int) -> None:
        """Abort a rollout."""
        self._running.discard(ticket)

    @property
    def token_s(self) -> float:
        """Seconds for the next token of every sequence."""
        return DECODE_S + DECODE_S_PER_SEQUENCE * len(self._running) / SERVERS

    def next_end(self) -> float | None:
        """When the next rollout ends, None when none is in flight."""
        while self._ends and self._ends[0][1] not in self._running:
            heapq.heappop(self._ends)
        if not self._ends:
            return None
        return self.now_s + (self._ends[0][0] - self._decoded) * self.token_s

    def run_until(self, time_s: float) -> None:
        """Decode until a time, at which no rollout may have ended before."""
        self._decoded += (time_s - self.now_s) / self.token_s
        self.now_s = time_s

    def pause(self, pause_s: float) -> None:
        """Stand still."""
        self.now_s += pause_s

    def finish(self) -> int:
        """End the rollout whose end it is."""
        _, ticket = heapq.heappop(self._ends)
        self._running.remove(ticket)
        return ticket

    def note(self) -> None:
        """Write down how many are in flight now."""
        if self.in_flight[-1][1] != len(self._running):
            self.in_flight.append((self.now_s, len(self._running)))


def play_batch(engine: Engine) -> None:
    """Play a batch to its last rollout."""
    for ticket in range(GROUPS * ROLLOUTS):
        engine.start(ticket)
    engine.note()
    while (end := engine.next_end()) is not None:
        engine.run_until(end)
        engine.finish()
        engine.note()


def synchronous(steps: int, seed: int) -> Mode:
    engine, ends = Engine(seed), []
    for _ in range(steps):
        play_batch(engine)
        engine.pause(TRAIN_S + LOAD_S)
        ends.append(engine.now_s)
    engine.in_flight.append((engine.now_s, 0))
    return Mode(ends, engine.in_flight, 0, 0.0)


def asynchronous(steps: int, seed: int) -> Mode:
    engine, ends = Engine(seed), []
    play_batch(engine)
    for _ in range(steps):
        begun_s = engine.now_s
        play_batch(engine)  # while the batch before trains
        engine.pause(max(0.0, begun_s + TRAIN_S - engine.now_s) + LOAD_S)
        ends.append(engine.now_s)
    engine.in_flight.append((engine.now_s, 0))
    return Mode(ends, engine.in_flight, 0, 1.0)


def in_flight(steps: int, seed: int, max_groups_ahead: int | None = None) -> Mode:
    config = SourceConfig(
        groups_per_batch=GROUPS,
        rollouts_per_group=ROLLOUTS,
        max_in_flight=GROUPS * ROLLOUTS,
        max_groups_ahead=max_groups_ahead,
    )
    dispatch = Dispatch(config.limits(), ExampleSampler([""] * 20_000, seed=seed), SERVERS)
    engine, ends, ages = Engine(seed), [], []
    is_long: defaultdict[int, list[bool]] = defaultdict(list)
    """By group, whether each of its rollouts is long."""
    trained_on: list[tuple[int, int]] = []
    """Groups in batches, with the version that began them."""
    trained_s: float | None = None
    """When the trainer is ready with its batch; None while it waits for one."""
    while len(ends) < steps:
        while (start := dispatch.next_start()) is not None:
            is_long[start.group].append(engine.start(start.ticket) >= LONG_TOKENS)
        engine.note()
        end = engine.next_end()
        if trained_s is not None and (end is None or trained_s <= end):
            engine.run_until(max(trained_s, engine.now_s))
            trained_s = None
            for ticket in dispatch.set_version(dispatch.version + 1):
                engine.stop(ticket)
                dispatch.aborted(ticket)
            engine.pause(LOAD_S)
            ends.append(engine.now_s)
        elif end is not None:
            engine.run_until(end)
            number = dispatch.finished(engine.finish(), True)
            if number is not None:
                dispatch.settle(number, True)
        if trained_s is None and (batch := dispatch.take_batch()) is not None:
            ages += [dispatch.version - entry.version for entry in batch]
            trained_on += [(entry.group, entry.version) for entry in batch]
            trained_s = engine.now_s + TRAIN_S
    engine.in_flight.append((engine.now_s, 0))
    dropped = sum(dispatch.tally.cancelled.values())
    # Groups that were begun so long ago that each of them is in a batch or was dropped.
    latest = dispatch.version - config.max_off_policy_steps - 1
    kept = [long for number, version in trained_on if version <= latest for long in is_long[number]]
    lost = [
        long
        for one in dispatch.cancellations
        if one.version <= latest
        for long in is_long[one.group]
    ]
    every = [*kept, *lost]
    share = (sum(kept) / len(kept)) / (sum(every) / len(every)) if any(every) else 1.0
    return Mode(ends, engine.in_flight, dropped, sum(ages) / len(ages), share)


MODES = {"synchronous": synchronous, "asynchronous": asynchronous, "in-flight": in_flight}


def plot(found: dict[str, Mode], path: Path) -> None:
    """Rollouts in flight over time, with the steps; the same stretch of time for all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    begin_s = max(mode.step_ends_s[1] for mode in found.values())
    shown_s = 3.2 * max(mode.step_s for mode in found.values())
    figure, axes = pyplot.subplots(len(found), 1, figsize=(9, 6.4), sharex=True, sharey=True)
    for axis, (name, mode) in zip(axes, found.items(), strict=True):
        times = [(time - begin_s) / 60 for time, _ in mode.in_flight]
        axis.fill_between(times, [c for _, c in mode.in_flight], step="post", color="#7fb2d9")
        for end in mode.step_ends_s:
            axis.axvline((end - begin_s) / 60, color="#c0392b", linewidth=1.2)
        axis.set_title(
            f"{name}: a step every {mode.step_s / 60:.1f} minutes, {mode.used:.0%} of the places used",
            loc="left", fontsize=10,
        )  # fmt: skip
        axis.set_ylabel("rollouts in flight", fontsize=9)
        axis.set_xlim(0, shown_s / 60)
        axis.set_ylim(0, GROUPS * ROLLOUTS * 1.08)
    axes[-1].set_xlabel("minutes (red: new weights)", fontsize=9)
    figure.tight_layout()
    # A test compares these figures with those of docs/train.md: a plot of an older state is noticed.
    figure.savefig(
        path, dpi=110, metadata={"Description": "\n".join(map(line_of, found, found.values()))}
    )


def line_of(name: str, mode: Mode) -> str:
    return (
        f"{name:13} {mode.step_s:7.0f} s per step   {mode.used:4.0%} of the places used   "
        f"{mode.staleness:.1f} versions old   {mode.dropped} groups too old"
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    chosen = parser.parse_args(argv)
    found = {
        # Its steps are shorter: more of them make as long a stretch of time.
        name: simulate(chosen.steps * (4 if simulate is in_flight else 1), chosen.seed)
        for name, simulate in MODES.items()
    }
    print(f"{GROUPS} x {ROLLOUTS} rollouts a step")
    for name, mode in found.items():
        print(line_of(name, mode))
    long = found["in-flight"].long_share
    print(
        f"in-flight: batches hold {1 - long:.0%} fewer rollouts of {LONG_TOKENS:,} tokens or more than were begun"
    )
    speedup = found["asynchronous"].step_s / found["in-flight"].step_s
    all_of_it = found["synchronous"].step_s / found["in-flight"].step_s
    verdict = "ok" if speedup >= LEAST_SPEEDUP else "MISSED"
    print(
        f"in-flight updates: {speedup:.1f} times the steps of asynchronous (>= {LEAST_SPEEDUP:g}), "
        f"{all_of_it:.1f} times those of synchronous   {verdict}"
    )
    if chosen.plot is not None:
        plot(found, chosen.plot)
    return 0 if verdict == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
