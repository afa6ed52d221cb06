"""Reward functions that run code: they name the argument `sandbox`.

In a `SandboxEnv`, `sandbox` is the sandbox in which the rollout is scored (`score_in`). In other environments,
`SandboxRubric` opens one sandbox per scored rollout.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from verifiers.decorators import teardown
from verifiers.errors import SandboxError, note_error
from verifiers.rubrics.reward_call import RewardCall
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.scoring import RolloutReward
from verifiers.sandboxes import Sandbox, SandboxBackend, SandboxDead, SandboxSpec
from verifiers.sandboxes.open import BackendName, LoopBackends
from verifiers.state import State

ARGUMENT = "sandbox"


def asks_for_sandbox(call: RewardCall) -> bool:
    """Whether a reward function names `sandbox`. `**kwargs` alone does not request a sandbox."""
    return ARGUMENT in call.wants


class ScoringSandbox:
    """A sandbox for reward functions, with everything that a `Sandbox` has.

    Failures of infrastructure are also passed to `on_failure`, because such a rollout has failed and does not count as
    wrong. A sandbox that its own code has ended (`SandboxDead.by_program`) is not such a failure.
    """

    def __init__(self, sandbox: Sandbox, on_failure: Callable[[SandboxError], None]) -> None:
        self._sandbox = sandbox
        self._on_failure = on_failure

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._sandbox, name)
        if not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await value(*args, **kwargs)
            except SandboxError as error:
                if not (isinstance(error, SandboxDead) and error.by_program):
                    self._on_failure(error)
                raise

        return call


def fail_rollout(state: State, error: SandboxError) -> None:
    """Record a failure of infrastructure on a rollout. No trainer uses failed rollouts."""
    note_error(state, error)


def note_lost_sandbox(state: MutableMapping[str, Any], error: Exception) -> None:
    """Record a failure of the sandbox itself on a rollout, so that it does not count as a wrong solution."""
    if isinstance(error, SandboxDead) and error.by_program:
        return
    if isinstance(error, SandboxError) and isinstance(state, State):
        fail_rollout(state, error)


class SandboxRubric(Rubric):
    """A rubric whose reward functions may name `sandbox`: a fresh sandbox per rollout, deleted after scoring.

    `spec` is a `SandboxSpec` or its fields as a dict. `backend` selects the back end.
    """

    def __init__(
        self,
        *args: Any,
        spec: SandboxSpec | Mapping[str, Any] | None = None,
        backend: SandboxBackend | BackendName | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sandbox_spec = SandboxSpec.model_validate(spec or {})
        self.backends = LoopBackends(backend)
        self._sandboxes: dict[int, ScoringSandbox] = {}

    async def score(self, states: Sequence[State]) -> list[RolloutReward]:
        """See `Rubric.score`. The sandboxes of a group start concurrently."""
        if not any(map(asks_for_sandbox, self.reward_calls())):
            return await super().score(states)
        async with AsyncExitStack() as stack:
            for state in states:
                sandbox = await self.backends.here().create(self.sandbox_spec)
                await stack.enter_async_context(sandbox)
                self._sandboxes[id(state)] = ScoringSandbox(
                    sandbox, functools.partial(fail_rollout, state)
                )
                stack.callback(self._sandboxes.pop, id(state), None)
            return await super().score(states)

    def score_objects(self, state: State) -> dict[str, Any]:
        """See `Rubric.score_objects`."""
        objects = super().score_objects(state)
        if (sandbox := self._sandboxes.get(id(state))) is not None:
            objects[ARGUMENT] = sandbox
        return objects

    @teardown
    async def close_backends(self) -> None:
        """Close the back ends of the sandboxes."""
        await self.backends.aclose()
