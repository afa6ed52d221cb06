"""The effect of asynchronous rollouts and in-flight weight updates, simulated event by event at the size of a real run.

    python tests/benchmarks/simulate_source.py [--steps 12] [--plot FILE.png]      the plot needs matplotlib

512 prompts x 16 rollouts per step, lengths with a long tail, three ways to schedule the same work:

    synchronous    play a batch, wait for its last rollout, train, load the weights, repeat
    asynchronous   play the next batch during training; load the weights when nothing is in flight
    in-flight      replace a rollout as soon as it ends; load the weights while rollouts are in flight

The third way runs `Dispatch`, the state machine of `RolloutSource`, with simulated time instead of servers. Rollouts
decode in one continuous batch: the more rollouts there are, the longer a decoding step takes. Nothing was measured on
GPUs. The times depend on the constants below; compare the ratios.
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
"""Lengths are log-normal: half of the rollouts have at most the median, one in a hundred has ten times the median."""
DECODE_S, DECODE_S_PER_SEQUENCE = 0.010, 0.00012
"""Time of one token for every sequence on a server, and the time that each sequence adds."""
TRAIN_S, LOAD_S = 180.0, 10.0
LONG_TOKENS = 50_000
LEAST_SPEEDUP = 2.0
"""INTELLECT-3 (https://arxiv.org/abs/2512.16144): without in-flight updates a step took more than twice as long."""


class Mode(NamedTuple):
    """The results of one way to schedule."""

    step_ends_s: list[float]
    in_flight: list[tuple[float, int]]
    """Number of rollouts in flight from a time on."""
    dropped: int
    """Number of groups that became too old."""
    staleness: float
    """Mean number of policy versions between start and training."""
    long_share: float = 1.0
    """Share of rollouts of LONG_TOKENS or more among the trained ones, divided by their share among all started ones.
    Share of rollouts of LONG_TOKENS or more among the trained ones, divided by their share among all started ones."""

    @property
    def step_s(self) -> float:
        """Mean time of a step, without the first two steps, in which the servers fill up."""
        ends = self.step_ends_s[1:]
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    @property
    def used(self) -> float:
        """Mean share of the maximum number of rollouts in flight, after the first two steps."""
        begin, area = self.step_ends_s[1], 0.0
        for (start, count), (end, _) in zip(self.in_flight, self.in_flight[1:], strict=False):
            area += count * max(0.0, end - max(start, begin))
        return area / (self.in_flight[-1][0] - begin) / (GROUPS * ROLLOUTS)


class Engine:
    """All servers. Sequences decode together, so one count of decoded tokens determines the end of each."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.in_flight: list[tuple[float, int]] = [(0.0, 0)]
        self._random = random.Random(seed)
        self._decoded = 0.0
        self._ends: list[tuple[float, int]] = []
        self._running: set[int] = set()

    def start(self, ticket: int) -> float:
        """Start a rollout of a random length and return the length."""
        length = min(MOST_TOKENS, self._random.lognormvariate(0.0, SPREAD) * MEDIAN_TOKENS)
        heapq.heappush(self._ends, (self._decoded + length, ticket))
        self._running.add(ticket)
        return length

    def stop(self, ticket: int) -> None:
        """Abort a rollout."""
        self._running.discard(ticket)

    @property
    def token_s(self) -> float:
        """Return the seconds for the next token of every sequence."""
        return DECODE_S + DECODE_S_PER_SEQUENCE * len(self._running) / SERVERS

    def next_end(self) -> float | None:
        """Return the time when the next rollout ends; None if none is in flight."""
        while self._ends and self._ends[0][1] not in self._running:
            heapq.heappop(self._ends)
        if not self._ends:
            return None
        return self.now_s + (self._ends[0][0] - self._decoded) * self.token_s

    def run_until(self, time_s: float) -> None:
        """Decode until a time before the end of the next rollout."""
        self._decoded += (time_s - self.now_s) / self.token_s
        self.now_s = time_s

    def pause(self, pause_s: float) -> None:
        """Pause decoding."""
        self.now_s += pause_s

    def finish(self) -> int:
        """End the rollout that ends now."""
        _, ticket = heapq.heappop(self._ends)
        self._running.remove(ticket)
        return ticket

    def note(self) -> None:
        """Record the number of rollouts in flight."""
        if self.in_flight[-1][1] != len(self._running):
            self.in_flight.append((self.now_s, len(self._running)))


def play_batch(engine: Engine) -> None:
    """Play a batch to the end of its last rollout."""
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
        play_batch(engine)  # while the previous batch trains
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
    """Groups in batches, with the version that they were started with."""
    trained_s: float | None = None
    """Time when the trainer finishes its batch; None while it waits for one."""
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
    # Groups that started so long ago that each of them is in a batch or was dropped.
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
    """Plot the rollouts in flight over time, with the steps, over the same duration for all ways."""
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
    # A test compares these figures with those of docs/train.md, to detect an outdated plot.
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
        # Its steps are shorter, so the same duration needs more of them.
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
