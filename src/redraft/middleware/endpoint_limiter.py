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

from ..core.records import NOTHING, Usage
from ..errors import AuthenticationError, ConfigError, ModelError, ModelTimeoutError, ModelUnavailableError, RateLimitError
from ..protocols import Call, Format, Reply, Request
from ..text import duration, moment_in
from .aimd import Window
from .budget import AGAIN, estimate
from .circuit_breaker import Circuit, answered, is_outage
from .messages import has_images
from .refusals import refused_part
from .token_bucket import Rates

LONGEST = 120.0  # seconds that a retry is worth waiting for; after a longer wait the gate asks again itself
PARKED = 86400.0  # and the most that it is parked for, whatever the server says
EASE = 1.0  # seconds over which a limit's worth of calls is let in after an outage, or a pause of at least as long
BUSY = frozenset({429, 503, 529})


@dataclass(slots=True)
class Place:
    """A call's place in the gate: since which era of the window, and for how many tokens, by estimate.

    `beside` is how many were in flight then, this one included, and `answers` how many had been answered. `probe`: only a probe
    may be asked.
    """

    era: int
    tokens: float
    beside: int = 1
    answers: int = 0
    probe: bool = False


@dataclass(slots=True, eq=False)
class Waiting:
    """A call in the queue."""

    tokens: float
    place: asyncio.Future[Place]


