"""The limiter of one endpoint: how many calls are in flight, which call goes next, and when none
does.

`EndpointLimiter` holds the state that all calls to an endpoint share: the number in flight
(`aimd`), the limits per minute (`token_bucket`), whether the endpoint is down (`circuit_breaker`),
the pause it asked for, and one first-come queue, so that a call that is tried again goes to the
back. It knows nothing of rows, budgets or retries. `limit_endpoint` wraps it around a model's call.

Retries are decided in `retry`, which counts attempts. The limiter repeats a call by itself, however
often, only in three cases in which the endpoint takes no call at all: it is down, it asks for a
pause of more than a minute, or a fatal error has stopped the run (then the call waits until it is
cancelled). To the caller this is one call that took long.

A timeout may be caused by the request or by the endpoint. A very short request, the probe, tells
which: while an endpoint may be down because of timeouts, a call that is admitted sends the probe in
place of its own request, and a call that timed out while no other was answered has a probe sent at
once. If the probe is answered, the request is at fault (`ModelTimeoutError.endpoint_responsive`).
If the endpoint is down for other reasons, a call is its own probe.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from time import monotonic

from ..base import checks
from ..base.log import endpoint_log, error_kind, error_summary
from ..base.text import format_duration, format_time_in
from ..errors import ModelError, ModelTimeoutError, ShortageError, attach, error_name
from ..protocols import Call, Format, Reply, Request
from ..usage import NO_USAGE, Usage, current_ledger
from .aimd import AIMDWindow
from .call_costs import rough_tokens
from .circuit_breaker import CircuitBreaker
from .endpoint_errors import (
    is_busy,
    is_call_fault,
    is_fatal,
    is_out_of_service,
    is_outage,
    is_server_response,
    may_be_refusal,
)
from .observe import observer
from .timeout import MAX_WAIT, longest_wait
from .token_bucket import TokenBucket

MAX_PAUSE = 86400.0  # seconds of the longest pause, whatever the server asks for
MIN_TOLD_PAUSE = 1.0  # seconds of the shortest pause of which `notify` is told
# seconds over which calls are admitted one by one after an outage or a long pause
RAMP_SECONDS = 1.0
# the same when the limit has risen to more than twice what it was: an endpoint that refuses does so
# at once
GROWTH_SECONDS = 0.25
READY_SHARE = 8  # for as many calls in flight, one more is made ready and waits for the next slot
# seconds by which a timer may be late; calls that were due meanwhile are admitted together
TIMER_SECONDS = 0.01


@dataclass(slots=True)
class Slot:
    """An admitted call: the epoch of the AIMD window at the time, and the estimated tokens.

    `in_flight` is the number of calls in flight then, including this one; `responses_before` how
    many had been answered. With `is_probe`, only a probe may be sent.
    """

    epoch: int
    tokens: float
    in_flight: int
    responses_before: int
    is_probe: bool


class EndpointLimiter:
    """The state that all calls to one endpoint share. `name` is used in messages.

    The number of calls in flight starts at `initial` and adapts between `minimum` and `maximum`
    (`queue_seconds`: see `aimd`); `rpm` and `tpm` limit requests and tokens per minute (None: no
    limit). An outage of `give_up_after` seconds, a wrong key, an unknown model and a broken TLS
    connection are passed to `on_fatal(error)`, once; from then on no call is admitted, and the call
    that failed waits until it is cancelled. Without `on_fatal` the error is raised. `notify` is
    called with a message when the endpoint goes down, comes back, or asks for a pause of more than
    a second. Without `use_probes`, calls themselves are the probes. With `raises_outages`, an
    outage and a long pause are raised instead, and never open the circuit: another model answers
    then (see `failover`). Raises ConfigError for invalid limits.
    """

    def __init__(
        self,
        name: str,
        *,
        initial: int = 16,
        minimum: int = 1,
        maximum: int = 512,
        queue_seconds: float = 10.0,
        rpm: float | None = None,
        tpm: float | None = None,
        give_up_after: float = 3600.0,
        notify: Callable[[str], object] | None = None,
        on_fatal: Callable[[ModelError], object] | None = None,
        use_probes: bool = True,
        raises_outages: bool = False,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if give_up_after != inf:
            checks.positive("give_up_after", give_up_after)
        self.name = name
        self.in_flight = 0
        self.queue_length = 0
        self._window = AIMDWindow(
            initial, minimum, maximum, queue_seconds=queue_seconds, clock=clock
        )
        self._requests, self._tokens = _bucket("rpm", rpm, clock), _bucket("tpm", tpm, clock)
        self._has_rate = rpm is not None or tpm is not None
        self._circuit = CircuitBreaker(clock, self._announce)
        self._give_up_after, self._notify, self._on_fatal = give_up_after, notify, on_fatal
        self.use_probes, self._raises_outages = use_probes and not raises_outages, raises_outages
        self._clock, self._sleep = clock, sleep
        self._paused_until, self._pause_text = -inf, ""
        self._next_admission = -inf
        self._ramp_remaining = 0
        self._ramp_interval = 0.0
        self._fatal_error: ModelError | None = None
        self._turn = asyncio.Lock()  # of the call that is next: others wait for it in their order
        self._change = asyncio.Event()  # set for a moment whenever the state has changed
        self._responses = 0
        self._max_answered_in_flight = 1  # calls in flight at once of which one was answered

    # ---- state

    @property
    def limit(self) -> int:
        """How many calls may be in flight now."""
        return self._window.limit

    @property
    def is_full(self) -> bool:
        """Whether another call would have to wait."""
        return self.queue_length > 0 or self._seconds_until_slot(0.0) > 0

    @property
    def free_slots(self) -> int:
        """How many more calls would be admitted at once, or may wait for a slot if none is free; 0
        or less: start no new work.

        As some wait, the slot of an answered call is used at once, not only after new work was
        prepared. During a pause or an outage it is 0 or less, except for one slot when a probe is
        due and no call waits to send it. With limits per minute it is at most 1, because only the
        next call is known to be admitted.
        """
        return self._free_slots(self._seconds_until_slot(0.0))

    def _free_slots(self, seconds: float) -> int:
        """Return `free_slots`. `seconds`: until a call may be admitted."""
        is_limited = self._circuit.is_open or self._has_rate or self._fatal_error
        ready = (
            0
            if is_limited or 0 < seconds < inf or self.pause_left > 0
            else self.limit // READY_SHARE
        )
        if self.queue_length or seconds > 0:
            free = ready - self.queue_length
            # several at a time take less CPU than one by one
            return free if 2 * free > ready else min(free, 0)
        return 1 if is_limited else self.limit - self.in_flight

    @property
    def state(self) -> str:
        """Why no call is admitted: "paused until 2026-03-01 14:05 UTC (for 5 min)", "down since
        ...", "stopped: ..."; else "".
        """
        if self._fatal_error:
            return f"stopped: {error_summary(self._fatal_error)}"
        if self._circuit.is_down:
            return f"down since {self._circuit.down_since}"
        return self._pause_text if self._paused_until > self._clock() else ""

    @property
    def pause_left(self) -> float:
        """The seconds for which the endpoint has asked for no call; 0 or less if it has not."""
        return self._paused_until - self._clock()

    async def wait_for_slot(self) -> None:
        """Wait until `free_slots` is positive."""
        while self._free_slots(seconds := self._seconds_until_slot(0.0)) <= 0:
            await self._wait_for_change(seconds)

    def resize(self, maximum: int, rpm: float | None, tpm: float | None) -> None:
        """Change the limits; a rate that was not limited stays unlimited."""
        self._window.resize(maximum)
        for bucket, rate in ((self._requests, rpm), (self._tokens, tpm)):
            if bucket.is_limited and rate is not None:
                bucket.resize(rate)
        self._note_change()

    # ---- acquiring and returning slots

    async def acquire(self, tokens: float = 0.0) -> Slot:
        """Wait for a slot, which `release` must give back."""
        self.queue_length += 1
        try:
            async with self._turn:
                while (seconds := self._seconds_until_slot(tokens)) > 0:
                    await self._wait_for_change(seconds)
                return self._admit(tokens)
        finally:
            self.queue_length -= 1
            self._note_change()

    def release(self) -> None:
        """Give a slot back, however its call has ended."""
        self.in_flight -= 1
        self._note_change()

    def record_success(self, slot: Slot, reply: Reply) -> None:
        """Record an answer."""
        if not slot.is_probe:
            if self._window.record_success(slot.epoch):
                self._ramp_up(self._clock(), GROWTH_SECONDS)
            self._max_answered_in_flight = max(self._max_answered_in_flight, slot.in_flight)
        self._settle_tokens(slot, reply.usage)
        self._record_response()
        if reply.rate_limit_status and (wait := reply.rate_limit_status.wait) > 0:
            self.pause(min(wait, MAX_WAIT), "an answer with a limit that is reached")

    def record_failure(self, slot: Slot, error: ModelError, *, call_fault: bool = False) -> bool:
        """Record an error. Return whether the call is to be repeated, which is never so if it
        caused the error.
        """
        self._settle_tokens(slot, error.usage)
        return not call_fault and self._handle_failure(slot, error)

    def record_probe_failure(self, slot: Slot, error: ModelError) -> bool:
        """Record a failed probe. Return whether the call that sent it is to acquire a slot
        again.
        """
        self._settle_tokens(slot, error.usage)
        if is_fatal(error) or is_outage(error):
            return self._handle_failure(slot, error)
        if not isinstance(error, ShortageError):
            self._record_response()
        self._apply_retry_after(error)
        return True

    @property
    def is_stopped(self) -> bool:
        """Whether a fatal error has occurred, after which no call is admitted."""
        return self._fatal_error is not None

    @property
    def stops_on_fatal(self) -> bool:
        """Whether a fatal error would stop the run, and none has occurred."""
        return self._on_fatal is not None and self._fatal_error is None

    @property
    def confirmed_failures(self) -> int:
        """How many failures show that the endpoint is down, whatever was requested."""
        return self._circuit.confirmed_failures

    def answers_others(self, slot: Slot) -> bool:
        """Whether other calls were answered since this one was admitted, and calls have been
        answered at this concurrency.
        """
        return (
            self._responses > slot.responses_before
            and slot.in_flight <= self._max_answered_in_flight
        )

    # ---- what an error means for all calls

    def _handle_failure(self, slot: Slot, error: ModelError) -> bool:
        """Adjust the state to an error that the endpoint caused. Return whether the call is to be
        repeated.
        """
        if self._raises_outages and is_out_of_service(error):
            self._note_outage(slot, error)
            return False
        if is_fatal(error):
            return self._stop(error)
        if is_busy(error):
            self._window.record_congestion(slot.epoch, slot.in_flight)
        if is_server_response(error):
            self._record_response()
        is_long = self._apply_retry_after(error)
        return self._handle_outage(slot, error, long_pause=is_long) if is_outage(error) else is_long

    def _handle_outage(self, slot: Slot, error: ModelError, *, long_pause: bool) -> bool:
        """Open the circuit if the endpoint is, or may be, down. Return whether the call is to be
        repeated; after a `long_pause`, even if it is up.
        """
        was_down = self._circuit.is_down
        unanswered = (
            isinstance(error, ModelTimeoutError) and self._responses == slot.responses_before
        )
        if unanswered and self.use_probes and not self._circuit.is_open:
            self._circuit.open_pending_probe(error)
            return True
        self._circuit.record_failure(error, is_probe=slot.is_probe)
        if self._circuit.is_down and not was_down:
            endpoint_log.warning(
                "%s: down after %s; calls wait, one at a time probes", self.name, error_kind(error)
            )
        if self._circuit.seconds_down >= self._give_up_after:
            return self._stop(error)
        return self._circuit.is_open or long_pause

    def _note_outage(self, slot: Slot, error: ModelError) -> None:
        """Slow down after an outage that is raised, so that another endpoint gets the call."""
        if is_busy(error):
            self._window.record_congestion(slot.epoch, slot.in_flight)
        if (error.retry_after or 0.0) <= MAX_WAIT:
            self._apply_retry_after(error)

    def _apply_retry_after(self, error: ModelError) -> bool:
        """Pause as the endpoint asked. Return whether that is too long for `retry` to wait."""
        seconds = min(error.retry_after or 0.0, MAX_PAUSE)
        is_long = seconds > MAX_WAIT  # and `retry` waits no longer
        self.pause(seconds, error_kind(error), logging.WARNING if is_long else logging.INFO)
        return is_long

    def _stop(self, error: ModelError) -> bool:
        """Stop the run because of an error. Return False if nothing stops it, so that the error is
        raised.
        """
        if self._on_fatal is None:
            return False
        if self._fatal_error is None:
            self._fatal_error = error
            endpoint_log.warning("%s: stopped by %s; no more calls", self.name, error_kind(error))
            self._on_fatal(error)
        return True

    def _record_response(self) -> None:
        self._responses += 1
        if not self._circuit.failures:
            return
        down_for = self._circuit.seconds_down if self._circuit.is_down else 0.0
        if self._circuit.record_success():
            if down_for:
                endpoint_log.warning("%s: back after %s", self.name, format_duration(down_for))
            self._ramp_up(self._clock(), RAMP_SECONDS)

    def pause(self, seconds: float, cause: str = "", level: int = logging.INFO) -> None:
        """Admit no call for some seconds. A `cause` is reported, and again only if the pause
        becomes twice as long; without one nothing is reported, as the endpoint has asked another
        process.
        """
        left = max(0.0, self.pause_left)
        if seconds <= left:
            return
        self._paused_until = self._clock() + seconds
        self._pause_text = (
            f"paused until {format_time_in(seconds)} (for {format_duration(seconds)})"
        )
        self._ramp_up(self._paused_until, min(seconds, RAMP_SECONDS))
        if cause and seconds > 2 * left:
            endpoint_log.log(level, "%s: %s after %s", self.name, self._pause_text, cause)
            if seconds >= MIN_TOLD_PAUSE:
                self._announce(f"{self._pause_text}, as it asked: {cause}")

    def _ramp_up(self, start_at: float, duration_seconds: float) -> None:
        """From `start_at` on, admit up to `limit` calls spread over the duration, to avoid a
        thundering herd.
        """
        self._next_admission = max(self._next_admission, start_at)
        self._ramp_remaining = self.limit
        self._ramp_interval = duration_seconds / self.limit

    def _settle_tokens(self, slot: Slot, usage: Usage) -> None:
        """Correct the estimate to what the call used, as far as that is known."""
        if usage.tokens is not None:
            self._tokens.consume(usage.tokens - slot.tokens)

    def _announce(self, message: str) -> None:
        if self._notify:
            self._notify(f"{self.name}: {message}")

    # ---- admission

    def _seconds_until_slot(self, tokens: float) -> float:
        """Return the seconds until a call of this many tokens may be admitted; infinite if another
        call must end first.
        """
        if self._fatal_error or self.in_flight >= self._window.limit:
            return inf
        wait = self._next_admission - self._clock() if self._ramp_remaining else 0.0
        if self._circuit.is_open:
            wait = max(wait, self._circuit.seconds_to_probe())
        return max(wait, self._requests.seconds_until(1), self._tokens.seconds_until(tokens))

    def _admit(self, tokens: float) -> Slot:
        self.in_flight += 1
        self._window.record_start(self.in_flight)
        if self._ramp_remaining:
            self._ramp_remaining -= 1
            self._next_admission = max(
                self._next_admission + self._ramp_interval, self._clock() - TIMER_SECONDS
            )
        if is_open := self._circuit.is_open:
            self._circuit.start_probe()
        self._requests.consume(1)
        self._tokens.consume(tokens)
        probe = is_open and self.use_probes and self._circuit.needs_short_probe
        return Slot(self._window.epoch, tokens, self.in_flight, self._responses, probe)

    def _note_change(self) -> None:
        """Let the next call, and who waits for a free slot, look at the state again."""
        self._change.set()
        self._change.clear()

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait until the state has changed, for so many seconds at most."""
        timer = (
            asyncio.ensure_future(self._note_change_after(seconds)) if 0 < seconds < inf else None
        )
        try:
            await self._change.wait()
        finally:
            if timer:
                timer.cancel()

    async def _note_change_after(self, seconds: float) -> None:
        await self._sleep(seconds)
        self._note_change()


