"""Running means over rollouts under v0's names. The library itself uses `summary.RunningSummary`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol, runtime_checkable

from verifiers.runs.statistics import pass_all_k, pass_at_k, powers_of_two
from verifiers.saved_errors import is_void
from verifiers.types import RolloutOutput


@runtime_checkable
class Metric(Protocol):
    """A number, or several, that grow with every finished rollout."""

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        ...

    def add_outputs(self, outputs: list[RolloutOutput]) -> None:
        """Count several."""
        ...

    def compute(self) -> Any:
        """The value so far."""
        ...

    def reset(self) -> None:
        """Forget everything."""
        ...


class _Adding:
    """`add_outputs` in terms of `add_output`."""

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        raise NotImplementedError

    def add_outputs(self, outputs: Iterable[RolloutOutput]) -> None:
        """Count several rollouts."""
        for output in outputs:
            self.add_output(output)


class MeanMetric(_Adding, ABC):
    """The mean of one number of every rollout that has it; 0.0 when none has."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    @abstractmethod
    def extract(self, output: RolloutOutput) -> float | None:
        """The number of a rollout, or None to leave it out."""

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        value = self.extract(output)
        if value is not None:
            self._sum += value
            self._count += 1

    def reset(self) -> None:
        """Forget everything."""
        self._sum, self._count = 0.0, 0

    def compute(self) -> float:
        """The mean so far."""
        return self._sum / self._count if self._count else 0.0

    @property
    def count(self) -> int:
        """Rollouts that had the number."""
        return self._count


class RewardMetric(MeanMetric):
    """Mean reward; a missing reward, and that of a rollout that crashed, counts 0.0."""

    def extract(self, output: RolloutOutput) -> float:
        """The reward."""
        return 0.0 if is_void(output) else output.get("reward") or 0.0


class ErrorRateMetric(MeanMetric):
    """Share of rollouts that ended in an error."""

    def extract(self, output: RolloutOutput) -> float:
        """1.0 for a failed rollout."""
        return 0.0 if output.get("error") is None else 1.0


class TokenUsageKeyMetric(MeanMetric):
    """Mean of one entry of `token_usage`."""

    _key: ClassVar[str] = ""

    def extract(self, output: RolloutOutput) -> float | None:
        """The entry, if the rollout reports it."""
        return (output.get("token_usage") or {}).get(self._key)


class InputTokensMetric(TokenUsageKeyMetric):
    """Mean tokens sent."""

    _key = "input_tokens"


class OutputTokensMetric(TokenUsageKeyMetric):
    """Mean tokens written by the model."""

    _key = "output_tokens"


class FinalInputTokensMetric(TokenUsageKeyMetric):
    """Mean tokens of the last context that the model did not write."""

    _key = "final_input_tokens"


class FinalOutputTokensMetric(TokenUsageKeyMetric):
    """Mean tokens of the last context that the model wrote."""

    _key = "final_output_tokens"


class EnvMetrics(_Adding):
    """Mean of every metric, over the rollouts that have it."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        self._counts: defaultdict[str, int] = defaultdict(int)

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        for name, value in (output.get("metrics") or {}).items():
            if value is not None:
                self._sums[name] += value
                self._counts[name] += 1

    def reset(self) -> None:
        """Forget everything."""
        self._sums.clear()
        self._counts.clear()

    def compute(self) -> dict[str, float]:
        """Name → mean so far."""
        return {name: self._sums[name] / count for name, count in self._counts.items()}


class PassAtKMetric(_Adding):
    """pass@k and pass^k for k = 1, 2, 4 …, over examples that have all their rollouts; nothing for one rollout each."""

    def __init__(self, rollouts_per_example: int, threshold: float = 0.5) -> None:
        self.rollouts_per_example = rollouts_per_example
        self.threshold = threshold
        self._counts: defaultdict[Any, int] = defaultdict(int)
        self._passes: defaultdict[Any, int] = defaultdict(int)

    def add_output(self, output: RolloutOutput) -> None:
        """Count one rollout."""
        example = output.get("example_id")
        self._counts[example] += 1
        passes = (output.get("reward") or 0.0) >= self.threshold
        self._passes[example] += passes and not is_void(output)

    def reset(self) -> None:
        """Forget everything."""
        self._counts.clear()
        self._passes.clear()

    def compute(self) -> tuple[dict[str, float], dict[str, float]]:
        """(k → pass@k, k → pass^k), k as text."""
        complete = [
            (count, self._passes[example])
            for example, count in self._counts.items()
            if count >= self.rollouts_per_example
        ]
        if self.rollouts_per_example < 2 or not complete:
            return {}, {}
        ks = powers_of_two(self.rollouts_per_example)
        return (
            {str(k): sum(pass_at_k(n, c, k) for n, c in complete) / len(complete) for k in ks},
            {str(k): sum(pass_all_k(n, c, k) for n, c in complete) / len(complete) for k in ks},
        )