class Gate:
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
        start: int = 16,
        floor: int = 1,
        ceiling: int = 512,
        rpm: float | None = None,
        tpm: float | None = None,
        outage: float = 3600.0,
        say: Callable[[str], object] | None = None,
        halt: Callable[[ModelError], object] | None = None,
        probes: bool = True,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if isinstance(outage, bool) or not isinstance(outage, int | float) or not outage > 0:
            raise ConfigError(f"outage must be a number of seconds > 0, got {outage!r}")
        self.name = name
        self.in_flight = 0
        self.waiting = 0
        self.counts_tokens = tpm is not None
        self._window = Window(start, floor, ceiling)
        self._rates = Rates(rpm, tpm, clock) if rpm is not None or tpm is not None else None
        self._circuit = Circuit(clock, self._tell)
        self._outage, self._say, self._halt = outage, say, halt
        self.probes = probes
        self._clock, self._sleep = clock, sleep
        self._queue: deque[Waiting] = deque()
        self._paused_until, self._pause_told = -inf, ""
        self._next = -inf
        self._easing = 0
        self._gap = 0.0
        self._stopped: ModelError | None = None
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_at = inf
        self._watching = 0
        self._news = asyncio.Event()
        self._answers = 0
        self._most_answered = 1  # calls in flight at once of which one was answered

    # ---- what can be seen from outside

    @property
    def limit(self) -> int:
        """How many calls may be in flight now."""
        return self._window.limit

    @property
    def room(self) -> int:
        """How many places are free, with nobody waiting for them; 0 or less when no new work should begin.

        That is also so during a pause and an outage; only where a probe is due, and nobody waits to be it, there is room
        for one.
        """
        if self.waiting or self._wait(0.0) > 0:
            return -self.waiting
        return 1 if self._circuit.is_open else self.limit - self.in_flight

    @property
    def state(self) -> str:
        """In words, why nobody gets in: "paused until 2026-03-01 14:05 UTC (for 5 min)", "down since ...", "stopped: ..."; "" while
        it is open.
        """
        if self._stopped:
            return f"stopped: {self._stopped}"
        if self._circuit.is_down:
            return f"down since {self._circuit.since}"
        return self._pause_told if self._paused_until > self._clock() else ""

    async def room_made(self) -> None:
        """Return when `room` has come to be more than 0; at once where it is."""
        if self.room > 0:
            return
        self._watching += 1
        try:
            self._set_alarm(self._wait(0.0))
            await self._news.wait()
        finally:
            self._watching -= 1

    def resize(self, ceiling: int, rpm: float | None, tpm: float | None) -> None:
        """Change what it allows; a rate that had no limit gets none."""
        self._window.resize(ceiling)
        if self._rates:
            self._rates.resize(rpm, tpm)
        self._let_in()

    # ---- in and out

    async def enter(self, tokens: float = 0.0) -> Place:
        """A place, when it is this call's turn. Whoever has one must give it back: succeeded, failed or dropped."""
        if not self.waiting and self._wait(tokens) <= 0:
            return self._admit(tokens)
        turn = Waiting(tokens, asyncio.get_running_loop().create_future())
        self._queue.append(turn)
        self.waiting += 1
        self._let_in()
        try:
            return await turn.place
        except asyncio.CancelledError:
            if turn.place.cancelled():
                self.waiting -= 1
            else:
                self.in_flight -= 1
            self._let_in()
            raise

    def succeeded(self, place: Place, reply: Reply) -> None:
        """The call was answered."""
        self.in_flight -= 1
        if not place.probe:
            self._window.succeeded(place.era)
            self._most_answered = max(self._most_answered, place.beside)
        self._settle(place, reply.usage)
        self._alive()
        if reply.pace and (wait := reply.pace.wait) > 0:
            self._pause(min(wait, LONGEST))
        self._let_in()

    def failed(self, place: Place, error: ModelError, *, its_own: bool = False) -> bool:
        """The call failed, by a fault of `its_own` or the endpoint's. Whether it is to come in again, the failure forgotten."""
        self.in_flight -= 1
        self._settle(place, error.usage)
        again = False if its_own else self._judged(place, error)
        self._let_in()
        return again

    def probed(self, place: Place, error: ModelError) -> bool:
        """The probe failed. Whether whoever asked it is to come in again: always, but where nobody is told of an outage's end."""
        self.in_flight -= 1
        self._settle(place, error.usage)
        if is_fatal(error) or is_outage(error):
            again = self._judged(place, error)
        else:
            self._alive()
            self._asked_to_wait(error)
            again = True
        self._let_in()
        return again

    @property
    def halts(self) -> bool:
        """Whether an error that would meet every call ends the run, and none has."""
        return self._halt is not None and self._stopped is None

    @property
    def outage_probes(self) -> int:
        """How many failures said that the endpoint is down, whatever it was asked."""
        return self._circuit.found_down

    def answers_others(self, place: Place) -> bool:
        """Whether calls were answered since this one was let in, and once with as many in flight: it is not too much for the
        endpoint.
        """
        return self._answers > place.answers and place.beside <= self._most_answered

    def dropped(self) -> None:
        """The call was cancelled, or broke: that says nothing about the endpoint."""
        self.in_flight -= 1
        self._let_in()

    # ---- what an error means for all

    def _judged(self, place: Place, error: ModelError) -> bool:
        if is_fatal(error):
            return self._stop(error)
        if is_busy(error):
            self._window.troubled(place.era)
        if answered(error):
            self._alive()
        parked = self._asked_to_wait(error)
        if not is_outage(error):
            return parked
        unanswered = isinstance(error, ModelTimeoutError) and self._answers == place.answers
        if unanswered and self.probes and not self._circuit.is_open:
            self._circuit.doubt(error)
            return True
        self._circuit.failed(error, probe=place.probe)
        if self._circuit.down_for >= self._outage:
            return self._stop(error)
        return self._circuit.is_open or parked

    def _asked_to_wait(self, error: ModelError) -> bool:
        """Wait as the endpoint asked. True where that is too long for a retry outside."""
        seconds = min(error.retry_after or 0.0, PARKED)
        news = seconds > max(LONGEST, self._paused_until - self._clock() + 1.0)
        self._pause(seconds)
        if news:
            self._tell(f"{self._pause_told}, as it asked: {error}")
        return seconds > LONGEST

    def _stop(self, error: ModelError) -> bool:
        if self._halt is None:
            return False
        if self._stopped is None:
            self._stopped = error
            self._halt(error)
        return True

    def _alive(self) -> None:
        self._answers += 1
        if self._circuit.alive():
            self._ease(self._clock(), EASE)

    def _pause(self, seconds: float) -> None:
        until = self._clock() + seconds
        if seconds > 0 and until > self._paused_until:
            self._paused_until, self._pause_told = until, f"paused until {moment_in(seconds)} (for {duration(seconds)})"
            self._ease(until, min(seconds, EASE))

    def _ease(self, moment: float, over: float) -> None:
        """From that moment on let a limit's worth in one by one, `over` so many seconds: who waited together must not wake so."""
        self._next = max(self._next, moment)
        self._easing = self.limit
        self._gap = over / self.limit

    def _settle(self, place: Place, usage: Usage) -> None:
        if self._rates:
            self._rates.settle(place.tokens, usage.tokens)

    def _tell(self, words: str) -> None:
        if self._say:
            self._say(f"{self.name}: {words}")

    # ---- whose turn it is

    def _wait(self, tokens: float) -> float:
        """Seconds until a call of so many tokens may go in; infinite: not before another comes out."""
        if self._stopped or self.in_flight >= self.limit:
            return inf
        wait = self._next - self._clock() if self._easing else 0.0
        if self._circuit.is_open:
            wait = max(wait, self._circuit.wait())
        if self._rates:
            wait = max(wait, self._rates.wait(tokens))
        return wait

    def _admit(self, tokens: float) -> Place:
        self.in_flight += 1
        self._window.entered(self.in_flight)
        if self._easing:
            self._easing -= 1
            self._next = max(self._next, self._clock()) + self._gap
        if is_open := self._circuit.is_open:
            self._circuit.probe()
        if self._rates:
            self._rates.take(tokens)
        probe = is_open and self.probes and self._circuit.asks_briefly
        return Place(self._window.era, tokens, self.in_flight, self._answers, probe)

    def _let_in(self) -> None:
        """Let in whoever may go, first come first; see to it that the next is let in when it is time."""
        queue = self._queue
        while queue and (queue[0].place.done() or self._wait(queue[0].tokens) <= 0):
            turn = queue.popleft()
            if not turn.place.done():
                self.waiting -= 1
                turn.place.set_result(self._admit(turn.tokens))
        if queue or self._watching:
            self._set_alarm(self._wait(queue[0].tokens if queue else 0.0))
        elif self._alarm:
            self._alarm.cancel()
            self._alarm = None
        if self._watching and self.room > 0:
            self._news.set()
            self._news.clear()

    def _set_alarm(self, seconds: float) -> None:
        """Look again after so many seconds, or earlier; infinite: somebody who comes out will see to it."""
        moment = self._clock() + seconds
        if not 0 < seconds < inf or (self._alarm and self._alarm_at <= moment + 0.001):
            return
        if self._alarm:
            self._alarm.cancel()
        self._alarm_at = moment
        self._alarm = asyncio.get_running_loop().create_task(self._ring(seconds))

    async def _ring(self, seconds: float) -> None:
        with suppress(asyncio.CancelledError):
            await self._sleep(seconds)
            self._alarm = None
            self._let_in()


