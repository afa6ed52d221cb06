"""How often a caller may ask. Pure but for the clock."""

import time
from collections.abc import Callable

from hub_server.errors import TooManyRequests

MAX_KEYS = 50_000


class RateLimiter:
    """A bucket of `per_minute` requests for each key, filled evenly; each worker has its own."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str) -> int:
        """Use one request of the key's bucket; how many are left.

        Raises TooManyRequests, with the seconds until the next one, when the bucket is empty.
        """
        now = self._clock()
        level, then = self._buckets.get(key, (float(self.per_minute), now))
        level = min(float(self.per_minute), level + (now - then) * self.per_minute / 60.0)
        if level < 1.0:
            self._buckets[key] = (level, now)
            wait_s = (1.0 - level) * 60.0 / self.per_minute
            raise TooManyRequests("Too many requests; slow down.", wait_s)
        if len(self._buckets) >= MAX_KEYS and key not in self._buckets:
            # A full bucket says nothing: forget those, and under attack the oldest half.
            self._buckets = dict(list(self._buckets.items())[MAX_KEYS // 2 :])
        self._buckets[key] = (level - 1.0, now)
        return int(level - 1.0)
