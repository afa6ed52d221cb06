"""`Dispatch`: the decisions of the source, as a state machine without time, tasks or network.

A group is the rollouts of one example. Its life:

    open ─► complete ─► ready ─► batch entry          every rollout ends, the group is settled, a batch takes it
      │        │          │
      └────────┴──────────┴────► cancellation          with a reason: see `CancelReason`

Every started group ends exactly once, as a batch entry, an evaluation result or a cancellation. Every started rollout
ends exactly once, by `finished` or by `aborted`. A batch never holds a group that was started more than
`max_off_policy_steps` policy versions ago.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from verifiers.training.difficulty import ExampleSampler


class CancelReason(StrEnum):
    """Reasons why a group did not become part of a batch."""

    STALE = "stale"
    """The policy version that started the group is too old."""
    NO_SIGNAL = "no_signal"
    """All rollouts have the same reward, so none has an advantage."""
    FAILED = "failed"
    """Too few rollouts of the group succeeded."""
    CLOSED = "closed"
    """The source was closed."""


class Start(NamedTuple):
    """A rollout to start now."""

    ticket: int
    """Identifies the rollout in `finished` and `aborted`."""
    group: int
    example: int
    rollout_index: int
    endpoint: int
    """Endpoint of the rollout. All rollouts of a group use the same one, whose prefix cache then holds their prompt."""
    evaluation: int | None
    """The evaluation that the rollout belongs to, None for training."""


class Cancellation(NamedTuple):
    """A group that ended without a batch."""

    group: int
    example: int
    reason: CancelReason
    detail: str
    version: int


class Entry(NamedTuple):
    """A group in a batch."""

    group: int
    example: int
    version: int
    """Policy version when the group's first rollout was started."""
    outcome: Any
    """The argument of `settle`."""


class EvaluationEnd(NamedTuple):
    """A finished group of an evaluation."""

    evaluation: int
    example: int
    results: list[Any]


@dataclass(frozen=True)
class DispatchLimits:
    """The parameters of `Dispatch`; `SourceConfig` explains them."""

    groups_per_batch: int
    rollouts_per_group: int
    max_in_flight: int
    max_off_policy_steps: int
    max_groups_ahead: int
    max_rollouts_ahead: int
    max_attempts: int
    on_stale: Literal["drop", "mask"]


@dataclass(slots=True, eq=False)
class _Group:
    number: int
    example: int
    endpoint: int
    version: int
    waiting: deque[int]
    """Rollouts not started, or to be started again."""
    results: list[Any]
    attempts: list[int]
    missing: int
    """Rollouts without a result."""
    evaluation: int | None = None
    outcome: Any = None


@dataclass(slots=True)
class GroupCounts:
    """Counts since the beginning; they survive resuming."""

    groups_begun: int = 0
    entries: int = 0
    evaluations: int = 0
    """Finished groups of evaluations."""
    cancelled: Counter[str] = field(default_factory=Counter)
    rollouts_started: int = 0
    rollouts_finished: int = 0
    rollouts_aborted: int = 0
    rollouts_retried: int = 0
    batches: int = 0


