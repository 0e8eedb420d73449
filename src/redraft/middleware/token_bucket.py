"""Token buckets: limits on requests and tokens per minute, spread evenly over the minute.

A bucket knows only the time; `endpoint_limiter` decides which calls wait.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

# seconds of the rate that may be taken at once: not enough to exceed a limit per minute
BURST_SECONDS = 1.0


class TokenBucket:
    """A bucket that fills at `per_minute` and holds the amount of `burst_seconds`, at least 1.

    A request for more than its capacity takes a full bucket and leaves a debt. A rate that is
    infinite is no limit.
    """

    def __init__(
        self, per_minute: float, clock: Callable[[], float], burst_seconds: float = BURST_SECONDS
    ) -> None:
        self._rate, self._burst_seconds = per_minute / 60.0, burst_seconds
        self._capacity = max(1.0, self._rate * burst_seconds)
        self._level = self._capacity
        self._clock = clock
        self._updated_at = clock()

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return self._rate < inf

    def resize(self, per_minute: float) -> None:
        """Change the rate."""
        self._refill()
        self._rate = per_minute / 60.0
        self._capacity = max(1.0, self._rate * self._burst_seconds)

    def seconds_until(self, amount: float) -> float:
        """Seconds until `amount` may be taken; 0: now."""
        self._refill()
        lacking = min(amount, self._capacity) - self._level
        return max(lacking / self._rate, 0.0) if lacking > 1e-9 else 0.0

    def consume(self, amount: float) -> None:
        """Take an amount, even if it is not available. A negative amount is returned to the
        bucket.
        """
        self._refill()
        self._level = min(self._level - amount, self._capacity)

    def _refill(self) -> None:
        now = self._clock()
        if self.is_limited:
            self._level = min(self._level + (now - self._updated_at) * self._rate, self._capacity)
        self._updated_at = now
