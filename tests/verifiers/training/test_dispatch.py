import json
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from verifiers.training.difficulty import ExampleSampler
from verifiers.training.dispatch import CancelReason, Dispatch, DispatchLimits
from verifiers.training.source_config import SourceConfig

LIMITS = {
    "groups_per_batch": 2,
    "rollouts_per_group": 2,
    "max_in_flight": 6,
    "max_off_policy_steps": 2,
    "max_groups_ahead": 5,
    "max_rollouts_ahead": 10,
    "max_attempts": 2,
    "on_stale": "drop",
}


def dispatch(examples=4, endpoints=1, **changed):
    return Dispatch(
        DispatchLimits(**{**LIMITS, **changed}), ExampleSampler([""] * examples), endpoints
    )


def start_all(machine):
    starts = []
    while (start := machine.next_start()) is not None:
        starts.append(start)
    return starts


PICK = st.integers(0, 10**6)


def picked(values, pick):
    return sorted(values)[pick % len(values)]


class Life(RuleBasedStateMachine):
    """Any order of events; a ledger of our own says what has become of every group and rollout."""

    @initialize(
        groups_per_batch=st.integers(1, 3),
        rollouts_per_group=st.integers(1, 3),
        max_in_flight=st.integers(1, 8),
        max_off_policy_steps=st.integers(0, 2),
        max_attempts=st.integers(1, 2),
        on_stale=st.sampled_from(["drop", "mask"]),
        endpoints=st.integers(1, 3),
        ahead=st.integers(0, 4),
        rollouts_ahead=st.integers(0, 8),
    )
    def begin(self, endpoints, ahead, rollouts_ahead, **limits):
        batch = limits["groups_per_batch"]
        self.limits = DispatchLimits(
            **limits,
            max_groups_ahead=batch + ahead,
            max_rollouts_ahead=batch * limits["rollouts_per_group"] + rollouts_ahead,
        )
        self.endpoints = endpoints
        self.machine = Dispatch(self.limits, ExampleSampler([""] * 5, seed=1), endpoints)
        self.running = {}
        self.begun = {}
        self.ended = Counter()
        self.complete = []
        self.aborting = set()
        self.given_results = {}
        self.next_evaluation = 0

    def note_cancellations(self):
        for cancelled in self.machine.take_cancellations():
            self.ended[cancelled.group] += 1
            self.complete = [n for n in self.complete if n != cancelled.group]

    @rule(times=st.integers(1, 4))
    def start_some(self, times):
        for _ in range(times):
            self.start()

    def start(self):
        start = self.machine.next_start()
        if start is None:
            return
        assert start.ticket not in self.running
        assert start.endpoint < self.endpoints
        assert self.machine.healthy_endpoints()[start.endpoint]
        self.running[start.ticket] = start
        if start.group not in self.begun and start.evaluation is None:
            assert self.machine.rollouts_ahead <= self.limits.max_rollouts_ahead
        self.begun.setdefault(start.group, (start.example, self.machine.version, start.evaluation))
        assert self.begun[start.group][0] == start.example
        assert not self.ended[start.group]

    @precondition(lambda self: self.running)
    @rule(pick=PICK, times=st.integers(1, 4), retry=st.booleans())
    def finish_some(self, pick, times, retry):
        for _ in range(min(times, len(self.running))):
            self.finish(picked(self.running, pick), retry)

    def finish(self, ticket, retry=False):
        start = self.running.pop(ticket)
        self.aborting.discard(ticket)  # it may finish before the abort reaches it
        key = (start.group, start.rollout_index)
        number = self.machine.finished(ticket, key, retry=retry)
        if number is not None:
            results = self.machine.results_of(number)
            assert results == [(number, index) for index in range(len(results))]
            self.complete.append(number)

    @precondition(lambda self: self.aborting)
    @rule(pick=PICK)
    def abort(self, pick):
        ticket = picked(self.aborting, pick)
        self.aborting.remove(ticket)
        del self.running[ticket]
        self.machine.aborted(ticket)

    @precondition(lambda self: self.complete)
    @rule(pick=PICK, mean=st.floats(0, 1), cancel=st.booleans())
    def settle(self, pick, mean, cancel):
        number = self.complete.pop(pick % len(self.complete))
        end = self.machine.settle(
            number,
            f"outcome {number}",
            mean_reward=mean,
            cancel=(CancelReason.NO_SIGNAL, "equal") if cancel else None,
        )
        assert (end is not None) == (self.begun[number][2] is not None)
        if end is not None:
            assert end.results == [(number, index) for index in range(len(end.results))]
            self.ended[number] += 1
        self.note_cancellations()
        # settling twice changes nothing
        assert self.machine.settle(number, "again") is None

    @rule(rounds=st.integers(1, 8))
    def rush(self, rounds):
        """Everything goes well for a while, so that the queue fills."""
        for _ in range(rounds):
            self.start()
            for ticket in sorted(self.running)[:2]:
                self.finish(ticket)
            self.settle_all()

    def settle_all(self):
        while self.complete:
            number = self.complete.pop()
            end = self.machine.settle(number, f"outcome {number}", mean_reward=0.5)
            self.ended[number] += end is not None

    @rule(by=st.integers(0, 3))
    def new_policy(self, by):
        tickets = self.machine.set_version(self.machine.version + by)
        assert set(tickets) <= set(self.running)
        self.aborting |= set(tickets)
        self.note_cancellations()

    @rule(keep=st.booleans())
    def take(self, keep):
        asked = []

        def adjust(outcome, version):
            asked.append(version)
            return outcome if keep else None

        ready = self.machine.ready_groups
        batch = self.machine.take_batch(adjust)
        self.note_cancellations()
        if not asked:
            assert (batch is not None) == (ready >= self.limits.groups_per_batch)
        assert all(version < self.machine.oldest_allowed for version in asked)
        if batch is None:
            assert self.machine.ready_groups < self.limits.groups_per_batch
            return
        assert len(batch) == self.limits.groups_per_batch
        for entry in batch:
            self.ended[entry.group] += 1
            assert entry.outcome == f"outcome {entry.group}"
            assert (entry.example, entry.version) == self.begun[entry.group][:2]
            age = self.machine.version - entry.version
            if self.limits.on_stale == "drop" or not keep:
                assert age <= self.limits.max_off_policy_steps

    @rule(examples=st.lists(st.integers(0, 4), min_size=1, max_size=3), rollouts=st.integers(1, 2))
    def evaluate(self, examples, rollouts):
        self.machine.add_evaluation(
            self.next_evaluation, {example: [None] * rollouts for example in examples}
        )
        self.next_evaluation += 1

    @precondition(lambda self: self.next_evaluation)
    @rule(pick=PICK)
    def give_an_evaluation_up(self, pick):
        self.aborting |= set(self.machine.drop_evaluation(pick % self.next_evaluation))
        self.note_cancellations()

    @rule(pick=PICK, healthy=st.booleans())
    def health(self, pick, healthy):
        self.machine.set_healthy(pick % self.endpoints, healthy)

    @rule()
    def resume(self):
        """Save and load: what was in flight is played again, what was ready or complete is kept."""
        state = json.loads(json.dumps(self.machine.state_dict(lambda value: {"kept": value})))
        evaluations = {n for n, (_, _, e) in self.begun.items() if e is not None}
        machine = Dispatch(self.limits, ExampleSampler([""] * 5, seed=9), self.endpoints)
        complete = machine.load_state_dict(state, _decode)
        assert machine.ready_groups == self.machine.ready_groups
        assert sorted(complete) == sorted(n for n in self.complete if n not in evaluations)
        for number in evaluations:
            self.ended[number] = 1
        self.machine, self.complete = machine, complete
        self.running, self.aborting = {}, set()
        self.note_cancellations()

    @invariant()
    def nothing_ends_twice(self):
        if hasattr(self, "ended"):
            assert not [number for number, times in self.ended.items() if times > 1]

    @invariant()
    def everything_is_accounted_for(self):
        if not hasattr(self, "machine"):
            return
        machine, tally = self.machine, self.machine.tally
        assert machine.in_flight == len(self.running) <= self.limits.max_in_flight
        assert machine.training_groups <= self.limits.max_groups_ahead
        assert machine.rollouts_ahead == sum(
            group.missing or self.limits.rollouts_per_group
            for group in [*machine._open.values(), *machine._ready]
            if group.evaluation is None
        )
        unended = [number for number in self.begun if not self.ended[number]]
        assert machine.open_groups + machine.ready_groups == len(unended)
        over = tally.entries + tally.evaluations + sum(tally.cancelled.values())
        assert tally.groups_begun == over + len(unended)
        assert tally.rollouts_started == (
            tally.rollouts_finished
            + tally.rollouts_aborted
            + tally.rollouts_retried
            + machine.in_flight
        )

    def nothing_is_forgotten(self):
        """When rollouts end well from here on, every group that was begun gets its end or its place in the queue."""
        for endpoint in range(self.endpoints):
            self.machine.set_healthy(endpoint, True)
        begun = set(self.begun)
        for _ in range(100):
            for _ in range(self.limits.max_in_flight):
                self.start()
            for ticket in sorted(self.running):
                self.finish(ticket)
            self.settle_all()
            self.machine.take_batch(None)
        assert not begun & set(self.machine._open)

    def teardown(self):
        if not hasattr(self, "machine"):
            return
        self.nothing_is_forgotten()
        tickets = self.machine.close()
        assert set(tickets) == set(self.running)
        self.note_cancellations()
        tally = self.machine.tally
        over = tally.entries + tally.evaluations + sum(tally.cancelled.values())
        assert tally.groups_begun == over
        assert self.machine.next_start() is None
        for ticket in tickets:
            self.machine.aborted(ticket)
        assert self.machine.in_flight == 0


