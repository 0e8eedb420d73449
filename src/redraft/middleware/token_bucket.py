"""Token buckets: limits on requests and tokens per minute, spread evenly over the minute.

A bucket knows only the time; `endpoint_limiter` decides which calls wait.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base import checks

BURST_SECONDS = (
    1.0  # seconds of the rate that may be taken at once: not enough to exceed a limit per minute
)


class TokenBucket:
    """A bucket that fills at `per_minute` and holds the amount of `burst_seconds`, at least 1.

    A request for more than its capacity takes a full bucket and leaves a debt.
    """

    def __init__(
        self, per_minute: float, clock: Callable[[], float], burst_seconds: float = BURST_SECONDS
    ) -> None:
        self._rate, self._burst_seconds = per_minute / 60.0, burst_seconds
        self._capacity = max(1.0, self._rate * burst_seconds)
        self._level = self._capacity
        self._clock = clock
        self._updated_at = clock()

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
        self._level = min(self._level + (now - self._updated_at) * self._rate, self._capacity)
        self._updated_at = now


class RateLimits:
    """Limits on requests (`rpm`) and tokens (`tpm`) per minute; None: no limit. Raises ConfigError
    for an invalid limit.
    """

    def __init__(self, rpm: float | None, tpm: float | None, clock: Callable[[], float]) -> None:
        self._requests = _bucket("rpm", rpm, clock)
        self._tokens = _bucket("tpm", tpm, clock)

    def resize(self, rpm: float | None, tpm: float | None) -> None:
        """Change the rates; a rate that was not limited stays unlimited."""
        if self._requests and rpm is not None:
            self._requests.resize(rpm)
        if self._tokens and tpm is not None:
            self._tokens.resize(tpm)

    def seconds_until(self, tokens: float) -> float:
        """Seconds until a call of this many tokens may start."""
        requests = self._requests.seconds_until(1) if self._requests else 0.0
        return max(requests, self._tokens.seconds_until(tokens)) if self._tokens else requests

    def consume(self, tokens: float) -> None:
        """Take what a call is estimated to need."""
        if self._requests:
            self._requests.consume(1)
        if self._tokens:
            self._tokens.consume(tokens)

    def settle(self, estimated_tokens: float, used_tokens: int | None) -> None:
        """Correct the estimate to what the call used; None (unknown) leaves it."""
        if self._tokens and used_tokens is not None:
            self._tokens.consume(used_tokens - estimated_tokens)


def _bucket(name: str, per_minute: float | None, clock: Callable[[], float]) -> TokenBucket | None:
    if per_minute is None:
        return None
    checks.positive(name, per_minute)
    return TokenBucket(per_minute, clock)
