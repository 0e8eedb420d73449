"""The gate to one endpoint: how many calls are in it, who goes in next, and when nobody does.

All that calls to an endpoint must agree on stands here: the number in flight (`window`), the limits per minute
(`rates`), whether it is down (`circuit`), the pause it asked for, and one queue in the order of coming, so that a call
that is tried again goes to the back. It knows nothing of rows, budgets or retries. What a gate itself asks again
(after an outage, after a very long Retry-After) never was a failure to those outside.

A timeout may be the fault of what was asked, or of the endpoint. Which of the two it is, a very short question tells
(`probe_of`): while an endpoint may be down for timeouts, whoever is let in asks that in place of his own, and a call that timed
out while nobody was answered has it asked at once. Where the endpoint answers, the fault is the call's own
(`ModelTimeoutError.its_own`). Where it is down for other reasons, a call is its own probe.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from time import monotonic

from ..core.records import NO_USAGE, Usage
from ..errors import AuthenticationError, ConfigError, ModelError, ModelTimeoutError, ModelUnavailableError, RateLimitError
from ..protocols import Call, Format, Reply, Request
from ..text import format_duration, format_time_in
from .aimd import AIMDWindow
from .budget import RESERVE_AGAIN, estimate_usage
from .circuit_breaker import CircuitBreaker, is_outage, is_server_response
from .messages import has_images
from .refusals import refused_part
from .token_bucket import RateLimits

MAX_RETRY_WAIT = 120.0  # seconds that a retry is worth waiting for; after a longer wait the gate asks again itself
MAX_PAUSE = 86400.0  # and the most that it is parked for, whatever the server says
RAMP_SECONDS = 1.0  # seconds over which a limit's worth of calls is let in after an outage, or a pause of at least as long
BUSY_STATUSES = frozenset({429, 503, 529})


@dataclass(slots=True)
class Slot:
    """A call's place in the gate: since which era of the window, and for how many tokens, by estimate.

    `beside` is how many were in flight then, this one included, and `answers` how many had been answered. `probe`: only a probe
    may be asked.
    """

    epoch: int
    tokens: float
    in_flight: int = 1
    responses_before: int = 0
    is_probe: bool = False


@dataclass(slots=True, eq=False)
class Waiter:
    """A call in the queue."""

    tokens: float
    slot: asyncio.Future[Slot]


class EndpointLimiter:
    """What the calls to one endpoint share. `name` is what people know it by.

    The number in flight begins at `start` and finds its own way between `floor` and `ceiling`; `rpm` and `tpm` are
    requests and tokens a minute, None for no limit. An endpoint that is down for `outage` seconds, a wrong key, an unknown model
    and a broken TLS connection go to `halt(error)`, once: from then on nobody gets in, and the call that
    met it waits until it is cancelled. Without `halt` such an error is raised. `say` is told when the endpoint goes down, comes
    back, or asks for a pause of more than two minutes. Without `probes` calls themselves are the probes. Raises ConfigError for
    limits that are none.
    """

    def __init__(
        self,
        name: str,
        *,
        initial: int = 16,
        minimum: int = 1,
        maximum: int = 512,
        rpm: float | None = None,
        tpm: float | None = None,
        give_up_after: float = 3600.0,
        notify: Callable[[str], object] | None = None,
        on_fatal: Callable[[ModelError], object] | None = None,
        use_probes: bool = True,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if isinstance(give_up_after, bool) or not isinstance(give_up_after, int | float) or not give_up_after > 0:
            raise ConfigError(f"outage must be a number of seconds > 0, got {give_up_after!r}")
        self.name = name
        self.in_flight = 0
        self.queue_length = 0
        self.counts_tokens = tpm is not None
        self._window = AIMDWindow(initial, minimum, maximum)
        self._rates = RateLimits(rpm, tpm, clock) if rpm is not None or tpm is not None else None
        self._circuit = CircuitBreaker(clock, self._announce)
        self._give_up_after, self._notify, self._on_fatal = give_up_after, notify, on_fatal
        self.use_probes = use_probes
        self._clock, self._sleep = clock, sleep
        self._queue: deque[Waiter] = deque()
        self._paused_until, self._pause_text = -inf, ""
        self._next_admission = -inf
        self._ramp_remaining = 0
        self._ramp_interval = 0.0
        self._fatal_error: ModelError | None = None
        self._wakeup_task: asyncio.Task[None] | None = None
        self._wakeup_at = inf
        self._slot_watchers = 0
        self._slot_event = asyncio.Event()
        self._responses = 0
        self._max_answered_in_flight = 1  # calls in flight at once of which one was answered

    # ---- what can be seen from outside

    @property
    def limit(self) -> int:
        """How many calls may be in flight now."""
        return self._window.limit

    @property
    def free_slots(self) -> int:
        """How many places are free, with nobody waiting for them; 0 or less when no new work should begin.

        That is also so during a pause and an outage; only where a probe is due, and nobody waits to be it, there is room
        for one.
        """
        if self.queue_length or self._seconds_until_slot(0.0) > 0:
            return -self.queue_length
        return 1 if self._circuit.is_open else self.limit - self.in_flight

    @property
    def state(self) -> str:
        """In words, why nobody gets in: "paused until 2026-03-01 14:05 UTC (for 5 min)", "down since ...", "stopped: ..."; "" while
        it is open.
        """
        if self._fatal_error:
            return f"stopped: {self._fatal_error}"
        if self._circuit.is_down:
            return f"down since {self._circuit.down_since}"
        return self._pause_text if self._paused_until > self._clock() else ""

    async def wait_for_slot(self) -> None:
        """Return when `room` has come to be more than 0; at once where it is."""
        if self.free_slots > 0:
            return
        self._slot_watchers += 1
        try:
            self._schedule_wakeup(self._seconds_until_slot(0.0))
            await self._slot_event.wait()
        finally:
            self._slot_watchers -= 1

    def resize(self, maximum: int, rpm: float | None, tpm: float | None) -> None:
        """Change what it allows; a rate that had no limit gets none."""
        self._window.resize(maximum)
        if self._rates:
            self._rates.resize(rpm, tpm)
        self._admit_waiting()

    # ---- in and out

    async def acquire(self, tokens: float = 0.0) -> Slot:
        """A place, when it is this call's turn. Whoever has one must give it back: succeeded, failed or dropped."""
        if not self.queue_length and self._seconds_until_slot(tokens) <= 0:
            return self._admit(tokens)
        turn = Waiter(tokens, asyncio.get_running_loop().create_future())
        self._queue.append(turn)
        self.queue_length += 1
        self._admit_waiting()
        try:
            return await turn.slot
        except asyncio.CancelledError:
            if turn.slot.cancelled():
                self.queue_length -= 1
            else:
                self.in_flight -= 1
            self._admit_waiting()
            raise

    def record_success(self, slot: Slot, reply: Reply) -> None:
        """The call was answered."""
        self.in_flight -= 1
        if not slot.is_probe:
            self._window.record_success(slot.epoch)
            self._max_answered_in_flight = max(self._max_answered_in_flight, slot.in_flight)
        self._settle_tokens(slot, reply.usage)
        self._record_response()
        if reply.rate_limit_status and (wait := reply.rate_limit_status.wait) > 0:
            self._pause(min(wait, MAX_RETRY_WAIT))
        self._admit_waiting()

    def record_failure(self, slot: Slot, error: ModelError, *, call_fault: bool = False) -> bool:
        """The call failed, by a fault of `its_own` or the endpoint's. Whether it is to come in again, the failure forgotten."""
        self.in_flight -= 1
        self._settle_tokens(slot, error.usage)
        again = False if call_fault else self._handle_failure(slot, error)
        self._admit_waiting()
        return again

    def record_probe_failure(self, slot: Slot, error: ModelError) -> bool:
        """The probe failed. Whether whoever asked it is to come in again: always, but where nobody is told of an outage's end."""
        self.in_flight -= 1
        self._settle_tokens(slot, error.usage)
        if is_fatal(error) or is_outage(error):
            again = self._handle_failure(slot, error)
        else:
            self._record_response()
            self._apply_retry_after(error)
            again = True
        self._admit_waiting()
        return again

    @property
    def stops_on_fatal(self) -> bool:
        """Whether an error that would meet every call ends the run, and none has."""
        return self._on_fatal is not None and self._fatal_error is None

    @property
    def confirmed_failures(self) -> int:
        """How many failures said that the endpoint is down, whatever it was asked."""
        return self._circuit.confirmed_failures

    def answers_others(self, slot: Slot) -> bool:
        """Whether calls were answered since this one was let in, and once with as many in flight: it is not too much for the
        endpoint.
        """
        return self._responses > slot.responses_before and slot.in_flight <= self._max_answered_in_flight

    def release(self) -> None:
        """The call was cancelled, or broke: that says nothing about the endpoint."""
        self.in_flight -= 1
        self._admit_waiting()

    # ---- what an error means for all

    def _handle_failure(self, slot: Slot, error: ModelError) -> bool:
        if is_fatal(error):
            return self._stop(error)
        if is_busy(error):
            self._window.record_congestion(slot.epoch)
        if is_server_response(error):
            self._record_response()
        parked = self._apply_retry_after(error)
        if not is_outage(error):
            return parked
        unanswered = isinstance(error, ModelTimeoutError) and self._responses == slot.responses_before
        if unanswered and self.use_probes and not self._circuit.is_open:
            self._circuit.open_pending_probe(error)
            return True
        self._circuit.record_failure(error, is_probe=slot.is_probe)
        if self._circuit.seconds_down >= self._give_up_after:
            return self._stop(error)
        return self._circuit.is_open or parked

    def _apply_retry_after(self, error: ModelError) -> bool:
        """Wait as the endpoint asked. True where that is too long for a retry outside."""
        seconds = min(error.retry_after or 0.0, MAX_PAUSE)
        news = seconds > max(MAX_RETRY_WAIT, self._paused_until - self._clock() + 1.0)
        self._pause(seconds)
        if news:
            self._announce(f"{self._pause_text}, as it asked: {error}")
        return seconds > MAX_RETRY_WAIT

    def _stop(self, error: ModelError) -> bool:
        if self._on_fatal is None:
            return False
        if self._fatal_error is None:
            self._fatal_error = error
            self._on_fatal(error)
        return True

    def _record_response(self) -> None:
        self._responses += 1
        if self._circuit.record_success():
            self._ramp_up(self._clock(), RAMP_SECONDS)

    def _pause(self, seconds: float) -> None:
        until = self._clock() + seconds
        if seconds > 0 and until > self._paused_until:
            self._paused_until, self._pause_text = until, f"paused until {format_time_in(seconds)} (for {format_duration(seconds)})"
            self._ramp_up(until, min(seconds, RAMP_SECONDS))

    def _ramp_up(self, start_at: float, duration_seconds: float) -> None:
        """From that moment on let a limit's worth in one by one, `over` so many seconds: who waited together must not wake so."""
        self._next_admission = max(self._next_admission, start_at)
        self._ramp_remaining = self.limit
        self._ramp_interval = duration_seconds / self.limit

    def _settle_tokens(self, slot: Slot, usage: Usage) -> None:
        if self._rates:
            self._rates.settle(slot.tokens, usage.tokens)

    def _announce(self, message: str) -> None:
        if self._notify:
            self._notify(f"{self.name}: {message}")

    # ---- whose turn it is

    def _seconds_until_slot(self, tokens: float) -> float:
        """Seconds until a call of so many tokens may go in; infinite: not before another comes out."""
        if self._fatal_error or self.in_flight >= self.limit:
            return inf
        wait = self._next_admission - self._clock() if self._ramp_remaining else 0.0
        if self._circuit.is_open:
            wait = max(wait, self._circuit.seconds_to_probe())
        if self._rates:
            wait = max(wait, self._rates.seconds_until(tokens))
        return wait

    def _admit(self, tokens: float) -> Slot:
        self.in_flight += 1
        self._window.record_start(self.in_flight)
        if self._ramp_remaining:
            self._ramp_remaining -= 1
            self._next_admission = max(self._next_admission, self._clock()) + self._ramp_interval
        if is_open := self._circuit.is_open:
            self._circuit.start_probe()
        if self._rates:
            self._rates.consume(tokens)
        probe = is_open and self.use_probes and self._circuit.needs_short_probe
        return Slot(self._window.epoch, tokens, self.in_flight, self._responses, probe)

    def _admit_waiting(self) -> None:
        """Let in whoever may go, first come first; see to it that the next is let in when it is time."""
        queue = self._queue
        while queue and (queue[0].slot.done() or self._seconds_until_slot(queue[0].tokens) <= 0):
            turn = queue.popleft()
            if not turn.slot.done():
                self.queue_length -= 1
                turn.slot.set_result(self._admit(turn.tokens))
        if queue or self._slot_watchers:
            self._schedule_wakeup(self._seconds_until_slot(queue[0].tokens if queue else 0.0))
        elif self._wakeup_task:
            self._wakeup_task.cancel()
            self._wakeup_task = None
        if self._slot_watchers and self.free_slots > 0:
            self._slot_event.set()
            self._slot_event.clear()

    def _schedule_wakeup(self, seconds: float) -> None:
        """Look again after so many seconds, or earlier; infinite: somebody who comes out will see to it."""
        moment = self._clock() + seconds
        if not 0 < seconds < inf or (self._wakeup_task and self._wakeup_at <= moment + 0.001):
            return
        if self._wakeup_task:
            self._wakeup_task.cancel()
        self._wakeup_at = moment
        self._wakeup_task = asyncio.get_running_loop().create_task(self._wake_after(seconds))

    async def _wake_after(self, seconds: float) -> None:
        with suppress(asyncio.CancelledError):
            await self._sleep(seconds)
            self._wakeup_task = None
            self._admit_waiting()


