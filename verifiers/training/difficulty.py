"""Select the next example: pools by past success of the policy, and a mixture of environments.

An example is easy, normal or hard by its past mean reward; an untried example is normal. Without a mixture of pools
or environments, examples come in one shuffled order, once per epoch.
Source: online difficulty filtering in INTELLECT-3, https://arxiv.org/abs/2512.16144.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from verifiers.errors import ConfigError


class Difficulty(StrEnum):
    """Difficulty of an example for the current policy."""

    EASY = "easy"
    NORMAL = "normal"
    HARD = "hard"


class DifficultyConfig(BaseModel):
    """Thresholds of easy and hard examples, and the weights of the pools."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    easy_from: float = 0.8
    """Examples with at least this mean reward are easy."""
    hard_up_to: float = 0.2
    """Examples with at most this mean reward are hard."""
    mixture: dict[Difficulty, float] = Field(default_factory=dict)
    """Weight of each pool, as in {"easy": 0.1, "normal": 0.8, "hard": 0.1}. A pool with weight 0 is drawn only when
    the others are empty. With an empty mapping, pools are counted but not used.
    """
    newest_weight: float = Field(default=0.5, gt=0, le=1)
    """Weight of an example's newest group in its mean reward; 1 ignores all earlier groups."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.hard_up_to >= self.easy_from:
            raise ValueError(
                f"hard_up_to={self.hard_up_to:g} must lie below easy_from={self.easy_from:g}"
            )
        check_weights("mixture", self.mixture)
        return self


def check_weights(name: str, weights: Mapping[Any, float]) -> None:
    """Raise ValueError unless the weights are empty, or at least 0 with a positive sum."""
    if weights and (min(weights.values()) < 0 or not sum(weights.values()) > 0):
        raise ValueError(
            f"{name}={dict(weights)}: weights must be at least 0, and at least one of them positive"
        )


class ExampleSampler:
    """Draws examples by number. `env_names[i]` is the environment of example i, "" if there is only one."""

    def __init__(
        self,
        env_names: Sequence[str],
        *,
        seed: int = 0,
        difficulty: DifficultyConfig | None = None,
        env_weights: Mapping[str, float] | None = None,
    ) -> None:
        if not env_names:
            raise ConfigError("There are no examples to train on.")
        self._difficulty = difficulty or DifficultyConfig()
        self._env_names = list(env_names)
        self._env_weights = dict(env_weights or {})
        known = set(self._env_names)
        if unknown := sorted(set(self._env_weights) - known):
            raise ConfigError(
                f"env_weights names {unknown}; the environments with examples are {sorted(known)}."
            )
        check_weights("env_weights", self._env_weights)
        self._random = random.Random(seed)
        self._mean_rewards: dict[int, float] = {}
        order = list(range(len(self._env_names)))
        self._random.shuffle(order)
        # One queue per environment with a separate weight and per pool that is drawn separately.
        self._lines: dict[tuple[str, Difficulty], deque[int]] = {}
        for example in order:
            self._lines.setdefault(self._line_of(example), deque()).append(example)

    def __len__(self) -> int:
        return len(self._env_names)

    def draw(self) -> int:
        """Return the next example."""
        while True:
            line = self._lines[self._choose()]
            example = line.popleft()
            own = self._line_of(example)
            self._lines.setdefault(own, deque()).append(example)
            # An example that changed its pool moves when it is drawn, so that an update costs nothing.
            if self._lines[own] is line:
                return example

    def observe(self, example: int, mean_reward: float) -> None:
        """Record the mean reward of a finished group of the example."""
        before = self._mean_rewards.get(example)
        weight = self._difficulty.newest_weight if before is not None else 1.0
        self._mean_rewards[example] = weight * mean_reward + (1 - weight) * (before or 0.0)

    def difficulty_of(self, example: int) -> Difficulty:
        """Return the current pool of an example."""
        mean = self._mean_rewards.get(example)
        if mean is None:
            return Difficulty.NORMAL
        if mean >= self._difficulty.easy_from:
            return Difficulty.EASY
        return Difficulty.HARD if mean <= self._difficulty.hard_up_to else Difficulty.NORMAL

    def pool_sizes(self) -> dict[Difficulty, int]:
        """Return the number of examples in each pool."""
        sizes = dict.fromkeys(Difficulty, 0)
        for example in self._mean_rewards:
            sizes[self.difficulty_of(example)] += 1
        sizes[Difficulty.NORMAL] += len(self) - len(self._mean_rewards)
        return sizes

    def _line_of(self, example: int) -> tuple[str, Difficulty]:
        env = self._env_names[example] if self._env_weights else ""
        mixed = bool(self._difficulty.mixture)
        return env, self.difficulty_of(example) if mixed else Difficulty.NORMAL

    def _choose(self) -> tuple[str, Difficulty]:
        filled = [line for line, examples in self._lines.items() if examples]
        envs = sorted({env for env, _ in filled})
        env = self._weighted(envs, [self._env_weights.get(e, 0.0) for e in envs])
        pools = sorted(pool for name, pool in filled if name == env)
        return env, self._weighted(pools, [self._difficulty.mixture.get(p, 0.0) for p in pools])

    def _weighted(self, values: list[Any], weights: list[float]) -> Any:
        if len(values) == 1:
            return values[0]
        if not sum(weights) > 0:
            weights = [1.0] * len(values)
        return self._random.choices(values, weights)[0]

    # ------------------------------------------------------------------------------------------ resuming

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state that decides the next draws, as JSON values."""
        version, internal, gauss = self._random.getstate()
        return {
            "examples": len(self),
            "random": [version, list(internal), gauss],
            "mean_rewards": [[example, mean] for example, mean in self._mean_rewards.items()],
            "lines": [[env, pool, list(line)] for (env, pool), line in self._lines.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`. Raise ConfigError if the examples differ."""
        if state["examples"] != len(self):
            raise ConfigError(
                f"The saved state has {state['examples']} examples, but the environment has {len(self)}. "
                "Resume with the same environment and number of examples."
            )
        version, internal, gauss = state["random"]
        self._random.setstate((version, tuple(internal), gauss))
        self._mean_rewards = dict(state["mean_rewards"])
        self._lines = {}
        # Weights may have changed since: every example goes into the queue it belongs to now, in the saved order.
        for _, _, line in state["lines"]:
            for example in line:
                self._lines.setdefault(self._line_of(example), deque()).append(example)
