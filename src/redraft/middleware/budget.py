"""Money, tokens and calls: reserved before a call, settled after it, so that calls in flight cannot overshoot together.

With a limit on output tokens, tokens or USD every call carries a `max_tokens` that fits into what is left, and what was
reserved is what it can take at most: on an endpoint that honours `max_tokens` and reports what it used, no limit is exceeded.
Elsewhere the excess is at most what was in flight, and `Purse.excess` says so.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from math import floor, inf
from typing import NamedTuple, Protocol

from .. import checks
from ..core.records import NOTHING, Usage, text_of
from ..errors import BudgetExhaustedError, ConfigError, ModelError
from ..ledger import Entry, Ledger, open_ledger
from ..protocols import Call, Reply, Request
from .token_counts import SHORTEST, Size, TokenEstimator, size_of

CHARS_PER_TOKEN = 3  # a rough estimate of the tokens of a text, where no limit depends on it
OUTPUT_GUESS = 1024  # and of an answer
LIMITS = ("calls", "input_tokens", "output_tokens", "tokens", "usd")
NONE: Mapping[str, float] = dict.fromkeys(LIMITS, 0.0)
MILLION = 1_000_000
IDLE = 2.0  # seconds for which a call waits for money that is reserved for grades while no call is in flight
SLACK = 1e-9  # sums of USD are not exact
EXCESS = "more than the budget allows"

_ROOM_REFUSED = re.compile(
    r"max_?(completion_|new_|output_)?tokens|completion tokens|in the completion|context length", re.IGNORECASE
)

Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent: `calls` (retries count), `input_tokens`, `output_tokens`, `tokens` (both), `usd`. None: no limit.

    With a limit that an answer counts against, each call carries a `max_tokens` that fits into what is left. A call that
    would get fewer than `min_tokens` is not made. Raises ConfigError for a negative, infinite or NaN limit.
    """

    calls: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens: int | None = None
    usd: float | None = None
    min_tokens: int = 64

    def __post_init__(self) -> None:
        for name in LIMITS:
            given = getattr(self, name)
            if name == "usd":
                checks.number("budget: usd", given, optional=True)
            else:
                checks.whole_number(f"budget: {name}", given, 0, optional=True)
        checks.whole_number("budget: min_tokens", self.min_tokens, 1)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}


class Rate(Protocol):
    """What a model's tokens cost."""

    def cost(self, usage: Usage) -> float | None: ...


@dataclass(frozen=True, slots=True)
class Need:
    """What calls take, by limit: for their prompts `bound` at most and `estimate()` likely, and `per_token` of the answer.

    The answer gets `least` tokens or the call is not made; `expected` tokens are enough for most answers, `most` is all
    that it may have.
    """

    bound: Amounts
    estimate: Callable[[], Amounts]
    per_token: Amounts
    least: int = 0
    expected: int = 0
    most: float = inf

    @property
    def likely(self) -> Amounts:
        """What the prompts are likely to take at most."""
        return self.estimate()

    @property
    def minimum(self) -> dict[str, float]:
        """What they take at the very least."""
        return self.amounts(self.likely, self.least)

    def plus(self, other: Need) -> Need:
        """Both together, with the answer of this one."""
        each = _sum(self.per_token, other.per_token)
        likely = partial(_sum, self.likely, other.likely)
        return Need(_sum(self.bound, other.bound), likely, each, self.least, self.expected, self.most)

    def amounts(self, prompts: Amounts, tokens: float) -> dict[str, float]:
        """What they take with so many tokens in the answer."""
        return {name: prompts[name] + (each * tokens if (each := self.per_token[name]) else 0.0) for name in LIMITS}


@dataclass(frozen=True, slots=True)
class Grant:
    """What a call may take: its amounts, and `max_tokens` for its answer (None: no limit depends on it). `drawn`: what of it was
    held for it.
    """

    amounts: dict[str, float]
    max_tokens: int | None = None
    drawn: Amounts | None = None


