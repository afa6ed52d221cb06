"""Groups of rollouts, for trainers that request a batch and wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from verifiers.errors import AuthenticationError, ConfigError
from verifiers.rollouts.schedule import first_failure
from verifiers.state import State
from verifiers.types import SamplingArgs

if TYPE_CHECKING:
    from verifiers.envs.environment import Environment


async def play_groups(
    env: Environment,
    groups: Sequence[Sequence[Mapping[str, Any]]],
    client: Any,
    model: str,
    sampling_args: SamplingArgs | None = None,
    *,
    max_concurrent: int = -1,
    max_retries: int = 2,
) -> list[list[State]]:
    """Play and score every row of every group, one group per example. Return the states in the same order.

    `max_concurrent`: maximum number of rollouts at once; unlimited below 1. A failed rollout is a state with an
    `error`. AuthenticationError and ConfigError are raised and cancel the other rollouts.
    """
    limit = asyncio.Semaphore(max_concurrent) if max_concurrent > 0 else nullcontext()
    sampling = {**env.sampling_args, **(sampling_args or {})}

    async def play_group(rows: Sequence[Mapping[str, Any]]) -> list[State]:
        return await env.play_and_score(
            rows,
            client,
            model,
            sampling,
            max_retries=max_retries,
            play_limit=limit,
            fatal=(AuthenticationError, ConfigError),
        )

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(play_group(rows)) for rows in groups]
    except BaseExceptionGroup as failures:
        raise first_failure(failures) from None
    return [task.result() for task in running]
