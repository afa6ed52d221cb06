"""`Rubric`: reward functions with weights; the reward of a rollout is their weighted sum."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verifiers.decorators import hooks_of
from verifiers.errors import ConfigError, RewardError, is_void, note_scoring_error, voids_reward
from verifiers.parsers.parser import Parser
from verifiers.rubrics.reward_call import (
    RewardCall,
    bind,
    function_name,
    is_group_function,
    offered_by,
)
from verifiers.rubrics.scoring import (
    DEFAULT_TIME_LIMIT_S,
    Part,
    RolloutReward,
    call_for_group,
    call_individual,
    group_advantages,
    measured,
    score_parts,
    score_states,
    write_advantages,
    write_scores,
    write_void,
)
from verifiers.state import State
from verifiers.types import RewardFunc
from verifiers.v0.plain_states import also_takes_mappings, as_states
from verifiers.v0.rubric_accessors import OlderAccessors


class Rubric(OlderAccessors):
    """Scores rollouts.

    A reward function is sync or async and names its arguments: `prompt`, `completion`, `answer`, `state`, `task`,
    `info`, `parser`, any field of the dataset row, any class object. With `**kwargs` it receives all of them. A
    function with plural names (`completions`, `states` …), or marked `@vf.reward(stage="group")`, scores the rollouts
    of one example together and returns a list. A value is a number or a `vf.Score`, which is a number with reasons.
    """

    def __init__(
        self,
        funcs: Sequence[RewardFunc] | None = None,
        weights: Sequence[float] | None = None,
        parser: Parser | None = None,
        parallelize_scoring: bool | None = None,
        *,
        scoring_timeout_s: float = DEFAULT_TIME_LIMIT_S,
    ) -> None:
        self.logger = logging.getLogger(f"verifiers.rubrics.{type(self).__name__}")
        if callable(funcs) or isinstance(funcs, str):
            raise ConfigError(
                f"Rubric takes a list of reward functions; got {funcs!r:.200}. Write Rubric(funcs=[…])."
            )
        self.funcs: list[RewardFunc] = list(funcs or [])
        for func in self.funcs:
            _check_callable(func)
        if weights is None:
            self.weights = [_marked_weight(func) for func in self.funcs]
        else:
            self.weights = [float(weight) for weight in weights]
        if len(self.weights) != len(self.funcs):
            raise ConfigError(
                f"Number of weights ({len(self.weights)}) must match number of functions ({len(self.funcs)})"
            )
        self.parser = parser or Parser()
        self.scoring_timeout_s = scoring_timeout_s
        self.class_objects: dict[str, Any] = {"parser": self.parser}
        self.score_object_providers: list[Callable[[State], Mapping[str, Any]]] = []
        self.group_score_object_providers: list[Callable[[list[State]], Mapping[str, Any]]] = []
        self._cleanup_handlers: list[Callable[..., Any]] = [
            getattr(self, name) for name in hooks_of(type(self), "cleanup")
        ]
        self._teardown_handlers: list[Callable[..., Any]] = [
            getattr(self, name) for name in hooks_of(type(self), "teardown")
        ]
        self._advantage_funcs: list[Callable[..., Any]] = [
            getattr(self, name) for name in hooks_of(type(self), "advantage")
        ]
        self._parts: tuple[list[RewardCall], float, list[Part] | None] | None = None
        self._bound: tuple[list[Any], list[float], list[RewardCall]] | None = None
        for kind in ("reward", "metric"):
            for name in hooks_of(type(self), kind):
                method = getattr(self, name)
                self.funcs.append(method)
                self.weights.append(_marked_weight(method))

    # ------------------------------------------------------------------------------------------ building

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """Add a reward function."""
        _check_callable(func)
        self.funcs.append(func)
        self.weights.append(float(weight))

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        """Add a function that is measured and saved, with weight 0 unless another weight is given."""
        self.add_reward_func(func, weight)

    def add_advantage_func(self, func: Callable[[list[State]], Any]) -> None:
        """Let `func(states)` compute the advantages of a group, one number per rollout."""
        self._advantage_funcs.append(func)

    def add_class_object(self, name: str, obj: Any) -> None:
        """Offer an object to reward functions under a parameter name."""
        self.class_objects[name] = obj

    def set_scoring_timeout_s(self, scoring_timeout_s: float) -> None:
        """Set the maximum duration of one call of a reward function, in seconds."""
        self.scoring_timeout_s = scoring_timeout_s

    def add_score_object_provider(self, provider: Callable[[State], Mapping[str, Any]]) -> None:
        """Offer objects that depend on the rollout."""
        self.score_object_providers.append(provider)

    def add_group_score_object_provider(
        self, provider: Callable[[list[State]], Mapping[str, Any]]
    ) -> None:
        """Offer objects that depend on the group."""
        self.group_score_object_providers.append(provider)

    def add_cleanup_handler(self, handler: Callable[..., Any]) -> None:
        """Run `handler(state)` after a rollout was scored."""
        self._cleanup_handlers.append(handler)

    # ----------------------------------------------------------------------------------------- inspecting

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return self.funcs

    def _get_reward_weights(self) -> list[float]:
        return self.weights

    def _get_reward_func_names(self) -> list[str]:
        return [function_name(func) for func in self._get_reward_funcs()]

    @property
    def has_group_rewards(self) -> bool:
        """Whether some reward function needs all rollouts of an example."""
        return any(call.per_group for call in self.reward_calls())

    @property
    def has_advantages(self) -> bool:
        """Whether the rubric computes its own advantages (`@vf.advantage`)."""
        return bool(self._advantage_funcs)

    def reward_calls(self) -> list[RewardCall]:
        """Return the bound functions. They are bound again only if functions or weights have changed."""
        funcs, weights = self._get_reward_funcs(), self._get_reward_weights()
        if self._bound is None or self._bound[0] != funcs or self._bound[1] != weights:
            calls: list[RewardCall] = []
            for func, weight in zip(funcs, weights, strict=True):
                call = self._bind(func, weight, [known.name for known in calls])
                if call.name != function_name(func):
                    self.logger.warning(
                        "Two reward functions are called %r; the later one is reported as %r.",
                        function_name(func),
                        call.name,
                    )
                calls.append(call)
            self._bound = (list(funcs), list(weights), calls)
        return self._bound[2]

    def _bind(self, func: RewardFunc, weight: float, taken: Sequence[str] = ()) -> RewardCall:
        return bind(func, weight, taken)

    # ------------------------------------------------------------------------------------------- scoring

    def score_objects(self, state: State) -> dict[str, Any]:
        """Return the objects that reward functions may name besides the fields of the rollout."""
        objects = dict(self.class_objects)
        for provider in self.score_object_providers:
            objects.update(provider(state))
        return objects

    def group_score_objects(self, states: list[State]) -> dict[str, Any]:
        """Return the objects that group reward functions may name besides the fields of the rollouts."""
        objects = dict(self.class_objects)
        for provider in self.group_score_object_providers:
            objects.update(provider(states))
        return objects

    async def score(self, states: Sequence[State]) -> list[RolloutReward]:
        """Return the rewards of the rollouts of one example, in their order. The states do not change."""
        if (parts := self.parts()) is not None:
            return await score_parts(states, parts)
        return await score_states(
            states,
            self.reward_calls(),
            self.score_objects,
            self.group_score_objects(list(states)) if self.has_group_rewards else {},
            self.scoring_timeout_s,
        )

    def parts(self) -> list[Part] | None:
        """Return the functions with their objects; None if the objects depend on the rollout or the group."""
        calls = self.reward_calls()
        if self.score_object_providers or type(self).score_objects is not Rubric.score_objects:
            return None
        limit_s = self.scoring_timeout_s
        if self._parts is None or self._parts[0] is not calls or self._parts[1] != limit_s:
            parts = [Part(call, self.class_objects, limit_s) for call in calls]
            self._parts = (calls, limit_s, None if any(call.per_group for call in calls) else parts)
        return self._parts[2]

    @also_takes_mappings
    async def score_rollout(self, state: State, score_sem: Any = None) -> None:
        """Score one rollout alone and write reward and metrics into its state.

        A group reward function receives a group of one. `score_sem` limits concurrency, as in generation (a). A crashed
        rollout is not scored: its reward is 0.0 (see `without_void`). The state may be a plain dict.
        """
        if not isinstance(state, State):
            own = State(state)
            await self.score_rollout(own, score_sem)
            state.update((key, value) for key, value in dict.items(own) if key != "input")
            return
        if await self.without_void([state]):
            write_scores([state], await _limited(self.score([state]), score_sem))

    @also_takes_mappings
    async def score_group(self, states: list[State], score_sem: Any = None, **_: Any) -> None:
        """Score the rollouts of one example and write rewards, metrics and advantages into their states.

        Reward functions and the baseline exclude crashed rollouts (see `without_void`).
        """
        scored = await self.without_void(states)
        if scored:
            write_scores(scored, await _limited(self.score(scored), score_sem))
            scored = [state for state in scored if not (state.reward_errors and is_void(state))]
        if scored:
            write_advantages(scored, await self.advantages(scored))

    async def without_void(self, states: list[State]) -> list[State]:
        """Return the states to score. The other rollouts crashed, or infrastructure failed: 0.0 is written at once as
        their reward and advantage, and their metrics of weight 0 are measured.
        """
        if all(state.error is None for state in states):
            return states
        scored: list[State] = []
        for state in states:
            if state.error is not None and voids_reward(state.error):
                write_void(state, await self.measure(state))
            else:
                scored.append(state)
        return scored

    async def measure(self, state: State) -> dict[str, float]:
        """Return the metrics of a rollout whose reward is void; see `scoring.measured`."""
        kind = type(self)
        if kind.score is not Rubric.score or kind.score_rollout is not Rubric.score_rollout:
            return {}  # the functions of a rubric that scores in its own way cannot be called one by one
        calls = self.reward_calls()
        return await measured(calls, state, self.score_objects(state), self.scoring_timeout_s)

    async def advantages(self, states: list[State]) -> list[float]:
        """Return the advantages of scored rollouts of one example: those of `@vf.advantage`, else reward minus mean.

        Raises RewardError unless the marked method returns one finite number per rollout, and ConfigError if several
        methods are marked.
        """
        if not self._advantage_funcs:
            return group_advantages([state.reward or 0.0 for state in states])
        if len(self._advantage_funcs) > 1:
            names = ", ".join(function_name(func) for func in self._advantage_funcs)
            raise ConfigError(f"Only one function may give the advantages; there are {names}.")
        [func] = self._advantage_funcs
        given = func(states)
        if inspect.isawaitable(given):
            given = await given
        return [float(value) for value in bind(func, 1.0).numbers(given, len(states))]

    @also_takes_mappings
    async def dummy_score_rollout(self, state: State) -> None:
        """Write reward 0.0 without running any function (`score_rollouts=False`)."""
        write_scores([state], [RolloutReward(0.0, {}, [])])

    @also_takes_mappings
    async def dummy_score_group(self, states: list[State]) -> None:
        """Write reward 0.0 for a whole group without running any function."""
        write_scores(states, [RolloutReward(0.0, {}, []) for _ in states])

    # ------------------------------------------------------------------- called by rubrics of older releases

    def _is_group_func(self, func: RewardFunc) -> bool:
        return is_group_function(func)

    async def _call_individual_reward_func(self, func: RewardFunc, state: State, **_: Any) -> float:
        with as_states([state]) as [own]:
            objects = self.score_objects(own)
            return await call_individual(
                self._bind(func, 1.0), own, objects, self.scoring_timeout_s
            )

    async def _call_group_reward_func(
        self, func: RewardFunc, states: list[State], **_: Any
    ) -> list[float]:
        with as_states(states) as own:
            objects = self.group_score_objects(own)
            return await call_for_group(bind(func, 1.0), own, objects, self.scoring_timeout_s)

    # ------------------------------------------------------------------------------------------- the end

    @also_takes_mappings
    async def cleanup(self, state: State) -> None:
        """Run the cleanup handlers of one rollout. A handler that raises is logged and does not stop the others.

        A handler with an argument that the rollout does not have is recorded among the errors of the rollout.
        """
        for handler in self._cleanup_handlers:
            try:
                arguments = self._cleanup_arguments(handler, state)
            except RewardError as error:
                self.logger.error("%s", error)
                note_scoring_error(state, error, handler, function_name(handler))
                continue
            try:
                result = handler(**arguments)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                self.logger.exception("Cleanup handler %s failed", function_name(handler))

    def _cleanup_arguments(self, handler: Callable[..., Any], state: State) -> dict[str, Any]:
        offered = {
            **offered_by(state, self.class_objects),
            **self.cleanup_objects(handler, state),
        }
        call = bind(handler, 0.0)
        unknown = [name for name in call.required if name not in offered and name not in state]
        if len(unknown) == 1 and "state" not in call.wants:
            offered[unknown[0]] = (
                state  # `def handler(self, s)`: v0 passed only the state, by position
            )
        elif unknown:
            raise RewardError(
                f"The cleanup handler {call.name!r} asks for {', '.join(map(repr, sorted(unknown)))}. It may ask for "
                f"{sorted(offered)} and the keys of the state."
            )
        return call.arguments(offered, state.__getitem__)

    def cleanup_objects(self, handler: Callable[..., Any], state: State) -> dict[str, Any]:
        """Return the objects that a cleanup handler may name besides `state` and the class objects."""
        return {}

    async def teardown(self) -> None:
        """Run the teardown handlers, once, when the environment is closed."""
        for handler in self._teardown_handlers:
            result = handler()
            if inspect.isawaitable(result):
                await result


async def _limited(scoring: Any, limit: Any) -> Any:
    if limit is None:
        return await scoring
    async with limit:
        return await scoring


def _check_callable(func: Any) -> None:
    if not callable(func):
        raise ConfigError(
            f"A reward function must be callable; got {type(func).__name__}: {func!r:.200}"
        )


def _marked_weight(func: Any) -> float:
    """Return the weight of `@vf.reward(weight=…)`, 0 for `@vf.metric`, else 1."""
    if getattr(func, "metric", None) is True:
        return 0.0
    return (
        float(getattr(func, "reward_weight", 1.0)) if getattr(func, "reward", None) is True else 1.0
    )
