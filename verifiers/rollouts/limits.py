"""Limits that end a rollout normally: it stops with a stop condition and is scored as it is."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from verifiers.errors import ConfigError
from verifiers.state import State


@dataclass(frozen=True)
class RolloutLimits:
    """Limits of one rollout; None means no limit."""

    timeout_s: float | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    cost_usd_of: Callable[[float, float], float] | None = None
    """Cost in US dollars of (input tokens, output tokens)."""

    def __post_init__(self) -> None:
        if self.max_cost_usd is not None and self.cost_usd_of is None:
            raise ConfigError(
                f"A cost limit (max_cost_usd={self.max_cost_usd:g}) needs prices; give a price table."
            )
        for name in ("timeout_s", "max_total_tokens", "max_cost_usd"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be positive; got {value}.")

    @property
    def are_set(self) -> bool:
        """Whether any limit is set."""
        return (self.timeout_s, self.max_total_tokens, self.max_cost_usd) != (None, None, None)

    def tokens_reached(self, state: State) -> bool:
        """Whether the rollout has used all the tokens that the limit allows."""
        if self.max_total_tokens is None:
            return False
        usage = state.usage
        return usage["input_tokens"] + usage["output_tokens"] >= self.max_total_tokens

    def cost_reached(self, state: State) -> bool:
        """Whether the rollout has reached its cost limit."""
        if self.max_cost_usd is None or self.cost_usd_of is None:
            return False
        usage = state.usage
        return self.cost_usd_of(usage["input_tokens"], usage["output_tokens"]) >= self.max_cost_usd


NO_LIMITS = RolloutLimits()
_current: ContextVar[RolloutLimits] = ContextVar("rollout_limits", default=NO_LIMITS)


def current_limits() -> RolloutLimits:
    """Return the limits of the run that this rollout belongs to."""
    return _current.get()


@contextmanager
def run_limits(limits: RolloutLimits) -> Generator[None]:
    """Apply these limits to the rollouts started in the block."""
    token = _current.set(limits)
    try:
        yield
    finally:
        _current.reset(token)
