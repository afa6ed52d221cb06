"""How long the sandbox of a rollout lives: to the end of the rollout, or until the rollout has been scored."""

from __future__ import annotations

import asyncio
import functools
import random
import weakref
from collections.abc import Awaitable, Callable
from logging import Logger
from typing import Any, ParamSpec, TypeVar

from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.errors import AuthorError
from verifiers.rollouts.scope import scope_of
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.rubrics.sandbox_rubric import (
    ARGUMENT,
    ScoringSandbox,
    asks_for_sandbox,
    fail_rollout,
)
from verifiers.sandboxes import IsolationUnavailable, SandboxDead, SandboxImageError
from verifiers.state import State

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

_PERMANENT = (AuthorError, IsolationUnavailable, SandboxImageError, SandboxDead, *timeout_errors())
"""What trying again cannot help."""


class SandboxLife:
    """The part of an environment that ends sandboxes. The environment calls `_begin_life` and owns the attributes."""

    sandbox_client: Any
    active_sandboxes: set[str]
    """Ids of sandboxes that have to be ended."""
    keep_sandbox_for_scoring: bool
    logger: Logger
    rubric: Rubric
    score_rollouts: bool

    def _begin_life(self, attempts: tuple[int, float, float, float, float]) -> None:
        """`attempts`: number of attempts, first and longest wait in seconds … as `with_retry` wants them."""
        self._attempts = attempts
        self.active_sandboxes = set()
        self._offering: weakref.WeakSet[Rubric] = weakref.WeakSet()

    def with_retry(
        self, function: Callable[Arguments, Awaitable[Value]], *, first_counts: bool = True
    ) -> Callable[Arguments, Awaitable[Value]]:
        """The function, called up to `max_retries` times in all while it raises what may pass.

        With `first_counts=False` the first call does not count: `max_retries=1` allows two calls.
        """
        max_retries, base_delay_s, factor, longest_s, jitter_s = self._attempts
        if not first_counts:
            max_retries += 1

        @functools.wraps(function)
        async def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
            for attempt in range(max_retries - 1):
                try:
                    return await function(*args, **kwargs)
                except _PERMANENT:
                    raise
                except Exception as error:  # noqa: BLE001 - v0 repeats whatever a provider's client raises
                    self.logger.debug("attempt %d failed: %r", attempt + 1, error)
                delay_s = min(longest_s, base_delay_s * factor**attempt)
                await asyncio.sleep(delay_s + random.uniform(0.0, jitter_s))
            return await function(*args, **kwargs)

        return call

    async def _leave(self, state: State, sandbox_id: str) -> None:
        """The rollout ends: whatever hooks did or left undone, the sandbox goes, or waits to be scored."""
        if sandbox_id not in self.active_sandboxes:
            return
        if not self._is_kept_for_scoring(state):
            await self._delete(sandbox_id)
            return
        for rubric in _rubrics_of(self.rubric):
            if any(map(asks_for_sandbox, rubric.reward_calls())):
                self._offer_sandbox(rubric)
        # A second scope, closed when the rollout has been scored; a rollout that nobody scores is dropped, and its
        # sandbox with it.
        scope = scope_of(state)
        scope.on_exit(self._delete, sandbox_id)
        if isinstance(self.sandbox_client, SandboxClient):
            weakref.finalize(scope, self.sandbox_client.sandbox(sandbox_id).kill_sync)

    def _is_kept_for_scoring(self, state: State) -> bool:
        if state.error is not None or state.stop_condition == "cancelled":
            return False
        return self.score_rollouts and (
            self.keep_sandbox_for_scoring or any(map(asks_for_sandbox, self.rubric.reward_calls()))
        )

    def _offer_sandbox(self, rubric: Rubric) -> None:
        if rubric not in self._offering:
            self._offering.add(rubric)
            rubric.add_score_object_provider(self._score_objects)

    def _score_objects(self, state: State) -> dict[str, Any]:
        sandbox_id = state.get("sandbox_id")
        if sandbox_id not in self.active_sandboxes:
            return {}  # another environment's rollout, scored by the same rubric
        sandbox = self.sandbox_client.sandbox(sandbox_id)
        return {ARGUMENT: ScoringSandbox(sandbox, functools.partial(fail_rollout, state))}

    _score_objects.provides = frozenset({ARGUMENT})  # type: ignore[attr-defined]  # read by `early_stop`

    async def _delete(self, sandbox_id: str) -> None:
        try:
            await self.with_retry(self.sandbox_client.delete)(sandbox_id)
        except Exception as error:  # noqa: BLE001 - the rollout's result stands; teardown tries again
            self.logger.warning("Sandbox %s could not be deleted: %r", sandbox_id, error)
            return
        self.active_sandboxes.discard(sandbox_id)

    async def bulk_delete_sandboxes(self, global_ids: list[str]) -> None:
        """End several sandboxes at once."""
        await self.sandbox_client.bulk_delete(list(global_ids))
        self.active_sandboxes.difference_update(global_ids)


def _rubrics_of(rubric: Rubric) -> list[Rubric]:
    if not isinstance(rubric, RubricGroup):
        return [rubric]
    return [inner for one in rubric.rubrics for inner in _rubrics_of(one)]
