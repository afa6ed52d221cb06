"""`OlderAccessors`: methods by which trainers and rubrics of older releases read the functions of a rubric."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from verifiers.types import RewardFunc


class OlderAccessors:
    """Names, functions and weights of a rubric: all of them, those of single rollouts, and those of groups."""

    @abstractmethod
    def _get_reward_funcs(self) -> list[RewardFunc]: ...

    @abstractmethod
    def _get_reward_weights(self) -> list[float]: ...

    @abstractmethod
    def _get_reward_func_names(self) -> list[str]: ...

    @abstractmethod
    def reward_calls(self) -> Sequence[Any]:
        """Return the functions, bound."""

    def get_reward_func_names(self) -> list[str]:
        """Return the names of the reward functions."""
        return self._get_reward_func_names()

    def get_reward_funcs(self) -> list[RewardFunc]:
        """Return the reward functions."""
        return self._get_reward_funcs()

    def get_reward_weights(self) -> list[float]:
        """Return the weights of the reward functions."""
        return self._get_reward_weights()

    def _of_kind(self, per_group: bool) -> list[Any]:
        return [call for call in self.reward_calls() if call.per_group is per_group]

    def _get_individual_reward_funcs(self) -> list[RewardFunc]:
        return [call.func for call in self._of_kind(False)]

    def _get_individual_reward_func_names(self) -> list[str]:
        return [call.name for call in self._of_kind(False)]

    def _get_individual_reward_weights(self) -> list[float]:
        return [call.weight for call in self._of_kind(False)]

    def _get_group_reward_funcs(self) -> list[RewardFunc]:
        return [call.func for call in self._of_kind(True)]

    def _get_group_reward_func_names(self) -> list[str]:
        return [call.name for call in self._of_kind(True)]

    def _get_group_reward_weights(self) -> list[float]:
        return [call.weight for call in self._of_kind(True)]
