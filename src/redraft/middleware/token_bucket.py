"""So many requests and tokens a minute, evenly: a bucket for each that fills as time passes.

It knows the time and nothing else of the world: who waits, and how, is the gate's business.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from ..errors import ConfigError

BURST_SECONDS = 1.0  # seconds' worth that may be taken at once: enough to be quick, too little to break a minute's limit


class TokenBucket:
    """What may be taken now of `per_minute`. Somebody who needs more than it ever holds takes it full and leaves a debt."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._rate = per_minute / 60.0
        self._capacity = max(1.0, self._rate * BURST_SECONDS)
        self._level = self._capacity
        self._clock = clock
        self._updated_at = clock()

    def resize(self, per_minute: float) -> None:
        """From now on so much a minute."""
        self._refill()
        self._rate = per_minute / 60.0
        self._capacity = max(1.0, self._rate * BURST_SECONDS)

    def seconds_until(self, amount: float) -> float:
        """Seconds until `need` may be taken; 0: now."""
        self._refill()
        lacking = min(amount, self._capacity) - self._level
        return max(lacking / self._rate, 0.0) if lacking > 1e-9 else 0.0

    def consume(self, amount: float) -> None:
        """Take it, whether it is there or not. A negative `need` gives back what was taken too much."""
        self._refill()
        self._level = min(self._level - amount, self._capacity)

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self._level + (now - self._updated_at) * self._rate, self._capacity)
        self._updated_at = now


class RateLimits:
    """Requests a minute (`rpm`) and tokens a minute (`tpm`), each None for no limit. Raises ConfigError for what is no limit."""

    def __init__(self, rpm: float | None, tpm: float | None, clock: Callable[[], float]) -> None:
        self._requests = _bucket("rpm", rpm, clock)
        self._tokens = _bucket("tpm", tpm, clock)

    def resize(self, rpm: float | None, tpm: float | None) -> None:
        """From now on so many a minute, of what is limited at all."""
        if self._requests and rpm is not None:
            self._requests.resize(rpm)
        if self._tokens and tpm is not None:
            self._tokens.resize(tpm)

    def seconds_until(self, tokens: float) -> float:
        """Seconds until a call of so many tokens may go out."""
        requests = self._requests.seconds_until(1) if self._requests else 0.0
        return max(requests, self._tokens.seconds_until(tokens)) if self._tokens else requests

    def consume(self, tokens: float) -> None:
        """A call of so many tokens, by estimate, goes out."""
        if self._requests:
            self._requests.consume(1)
        if self._tokens:
            self._tokens.consume(tokens)

    def settle(self, estimated_tokens: float, used_tokens: int | None) -> None:
        """The call took `used` tokens; where that is unknown the estimate stands."""
        if self._tokens and used_tokens is not None:
            self._tokens.consume(used_tokens - estimated_tokens)


def _bucket(name: str, per_minute: float | None, clock: Callable[[], float]) -> TokenBucket | None:
    if per_minute is None:
        return None
    if isinstance(per_minute, bool) or not isinstance(per_minute, int | float) or not isfinite(per_minute) or per_minute <= 0:
        raise ConfigError(f"{name} must be a number > 0 or None, got {per_minute!r}")
    return TokenBucket(per_minute, clock)
