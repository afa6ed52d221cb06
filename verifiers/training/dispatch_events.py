"""Values that `Dispatch` returns: rollouts to start, and how groups ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


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
