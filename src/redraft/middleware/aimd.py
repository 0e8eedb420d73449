"""How many calls may be in flight: found out by trying more while all goes well, and halving when it does not.

Additive increase, multiplicative decrease, as TCP does it. It doubles until the first trouble. After one it goes half
of the way back to where that came, waits there a while, and then tries one more, two more, four more: the binary increase
of BIC-TCP (Xu, Harfoush and Rhee, 2004), because plain steps of one would spend a quarter of what an endpoint
with a fixed limit allows, and hours where an answer takes ten seconds. It knows neither calls nor clocks.
"""

from __future__ import annotations

from ..errors import ConfigError

REST = 16  # windows just under the last trouble before it is tried again


class Window:
    """The limit, between `floor` and `ceiling`, from `start`.

    A window is as many successes as the limit allows in flight, so about one round trip. `era` counts the decreases:
    a call that went out in an earlier one says nothing about the limit that holds now.
    """

    def __init__(self, start: int, floor: int, ceiling: int) -> None:
        for name, value in {"start": start, "floor": floor, "ceiling": ceiling}.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}")
        if floor > ceiling:
            raise ConfigError(f"floor must be at most ceiling, got {floor!r} and {ceiling!r}")
        self._lowest, self._floor, self._ceiling = floor, floor, ceiling
        self.limit = min(max(start, floor), ceiling)
        self.era = 0
        self._edge: int | None = None
        self._rest = 0
        self._successes = 0
        self._full = False

    def resize(self, ceiling: int) -> None:
        """From now on at most so many; the floor gives way."""
        self._floor, self._ceiling = min(self._lowest, ceiling), ceiling
        self.limit = min(self.limit, ceiling)

    def entered(self, in_flight: int) -> None:
        """One more is in flight: so many now."""
        if in_flight >= self.limit:
            self._full = True

    def succeeded(self, era: int) -> None:
        """A call of that era was answered. A limit that was not reached is not raised: nothing is known of more."""
        if era != self.era:
            return
        self._successes += 1
        if self._successes >= self.limit:
            if self._full and self.limit < self._ceiling:
                self.limit = min(self.limit + self._step(), self._ceiling)
            self._begin()

    def troubled(self, era: int) -> None:
        """A call of that era was turned away or timed out: halve, once for all that were out at the time."""
        if era != self.era:
            return
        self.era += 1
        self._edge, self._rest = self.limit, REST
        self.limit = max(self.limit // 2, self._floor)
        self._begin()

    def _begin(self) -> None:
        self._successes, self._full = 0, False

    def _step(self) -> int:
        if self._edge is None:
            return self.limit
        if (short := self._edge - self.limit) > 1:
            return short // 2
        if self._rest > 0:
            self._rest -= 1
            return 0
        return max(-short, 1)