def _bucket(name: str, per_minute: float | None, clock: Callable[[], float]) -> TokenBucket:
    """Return the bucket of a rate; None: no limit. Raises ConfigError for an invalid rate."""
    checks.positive(name, per_minute, optional=True)
    return TokenBucket(per_minute or inf, clock)


def limit_endpoint(call: Call, limiter: EndpointLimiter) -> Call:
    """Hold each call until the limiter admits it, and report to the limiter how it ended.

    The reply's usage includes the attempts that the limiter repeated, as retries; each attempt
    is reserved in the budget.
    """
    answered_formats: set[Format] = set()

    def call_limited(request: Request) -> Awaitable[Reply]:
        return LimitedCall(call, limiter, answered_formats, request).complete()

    return call_limited


@dataclass(slots=True)
class LimitedCall:
    """One call to an endpoint, with the attempts that the limiter repeats and the probes sent for
    it.

    `reserve_again` belongs to the open ledger, and `spent` the usage of earlier attempts that it
    has not settled. `failure` is the error of the last attempt, which is to be repeated; of one
    that timed out, the limiter finds out whether the endpoint answers.
    """

    call: Call
    limiter: EndpointLimiter
    answered_formats: set[Format]
    request: Request
    reserve_again: Callable[[Usage], Awaitable[Request]] | None = None
    spent: Usage = NO_USAGE
    failure: ModelError | None = None
    failed_slot: Slot | None = None
    failures_before: int = 0

    async def complete(self) -> Reply:
        """Make attempts until one is answered or fails with an error that is not the endpoint's."""
        limiter, ledger = self.limiter, current_ledger()
        if ledger is not None:
            self.reserve_again, ledger.reserve_again = ledger.reserve_again, None
        tokens = rough_tokens(self.request)
        while True:
            try:
                slot = await limiter.acquire(tokens)
            except asyncio.CancelledError as cancelled:
                if self.failure and limiter.is_stopped:
                    attach(cancelled, cause=error_name(self.failure))
                raise
            try:
                result = await (self._probe(slot) if slot.is_probe else self._attempt(slot))
            finally:
                limiter.release()
            if isinstance(result, Reply):
                return result.after(self.spent)
            if self.reserve_again:
                self.request = await self.reserve_again(result)
            else:
                self.spent += result

    async def _attempt(self, slot: Slot) -> Reply | Usage:
        """Send the request. Return its reply, or the usage of a failed attempt that is to be
        repeated.
        """
        if timeout := self._timeout_error(NO_USAGE):
            raise timeout
        try:
            reply = await self.call(self.request)
        except ModelError as error:
            call_fault = is_call_fault(
                error, self.request, self.answered_formats
            ) or await self._is_refusal(error)
            is_repeated = self.limiter.record_failure(slot, error, call_fault=call_fault)
            if not is_repeated or min(error.retry_after or 0.0, MAX_PAUSE) > longest_wait(
                MAX_PAUSE
            ):
                if isinstance(error, ModelTimeoutError):
                    error.endpoint_responsive = self.limiter.answers_others(slot)
                error.usage = self._total_usage(error.usage)
                raise
            observer().record_failed_attempt(error, None)
            self.failure, self.failed_slot = error, slot
            self.failures_before = self.limiter.confirmed_failures
            return error.usage
        self.limiter.record_success(slot, reply)
        self.answered_formats.add(self.request.format)
        return reply

    async def _probe(self, slot: Slot) -> Usage:
        """Send a probe in place of the request, and return its usage."""
        try:
            reply = await self.call(probe_request(self.request))
        except ModelError as error:
            if not self.limiter.record_probe_failure(slot, error):
                error.usage = self._total_usage(error.usage)
                raise
            return error.usage
        self.limiter.record_success(slot, reply)
        if timeout := self._timeout_error(reply.usage):
            raise timeout
        return reply.usage

    async def _is_refusal(self, error: ModelError) -> bool:
        """Whether an apparently fatal error concerns this request only: then a probe does not fail
        in this way.

        Where no probe can be sent, what an error only says in words concerns the request.
        `error.usage` becomes what is not settled yet.
        """
        if not (self.limiter.stops_on_fatal and may_be_refusal(error)):
            return False
        if not self.limiter.use_probes:
            return error.inferred
        request = self.request
        try:
            if self.reserve_again:
                request, error.usage = await self.reserve_again(error.usage), NO_USAGE
            reply = await self.call(probe_request(request))
        except ModelError as failure:
            error.usage += failure.usage
            return not is_fatal(failure)
        error.usage += reply.usage
        return True

    def _timeout_error(self, usage: Usage) -> ModelTimeoutError | None:
        """Return the error of the last attempt if it timed out although the endpoint answers."""
        error, slot = self.failure, self.failed_slot
        if (
            not isinstance(error, ModelTimeoutError)
            or slot is None
            or self.failures_before != self.limiter.confirmed_failures
        ):
            return None
        error.endpoint_responsive = self.limiter.answers_others(slot)
        error.usage = self._total_usage(usage)
        return error

    def _total_usage(self, usage: Usage) -> Usage:
        """Return the usage of all attempts, given the usage of the last."""
        return (self.spent + usage).as_single_answer()


def probe_request(request: Request) -> Request:
    """Return the shortest possible request, without the parameters that `request` leaves out."""
    return Request(
        ({"role": "user", "content": "Hi"},),
        max_tokens=1,
        unsupported_parameters=request.unsupported_parameters,
    )
