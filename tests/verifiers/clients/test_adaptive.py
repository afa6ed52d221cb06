"""The adaptive limit against a fake clock, and against a simulated endpoint."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from verifiers.clients.endpoints import (
    COOLDOWN_S,
    FIRST_LIMIT,
    LEAST_LIMIT,
    AdaptiveGate,
    AdaptiveLimit,
)


def run_round(limit: AdaptiveLimit, now_s: float) -> None:
    """As many successes as a clean round needs, with the limit fully used."""
    count = limit.limit
    for _ in range(count):
        limit.started()
    for _ in range(count):
        limit.succeeded(now_s)
    while count < 4:  # a round is at least four successes
        limit.started()
        limit.succeeded(now_s)
        count += 1


def refuse(limit: AdaptiveLimit, now_s: float, **options) -> bool:
    limit.started()
    return limit.rate_limited(now_s, started_s=now_s, **options)


def test_slow_start_doubles_each_clean_round():
    limit = AdaptiveLimit()
    for expected in (2 * FIRST_LIMIT, 4 * FIRST_LIMIT, 8 * FIRST_LIMIT):
        run_round(limit, 0.0)
        assert limit.limit == expected


def test_the_first_refusal_cuts_to_80_percent_and_ends_slow_start():
    limit = AdaptiveLimit(limit=100)
    assert refuse(limit, 10.0)
    assert limit.limit == 80
    run_round(limit, 10.0 + COOLDOWN_S)
    assert limit.limit == 85, "5 %, rounded to a multiple of 5, at least 5"


def test_nothing_changes_while_it_cools_down():
    limit = AdaptiveLimit(limit=100)
    refuse(limit, 0.0)
    assert refuse(limit, 1.0), "refusals of requests from before the cut are forgiven"
    run_round(limit, COOLDOWN_S - 0.1)
    assert limit.limit == 80


def test_retry_after_is_the_cooldown():
    limit = AdaptiveLimit(limit=100)
    refuse(limit, 0.0, retry_after_s=40.0)
    run_round(limit, 39.0)
    assert limit.limit == 80
    run_round(limit, 41.0)
    assert limit.limit == 85


def test_an_idle_limit_does_not_grow():
    limit = AdaptiveLimit(limit=100)
    for _ in range(1000):
        limit.started()
        limit.succeeded(0.0)
    assert limit.limit == 100


def test_trouble_starts_the_round_again_without_a_cut():
    limit = AdaptiveLimit(limit=20)
    for _ in range(20):
        limit.started()
    for _ in range(19):
        limit.succeeded(0.0)
    limit.troubled()
    assert limit.limit == 20
    run_round(limit, 0.0)
    assert limit.limit == 40


def test_at_the_least_limit_a_refusal_counts():
    limit = AdaptiveLimit(limit=LEAST_LIMIT)
    assert not refuse(limit, 0.0)
    assert limit.limit == LEAST_LIMIT


def test_refusals_without_end_are_not_forgiven_without_end():
    limit = AdaptiveLimit(limit=20_000)
    now_s = 0.0
    forgiven = 0
    while refuse(limit, now_s):
        forgiven += 1
        now_s += COOLDOWN_S
        assert forgiven < 200
    assert limit.limit == LEAST_LIMIT


@settings(max_examples=25)
@given(capacity=st.integers(1, 400), seed=st.integers(0, 10))
def test_it_finds_an_endpoints_capacity_and_stays_near(capacity, seed):
    limit = AdaptiveLimit(most=10_000, limit=1 + seed * 7)
    now_s = 0.0
    for _ in range(150):
        now_s += COOLDOWN_S
        count = limit.limit
        for _ in range(count):
            limit.started()
        for index in range(count):
            if index < capacity:
                limit.succeeded(now_s)
            else:
                limit.rate_limited(now_s, started_s=now_s - 1)
    assert limit.in_flight == 0
    assert limit.limit <= max(capacity * 1.06 + 5, 4)
    assert limit.limit >= min(capacity * 0.75 - 5, 10_000)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order, the limit keeps its promises."""

    def __init__(self):
        super().__init__()
        self.limit = AdaptiveLimit(most=500)
        self.now_s = 0.0
        self.running = 0
        self.before = self.limit.limit

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds):
        self.now_s += seconds

    @precondition(lambda self: self.limit.has_room)
    @rule(count=st.integers(1, 50))
    def start(self, count):
        for _ in range(min(count, self.limit.limit - self.limit.in_flight)):
            self.limit.started()
            self.running += 1

    @precondition(lambda self: self.running)
    @rule(count=st.integers(1, 50))
    def succeed(self, count):
        for _ in range(min(count, self.running)):
            before = self.limit.limit
            self.limit.succeeded(self.now_s)
            self.running -= 1
            assert self.limit.limit >= before, "a success never cuts"

    @precondition(lambda self: self.running)
    @rule(asked=st.none() | st.floats(0, 100))
    def refuse(self, asked):
        before = self.limit.limit
        self.limit.rate_limited(self.now_s, started_s=self.now_s, retry_after_s=asked)
        self.running -= 1
        assert before * 0.8 - 5 <= self.limit.limit <= before, "one cut at a time"

    @precondition(lambda self: self.running)
    @rule()
    def fail(self):
        before = self.limit.limit
        self.limit.troubled()
        self.running -= 1
        assert self.limit.limit == before

    @invariant()
    def counts_agree(self):
        assert self.limit.in_flight == self.running
        assert LEAST_LIMIT <= self.limit.limit <= 500
        times = [at for at, _ in self.limit.history]
        assert times == sorted(times)


TestAnyHistory = AnyHistory.TestCase


async def test_the_gate_never_lets_more_through_than_the_limit():
    limit = AdaptiveLimit(limit=3)
    gate = AdaptiveGate(limit)
    most = 0

    async def work():
        nonlocal most
        await gate.enter()
        most = max(most, limit.in_flight)
        await asyncio.sleep(0)
        limit.troubled()  # ends without growth
        gate.let_in()

    await asyncio.gather(*[work() for _ in range(50)])
    assert most == 3
    assert limit.in_flight == 0


async def test_a_cancelled_request_in_the_queue_hands_its_turn_on():
    limit = AdaptiveLimit(limit=1)
    gate = AdaptiveGate(limit)
    await gate.enter()
    waiting = [asyncio.ensure_future(gate.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    limit.troubled()
    gate.let_in()
    waiting[1].cancel()  # may have its turn already
    await asyncio.wait_for(waiting[2], 1)
    with pytest.raises(asyncio.CancelledError):
        await waiting[0]
    assert limit.in_flight == 1
