"""Limits that end a rollout normally: it stops with a stop condition and is scored as it is."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from verifiers.errors import ConfigError
from verifiers.run_options import ROLLOUT_OPTIONS, RolloutOptions
from verifiers.state import State


@dataclass(kw_only=True)
class RolloutLimits(RolloutOptions):
    """Limits of one rollout, with the prices that a cost limit needs; None means no limit."""

    input_usd_per_token: float | None = None
    output_usd_per_token: float | None = None

    def __post_init__(self) -> None:
        if self.max_cost_usd is not None and self.input_usd_per_token is None:
            raise ConfigError(
                f"A cost limit (max_cost_usd={self.max_cost_usd:g}) needs prices; give a price table."
            )
        for option in ROLLOUT_OPTIONS:
            value = getattr(self, option.name)
            if value is not None and option.is_positive and value <= 0:
                raise ConfigError(f"{option.name} must be positive; got {value}.")

    @classmethod
    def from_request(cls, request: Mapping[str, Any] | None) -> RolloutLimits:
        """Return the limits of a request to a worker. Raises ConfigError for a limit that is not valid."""
        names = {wire: name for name, wire in _wire_names().items()}
        return cls(**{names[key]: value for key, value in (request or {}).items()})

    def as_request(self) -> dict[str, Any] | None:
        """Return the limits for a request to a worker, by their names there; None if no option is set."""
        values = {wire: getattr(self, name) for name, wire in _wire_names().items()}
        return {name: value for name, value in values.items() if value is not None} or None

    @property
    def are_set(self) -> bool:
        """Whether any limit is set."""
        return (self.rollout_timeout_s, self.max_total_tokens, self.max_cost_usd) != (None,) * 3

    def tokens_reached(self, state: State) -> bool:
        """Whether the rollout has used all the tokens that the limit allows."""
        if self.max_total_tokens is None:
            return False
        usage = state.usage_tracker or state.usage
        return usage["input_tokens"] + usage["output_tokens"] >= self.max_total_tokens

    def cost_reached(self, state: State) -> bool:
        """Whether the rollout has reached its cost limit."""
        if self.max_cost_usd is None:
            return False
        usage = state.usage_tracker or state.usage
        cost_usd = usage["input_tokens"] * (self.input_usd_per_token or 0.0)
        cost_usd += usage["output_tokens"] * (self.output_usd_per_token or 0.0)
        return cost_usd >= self.max_cost_usd


def _wire_names() -> dict[str, str]:
    declared = {option.name: option.wire or option.name for option in ROLLOUT_OPTIONS}
    return {one.name: declared.get(one.name, one.name) for one in fields(RolloutLimits)}


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