def limit_endpoint(call: Call, limiter: EndpointLimiter) -> Call:
    """Hold calls back until `gate` lets them in, and tell it how they ended.

    What a call consumed each time that the gate asked it again is in its usage, as retries. Each time is reserved.
    """
    formats: set[Format] = set()

    async def call_limited(request: Request) -> Reply:
        again = RESERVE_AGAIN.get()
        token = RESERVE_AGAIN.set(None)  # it is for this call, not for those that a model makes in answering it
        try:
            return await call_until_settled(request, again)
        finally:
            RESERVE_AGAIN.reset(token)

    async def call_until_settled(request: Request, reserve_again: Callable[[Usage], Awaitable[Request]] | None) -> Reply:
        tokens = estimate_usage(request, None)["tokens"] if limiter.counts_tokens else 0.0
        spent, late = NO_USAGE, TimeoutDiagnosis(limiter)
        while True:
            place = await limiter.acquire(tokens)
            if not place.is_probe and late.is_call_fault:
                limiter.release()
                raise late.error_with_usage(spent)
            try:
                reply = await call(probe_request(request) if place.is_probe else request)
            except ModelError as error:
                own = not place.is_probe and _is_call_fault(error, request, formats)
                if not (place.is_probe or own) and limiter.stops_on_fatal and limiter.use_probes and may_be_refusal(error):
                    own = await answers_probe(call, limiter, request, error, reserve_again)
                if not (
                    limiter.record_probe_failure(place, error)
                    if place.is_probe
                    else limiter.record_failure(place, error, call_fault=own)
                ):
                    late.mark_error(place, error)
                    error.usage = (spent + error.usage).as_single_answer()
                    raise
                if not place.is_probe:
                    late.record_failure(place, error)
                used = error.usage
            except BaseException:
                limiter.release()
                raise
            else:
                limiter.record_success(place, reply)
                if not place.is_probe:
                    formats.add(request.format)
                    return reply if spent is NO_USAGE else replace(reply, usage=(spent + reply.usage).as_single_answer())
                if late.is_call_fault:
                    raise late.error_with_usage(spent + reply.usage)
                used = reply.usage
            if reserve_again:
                request = await reserve_again(used)
            else:
                spent += used

    return call_limited


