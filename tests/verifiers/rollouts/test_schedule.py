"""The scheduler: whatever fails, is cancelled or stopped, every started rollout ends exactly once."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifiers.rollouts.schedule import Limits, Schedule, Tally

Outcome = tuple[str, int]
"""What a rollout does ("ends", "raises", "hangs"), and after how many turns of the event loop."""

outcomes = st.tuples(
    st.sampled_from(["ends"] * 12 + ["raises", "cancels itself"]), st.integers(0, 3)
)
groups = st.lists(st.lists(outcomes, min_size=1, max_size=4), max_size=6)


class Broken(Exception):
    pass


class Run:
    """One run of a schedule, with everything that happened to its rollouts."""

    def __init__(self, groups: Sequence[Sequence[Outcome]], limits: Limits, scoring: str) -> None:
        self.groups = [
            [(g, p, *outcome) for p, outcome in enumerate(group)] for g, group in enumerate(groups)
        ]
        self.limits = limits
        self.scoring = scoring
        self.started: Counter[tuple[int, int]] = Counter()
        self.ended: Counter[tuple[int, int]] = Counter()
        self.finished: set[tuple[int, int]] = set()
        self.delivered: list[int] = []
        self.playing = self.most_playing = self.scored = self.most_scored = 0
        self.schedule = Schedule(self.play, self.score, self.deliver, limits)
        self.error: BaseException | None = None
        self.tally: Tally | None = None

    async def play(self, task: tuple[int, int, str, int]) -> tuple[int, int]:
        group, position, outcome, turns = task
        self.started[group, position] += 1
        self.playing += 1
        self.most_playing = max(self.most_playing, self.playing)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            if outcome == "raises":
                raise Broken(f"{group}.{position}")
            if outcome == "cancels itself":
                raise asyncio.CancelledError
            self.finished.add((group, position))
            return group, position
        finally:
            self.playing -= 1
            self.ended[group, position] += 1

    async def score(self, results: list[tuple[int, int]]) -> None:
        self.scored += 1
        self.most_scored = max(self.most_scored, self.scored)
        try:
            await asyncio.sleep(0)
            if self.scoring == "raises" and results[0][0] == 1:
                raise Broken("scoring")
        finally:
            self.scored -= 1

    async def deliver(self, index: int, results: list[tuple[int, int]]) -> None:
        assert results == [(index, position) for position in range(len(self.groups[index]))]
        if self.scoring == "delivery raises" and index == 1:
            raise Broken("delivery")
        self.delivered.append(index)

    async def go(self, *, stop_after: int | None, cancel_after: int | None) -> None:
        running = asyncio.ensure_future(self.schedule.run(self.groups))
        for turn in range(60):
            if turn == stop_after:
                self.schedule.stop()
            if turn == cancel_after:
                running.cancel()
            if running.done():
                break
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(1.0):
                self.tally = await running
        except (Broken, asyncio.CancelledError) as error:
            self.error = error


@given(
    groups=groups,
    max_concurrent=st.sampled_from([None, 1, 2, 3]),
    max_scoring=st.sampled_from([None, 1, 2]),
    scoring=st.sampled_from(["works"] * 4 + ["raises", "delivery raises"]),
    stop_after=st.one_of(st.none(), st.integers(0, 12)),
    cancel_after=st.one_of(st.none(), st.none(), st.integers(0, 12)),
)
def test_every_started_rollout_ends_exactly_once(
    groups: list[list[Outcome]],
    max_concurrent: int | None,
    max_scoring: int | None,
    scoring: str,
    stop_after: int | None,
    cancel_after: int | None,
) -> None:
    run = Run(groups, Limits(max_concurrent, max_scoring), scoring)
    asyncio.run(run.go(stop_after=stop_after, cancel_after=cancel_after))
    assert run.started == run.ended
    assert set(run.started.values()) <= {1}
    assert (run.playing, run.scored) == (0, 0)
    assert max_concurrent is None or run.most_playing <= max_concurrent
    assert max_scoring is None or run.most_scored <= max_scoring
    assert len(run.delivered) == len(set(run.delivered))
    tally = run.schedule.tally
    assert tally.started == tally.finished + tally.cancelled
    assert tally.running == 0
    plain = all(outcome == "ends" for group in groups for outcome, _ in group)
    if plain and scoring == "works" and stop_after is None and cancel_after is None:
        assert sorted(run.delivered) == list(range(len(groups)))
        assert (run.error, tally.finished) == (None, sum(map(len, groups)))


@given(groups=groups, stop_after=st.integers(0, 10), max_concurrent=st.sampled_from([None, 1, 2]))
def test_after_a_stop_whole_groups_are_still_delivered_and_others_are_not(
    groups: list[list[Outcome]], stop_after: int, max_concurrent: int | None
) -> None:
    groups = [[("ends", turns) for _, turns in group] for group in groups]
    run = Run(groups, Limits(max_concurrent), "works")
    asyncio.run(run.go(stop_after=stop_after, cancel_after=None))
    whole = [
        index
        for index, group in enumerate(groups)
        if all((index, position) in run.finished for position in range(len(group)))
    ]
    assert (run.error, sorted(run.delivered)) == (None, whole)


async def collected(
    groups: Sequence[Sequence[int]], play: Any, limits: Limits | None = None
) -> list[list[Any]]:
    found: dict[int, list[Any]] = {}

    async def score(results: list[Any]) -> None:
        return None

    async def deliver(index: int, results: list[Any]) -> None:
        found[index] = results

    await Schedule(play, score, deliver, limits).run(groups)
    return [found[index] for index in sorted(found)]


async def test_results_of_a_group_keep_the_order_of_its_inputs() -> None:
    async def play(turns: int) -> int:
        for _ in range(turns):
            await asyncio.sleep(0)
        return turns

    assert await collected([[3, 1, 2], [0]], play) == [[3, 1, 2], [0]]


async def test_none_and_false_are_results_like_any_other() -> None:
    async def play(value: int) -> Any:
        return None if value == 0 else False

    assert await collected([[0, 1]], play) == [[None, False]]


async def test_a_stop_before_the_first_rollout_has_run_does_not_hang() -> None:
    async def play(value: int) -> int:
        await asyncio.Event().wait()
        return value

    async def nothing(*_: Any) -> None:
        return None

    schedule = Schedule(play, nothing, nothing, Limits(max_concurrent=1))
    asyncio.get_running_loop().call_soon(schedule.stop)
    async with asyncio.timeout(1.0):
        tally = await schedule.run([[1], [2], [3]])
    assert (tally.finished, tally.cancelled) == (0, tally.started)


async def test_groups_may_be_an_endless_iterable_when_something_stops_the_run() -> None:
    def endless() -> Any:
        number = 0
        while True:
            yield [number]
            number += 1

    async def play(number: int) -> int:
        await asyncio.sleep(0)
        if number == 20:
            schedule.stop()
        return number

    async def nothing(*_: Any) -> None:
        return None

    schedule = Schedule(play, nothing, nothing, Limits(max_concurrent=4))
    tally = await schedule.run(endless())
    assert 20 <= tally.finished <= tally.started <= 26


async def test_the_first_failure_ends_the_run_and_cancels_the_others() -> None:
    cancelled = []

    async def play(number: int) -> int:
        if number == 1:
            raise Broken("first")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(number)
            raise
        return number

    with pytest.raises(Broken, match="first"):
        await collected([[0], [1], [2]], play)
    assert sorted(cancelled) == [0, 2]


@pytest.mark.parametrize("limit", [None, 0, -1])
async def test_no_limit_is_none_zero_or_below(limit: int | None) -> None:
    gate = asyncio.Barrier(30)  # opens only when all are being played at once

    async def play(number: int) -> int:
        await gate.wait()
        return number

    assert len(await collected([[n] for n in range(30)], play, Limits(limit, limit))) == 30


async def test_scoring_that_does_not_end_does_not_hold_up_a_stop():
    delivered: list[int] = []
    hanging = asyncio.Event()

    async def play(number: int) -> int:
        return number

    async def score(results: list[int]) -> None:
        if results == [1]:
            hanging.set()
            await asyncio.Event().wait()

    async def deliver(index: int, results: list[int]) -> None:
        delivered.append(index)

    schedule = Schedule(play, score, deliver)
    schedule.scoring_grace_s = 0.0
    running = asyncio.create_task(schedule.run([[0], [1], [2]]))
    await hanging.wait()
    schedule.stop()
    async with asyncio.timeout(10):
        tally = await running
    assert sorted(delivered) == [0, 2]
    assert tally == Tally(started=3, finished=2, cancelled=1)