class Fit(NamedTuple):
    """How many tokens an answer may have, by the `likely` length of the prompts or their bound; whether a limit depends on it."""

    tokens: float
    likely: bool
    limited: bool


@dataclass(eq=False, slots=True)
class Owner:
    """For whom money is reserved: a task, with so many steps `active`."""

    active: int = 0


@dataclass(eq=False, slots=True)
class Reservation:
    """Money of a `purse` for the calls that grade a text, reserved with the text. `estimate` tells what they need now,
    `per_token` being for each token of that text.

    While the text is `writing`, the first call takes it; later each call draws an equal part of what is `held`.
    `longest_prompt` is in bytes, of the calls that drew on it; `tokens` are those of the text, as far as they are known.
    """

    purse: Purse
    estimate: Callable[[], Need]
    owner: Owner
    writing: bool = True
    held: dict[str, float] | None = None
    longest_prompt: int = 0
    tokens: float = 0.0
    _need: Need | None = None
    _prompts: Amounts = field(default_factory=dict)

    @property
    def part(self) -> dict[str, float]:
        """What the next call draws."""
        held = self.held or NONE
        calls = max(1.0, held["calls"])
        return {name: amount / calls for name, amount in held.items()}

    @property
    def open(self) -> bool:
        """Whether it is still to be taken, by the call that writes the text."""
        return self.writing and self.held is None

    @property
    def prompt(self) -> float:
        """Tokens of the prompt of a call that draws on it: by those of the text, which were counted. Infinite once all have."""
        if self._need is None or not self.held or self.held["calls"] < 1:
            return inf
        return self._need.amounts(self._need.likely, self.tokens)["input_tokens"] / self._need.likely["calls"]

    def take(self, need: Need, tokens: float, *, likely: bool) -> dict[str, float]:
        """Hold what is needed for a text of at most so many tokens."""
        self._need, self._prompts = need, need.likely if likely else need.bound
        self.held = self.of(tokens)
        return self.held

    def of(self, tokens: float) -> dict[str, float]:
        """What is needed for a text of so many tokens, which it has."""
        assert self._need is not None
        self.tokens = tokens
        return self._need.amounts(self._prompts, tokens)


RESERVATION: ContextVar[Reservation | None] = ContextVar("reservation", default=None)
"""The reservation that the calls of the step under way take, or draw on."""


@dataclass(eq=False, slots=True)
class Waiter:
    """A call that waits until it is granted what it needs, by what is known then."""

    need: Callable[[], Need]
    reservation: Reservation | None
    granted: asyncio.Future[Grant]

    @property
    def minimum(self) -> dict[str, float]:
        """What it needs at the very least, with what is to be reserved for grades."""
        need = self.need()
        return (need.plus(self.reservation.estimate()) if self.reservation and self.reservation.open else need).minimum


