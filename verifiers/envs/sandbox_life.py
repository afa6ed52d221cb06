"""How long the sandbox of a rollout lives: to the end of the rollout, or until the rollout has been scored."""

from __future__ import annotations

import asyncio
import functools
import random
import weakref
from collections.abc import Awaitable, Callable, Mapping
from logging import Logger
from typing import Any, ClassVar, ParamSpec, TypeVar

from verifiers.decorators import cleanup
from verifiers.envs.sandbox_client import SandboxClient, timeout_errors
from verifiers.envs.scoring_sandbox import ScoreIn, check_score_in
from verifiers.errors import AuthorError, SandboxError
from verifiers.rollouts.scope import scope_of
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.rubrics.sandbox_rubric import (
    ARGUMENT,
    ScoringSandbox,
    asks_for_sandbox,
    fail_rollout,
)
from verifiers.sandboxes import (
    IsolationUnavailable,
    SandboxDead,
    SandboxFileError,
    SandboxImageError,
)
from verifiers.state import State

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

_PERMANENT = (
    AuthorError,
    IsolationUnavailable,
    SandboxImageError,
    SandboxDead,
    SandboxFileError,
    *timeout_errors(),
)
"""What trying again cannot help."""


FIRST = 1_000_000
"""Priority of the clean-up handler that must come before those of authors."""
_IDLE_HOOKS = (
    "Environment.",
    "MultiTurnEnv.",
    "SandboxLife.",
    "SandboxEnv.",
    "SandboxMixin.",
    "CliAgentEnv.",
)
"""Of these classes, no clean-up handler and no `post_rollout` looks into a sandbox."""


class SandboxLife:
    """The part of an environment that ends sandboxes. The environment calls `_begin_life` and owns the attributes."""

    scoring_arguments: ClassVar[frozenset[str]] = frozenset({ARGUMENT})
    """Arguments of reward functions that only exist when a rollout is scored."""
    sandbox_client: Any = None
    """None while the constructor has not come so far, or has failed before."""
    active_sandboxes: set[str] = set()
    """Ids of sandboxes that have to be ended."""
    keep_sandbox_for_scoring: bool
    score_in: ScoreIn | None = None
    """Where the rollout is scored: "snapshot", "own" or "live"; None takes the first that the back end offers."""
    score_env: Mapping[str, str] | None = None
    """Environment variables of commands that score, on top of all others."""
    logger: Logger
    rubric: Rubric
    score_rollouts: bool
    _cleanup_handlers: list[Callable[..., Any]]
    _note_error: Callable[[State, Exception], None]

    def _begin_life(
        self,
        attempts: tuple[int, float, float, float, float],
        score_in: ScoreIn | None,
        score_env: Mapping[str, str] | None,
    ) -> None:
        """`attempts`: number of attempts, first and longest wait in seconds … as `with_retry` wants them."""
        self._attempts = attempts
        self.score_in = check_score_in(score_in) or self.score_in
        self.score_env = self.score_env if score_env is None else dict(score_env)
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

    # ------------------------------------------------------------------------------------------- scoring

    @cleanup(priority=FIRST)
    async def begin_scoring(self, state: State) -> None:
        """Put the sandbox for scoring in the place of the rollout's, for `post_rollout` and reward functions.

        A sandbox that the model has ended (by using up its memory, for instance) is replaced by an empty one, as it is
        during the rollout.
        """
        await self._before_scoring(state)
        sandbox_id, client = state.get("sandbox_id"), self.sandbox_client
        if not isinstance(client, SandboxClient) or not client.knows(sandbox_id):
            return
        if state.stop_condition == "cancelled" or not self._is_looked_at_afterwards(state):
            return
        try:
            try:
                await client.begin_scoring(sandbox_id, self.score_in, self.score_env)
            except SandboxDead as error:
                if not error.by_program:
                    raise
                await client.replace(sandbox_id)
                await client.begin_scoring(sandbox_id, self.score_in, self.score_env)
        except SandboxError as error:
            if state.error is None:
                self._note_error(state, error)

    async def _before_scoring(self, state: State) -> None:
        """End what this library itself runs in the sandbox."""

    def _is_looked_at_afterwards(self, state: State) -> bool:
        """Whether anything may look into the sandbox when the rollout has ended."""
        hooks = [*self._cleanup_handlers, getattr(self, "post_rollout", None)]
        return self._is_kept_for_scoring(state) or any(
            hook is not None and not getattr(hook, "__qualname__", "").startswith(_IDLE_HOOKS)
            for hook in hooks
        )

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
