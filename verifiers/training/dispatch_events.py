"""What `Dispatch` says: rollouts to start, and how groups ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple


class CancelReason(StrEnum):
    """Why a group did not become part of a batch."""

    STALE = "stale"
    """A policy too many versions old had begun it."""
    NO_SIGNAL = "no_signal"
    """All its rollouts did equally well, so none has an advantage."""
    FAILED = "failed"
    """Too few of its rollouts came back healthy."""
    CLOSED = "closed"
    """The source was closed."""


class Start(NamedTuple):
    """A rollout to start now."""

    ticket: int
    """Names the rollout in `finished` and `aborted`."""
    group: int
    example: int
    rollout_index: int
    endpoint: int
    """Which endpoint to ask; all rollouts of a group ask the same, whose prefix cache then holds their prompt."""
    evaluation: int | None
    """The evaluation it belongs to, None for training."""


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
    """The policy version when its first rollout was started."""
    outcome: Any
    """What `settle` was given."""


class EvaluationEnd(NamedTuple):
    """A finished group of an evaluation."""

    evaluation: int
    example: int
    results: list[Any]
