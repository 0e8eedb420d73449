"""Whether an endpoint is down: many failures in a row, with no answer between. While it is, one call at a time probes.

Where there is reason to doubt that it is there, it is looked at in the same way, at once and without a word. It knows when to
probe, and says so; who probes, and who waits meanwhile, is the gate's business.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ModelError, ModelTimeoutError, ModelUnavailableError
from ..text import duration, moment_in

ENOUGH = 8
FIRST, LAST = 1.0, 30.0


def is_outage(error: ModelError) -> bool:
    """Whether an error is of the kind that a dead endpoint makes: no connection, no answer in time, 5xx."""
    if isinstance(error, ModelTimeoutError):
        return True
    return isinstance(error, ModelUnavailableError) and (error.retryable or (error.status or 0) >= 500) and not answered(error)


def answered(error: ModelError) -> bool:
    """Whether the server itself had something to say: it is there."""
    return error.status is not None and 400 <= error.status < 500 and error.status != 408


class Circuit:
    """Open (`is_open`) after `enough` failures in a row; then a probe is due every 1, 2, 4 ... 30 s until a call is answered.

    `asks_briefly`: the last failure was a timeout, which may be the fault of what was asked, so that a probe asks something short.
    Else a call is its own probe. `found_down` counts the failures that no question can be blamed for.
    """

    def __init__(self, clock: Callable[[], float], say: Callable[[str], object], enough: int = ENOUGH) -> None:
        self._clock, self._say, self._enough = clock, say, enough
        self.is_open = False
        self.since = ""
        self._failures = 0
        self._opened = 0.0
        self._pause = FIRST
        self._next = 0.0
        self._error = ""
        self._told = self._in_doubt = False
        self.asks_briefly = False
        self.found_down = 0

    @property
    def is_down(self) -> bool:
        """Whether it is open for a better reason than doubt."""
        return self.is_open and not self._in_doubt

    @property
    def down_for(self) -> float:
        """Seconds since it opened; 0 where it is closed."""
        return self._clock() - self._opened if self.is_open else 0.0

    def wait(self) -> float:
        """Seconds until a probe is due, whether or not the last one has come back: it may hang."""
        return max(self._next - self._clock(), 0.0)

    def probe(self) -> None:
        """A probe goes out. Only now it is told that the endpoint is down: the others may have been answered meanwhile."""
        self._next = self._clock() + self._pause
        self._pause = min(2 * self._pause, LAST)
        if not (self._told or self._in_doubt):
            self._told = True
            self._say(f"down since {self.since}: {self._error}; probing")

    def failed(self, error: ModelError, *, probe: bool = False) -> None:
        """One more failure in the row."""
        self._failures += 1
        self._error = str(error)
        self.asks_briefly = isinstance(error, ModelTimeoutError)
        if probe or not self.asks_briefly:
            self._in_doubt = False
            self.found_down += 1
        if not self.is_open and self._failures >= self._enough:
            self._open(FIRST)

    def doubt(self, error: ModelError) -> None:
        """Open until it is known whether the endpoint is there; a probe is due now."""
        self._failures += 1
        self._error, self._in_doubt, self.asks_briefly = str(error), True, True
        self._open(0.0)

    def _open(self, wait: float) -> None:
        self.is_open, self._told, self._pause = True, False, FIRST
        self._opened, self.since = self._clock(), moment_in()
        self._next = self._opened + wait

    def alive(self) -> bool:
        """The endpoint answered. True when that ends an outage."""
        if not self._failures:
            return False
        was_open, seconds = self.is_open, self.down_for
        self.is_open, self._failures, self._in_doubt = False, 0, False
        if was_open and self._told:
            self._say(f"back after {duration(seconds)}")
        return was_open