class Dispatch:
    """See the module. Methods that stop rollouts return tickets; each of these rollouts then ends by `aborted`."""

    def __init__(
        self,
        limits: DispatchLimits,
        sampler: ExampleSampler,
        endpoint_count: int = 1,
        *,
        version: int = 0,
    ) -> None:
        self.limits = limits
        self.sampler = sampler
        self.version = version
        self.tally = GroupCounts()
        self.is_closed = False
        self.cancellations: list[Cancellation] = []
        """Cancellations since the last call of `take_cancellations`."""
        self._healthy = [True] * endpoint_count
        self._next_endpoint = 0
        self._next_number = 0
        self._next_ticket = 0
        self._in_flight: dict[int, tuple[_Group, int]] = {}
        self._open: dict[int, _Group] = {}
        self._open_for_training = 0
        self._open_rollouts_ahead = 0
        self._startable: deque[_Group] = deque()
        """Groups that may have rollouts to start; checked when they reach the front."""
        self._evaluation_queue: deque[tuple[int, int, list[Any]]] = deque()
        self._ready: deque[_Group] = deque()

    # ------------------------------------------------------------------------------------------ current state

    @property
    def in_flight(self) -> int:
        """Number of rollouts started and not ended. Rollouts being aborted count: they still use an endpoint."""
        return len(self._in_flight)

    @property
    def open_groups(self) -> int:
        """Groups that are being played or settled."""
        return len(self._open)

    @property
    def ready_groups(self) -> int:
        """Groups that wait for a batch."""
        return len(self._ready)

    @property
    def training_groups(self) -> int:
        """Training groups that were started and have not ended."""
        return len(self._ready) + self._open_for_training

    @property
    def rollouts_ahead(self) -> int:
        """Number of rollouts that training groups still miss, plus all rollouts of complete groups.

        A finished rollout that waits for a sibling is not counted: it uses no slot, and the trainer cannot have it
        yet.
        """
        return self._open_rollouts_ahead + len(self._ready) * self.limits.rollouts_per_group

    # ------------------------------------------------------------------------------------------ starting

    def next_start(self) -> Start | None:
        """Return the next rollout to start, or None without one or without a free slot."""
        if self.is_closed or len(self._in_flight) >= self.limits.max_in_flight:
            return None
        group = self._startable_group()
        if group is None or (endpoint := self._endpoint_for(group)) is None:
            return None
        group.endpoint = endpoint
        index = group.waiting.popleft()
        group.attempts[index] += 1
        ticket = self._next_ticket
        self._next_ticket += 1
        self._in_flight[ticket] = (group, index)
        self.tally.rollouts_started += 1
        return Start(ticket, group.number, group.example, index, endpoint, group.evaluation)

    def _startable_group(self) -> _Group | None:
        # Started groups come first: their rollouts share a prompt, and older groups are closer to being stale.
        while self._startable:
            group = self._startable[0]
            if group.number in self._open and group.waiting:
                return group
            self._startable.popleft()
        if not any(self._healthy):
            return None
        if self._evaluation_queue:
            evaluation, example, results = self._evaluation_queue.popleft()
            return self._begin(example, results, evaluation)
        if self.training_groups >= self.limits.max_groups_ahead:
            return None
        if self.rollouts_ahead + self.limits.rollouts_per_group > self.limits.max_rollouts_ahead:
            return None
        return self._begin(self.sampler.draw(), [None] * self.limits.rollouts_per_group, None)

    def _begin(self, example: int, results: list[Any], evaluation: int | None) -> _Group:
        missing = [index for index, result in enumerate(results) if result is None]
        group = _Group(
            number=self._next_number,
            example=example,
            endpoint=self._round_robin(),
            version=self.version,
            waiting=deque(missing),
            results=list(results),
            attempts=[0] * len(results),
            missing=len(missing),
            evaluation=evaluation,
        )
        self._next_number += 1
        self._enter(group)
        self._startable.append(group)
        self.tally.groups_begun += 1
        return group

    def _enter(self, group: _Group) -> None:
        self._open[group.number] = group
        if group.evaluation is None:
            self._open_for_training += 1
            self._open_rollouts_ahead += self._ahead_of(group)

    def _leave(self, group: _Group) -> None:
        if self._open.pop(group.number, None) is not None and group.evaluation is None:
            self._open_for_training -= 1
            self._open_rollouts_ahead -= self._ahead_of(group)

    def _ahead_of(self, group: _Group) -> int:
        return group.missing or self.limits.rollouts_per_group

    def _round_robin(self) -> int:
        for _ in self._healthy:
            endpoint = self._next_endpoint % len(self._healthy)
            self._next_endpoint = endpoint + 1
            if self._healthy[endpoint]:
                return endpoint
        return 0

    def _endpoint_for(self, group: _Group) -> int | None:
        if self._healthy[group.endpoint]:
            return group.endpoint
        return self._round_robin() if any(self._healthy) else None

    def set_healthy(self, endpoint: int, healthy: bool) -> None:
        """Allow or stop sending rollouts to an endpoint. Rollouts in flight there are not affected."""
        self._healthy[endpoint] = healthy

    def healthy_endpoints(self) -> list[bool]:
        """For each endpoint, whether it is used."""
        return list(self._healthy)

    # ------------------------------------------------------------------------------------------ ending

    def finished(self, ticket: int, result: Any, *, retry: bool = False) -> int | None:
        """Record the result of a rollout. Return its group's number if the group is now complete: call `settle` for it.

        With `retry` the rollout is started again while attempts are left.
        """
        group, index = self._in_flight.pop(ticket)
        if group.number not in self._open:
            self.tally.rollouts_aborted += 1  # its group was cancelled while it ran
            return None
        if retry and group.attempts[index] < self.limits.max_attempts:
            self.tally.rollouts_retried += 1
            group.waiting.append(index)
            self._startable.appendleft(group)
            return None
        self.tally.rollouts_finished += 1
        group.results[index] = result
        before = self._ahead_of(group)
        group.missing -= 1
        if group.evaluation is None:
            self._open_rollouts_ahead += self._ahead_of(group) - before
        return group.number if group.missing == 0 else None

    def aborted(self, ticket: int) -> None:
        """Record that a rollout was stopped. If its group continues, the rollout is started again."""
        group, index = self._in_flight.pop(ticket)
        self.tally.rollouts_aborted += 1
        if group.number in self._open:
            group.attempts[index] -= 1
            group.waiting.append(index)
            self._startable.appendleft(group)

    def example_of(self, number: int) -> int:
        """Return the example of an open group."""
        return self._open[number].example

    def evaluation_of(self, number: int) -> int | None:
        """Return the evaluation that an open group belongs to."""
        group = self._open.get(number)
        return None if group is None else group.evaluation

    def results_of(self, number: int) -> list[Any] | None:
        """Return the results of a complete group, in rollout order; None if it was cancelled meanwhile."""
        group = self._open.get(number)
        return None if group is None else group.results

    def settle(
        self,
        number: int,
        outcome: Any,
        *,
        mean_reward: float | None = None,
        cancel: tuple[CancelReason, str] | None = None,
    ) -> EvaluationEnd | None:
        """Record the outcome of a complete group: ready for a batch, or cancelled.

        `mean_reward` updates the example's difficulty. For a group of an evaluation, return the end of the group. A
        group that was cancelled meanwhile is ignored.
        """
        group = self._open.get(number)
        if group is None:
            return None
        if group.missing:
            raise RuntimeError(f"Group {number} still misses {group.missing} rollouts.")
        if group.evaluation is not None:
            self._leave(group)
            self.tally.evaluations += 1
            return EvaluationEnd(group.evaluation, group.example, group.results)
        if mean_reward is not None:
            self.sampler.observe(group.example, mean_reward)
        if cancel is not None:
            self._cancel(group, *cancel)
            return None
        self._leave(group)
        group.results, group.outcome = [], outcome
        self._ready.append(group)
        return None

    def _cancel(self, group: _Group, reason: CancelReason, detail: str) -> None:
        self._leave(group)
        self.tally.cancelled[reason] += 1
        self.cancellations.append(
            Cancellation(group.number, group.example, reason, detail, group.version)
        )

    def take_cancellations(self) -> list[Cancellation]:
        """Return the groups cancelled since the last call."""
        taken, self.cancellations = self.cancellations, []
        return taken

    # ------------------------------------------------------------------------------------------ versions, batches

    @property
    def oldest_allowed(self) -> int:
        """Oldest policy version whose tokens may be trained on."""
        return self.version - self.limits.max_off_policy_steps

    def set_version(self, version: int) -> list[int]:
        """Record a new policy version and return the tickets to abort: rollouts of groups that are now too old.

        Raise ValueError when the version decreases.
        """
        if version < self.version:
            raise ValueError(f"The policy version went back from {self.version} to {version}.")
        self.version = version
        return self.drop_stale(version)

    def drop_stale(self, version: int) -> list[int]:
        """Cancel the groups that will be too old at `version` and return the tickets to abort. See `set_version`."""
        if self.limits.on_stale == "mask":
            return []
        oldest = version - self.limits.max_off_policy_steps
        stale = [g for g in self._open.values() if g.evaluation is None and g.version < oldest]
        queued = [g for g in self._ready if g.version < oldest]
        for group in [*stale, *queued]:
            self._cancel(
                group, CancelReason.STALE, f"started by version {group.version}, now {version}"
            )
        if queued:
            self._ready = deque(g for g in self._ready if g.version >= oldest)
        return self._tickets_of(stale)

    def _tickets_of(self, groups: Sequence[_Group]) -> list[int]:
        numbers = {group.number for group in groups}
        return [t for t, (group, _) in self._in_flight.items() if group.number in numbers]

    def take_batch(self, adjust: Callable[[Any, int], Any] | None = None) -> list[Entry] | None:
        """Return the oldest ready groups as a batch; None while there are too few.

        With `on_stale="mask"`, `adjust(outcome, version)` returns the remaining part of each group that started too
        early (None: nothing remains, and the group is cancelled as stale).
        """
        if self.limits.on_stale == "mask" and adjust is not None:
            self._adjust(adjust)
        count = self.limits.groups_per_batch
        if len(self._ready) < count:
            return None
        groups = [self._ready.popleft() for _ in range(count)]
        self.tally.entries += count
        self.tally.batches += 1
        return [Entry(g.number, g.example, g.version, g.outcome) for g in groups]

    def _adjust(self, adjust: Callable[[Any, int], Any]) -> None:
        kept: deque[_Group] = deque()
        for group in self._ready:
            if group.version < self.oldest_allowed:
                outcome = adjust(group.outcome, group.version)
                if outcome is None:
                    detail = f"no token is younger than version {self.oldest_allowed}"
                    self._cancel(group, CancelReason.STALE, detail)
                    continue
                group.outcome = outcome
            kept.append(group)
        self._ready = kept

    # ------------------------------------------------------------------------------------------ evaluations, closing

    def add_evaluation(self, evaluation: int, groups: Mapping[int, list[Any]]) -> None:
        """Play examples for an evaluation before more training groups are started.

        `groups`: by example, the results of its rollouts, with None (at least one) for each rollout to play.
        """
        self._evaluation_queue.extend((evaluation, *group) for group in groups.items())

    def evaluation_results(self) -> dict[int, dict[int, list[Any]]]:
        """By evaluation and example: results of groups that have not ended."""
        found: dict[int, dict[int, list[Any]]] = {}
        for group in self._open.values():
            if group.evaluation is not None:
                found.setdefault(group.evaluation, {})[group.example] = group.results
        return found

    def drop_evaluation(self, evaluation: int) -> list[int]:
        """End an evaluation early: its groups are cancelled. Return the tickets to abort."""
        self._evaluation_queue = deque(e for e in self._evaluation_queue if e[0] != evaluation)
        dropped = [g for g in self._open.values() if g.evaluation == evaluation]
        for group in dropped:
            self._cancel(group, CancelReason.CLOSED, "the evaluation was ended early")
        return self._tickets_of(dropped)

    def close(self) -> list[int]:
        """End everything: all groups are cancelled. Return the tickets to abort."""
        self.is_closed = True
        self._evaluation_queue.clear()
        groups = [*self._open.values(), *self._ready]
        self._ready.clear()
        for group in groups:
            self._cancel(group, CancelReason.CLOSED, "the source was closed")
        return list(self._in_flight)

    # ------------------------------------------------------------------------------------------ resuming

    def state_dict(self, encode: Callable[[Any], Any]) -> dict[str, Any]:
        """Return everything needed to continue, as JSON values. `encode` converts results and outcomes.

        Rollouts in flight, and results that `encode` maps to None, will be played again. Evaluations are not
        included: see `evaluation_results`.
        """
        return {
            "version": self.version,
            "next_number": self._next_number,
            "next_endpoint": self._next_endpoint,
            "sampler": self.sampler.state_dict(),
            "tally": {name: getattr(self.tally, name) for name in GroupCounts.__slots__}
            | {
                "cancelled": dict(self.tally.cancelled),
                "groups_begun": self.tally.groups_begun - len(self._open) + self._open_for_training,
            },
            "open": [
                _saved(g) | {"results": [None if r is None else encode(r) for r in g.results]}
                for g in self._open.values()
                if g.evaluation is None
            ],
            "ready": [_saved(g) | {"outcome": encode(g.outcome)} for g in self._ready],
        }

    def load_state_dict(self, state: Mapping[str, Any], decode: Callable[[Any], Any]) -> list[int]:
        """Restore the state of `state_dict`, before the first start only.

        Return the numbers of complete groups: call `settle` for them.
        """
        if self._next_ticket or self._next_number:
            raise RuntimeError("Load a state before the first rollout is started.")
        self.version = state["version"]
        self._next_number = state["next_number"]
        self._next_endpoint = state["next_endpoint"]
        self.sampler.load_state_dict(state["sampler"])
        self.tally = GroupCounts(
            **{**state["tally"], "cancelled": Counter(state["tally"]["cancelled"])}
        )
        complete: list[int] = []
        for saved in state["open"]:
            results = [None if r is None else decode(r) for r in saved["results"]]
            group = self._restored(saved, results)
            self._enter(group)
            if group.missing:
                self._startable.append(group)
            else:
                complete.append(group.number)
        for saved in state["ready"]:
            group = self._restored(saved, [])
            group.outcome = decode(saved["outcome"])
            self._ready.append(group)
        # Only the rollouts that were in flight count as started again.
        self.tally.rollouts_started = self.tally.rollouts_finished + self.tally.rollouts_aborted
        self.tally.rollouts_started += self.tally.rollouts_retried
        self.set_version(self.version)
        return complete

    def _restored(self, saved: Mapping[str, Any], results: list[Any]) -> _Group:
        missing = [index for index, result in enumerate(results) if result is None]
        return _Group(
            number=saved["number"],
            example=saved["example"],
            endpoint=saved["endpoint"] % len(self._healthy),
            version=saved["version"],
            waiting=deque(missing),
            results=results,
            attempts=[0] * len(results),
            missing=len(missing),
        )


def _saved(group: _Group) -> dict[str, Any]:
    return {
        "number": group.number,
        "example": group.example,
        "endpoint": group.endpoint,
        "version": group.version,
    }
