"""How many calls may be in flight: found out by trying more while all goes well, and halving when it does not.

Additive increase, multiplicative decrease, as TCP does it. It doubles until the first trouble. After one it goes half
of the way back to where that came, waits there a while, and then tries one more, two more, four more: the binary increase
of BIC-TCP (Xu, Harfoush and Rhee, 2004), because plain steps of one would spend a quarter of what an endpoint
with a fixed limit allows, and hours where an answer takes ten seconds. It knows neither calls nor clocks.
"""

from __future__ import annotations

from ..errors import ConfigError

HOLD_WINDOWS = 16  # windows just under the last trouble before it is tried again


class AIMDWindow:
    """The limit, between `floor` and `ceiling`, from `start`.

    A window is as many successes as the limit allows in flight, so about one round trip. `era` counts the decreases:
    a call that went out in an earlier one says nothing about the limit that holds now.
    """

    def __init__(self, initial: int, minimum: int, maximum: int) -> None:
        for name, value in {"start": initial, "floor": minimum, "ceiling": maximum}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}")
        if minimum > maximum:
            raise ConfigError(f"floor must be at most ceiling, got {minimum!r} and {maximum!r}")
        self._configured_minimum, self._minimum, self._maximum = minimum, minimum, maximum
        self.limit = min(max(initial, minimum), maximum)
        self.epoch = 0
        self._last_congested: int | None = None
        self._hold_remaining = 0
        self._successes = 0
        self._was_full = False

    def resize(self, maximum: int) -> None:
        """From now on at most so many; the floor gives way."""
        self._minimum, self._maximum = min(self._configured_minimum, maximum), maximum
        self.limit = min(self.limit, maximum)

    def record_start(self, in_flight: int) -> None:
        """One more is in flight: so many now."""
        if in_flight >= self.limit:
            self._was_full = True

    def record_success(self, epoch: int) -> None:
        """A call of that era was answered. A limit that was not reached is not raised: nothing is known of more."""
        if epoch != self.epoch:
            return
        self._successes += 1
        if self._successes >= self.limit:
            if self._was_full and self.limit < self._maximum:
                self.limit = min(self.limit + self._increment(), self._maximum)
            self._start_window()

    def record_congestion(self, epoch: int) -> None:
        """A call of that era was turned away or timed out: halve, once for all that were out at the time."""
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
        if (short := self._last_congested - self.limit) > 1:
            return short // 2
        if self._hold_remaining > 0:
            self._hold_remaining -= 1
            return 0
        return max(-short, 1)
