"""Where the time and the tokens of a rollout went: small objects with slots that read as mappings."""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from verifiers.types import TokenUsage


class _Fields(MutableMapping[str, Any]):
    """Slots read as a mapping: timing objects are too many to be dicts."""

    __slots__ = ()
    _names: ClassVar[tuple[str, ...]] = ()

    def __getitem__(self, key: str) -> Any:
        try:
            return getattr(self, key)
        except AttributeError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        raise TypeError(f"{type(self).__name__} fields cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={self[n]!r}' for n in self._names)})"

    def model_dump(self, **_: Any) -> dict[str, Any]:
        """A plain dict of the fields."""
        return {
            name: value.model_dump() if isinstance(value, _Fields) else _dumped(value)
            for name, value in self.items()
        }


def _dumped(value: Any) -> Any:
    return [item.model_dump() for item in value] if isinstance(value, list) else value


class TimeSpan(_Fields):
    """From `start` to `end`, in seconds since the epoch; `duration` is 0 while it has not ended."""

    __slots__ = ("end", "start")
    _names = ("start", "end", "duration")

    def __init__(self, start: float = 0.0, end: float = 0.0) -> None:
        self.start = start
        self.end = end

    @property
    def duration(self) -> float:
        """Seconds from start to end, never negative."""
        return max(0.0, self.end - self.start) if self.end else 0.0


class TimeSpans(_Fields):
    """Spans of repeated work, e.g. of every model call; `duration` is their sum in seconds."""

    __slots__ = ("spans",)
    _names = ("spans", "duration")

    def __init__(self, spans: list[TimeSpan] | None = None) -> None:
        self.spans = spans if spans is not None else []

    @property
    def duration(self) -> float:
        """Sum of the spans, in seconds."""
        return sum(span.duration for span in self.spans)


class RolloutTiming(_Fields):
    """Where the time of a rollout went, in seconds; `*_ms` names of generation (a) read as milliseconds."""

    __slots__ = ("env", "generation", "model", "scoring", "setup", "start_time")
    _names = ("start_time", "setup", "generation", "scoring", "model", "env", "total", "overhead")

    def __init__(
        self,
        start_time: float | None = None,
        setup: TimeSpan | None = None,
        generation: TimeSpan | None = None,
        scoring: TimeSpan | None = None,
        model: TimeSpans | None = None,
        env: TimeSpans | None = None,
        *,
        generation_ms: float | None = None,
        scoring_ms: float | None = None,
        total_ms: float | None = None,
    ) -> None:
        self.start_time = time.time() if start_time is None else start_time
        self.setup = setup or TimeSpan()
        self.generation = generation or TimeSpan()
        self.scoring = scoring or TimeSpan()
        self.model = model or TimeSpans()
        self.env = env or TimeSpans()
        if (generation_ms, scoring_ms, total_ms) != (None, None, None):
            self._take_ms(generation_ms or 0.0, scoring_ms or 0.0, total_ms)

    def _take_ms(self, generation_ms: float, scoring_ms: float, total_ms: float | None) -> None:
        """Lay generation and scoring one after the other, so that both and the total read as they were given."""
        total_s = (generation_ms + scoring_ms if total_ms is None else total_ms) / 1000
        end = self.start_time + total_s
        scored_from = end - scoring_ms / 1000
        self.generation = TimeSpan(scored_from - generation_ms / 1000, scored_from)
        self.scoring = TimeSpan(scored_from, end)

    @property
    def generation_ms(self) -> float:
        """Duration of generation, in milliseconds."""
        return 1000 * self.generation.duration

    @property
    def scoring_ms(self) -> float:
        """Duration of scoring, in milliseconds."""
        return 1000 * self.scoring.duration

    @property
    def total_ms(self) -> float:
        """`total`, in milliseconds."""
        return 1000 * self.total

    @property
    def total(self) -> float:
        """Seconds from the start to the end of scoring, or of generation when nothing was scored."""
        end = self.scoring.end or self.generation.end
        return max(0.0, end - self.start_time) if end else 0.0

    @property
    def overhead(self) -> float:
        """Seconds spent neither on the model, nor in the environment, nor in setup and scoring."""
        known = self.setup.duration + self.scoring.duration
        return max(0.0, self.total - known - self.model.duration - self.env.duration)


class StateUsageTracker(dict[str, Any]):
    """Tokens a rollout has used so far: `state["usage"]`, and `state["usage_tracker"]` of v0."""

    __slots__ = ()

    def __init__(self, input_tokens: float = 0.0, output_tokens: float = 0.0) -> None:
        super().__init__(input_tokens=input_tokens, output_tokens=output_tokens)

    def increment(
        self, input_tokens: float = 0, output_tokens: float = 0, *, mark_seen: bool = True
    ) -> None:
        """Add tokens of a call the environment made itself."""
        self["input_tokens"] += input_tokens
        self["output_tokens"] += output_tokens

    def increment_from_response(self, response: Any) -> None:
        """Add the tokens that a response reports."""
        usage = getattr(response, "usage", None)
        if usage is not None:
            self["input_tokens"] += getattr(usage, "prompt_tokens", 0) or 0
            self["output_tokens"] += getattr(usage, "completion_tokens", 0) or 0

    def snapshot(self) -> TokenUsage | None:
        """The counts so far, or None when no call has been counted."""
        if not self["input_tokens"] and not self["output_tokens"]:
            return None
        return {"input_tokens": self["input_tokens"], "output_tokens": self["output_tokens"]}