async def answers_probe(
    call: Call,
    limiter: EndpointLimiter,
    request: Request,
    error: ModelError,
    reserve_again: Callable[[Usage], Awaitable[Request]] | None,
) -> bool:
    """Whether the endpoint that refused a request answers a probe in its place. The error's usage is what is not settled yet."""
    try:
        if reserve_again:
            request, error.usage = await reserve_again(error.usage), NO_USAGE
        reply = await call(probe_request(request))
    except ModelError as failure:
        error.usage += failure.usage
        return is_server_response(failure) and not is_busy(failure) and not is_fatal(failure)
    except BaseException:
        limiter.release()
        raise
    error.usage += reply.usage
    return True


def probe_request(request: Request) -> Request:
    """The shortest question there is, with nothing of a request but the parameters that it leaves out."""
    return Request(({"role": "user", "content": "Hi"},), max_tokens=1, unsupported_parameters=request.unsupported_parameters)


@dataclass(slots=True)
class TimeoutDiagnosis:
    """A call that was not answered in time, while it is found out whether its endpoint is there."""

    limiter: EndpointLimiter
    error: ModelError | None = None
    _slot: Slot | None = None
    _failures_before: int = 0

    def record_failure(self, slot: Slot, error: ModelError) -> None:
        """The call failed; it comes in again."""
        self._slot, self._failures_before = slot, self.limiter.confirmed_failures
        self.error = error if isinstance(error, ModelTimeoutError) else None

    @property
    def is_call_fault(self) -> bool:
        """Whether it timed out, and the endpoint was there when it was asked next."""
        return self.error is not None and self._failures_before == self.limiter.confirmed_failures

    def mark_error(self, slot: Slot, error: ModelError) -> None:
        """Say with the error whether the endpoint answers others."""
        if isinstance(error, ModelTimeoutError) and not slot.is_probe:
            error.endpoint_responsive = self.limiter.answers_others(slot)

    def error_with_usage(self, usage: Usage) -> ModelError:
        """The error, to be raised; what the call has used since is `usage`."""
        assert self.error is not None
        assert self._slot is not None
        self.mark_error(self._slot, self.error)
        self.error.usage = usage.as_single_answer()
        return self.error


def is_busy(error: ModelError) -> bool:
    """Whether an error says that too much is asked at once."""
    return isinstance(error, RateLimitError | ModelTimeoutError) or error.status in BUSY_STATUSES


def is_fatal(error: ModelError) -> bool:
    """Whether an error would meet every call alike, for good: the key, the quota, the model's name, the address, TLS."""
    if isinstance(error, AuthenticationError):
        return True
    return isinstance(error, ModelUnavailableError) and not error.retryable and (error.status or 0) < 500


def may_be_refusal(error: ModelError) -> bool:
    """Whether an error that is fatal where it meets every call may be for what one request holds: filters and routers say so."""
    return error.status in {403, 404} and is_fatal(error)


def _is_call_fault(error: ModelError, request: Request, formats: set[Format]) -> bool:
    """Whether an error is, or may be, for what this request asks for, and not for who asks or when. (See `adapt`.)"""
    if refused_part(error, request):
        return True
    if error.status in {500, 501} and request.format != "text" and request.format not in formats:
        return True
    return error.status in {404, 500, 501} and has_images(request.messages)
