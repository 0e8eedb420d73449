"""The AIMD window: how many calls may be in flight, found by raising the limit on success and halving it on congestion.

Additive increase, multiplicative decrease, as in TCP. The limit doubles until the first congestion. After that it goes
half of the way back to the limit at which congestion occurred, holds there for a while, and then adds one, two, four:
the binary increase of BIC-TCP (Xu, Harfoush and Rhee, 2004), because steps of one would waste a quarter of what an
endpoint with a fixed limit allows, and would take hours if an answer takes ten seconds. It uses no clock.
"""

from __future__ import annotations

from .. import checks
from ..errors import ConfigError

HOLD_WINDOWS = 16  # windows to stay just below the last congestion before probing above it


class AIMDWindow:
    """A limit between `minimum` and `maximum` that starts at `initial`.

    A window is as many successes as the limit allows in flight, so about one round trip. `epoch` counts the decreases: a
    call that started in an earlier epoch says nothing about the present limit.
    """

    def __init__(self, initial: int, minimum: int, maximum: int) -> None:
        for name, value in {"initial": initial, "minimum": minimum, "maximum": maximum}.items():
            checks.whole_number(name, value, 1)
        if minimum > maximum:
            raise ConfigError(f"minimum must be at most maximum, got {minimum!r} and {maximum!r}")
        self._configured_minimum, self._minimum, self._maximum = minimum, minimum, maximum
        self.limit = min(max(initial, minimum), maximum)
        self.epoch = 0
        self._last_congested: int | None = None
        self._hold_remaining = 0
        self._successes = 0
        self._was_full = False

    def resize(self, maximum: int) -> None:
        """Set a new maximum, and lower the minimum to it if necessary."""
        self._minimum, self._maximum = min(self._configured_minimum, maximum), maximum
        self.limit = min(self.limit, maximum)

    def record_start(self, in_flight: int) -> None:
        """Record that a call started, with the number now in flight."""
        if in_flight >= self.limit:
            self._was_full = True

    def record_success(self, epoch: int) -> None:
        """Record an answer to a call of this epoch. A limit that was not reached is not raised."""
        if epoch != self.epoch:
            return
        self._successes += 1
        if self._successes >= self.limit:
            if self._was_full and self.limit < self._maximum:
                self.limit = min(self.limit + self._increment(), self._maximum)
            self._start_window()

    def record_congestion(self, epoch: int) -> None:
        """Record that a call of this epoch was rejected or timed out: halve the limit, once per epoch."""
        if epoch != self.epoch:
            return
        self.epoch += 1
        self._last_congested, self._hold_remaining = self.limit, HOLD_WINDOWS
        self.limit = max(self.limit // 2, self._minimum)
        self._start_window()

    def _start_window(self) -> None:
        self._successes, self._was_full = 0, False

    def _increment(self) -> int:
        if self._last_congested is None:
            return self.limit
        distance = self._last_congested - self.limit
        if distance > 1:
            return distance // 2
        if self._hold_remaining > 0:
            self._hold_remaining -= 1
            return 0
        return max(-distance, 1)
