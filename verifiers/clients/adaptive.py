"""How many requests an endpoint bears: additive increase, multiplicative decrease (AIMD), without any clock or I/O.

Slow start doubles the limit after every clean round; the first refusal (429) ends it and cuts the limit to 80 %; from
then on it grows by 5 % a round. A round is `max(limit, 4)` successes. After a cut nothing changes until the cooldown
has passed. The constants are those of Inspect's controller. Times are seconds of any monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_LIMIT = 20
LEAST_LIMIT = 1
CUT_FACTOR = 0.8
GROWTH_FACTOR = 0.05
GROWTH_STEP = 5
"""Above this the limit stays a multiple of it: a limit that people read should not jitter."""
LEAST_ROUND = 4
COOLDOWN_S = 15.0
BUSY_SHARE = 0.8
"""The limit grows only if the peak of requests in flight came this close to it: an idle limit says nothing."""


@dataclass(slots=True)
class AdaptiveLimit:
    """The number of requests that may be in flight, and why it last changed."""

    most: int = 28000
    limit: int = FIRST_LIMIT
    history: list[tuple[float, int]] = field(default_factory=list)
    """(time, new limit) of every change, oldest first."""
    in_flight: int = 0
    _peak: int = 0
    _successes: int = 0
    _is_slow_start: bool = True
    _quiet_until_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.limit = max(LEAST_LIMIT, min(self.limit, self.most))

    @property
    def has_room(self) -> bool:
        """Whether one more request may start."""
        return self.in_flight < self.limit

    def started(self) -> None:
        """A request has started."""
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def succeeded(self, now_s: float) -> None:
        """A request was answered."""
        self.in_flight -= 1
        if now_s < self._quiet_until_s:
            return
        self._successes += 1
        if self._successes < max(self.limit, LEAST_ROUND):
            return
        if self._peak >= BUSY_SHARE * self.limit:
            self._change(self._grown(), now_s)
        self._start_round()

    def rate_limited(
        self, now_s: float, *, started_s: float, retry_after_s: float | None = None
    ) -> bool:
        """A request was refused with 429; gives whether this controller is to blame.

        It is when the request started before the last cut took effect, or when the limit can still go down: then the
        refusal says "too many at once", not "you are out of quota", and it should not count as a failed attempt.
        """
        self.in_flight -= 1
        self._is_slow_start = False
        if now_s < self._quiet_until_s:
            if retry_after_s is not None:
                self._quiet_until_s = max(self._quiet_until_s, now_s + retry_after_s)
            return True
        to_blame = self.limit > LEAST_LIMIT
        self._change(max(LEAST_LIMIT, _rounded_down(int(self.limit * CUT_FACTOR))), now_s)
        self._quiet_until_s = now_s + (COOLDOWN_S if retry_after_s is None else retry_after_s)
        self._start_round()
        return to_blame or started_s < self._cut_s

    def troubled(self) -> None:
        """A request failed for another reason (5xx, time limit): no cut, but the round starts again."""
        self.in_flight -= 1
        self._start_round()

    @property
    def _cut_s(self) -> float:
        return self.history[-1][0] if self.history else float("-inf")

    def _grown(self) -> int:
        if self._is_slow_start:
            return min(self.most, self.limit * 2)
        step = max(1, int(self.limit * GROWTH_FACTOR))
        if self.limit >= GROWTH_STEP:
            step = max(GROWTH_STEP, step - step % GROWTH_STEP)
        return min(self.most, self.limit + step)

    def _change(self, limit: int, now_s: float) -> None:
        if limit != self.limit:
            self.limit = limit
            self.history.append((now_s, limit))

    def _start_round(self) -> None:
        self._successes = 0
        self._peak = self.in_flight


def _rounded_down(limit: int) -> int:
    return limit - limit % GROWTH_STEP if limit > GROWTH_STEP else limit
