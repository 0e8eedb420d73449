"""So many requests and tokens a minute, evenly: a bucket for each that fills as time passes.

It knows the time and nothing else of the world: who waits, and how, is the gate's business.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from ..errors import ConfigError

BURST = 1.0  # seconds' worth that may be taken at once: enough to be quick, too little to break a minute's limit


class Bucket:
    """What may be taken now of `per_minute`. Somebody who needs more than it ever holds takes it full and leaves a debt."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._rate = per_minute / 60.0
        self._most = max(1.0, self._rate * BURST)
        self._level = self._most
        self._clock = clock
        self._at = clock()

    def resize(self, per_minute: float) -> None:
        """From now on so much a minute."""
        self._fill()
        self._rate = per_minute / 60.0
        self._most = max(1.0, self._rate * BURST)

    def wait(self, need: float) -> float:
        """Seconds until `need` may be taken; 0: now."""
        self._fill()
        lacking = min(need, self._most) - self._level
        return max(lacking / self._rate, 0.0) if lacking > 1e-9 else 0.0

    def take(self, need: float) -> None:
        """Take it, whether it is there or not. A negative `need` gives back what was taken too much."""
        self._fill()
        self._level = min(self._level - need, self._most)

    def _fill(self) -> None:
        now = self._clock()
        self._level = min(self._level + (now - self._at) * self._rate, self._most)
        self._at = now


class Rates:
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

    def wait(self, tokens: float) -> float:
        """Seconds until a call of so many tokens may go out."""
        requests = self._requests.wait(1) if self._requests else 0.0
        return max(requests, self._tokens.wait(tokens)) if self._tokens else requests

    def take(self, tokens: float) -> None:
        """A call of so many tokens, by estimate, goes out."""
        if self._requests:
            self._requests.take(1)
        if self._tokens:
            self._tokens.take(tokens)

    def settle(self, estimated: float, used: int | None) -> None:
        """The call took `used` tokens; where that is unknown the estimate stands."""
        if self._tokens and used is not None:
            self._tokens.take(used - estimated)


def _bucket(name: str, per_minute: float | None, clock: Callable[[], float]) -> Bucket | None:
    if per_minute is None:
        return None
    if isinstance(per_minute, bool) or not isinstance(per_minute, int | float) or not isfinite(per_minute) or per_minute <= 0:
        raise ConfigError(f"{name} must be a number > 0 or None, got {per_minute!r}")
    return Bucket(per_minute, clock)