def gated(call: Call, gate: Gate) -> Call:
    """Hold calls back until `gate` lets them in, and tell it how they ended.

    What a call consumed each time that the gate asked it again is in its usage, as retries. Each time is reserved.
    """
    formats: set[Format] = set()

    async def passed(request: Request) -> Reply:
        again = AGAIN.get()
        token = AGAIN.set(None)  # it is for this call, not for those that a model makes in answering it
        try:
            return await repeated(request, again)
        finally:
            AGAIN.reset(token)

    async def repeated(request: Request, again: Callable[[Usage], Awaitable[Request]] | None) -> Reply:
        tokens = estimate(request, None)["tokens"] if gate.counts_tokens else 0.0
        spent, late = NOTHING, Late(gate)
        while True:
            place = await gate.enter(tokens)
            if not place.probe and late.is_its_own:
                gate.dropped()
                raise late.with_usage(spent)
            try:
                reply = await call(probe_of(request) if place.probe else request)
            except ModelError as error:
                own = not place.probe and _its_own(error, request, formats)
                if not (place.probe or own) and gate.halts and gate.probes and may_be_refusal(error):
                    own = await answers_probe(call, gate, request, error, again)
                if not (gate.probed(place, error) if place.probe else gate.failed(place, error, its_own=own)):
                    late.mark(place, error)
                    error.usage = (spent + error.usage).of_one_answer()
                    raise
                if not place.probe:
                    late.note(place, error)
                used = error.usage
            except BaseException:
                gate.dropped()
                raise
            else:
                gate.succeeded(place, reply)
                if not place.probe:
                    formats.add(request.format)
                    return reply if spent is NOTHING else replace(reply, usage=(spent + reply.usage).of_one_answer())
                if late.is_its_own:
                    raise late.with_usage(spent + reply.usage)
                used = reply.usage
            if again:
                request = await again(used)
            else:
                spent += used

    return passed