def _decode(value):
    kept = value["kept"]
    return tuple(kept) if isinstance(kept, list) else kept


@pytest.mark.parametrize("lives", [60, pytest.param(200, marks=pytest.mark.long)])
def test_every_group_ends_exactly_once_in_any_order_of_events(lives):
    run_state_machine_as_test(
        Life, settings=settings(max_examples=lives, stateful_step_count=40, deadline=None)
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_same_over_long_lives(seed):
    """Hypothesis finds short counterexamples; queues that fill, age and are resumed need hundreds of events."""
    rng = random.Random(seed)
    life = Life()
    life.begin(
        endpoints=rng.randint(1, 3),
        ahead=rng.randint(0, 6),
        rollouts_ahead=rng.randint(0, 12),
        groups_per_batch=rng.randint(1, 3),
        rollouts_per_group=rng.randint(1, 4),
        max_in_flight=rng.randint(1, 12),
        max_off_policy_steps=rng.randint(0, 3),
        max_attempts=rng.randint(1, 3),
        on_stale=rng.choice(["drop", "mask"]),
    )

    def pick():
        return rng.randrange(10**6)

    actions = {
        lambda: life.start_some(times=rng.randint(1, 4)): 6,
        lambda: (
            life.running
            and life.finish_some(pick=pick(), times=rng.randint(1, 4), retry=rng.random() < 0.1)
        ): 6,
        lambda: life.aborting and life.abort(pick=pick()): 3,
        lambda: (
            life.complete and life.settle(pick=pick(), mean=rng.random(), cancel=rng.random() < 0.2)
        ): 4,
        lambda: life.rush(rounds=rng.randint(1, 8)): 1,
        lambda: life.new_policy(by=rng.randint(0, 1)): 1,
        lambda: life.take(keep=rng.random() < 0.8): 2,
        lambda: life.evaluate(examples=[rng.randrange(5)], rollouts=rng.randint(1, 2)): 0.2,
        lambda: life.next_evaluation and life.give_an_evaluation_up(pick=pick()): 0.1,
        lambda: life.health(pick=pick(), healthy=rng.random() < 0.8): 0.5,
        lambda: life.resume(): 0.2,
    }
    for action in rng.choices(list(actions), list(actions.values()), k=1500):
        action()
        life.nothing_ends_twice()
        life.everything_is_accounted_for()
    assert life.machine.tally.batches > 5
    life.teardown()


def test_a_finished_rollout_is_replaced_at_once():
    machine = dispatch(max_in_flight=4)
    starts = start_all(machine)
    assert [(s.group, s.rollout_index) for s in starts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    machine.finished(starts[3].ticket, "r")
    again = machine.next_start()
    assert (again.group, again.rollout_index) == (2, 0)
    assert machine.next_start() is None


def test_groups_ask_endpoints_in_turn_and_their_rollouts_the_same_one():
    machine = dispatch(endpoints=3, max_in_flight=10)
    used = {}
    for start in start_all(machine):
        used.setdefault(start.group, set()).add(start.endpoint)
    assert used == {0: {0}, 1: {1}, 2: {2}, 3: {0}, 4: {1}}


def test_an_unhealthy_endpoint_gets_nothing_and_its_retries_go_elsewhere():
    machine = dispatch(endpoints=2, max_in_flight=4)
    first, *_ = start_all(machine)
    assert first.endpoint == 0
    machine.set_healthy(0, False)
    machine.finished(first.ticket, "lost", retry=True)
    again = machine.next_start()
    assert (again.group, again.rollout_index, again.endpoint) == (0, 0, 1)
    machine.set_healthy(1, False)
    machine.finished(again.ticket, "lost")
    assert machine.next_start() is None
    machine.set_healthy(1, True)
    assert machine.next_start().endpoint == 1


def test_a_rollout_is_played_again_only_so_often():
    machine = dispatch(max_attempts=3, max_in_flight=1, rollouts_per_group=1)
    ends = []
    while not ends or ends[-1] is None:
        ends.append(machine.finished(machine.next_start().ticket, "lost", retry=True))
    assert ends == [None, None, 0]
    assert machine.tally.rollouts_retried == 2


def test_staleness_is_judged_where_groups_wait_not_only_where_they_start():
    machine = dispatch(max_off_policy_steps=1, groups_per_batch=1, max_in_flight=2)
    for start in start_all(machine):
        number = machine.finished(start.ticket, "r")
    machine.settle(number, "good", mean_reward=0.5)
    assert machine.ready_groups == 1
    machine.set_version(1)
    assert machine.ready_groups == 1
    machine.set_version(2)
    assert machine.take_batch() is None
    [cancelled] = machine.take_cancellations()
    assert (cancelled.reason, cancelled.version) == (CancelReason.STALE, 0)
    assert cancelled.detail == "started by version 0, now 2"


def test_generation_runs_ahead_only_so_far():
    machine = dispatch(max_groups_ahead=3, max_in_flight=100)
    starts = start_all(machine)
    assert len({start.group for start in starts}) == 3
    for start in starts:
        if (number := machine.finished(start.ticket, "r")) is not None:
            machine.settle(number, "good", mean_reward=0.5)
    assert machine.next_start() is None
    assert len(machine.take_batch()) == 2
    assert len({start.group for start in start_all(machine)}) == 2


def test_a_group_that_waits_for_its_last_rollout_keeps_no_place_empty():
    config = SourceConfig(groups_per_batch=2, rollouts_per_group=4, max_in_flight=8)
    assert config.limits().max_groups_ahead == 9
    machine = Dispatch(config.limits(), ExampleSampler([""] * 50))
    last_of_each = set()
    for _ in range(100):  # every group's first rollout is a long one, which does not end here
        for start in start_all(machine):
            if start.rollout_index == 0:
                last_of_each.add(start.ticket)
            else:
                machine.finished(start.ticket, "short")
        if len(last_of_each) == 8:
            break
    # Eight unfinished groups are four batches; counted whole, no more than four groups would have been begun.
    assert machine.in_flight == machine.open_groups == 8
    assert machine.ready_groups == 0


def test_a_trainer_that_is_slow_finds_one_batch_waiting_and_all_places_used():
    config = SourceConfig(groups_per_batch=2, rollouts_per_group=2, max_in_flight=8)
    machine = Dispatch(config.limits(), ExampleSampler([""] * 50))
    running = start_all(machine)
    while machine.ready_groups < 2:
        number = machine.finished(running.pop(0).ticket, "r")
        if number is not None:
            machine.settle(number, "good", mean_reward=0.5)
        running += start_all(machine)
    assert machine.in_flight == 8
    for start in running:
        if (number := machine.finished(start.ticket, "r")) is not None:
            machine.settle(number, "good", mean_reward=0.5)
    assert machine.next_start() is None
    assert machine.ready_groups == 6


@pytest.mark.parametrize(
    ("changed", "groups", "rollouts"),
    [
        ({}, 9, 24),  # 4 groups fill 16 places and 2 wait; half of 9 batches are 9 groups
        ({"max_off_policy_steps": 1}, 6, 24),
        ({"max_groups_ahead": 3}, 3, 12),
    ],
)
def test_how_far_ahead_is_as_far_as_staleness_leaves_it_useful(changed, groups, rollouts):
    config = SourceConfig(groups_per_batch=2, rollouts_per_group=4, max_in_flight=16, **changed)
    assert config.limits().max_groups_ahead == groups
    assert config.limits().max_rollouts_ahead == rollouts


def test_evaluations_go_first_and_share_the_room():
    machine = dispatch(max_in_flight=3)
    machine.next_start()
    machine.add_evaluation(7, {2: [None], 3: [None]})
    # the group that is begun is finished first, then the evaluation
    kinds = [(s.evaluation, s.example) for s in start_all(machine)]
    assert kinds[0][0] is None
    assert kinds[1] == (7, 2)
    assert machine.in_flight == 3


def test_mistakes_of_the_caller_are_named():
    machine = dispatch()
    start = machine.next_start()
    with pytest.raises(ValueError, match="went back from 0 to -1"):
        machine.set_version(-1)
    with pytest.raises(RuntimeError, match="still misses 2"):
        machine.settle(start.group, "x")
    with pytest.raises(RuntimeError, match="before the first rollout"):
        machine.load_state_dict({}, lambda value: value)
    with pytest.raises(KeyError):
        machine.finished(99, "x")
