"""The AIMD window: how many calls may be in flight, found by raising the limit on success and
halving it on congestion.

Additive increase, multiplicative decrease, as in TCP. Until the first congestion the limit doubles
after each window, as long as that brings more answers per second, or rises at once to as many calls
as the endpoint would answer within `queue_seconds` if it answered no faster than now, but to
MAX_GROWTH times as many at most. So an endpoint that answers fast is in full use soon after its
first answers, and one that takes few calls at a time and lets the others queue gets no more than it
answers in an acceptable time.

After a congestion the limit goes half of the way back to where it occurred, holds there for a
while, and then adds one, two, four: the binary increase of BIC-TCP (Xu, Harfoush and Rhee, 2004),
because steps of one would waste a quarter of what an endpoint with a fixed limit allows, and would
take hours if an answer takes ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from ..base import checks
from ..errors import ConfigError

HOLD_WINDOWS = 16  # windows to stay just below the last congestion before probing above it
# factor by which the limit rises at most: an endpoint may answer only after a while that it takes
# no more
MAX_GROWTH = 8
# factor by which answers per second rise with the limit, if the endpoint is not in full use
MIN_GAIN = 1.25


class AIMDWindow:
    """A limit between `minimum` and `maximum` that starts at `initial`.

    A window is as many successes as the limit allows in flight, so about one round trip. `epoch`
    counts the decreases: a call that started in an earlier epoch says nothing about the present
    limit.
    """

    def __init__(
        self,
        initial: int,
        minimum: int,
        maximum: int,
        *,
        queue_seconds: float = 10.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        for name, value in {"initial": initial, "minimum": minimum, "maximum": maximum}.items():
            checks.whole_number(name, value, 1)
        if minimum > maximum:
            raise ConfigError(f"minimum must be at most maximum, got {minimum!r} and {maximum!r}")
        self._configured_minimum, self._minimum, self._maximum = minimum, minimum, maximum
        self._queue_seconds, self._clock = queue_seconds, clock
        self.limit = min(max(initial, minimum), maximum)
        self.epoch = 0
        self._proven = self.limit  # the limit of the last window, before it rose
        self._last_congested: int | None = None
        self._hold_remaining = 0
        self._successes = 0
        self._was_full = False
        self._started_at: float | None = None  # when the first call of the window started
        self._lower_rate = 0.0  # answers per second before the limit last rose

    def resize(self, maximum: int) -> None:
        """Set a new maximum, and lower the minimum to it if necessary."""
        self._minimum, self._maximum = min(self._configured_minimum, maximum), maximum
        if self.limit > maximum:
            self.limit, self._lower_rate = maximum, 0.0

    def record_start(self, in_flight: int) -> None:
        """Record that a call started, with the number now in flight."""
        if in_flight >= self.limit:
            self._was_full = True
        if self._started_at is None:
            self._started_at = self._clock()

    def record_success(self, epoch: int) -> bool:
        """Record an answer to a call of this epoch. Return whether the limit rises to more than
        twice what it was.

        A limit that was not reached is not raised.
        """
        if epoch != self.epoch:
            return False
        self._successes += 1
        before = self.limit
        if self._successes < before:
            return False
        if self._was_full:
            self._proven = before
            self.limit = min(before + self._increment(), self._maximum)
        self._start_window()
        return self.limit > 2 * before

    def record_congestion(self, epoch: int, in_flight: int) -> None:
        """Record that a call of this epoch, started as one of `in_flight`, was rejected or timed
        out: halve the limit.

        This happens once per epoch. A limit that was not reached yet counts only as far as calls
        were in flight.
        """
        if epoch != self.epoch:
            return
        self.epoch += 1
        self._last_congested, self._hold_remaining = (
            min(self.limit, max(in_flight, self._proven)),
            HOLD_WINDOWS,
        )
        self.limit = self._proven = max(self._last_congested // 2, self._minimum)
        self._start_window()

    def _start_window(self) -> None:
        self._successes, self._was_full, self._started_at = 0, False, None

    def _increment(self) -> int:
        if self._last_congested is None:
            return self._first_increment()
        distance = self._last_congested - self.limit
        if distance > 1:
            return distance // 2
        if self._hold_remaining > 0:
            self._hold_remaining -= 1
            return 0
        return max(-distance, 1)

    def _first_increment(self) -> int:
        """Return by how much the limit rises after a window while there was no congestion."""
        assert self._started_at is not None
        seconds = self._clock() - self._started_at
        if seconds <= 0:  # the clock is too coarse
            return self.limit
        rate = self._successes / seconds
        target = rate * self._queue_seconds
        if rate >= MIN_GAIN * self._lower_rate:
            target = max(target, 2 * self.limit)
        increment = int(min(target, MAX_GROWTH * self.limit, self._maximum)) - self.limit
        if increment <= 0:
            return 0
        self._lower_rate = rate
        return increment