async def answers_probe(
    call: Call, gate: Gate, request: Request, error: ModelError, again: Callable[[Usage], Awaitable[Request]] | None
) -> bool:
    """Whether the endpoint that refused a request answers a probe in its place. The error's usage is what is not settled yet."""
    try:
        if again:
            request, error.usage = await again(error.usage), NOTHING
        reply = await call(probe_of(request))
    except ModelError as failure:
        error.usage += failure.usage
        return answered(failure) and not is_busy(failure) and not is_fatal(failure)
    except BaseException:
        gate.dropped()
        raise
    error.usage += reply.usage
    return True


def probe_of(request: Request) -> Request:
    """The shortest question there is, with nothing of a request but the parameters that it leaves out."""
    return Request(({"role": "user", "content": "Hi"},), max_tokens=1, unsupported=request.unsupported)


@dataclass(slots=True)
class Late:
    """A call that was not answered in time, while it is found out whether its endpoint is there."""

    gate: Gate
    error: ModelError | None = None
    _place: Place | None = None
    _probes: int = 0

    def note(self, place: Place, error: ModelError) -> None:
        """The call failed; it comes in again."""
        self._place, self._probes = place, self.gate.outage_probes
        self.error = error if isinstance(error, ModelTimeoutError) else None

    @property
    def is_its_own(self) -> bool:
        """Whether it timed out, and the endpoint was there when it was asked next."""
        return self.error is not None and self._probes == self.gate.outage_probes

    def mark(self, place: Place, error: ModelError) -> None:
        """Say with the error whether the endpoint answers others."""
        if isinstance(error, ModelTimeoutError) and not place.probe:
            error.its_own = self.gate.answers_others(place)

    def with_usage(self, usage: Usage) -> ModelError:
        """The error, to be raised; what the call has used since is `usage`."""
        assert self.error is not None
        assert self._place is not None
        self.mark(self._place, self.error)
        self.error.usage = usage.of_one_answer()
        return self.error


def is_busy(error: ModelError) -> bool:
    """Whether an error says that too much is asked at once."""
    return isinstance(error, RateLimitError | ModelTimeoutError) or error.status in BUSY


def is_fatal(error: ModelError) -> bool:
    """Whether an error would meet every call alike, for good: the key, the quota, the model's name, the address, TLS."""
    if isinstance(error, AuthenticationError):
        return True
    return isinstance(error, ModelUnavailableError) and not error.retryable and (error.status or 0) < 500


def may_be_refusal(error: ModelError) -> bool:
    """Whether an error that is fatal where it meets every call may be for what one request holds: filters and routers say so."""
    return error.status in {403, 404} and is_fatal(error)


def _its_own(error: ModelError, request: Request, formats: set[Format]) -> bool:
    """Whether an error is, or may be, for what this request asks for, and not for who asks or when. (See `adapt`.)"""
    if refused_part(error, request):
        return True
    if error.status in {500, 501} and request.format != "text" and request.format not in formats:
        return True
    return error.status in {404, 500, 501} and has_images(request.messages)
