"""`RubricGroup`: several rubrics as one. Rewards and metrics of equal names add up, independent of the order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from verifiers.errors import ConfigError
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.scoring import Part, RolloutReward, merge, score_parts
from verifiers.state import State
from verifiers.types import RewardFunc


class RubricGroup(Rubric):
    """Scores with each of its rubrics and merges the results."""

    def __init__(self, rubrics: Sequence[Rubric], **kwargs: Any) -> None:
        if not rubrics:
            raise ConfigError("RubricGroup must have at least one rubric")
        super().__init__(**kwargs)
        self.rubrics: list[Rubric] = list(rubrics)

    def _get_reward_funcs(self) -> list[RewardFunc]:
        return [func for rubric in self.rubrics for func in rubric._get_reward_funcs()]

    def _get_reward_weights(self) -> list[float]:
        return [weight for rubric in self.rubrics for weight in rubric._get_reward_weights()]

    @property
    def has_group_rewards(self) -> bool:
        """Whether a rubric of the group needs all rollouts of an example."""
        return any(rubric.has_group_rewards for rubric in self.rubrics)

    @property
    def has_advantages(self) -> bool:
        """Whether a rubric of the group computes its own advantages."""
        return super().has_advantages or any(rubric.has_advantages for rubric in self.rubrics)

    async def advantages(self, states: list[State]) -> list[float]:
        """Return the advantages of the rubric that computes them, else reward minus mean."""
        giving = [rubric for rubric in self.rubrics if rubric.has_advantages]
        if not giving:
            return await super().advantages(states)
        if len(giving) > 1 or self._advantage_funcs:
            raise ConfigError("Only one rubric of a group may compute the advantages; several do.")
        return await giving[0].advantages(states)

    def add_reward_func(self, func: RewardFunc, weight: float = 1.0) -> None:
        """Add a reward function to the first rubric."""
        self._check_members()
        self.rubrics[0].add_reward_func(func, weight)

    def add_metric(self, func: RewardFunc, weight: float = 0.0) -> None:
        """Add a metric to the first rubric."""
        self._check_members()
        self.rubrics[0].add_metric(func, weight)

    def _check_members(self) -> None:
        if not self.rubrics:  # a caller has emptied the list; v0 raised this class too
            raise AssertionError("RubricGroup must have at least one rubric")

    def add_class_object(self, name: str, obj: Any) -> None:
        """Offer an object to the reward functions of every rubric."""
        for rubric in self.rubrics:
            rubric.add_class_object(name, obj)

    def set_scoring_timeout_s(self, scoring_timeout_s: float) -> None:
        """Set the limit in every rubric."""
        super().set_scoring_timeout_s(scoring_timeout_s)
        for rubric in self.rubrics:
            rubric.set_scoring_timeout_s(scoring_timeout_s)

    def add_score_object_provider(self, provider: Callable[[State], Any]) -> None:
        """Offer objects that depend on the rollout, in every rubric."""
        for rubric in self.rubrics:
            rubric.add_score_object_provider(provider)

    def add_group_score_object_provider(self, provider: Callable[[list[State]], Any]) -> None:
        """Offer objects that depend on the group, in every rubric."""
        for rubric in self.rubrics:
            rubric.add_group_score_object_provider(provider)

    async def score(self, states: Sequence[State]) -> list[RolloutReward]:
        """Return the merged results of all rubrics, in the order of the states."""
        if (parts := self.parts()) is not None:
            return await score_parts(states, parts)
        by_rubric = [await scores_of(rubric, states) for rubric in self.rubrics]
        return [merge(scores) for scores in zip(*by_rubric, strict=True)]

    async def measure(self, state: State) -> dict[str, float]:
        """Return the metrics of all rubrics for a rollout whose reward is void."""
        metrics: dict[str, float] = {}
        for rubric in self.rubrics:
            for name, value in (await rubric.measure(state)).items():
                metrics[name] = metrics.get(name, 0.0) + value
        return metrics

    def parts(self) -> list[Part] | None:
        """Return the functions of all rubrics in one list; None if a rubric scores in its own way."""
        parts: list[Part] = []
        for rubric in self.rubrics:
            own = rubric.parts() if scores_plainly(rubric) else None
            if own is None:
                return None
            parts += own
        return parts

    async def cleanup(self, state: State) -> None:
        """Clean up in every rubric."""
        await super().cleanup(state)
        for rubric in self.rubrics:
            await rubric.cleanup(state)

    async def teardown(self) -> None:
        """Tear down every rubric."""
        await super().teardown()
        for rubric in self.rubrics:
            await rubric.teardown()


def scores_plainly(rubric: Rubric) -> bool:
    """Whether a rubric scores by its functions alone, with none of v0's scoring methods overridden."""
    kind = type(rubric)
    return (
        kind.score_group is Rubric.score_group
        and kind.score_rollout is Rubric.score_rollout
        and kind.score in (Rubric.score, RubricGroup.score)
    )


async def scores_of(rubric: Rubric, states: Sequence[State]) -> list[RolloutReward]:
    """Score by any rubric, including one that overrides v0's methods and writes into states.

    Such a rubric works on copies of the states and of their steps, from which reward and metrics are read back.
    """
    kind = type(rubric)
    writes_group = kind.score_group is not Rubric.score_group
    writes_rollout = kind.score_rollout is not Rubric.score_rollout
    if not (writes_group or writes_rollout) or kind.score is not Rubric.score:
        return await rubric.score(states)
    scratch = [_scratch(state) for state in states]
    if writes_group and (len(states) > 1 or not writes_rollout):
        await _write(rubric.score_group, scratch)
    else:
        for state in scratch:
            await _write(rubric.score_rollout, state)
    framework = {"reward", "metrics", "advantage", "reward_errors", "score_details", "trajectory"}
    for state, copied in zip(states, scratch, strict=True):
        state.update({key: value for key, value in copied.items() if key not in framework})
    return [
        RolloutReward(
            float(s.reward or 0.0), dict(s.metrics or {}), s.reward_errors or [], s.score_details
        )
        for s in scratch
    ]


async def _write(method: Callable[..., Any], scratch: State | list[State]) -> None:
    """Call an author's scoring method, also in 0.1.8's form `(state, score_sem)`."""
    semaphore = inspect.signature(method).parameters.get("score_sem")
    wanted = semaphore is not None and semaphore.default is semaphore.empty
    await (method(scratch, nullcontext()) if wanted else method(scratch))


def _scratch(state: State) -> State:
    copied = state.copy()
    copied.trajectory = [step.copy() for step in state.trajectory or []]  # type: ignore[misc]  # TypedDict.copy
    copied.reward = copied.metrics = copied.score_details = None
    return copied
