"""Whether an endpoint is down: many failures in a row, with no answer between. While it is, one call at a time probes.

Where there is reason to doubt that it is there, it is looked at in the same way, at once and without a word. It knows when to
probe, and says so; who probes, and who waits meanwhile, is the gate's business.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import ModelError, ModelTimeoutError, ModelUnavailableError
from ..text import format_duration, format_time_in

FAILURE_THRESHOLD = 8
MIN_PROBE_INTERVAL, MAX_PROBE_INTERVAL = 1.0, 30.0


def is_outage(error: ModelError) -> bool:
    """Whether an error is of the kind that a dead endpoint makes: no connection, no answer in time, 5xx."""
    if isinstance(error, ModelTimeoutError):
        return True
    return (
        isinstance(error, ModelUnavailableError)
        and (error.retryable or (error.status or 0) >= 500)
        and not is_server_response(error)
    )


def is_server_response(error: ModelError) -> bool:
    """Whether the server itself had something to say: it is there."""
    return error.status is not None and 400 <= error.status < 500 and error.status != 408


class CircuitBreaker:
    """Open (`is_open`) after `enough` failures in a row; then a probe is due every 1, 2, 4 ... 30 s until a call is answered.

    `asks_briefly`: the last failure was a timeout, which may be the fault of what was asked, so that a probe asks something short.
    Else a call is its own probe. `found_down` counts the failures that no question can be blamed for.
    """

    def __init__(
        self, clock: Callable[[], float], notify: Callable[[str], object], failure_threshold: int = FAILURE_THRESHOLD
    ) -> None:
        self._clock, self._notify, self._failure_threshold = clock, notify, failure_threshold
        self.is_open = False
        self.down_since = ""
        self._failures = 0
        self._opened_at = 0.0
        self._probe_interval = MIN_PROBE_INTERVAL
        self._next_probe_at = 0.0
        self._last_error = ""
        self._announced = self._unconfirmed = False
        self.needs_short_probe = False
        self.confirmed_failures = 0

    @property
    def is_down(self) -> bool:
        """Whether it is open for a better reason than doubt."""
        return self.is_open and not self._unconfirmed

    @property
    def seconds_down(self) -> float:
        """Seconds since it opened; 0 where it is closed."""
        return self._clock() - self._opened_at if self.is_open else 0.0

    def seconds_to_probe(self) -> float:
        """Seconds until a probe is due, whether or not the last one has come back: it may hang."""
        return max(self._next_probe_at - self._clock(), 0.0)

    def start_probe(self) -> None:
        """A probe goes out. Only now it is told that the endpoint is down: the others may have been answered meanwhile."""
        self._next_probe_at = self._clock() + self._probe_interval
        self._probe_interval = min(2 * self._probe_interval, MAX_PROBE_INTERVAL)
        if not (self._announced or self._unconfirmed):
            self._announced = True
            self._notify(f"down since {self.down_since}: {self._last_error}; probing")

    def record_failure(self, error: ModelError, *, is_probe: bool = False) -> None:
        """One more failure in the row."""
        self._failures += 1
        self._last_error = str(error)
        self.needs_short_probe = isinstance(error, ModelTimeoutError)
        if is_probe or not self.needs_short_probe:
            self._unconfirmed = False
            self.confirmed_failures += 1
        if not self.is_open and self._failures >= self._failure_threshold:
            self._open(MIN_PROBE_INTERVAL)

    def open_pending_probe(self, error: ModelError) -> None:
        """Open until it is known whether the endpoint is there; a probe is due now."""
        self._failures += 1
        self._last_error, self._unconfirmed, self.needs_short_probe = str(error), True, True
        self._open(0.0)

    def _open(self, wait: float) -> None:
        self.is_open, self._announced, self._probe_interval = True, False, MIN_PROBE_INTERVAL
        self._opened_at, self.down_since = self._clock(), format_time_in()
        self._next_probe_at = self._opened_at + wait

    def record_success(self) -> bool:
        """The endpoint answered. True when that ends an outage."""
        if not self._failures:
            return False
        was_open, seconds = self.is_open, self.seconds_down
        self.is_open, self._failures, self._unconfirmed = False, 0, False
        if was_open and self._announced:
            self._notify(f"back after {format_duration(seconds)}")
        return was_open
