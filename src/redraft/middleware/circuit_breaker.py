"""A circuit breaker: it opens after many failures in a row, and then one call at a time probes.

It also opens, without a message, after a single timeout that may mean that the endpoint is down. It
only keeps the state and says when a probe is due; `endpoint_limiter` decides which call probes and
which calls wait.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base.log import error_summary
from ..base.text import format_duration, format_time_in
from ..errors import BadResponseError, ModelError, ModelTimeoutError

FAILURE_THRESHOLD = 8  # failures in a row
MIN_PROBE_INTERVAL, MAX_PROBE_INTERVAL = 1.0, 30.0  # seconds


class CircuitBreaker:
    """Open (`is_open`) after `failure_threshold` failures in a row; then a probe is due every 1, 2,
    4 ... 30 s.

    It closes with the first answer. `needs_short_probe`: the last failure was a timeout or no
    answer of a model, which the request may have caused, so a probe should send a short one;
    otherwise the next call is the probe. `confirmed_failures` counts the failures that no request
    can have caused, `failures` all since the last answer; `last_error` says what the last one was.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        notify: Callable[[str], object],
        failure_threshold: int = FAILURE_THRESHOLD,
    ) -> None:
        self._clock, self._notify, self._failure_threshold = clock, notify, failure_threshold
        self.is_open = False
        self.down_since = ""
        self.failures = 0
        self._opened_at = 0.0
        self._probe_interval = MIN_PROBE_INTERVAL
        self._next_probe_at = 0.0
        self.last_error = ""
        self._announced = self._unconfirmed = False
        self.needs_short_probe = False
        self.confirmed_failures = 0

    @property
    def is_down(self) -> bool:
        """Whether it is open because of confirmed failures."""
        return self.is_open and not self._unconfirmed

    @property
    def seconds_down(self) -> float:
        """Seconds since it opened; 0 while it is closed."""
        return self._clock() - self._opened_at if self.is_open else 0.0

    def seconds_to_probe(self) -> float:
        """Seconds until a probe is due, even if the last one has not been answered: it may hang."""
        return max(self._next_probe_at - self._clock(), 0.0)

    def start_probe(self) -> None:
        """Record that a probe is sent. The outage is announced only now, because other calls may
        have been answered until then.
        """
        self._next_probe_at = self._clock() + self._probe_interval
        self._probe_interval = min(2 * self._probe_interval, MAX_PROBE_INTERVAL)
        if not (self._announced or self._unconfirmed):
            self._announced = True
            self._notify(
                f"down since {self.down_since}: {self.last_error}; probing it until it answers"
            )

    def record_failure(self, error: ModelError, *, is_probe: bool = False) -> None:
        """Record a failure, and open the breaker if there were too many in a row."""
        self.failures += 1
        self.last_error = error_summary(error)
        self.needs_short_probe = isinstance(error, ModelTimeoutError | BadResponseError)
        if is_probe or not self.needs_short_probe:
            self._unconfirmed = False
            self.confirmed_failures += 1
        if not self.is_open and self.failures >= self._failure_threshold:
            self._open(MIN_PROBE_INTERVAL)

    def open_pending_probe(self, error: ModelError) -> None:
        """Open after one timeout, until a probe, which is due now, shows whether the endpoint
        answers.
        """
        self.failures += 1
        self.last_error, self._unconfirmed, self.needs_short_probe = (
            error_summary(error),
            True,
            True,
        )
        self._open(0.0)

    def _open(self, wait: float) -> None:
        self.is_open, self._announced, self._probe_interval = True, False, MIN_PROBE_INTERVAL
        self._opened_at, self.down_since = self._clock(), format_time_in()
        self._next_probe_at = self._opened_at + wait

    def record_success(self) -> bool:
        """Record an answer. Return whether it ends an outage."""
        if not self.failures:
            return False
        was_open, seconds = self.is_open, self.seconds_down
        self.is_open, self.failures, self._unconfirmed = False, 0, False
        if was_open and self._announced:
            self._notify(f"back after {format_duration(seconds)}")
        return was_open