class Purse:
    """A budget being spent: what is settled, what is reserved for calls under way, and what is `held` for grades to come.

    `on_change` is called after each change. `over`: a call was refused that the whole budget would have allowed. `dearest`:
    the most that a call has used. Calls that find too little left wait, in order, as long as those under way may turn out
    cheaper; calls for a text that is paid for come first.
    """

    def __init__(self, budget: Budget | None = None, on_change: Callable[[], object] | None = None) -> None:
        self.on_change = on_change
        self.over = False
        self.spent, self.reserved, self.held, self.dearest = (dict(NONE) for _ in range(4))
        self.budget = budget or Budget()
        self._limits = self.budget.limits
        self._running = 0
        self._urgent: deque[Waiter] = deque()
        self._queue: deque[Waiter] = deque()
        self._holders: set[Reservation] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._causes: dict[str, None] = {}

    @property
    def taken(self) -> dict[str, float]:
        """What is settled, and what is reserved for calls under way."""
        return _sum(self.spent, self.reserved)

    @property
    def committed(self) -> dict[str, float]:
        """What is taken, and what is held for grades to come."""
        return _sum(self.taken, self.held)

    @property
    def excess(self) -> str:
        """What was spent beyond the budget, and why, in words; "" where it was kept."""
        over = [(name, most) for name, most in self._limits.items() if self.spent[name] > most + SLACK]
        if not over:
            return ""
        spent = ", ".join(f"{_amount(self.spent[name])} of {_amount(most)} {_unit(name, most)}" for name, most in over)
        return f"spent {spent}, {EXCESS}: {'; '.join(self._causes) or 'what was spent before, or elsewhere, counts'}"

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return bool(self._limits)

    def allow(self, budget: Budget) -> None:
        """Change the budget. Whoever waits looks again."""
        self.budget, self._limits = budget, budget.limits
        self._serve()

    async def reserve(self, need: Callable[[], Need], reservation: Reservation | None = None) -> Grant:
        """Set aside what a call needs by what is known now; with it what is held for grades, or drawing on that.

        Waits while calls under way may yet turn out cheaper; raises BudgetExhaustedError when not.
        """
        queue = self._queue if reservation is None or reservation.open else self._urgent
        if not (self._urgent or self._queue) and (grant := self._granted(need, reservation)):
            return grant
        waiter = Waiter(need, reservation, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        self._serve()
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled() and not waiter.granted.exception():
                self.settle(waiter.granted.result(), NONE)
            raise
        finally:
            if waiter in queue:
                queue.remove(waiter)
                self._serve()

    def settle(self, grant: Grant, used: Mapping[str, float | None], again: Reservation | None = None) -> None:
        """Replace what was reserved by what was used; what is not known to be less counts as reserved.

        What was drawn goes back to where it may be drawn `again`, as far as it is left: before anybody else gets it.
        """
        self._running -= 1
        for name in LIMITS:
            self.reserved[name] -= grant.amounts[name]
            known = used[name]
            self.spent[name] += grant.amounts[name] if known is None else known
            if known and known > self.dearest[name]:
                self.dearest[name] = known
        self._causes.update(dict.fromkeys(_causes(grant, used)))
        if again and grant.drawn:
            self._hold_again(again, grant.drawn)
        self._changed()
        self._serve()

    def _hold_again(self, reservation: Reservation, drawn: Amounts) -> None:
        """Hold what was drawn once more, unless nothing is held for that text any more, or there is not a call left."""
        left = self._left(None)
        back = {name: min(amount, max(0.0, left.get(name, amount))) for name, amount in drawn.items()}
        if reservation in self._holders and reservation.held and back["calls"] == drawn["calls"]:
            reservation.held, self.held = _sum(reservation.held, back), _sum(self.held, back)

    def resize(self, reservation: Reservation, amounts: Amounts) -> None:
        """Hold no more than this from now on."""
        if reservation.held is None:
            return
        for name in LIMITS:
            less = max(0.0, reservation.held[name] - amounts[name])
            reservation.held[name] -= less
            self.held[name] -= less
        if not any(amounts.values()):
            self._holders.discard(reservation)
        self._serve()

    def release(self, reservation: Reservation) -> None:
        """Hold nothing any more."""
        self.resize(reservation, NONE)

    def reopen(self, reservation: Reservation) -> None:
        """There is no text: what is held for its grades is to be taken anew, by the next call that writes one."""
        self.release(reservation)
        reservation.held = None

    def end_step(self, owner: Owner) -> None:
        """A step has ended: with it may end the hope of those who wait."""
        owner.active -= 1
        if self._queue or self._urgent:
            self._serve()

    def check(self, amounts: Amounts) -> None:
        """Raise BudgetExhaustedError where this is more than can ever be left."""
        for name, most in self._limits.items():
            if amounts[name] > 0 and self.spent[name] + amounts[name] > most + SLACK:
                self.over |= amounts[name] <= most
                raise BudgetExhaustedError(self._complaint(name, amounts[name]), what=name)

    def lacks(self, amounts: Amounts) -> str:
        """The first limit under which less than this is left for a call that draws on nothing; "" for none."""
        left = self._left(None)
        return next((name for name in left if amounts[name] > 0 and amounts[name] > left[name] + SLACK), "")

    @property
    def awaited(self) -> list[dict[str, float]]:
        """What each of those who wait needs at the very least."""
        return [waiter.minimum for waiter in (*self._urgent, *self._queue)]

    # ---- who gets what

    def _granted(self, needed: Callable[[], Need], reservation: Reservation | None, *, alone: bool = False) -> Grant | None:
        """What a call may take now; None where it is to wait. Raises BudgetExhaustedError where there will never be enough."""
        need, grades = needed(), reservation.estimate() if reservation and reservation.open else None
        whole = need.plus(grades) if grades else need
        fit = self._fit(whole, self._left(reservation), alone=alone)
        if fit is None:
            return None
        self._running += 1
        drawn = reservation.part if reservation and reservation.held and not reservation.writing else None
        amounts = need.amounts(need.likely if fit.likely else need.bound, fit.tokens)
        grant = Grant(amounts, int(fit.tokens) if fit.limited else None, drawn)
        self.reserved = _sum(self.reserved, grant.amounts)
        if reservation and grades:
            self.held = _sum(self.held, reservation.take(grades, fit.tokens, likely=fit.likely))
            self._holders.add(reservation)
        elif drawn and reservation and reservation.held:
            reservation.held, self.held = _less(reservation.held, drawn), _less(self.held, drawn)
        self._changed()
        return grant

    def _fit(self, whole: Need, left: Amounts, *, alone: bool) -> Fit | None:
        """How many tokens the answer may have. What is `alone`, so that there will be no more, goes by its likely prompts."""
        room, likely = _room(left, whole.bound, whole.per_token), False
        if room < whole.expected:
            self.check(whole.minimum)
            if not alone:
                return None
            if room < max(whole.least, min(whole.expected, SHORTEST)):
                room, likely = _room(left, whole.likely, whole.per_token), True
            if room < whole.least:
                return None
        if room == inf:
            return Fit(whole.expected, likely=likely, limited=False)
        return Fit(min(whole.most, room, max(whole.expected, room // (self._running + 2))), likely=likely, limited=True)

    def _left(self, reservation: Reservation | None) -> dict[str, float]:
        """What is left under each limit for a call that may draw on a reservation."""
        own = reservation.part if reservation and not reservation.writing else NONE
        return {
            name: most - self.spent[name] - self.reserved[name] - self.held[name] + own[name] for name, most in self._limits.items()
        }

    def _refusal(self, waiter: Waiter) -> BudgetExhaustedError | None:
        """What a call is told for which there is not enough; None where it is to wait for more all the same."""
        minimum, left = waiter.minimum, self._left(waiter.reservation)
        name = max((name for name in self._limits if minimum[name] > 0), key=lambda name: 1 - left[name] / minimum[name])
        self.over |= minimum[name] <= self._limits[name]
        return BudgetExhaustedError(self._complaint(name, minimum[name]), what=name)

    def _serve(self, *, patient: bool = True) -> None:
        """Give those who wait what there is, in order. Where none of them can hope for more, refuse one at a time."""
        while self._grant_all() and (waiter := self._hopeless(patient=patient)):
            if not (refusal := self._refusal(waiter)):
                break
            waiter.granted.set_exception(refusal)
            patient = True
        self._watch()

    def _grant_all(self) -> bool:
        """Grant what can be; whether somebody still waits."""
        for waiter in list(self._urgent):
            if self._answered(waiter):
                self._urgent.remove(waiter)
        while self._queue and not self._urgent and self._answered(self._queue[0]):
            self._queue.popleft()
        return bool(self._urgent or self._queue)

    def _answered(self, waiter: Waiter) -> bool:
        """Whether a waiter has been told what it may take, or that it may not."""
        if not waiter.granted.done():
            try:
                if grant := self._granted(waiter.need, waiter.reservation, alone=self._is_quiet):
                    waiter.granted.set_result(grant)
            except BudgetExhaustedError as error:
                waiter.granted.set_exception(error)
        return waiter.granted.done()

    @property
    def _is_quiet(self) -> bool:
        """Whether nobody will give anything back: no call is under way, and who holds money waits for more with all its steps."""
        if self._running:
            return False
        waiting = Counter(w.reservation.owner for w in (*self._urgent, *self._queue) if w.reservation and not w.granted.done())
        return all(waiting[holder.owner] >= max(1, holder.owner.active) for holder in self._holders)

    def _hopeless(self, *, patient: bool) -> Waiter | None:
        """Who is to be refused next: who has not begun comes first."""
        if self._running or (patient and not self._is_quiet):
            return None
        return next((waiter for waiter in (*self._queue, *reversed(self._urgent)) if not waiter.granted.done()), None)

    def _watch(self) -> None:
        """While calls wait and none is under way, don't wait for ever: who holds money may wait for them in a roundabout way."""
        if self._idle:
            self._idle.cancel()
            self._idle = None
        if (self._urgent or self._queue) and not self._running:
            self._idle = asyncio.get_running_loop().call_later(IDLE, lambda: self._serve(patient=False))

    def _changed(self) -> None:
        if self.on_change:
            self.on_change()

    def _complaint(self, name: str, need: float) -> str:
        most, reserved = self._limits[name], self.reserved[name] + self.held[name]
        beside = f", {_amount(reserved)} reserved" if reserved > SLACK else ""
        state = "is used up" if self.spent[name] or reserved > SLACK else "is too small"
        said = f"the budget of {_amount(most)} {_unit(name, most)} {state}: {_amount(self.spent[name])} spent{beside}"
        next_step = f"the next step, with the grades of its text, may take {_amount(need)}"
        return f"{said}, {next_step}" + (f"; {self.excess}" if self.excess else "")


def priced(call: Call, rate: Rate | None) -> Call:
    """Enter each call in the open ledger, with what it cost in USD (None: the price is unknown).

    The same stands in the usage of its reply, and that this is what the answer took.
    """

    async def told(request: Request) -> Reply:
        entry = ledger.enter() if (ledger := open_ledger()) else Entry()
        try:
            reply = await call(request)
        except ModelError as error:
            error.usage = entry.settle(_priced(error.usage, rate))
            raise
        except ConfigError:
            entry.settle(NOTHING)
            raise
        used = entry.settle(_priced(reply.usage, rate))
        return replace(reply, usage=replace(used, answer_tokens=used.tokens, answer_cost=used.cost))

    return told


def meter(call: Call, purse: Purse, rate: Rate | None = None, costs: Costs | None = None) -> Call:
    """Reserve before and settle after each call, at this rate, by what the endpoint is known to count (`costs`, or new ones).

    Where a limit depends on the answer, `max_tokens` is set to what was reserved; one that the request has is never raised,
    and where it has none, a smaller one is tried when an endpoint says that it takes none so high. It stands around `priced`,
    which says what a call cost, and by whose entries in the ledger it is known what was sent of one that was cancelled.
    """
    known = costs or Costs(rate)

    async def metered(request: Request) -> Reply:
        attempts = Attempts(purse, known, request, size_of(request))
        sent = await attempts.reserve()
        while True:
            try:
                reply = await attempt(attempts, sent)
            except ModelError as error:
                if not attempts.narrows(error):
                    error.usage = attempts.whole(error.usage)
                    raise
                sent = await attempts.again(error.usage)
            else:
                return replace(reply, usage=attempts.whole(reply.usage)) if attempts.before is not NOTHING else reply

    async def attempt(attempts: Attempts, request: Request) -> Reply:
        used: Usage | None = None
        answered = False
        token = AGAIN.set(attempts.again)
        try:
            with attempts.ledger:
                reply = await call(request)
            used, answered = reply.usage, True
            return reply
        except ModelError as error:
            used = error.usage
            raise
        except asyncio.CancelledError:
            used = attempts.ledger.sent
            raise
        finally:
            AGAIN.reset(token)
            attempts.settle(used, answered=answered)

    return metered


@dataclass(slots=True)
class Attempts:
    """A call and its repetitions: what the one under way was granted, and what those before have consumed.

    `room` is the `max_tokens` to try where the request has none and the endpoint refused a higher one. `ledger` holds what was
    sent since the last of them was settled.
    """

    purse: Purse
    costs: Costs
    request: Request
    size: Size
    room: int | None = None
    granted: int | None = None
    before: Usage = NOTHING
    grant: Grant | None = None
    ledger: Ledger = field(default_factory=lambda: Ledger(within=open_ledger()))

    @property
    def reservation(self) -> Reservation | None:
        """What the call takes or draws on; what is of another purse is not for it: a grader may refine something itself."""
        reservation = RESERVATION.get()
        return reservation if reservation and reservation.purse is self.purse else None

    async def reserve(self) -> Request:
        """The request, with the `max_tokens` that it may have. Raises BudgetExhaustedError."""
        reservation = self.reservation
        drawn = reservation.prompt if reservation and not reservation.writing else inf
        need = partial(self.costs.of_request, self.request, self.size, self.purse.budget.min_tokens, self.room, drawn)
        try:
            self.grant = await self.purse.reserve(need, reservation)
        except BudgetExhaustedError as error:
            error.usage = self.whole(error.usage)
            raise
        self.granted = self.grant.max_tokens
        return _fitted(self.request, self.grant)

    def settle(self, used: Usage | None, *, answered: bool) -> None:
        """The attempt under way has ended; None: what it consumed is unknown."""
        grant, self.grant = self.grant, None
        if grant is None:
            return
        if used and used.calls == 1:
            self.costs.tokens.learn(self.size, used, schema=self.request.schema is not None)
            if self.room and used.output_tokens:
                self.costs.tokens.ceiling = self.room
        if reservation := self.reservation:
            _note(self.purse, reservation, self.size, used, answered=answered)
        self.purse.settle(grant, _amounts(used), None if answered else reservation)
        self.ledger.entries.clear()

    async def again(self, usage: Usage) -> Request:
        """Settle the attempt that failed, and reserve another."""
        self.settle(usage, answered=False)
        self.before += usage
        return await self.reserve()

    def whole(self, usage: Usage) -> Usage:
        """What all attempts consumed, with the last."""
        return usage if self.before is NOTHING else (self.before + usage).of_one_answer()

    def narrows(self, error: ModelError) -> bool:
        """Whether to ask once more with half the `max_tokens`: the caller has set none, and the endpoint takes none so high."""
        about = error.status in {400, 422} and _ROOM_REFUSED.search(str(error))
        if not about or self.request.max_tokens is not None or self.granted is None or self.granted < 2 * SHORTEST:
            return False
        self.room = self.granted // 2
        return True


AGAIN: ContextVar[Callable[[Usage], Awaitable[Request]] | None] = ContextVar("again", default=None)
"""What reserves another attempt of the call under way, told what the last one consumed: for a wrapper within that repeats it."""


class Costs:
    """What the calls of a model need, by what it has counted so far, at a rate (None: USD do not count)."""

    def __init__(self, rate: Rate | None = None) -> None:
        self.tokens = TokenEstimator()
        self._read, self._written = (
            (rate.cost(usage) or 0.0) / MILLION if rate else 0.0 for usage in (Usage(1, MILLION, 0), Usage(1, 0, MILLION))
        )
        self._per_token = {**NONE, "output_tokens": 1.0, "tokens": 1.0, "usd": self._written}

    def of_request(self, request: Request, size: Size, min_tokens: int, room: int | None = None, prompt: float = inf) -> Need:
        """What a request needs. `room`: the `max_tokens` that it gets at most where it has none. `prompt`: the tokens of its
        prompt, by a better estimate.
        """
        tokens, schema = self.tokens, request.schema is not None
        most = request.max_tokens or room or tokens.room
        least = min(most, max(min_tokens, tokens.longest.get(True, SHORTEST)) if schema else min_tokens)
        expected = min(most, max(least, tokens.expected(schema=schema)))

        def likely() -> Amounts:
            return self._prompt(min(prompt, tokens.likely(size)))

        return Need(self._prompt(tokens.bound(size)), likely, self._per_token, least, expected, most)

    def of_grade(self, size: Size, most: int | None, shown: float) -> Need:
        """What a call needs that grades a text, beside a prompt of this size: `shown` tokens for each token of the text.

        Its answer has at most `most` tokens, to a schema; None: it is free text.
        """
        answer = min(most or inf, self.tokens.expected(schema=most is not None))
        bound, likely = (
            {name: amount + answer * self._per_token[name] for name, amount in self._prompt(tokens).items()}
            for tokens in (self.tokens.bound(size), self.tokens.likely(size))
        )
        return Need(bound, lambda: likely, {**NONE, "input_tokens": shown, "tokens": shown, "usd": shown * self._read})

    def _prompt(self, tokens: float) -> dict[str, float]:
        return {"calls": 1, "input_tokens": tokens, "output_tokens": 0.0, "tokens": tokens, "usd": tokens * self._read}


def estimate(request: Request, rate: Rate | None) -> dict[str, float]:
    """What a call takes, roughly: its prompt's length in tokens, and `max_tokens` of output where the caller set them."""
    asked = request.original or request
    chars = sum(len(text_of(m)) for m in asked.messages)
    read, written = chars // CHARS_PER_TOKEN + 1, asked.max_tokens or OUTPUT_GUESS
    usd = rate.cost(Usage(1, read, written)) if rate else None
    return {"calls": 1, "input_tokens": read, "output_tokens": written, "tokens": read + written, "usd": usd or 0.0}


def _fitted(request: Request, grant: Grant) -> Request:
    """The request with the `max_tokens` that it may have."""
    if grant.max_tokens is None or grant.max_tokens == request.max_tokens:
        return request
    return replace(request, max_tokens=grant.max_tokens, original=request)


def _note(purse: Purse, reservation: Reservation, size: Size, used: Usage | None, *, answered: bool) -> None:
    """What a call tells of the money held for grades: how long the text is, or the prompts of those who grade it."""
    if not reservation.writing:
        reservation.longest_prompt = max(reservation.longest_prompt, size.bytes)
    elif not answered:
        purse.reopen(reservation)
    elif used and used.output_tokens is not None:
        purse.resize(reservation, reservation.of(used.output_tokens))


def _causes(grant: Grant, used: Mapping[str, float | None]) -> Iterator[str]:
    """Why a call took more than was reserved for it."""
    if grant.max_tokens is not None and (used["output_tokens"] or 0) > grant.max_tokens:
        yield "the server wrote more than max_tokens"
    if (used["input_tokens"] or 0) > grant.amounts["input_tokens"]:
        yield "the server counted more tokens in a prompt than were reserved"


def _room(left: Amounts, prompts: Amounts, per_token: Amounts) -> float:
    """The most tokens an answer can have: below 0 where not even the prompts fit, infinite where no limit depends on it."""
    room = inf
    for name, amount in left.items():
        spare, each = amount - prompts[name], per_token[name]
        if each > 0:
            room = min(room, floor(spare / each + SLACK))
        elif prompts[name] > 0 and spare < -SLACK:
            return -1.0
    return room


def _sum(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] + other[name] for name in LIMITS}


def _less(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] - other[name] for name in LIMITS}


def _amount(number: float) -> str:
    """A whole number as it is, another to six digits; neither with an exponent."""
    return f"{number:.0f}" if float(number).is_integer() else format(Decimal(f"{number:.6g}"), "f")


def _unit(name: str, amount: float) -> str:
    unit = "USD" if name == "usd" else name.replace("_", " ")
    return unit.removesuffix("s") if amount == 1 else unit


def _priced(usage: Usage, rate: Rate | None) -> Usage:
    return replace(usage, cost=rate.cost(usage)) if rate and usage.cost is None else usage


def _amounts(usage: Usage | None) -> dict[str, float | None]:
    """A usage by limit; None where it is unknown."""
    if usage is None:
        return {**dict.fromkeys(LIMITS), "calls": 1}
    read, written = usage.input_tokens, usage.output_tokens
    return {"calls": usage.calls, "input_tokens": read, "output_tokens": written, "tokens": usage.tokens, "usd": usage.cost}
