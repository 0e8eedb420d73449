"""Money, tokens and calls: reserved before a call, settled after it, so that calls in flight cannot overshoot together.

With a limit on output tokens, tokens or USD every call carries a `max_tokens` that fits into what is left, and what was
reserved is what it can take at most: on an endpoint that honours `max_tokens` and reports what it used, no limit is exceeded.
Elsewhere the excess is at most what was in flight, and `BudgetTracker.excess` says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from math import floor, inf
from typing import NamedTuple

from .. import checks
from ..errors import BudgetExhaustedError
from .call_costs import LIMITS, ZERO_AMOUNTS, Amounts, CostEstimate, add_amounts
from .token_counts import MIN_ANSWER_TOKENS

IDLE_TIMEOUT = 2.0  # seconds for which a call waits for money that is reserved for grades while no call is in flight
FLOAT_TOLERANCE = 1e-9  # sums of USD are not exact
EXCESS_TEXT = "more than the budget allows"


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent. None means no limit.

    A call is made only if what it may take fits into what is left beside the calls in flight. With a limit that answers count
    against, each call carries a `max_tokens` that fits.

    Args:
        calls: Number of model calls, retries included.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models write.
        tokens: Both together.
        usd: Cost in USD. The price of each model must be known.
        min_tokens: A call that would get fewer tokens for its answer than this is not made.

    Raises:
        ConfigError: A limit is negative, infinite or not a number.
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


@dataclass(frozen=True, slots=True)
class Grant:
    """What a call may take: its amounts, and `max_tokens` for its answer (None: no limit depends on it). `drawn`: what of it was
    held for it.
    """

    amounts: dict[str, float]
    max_tokens: int | None = None
    from_reserve: Amounts | None = None


class AnswerRoom(NamedTuple):
    """How many tokens an answer may have, by the `likely` length of the prompts or their bound; whether a limit depends on it."""

    tokens: float
    uses_likely: bool
    limited: bool


@dataclass(eq=False, slots=True)
class BudgetOwner:
    """For whom money is reserved: a task, with so many steps `active`."""

    active_steps: int = 0


@dataclass(eq=False, slots=True)
class Reservation:
    """Money of a `purse` for the calls that grade a text, reserved with the text. `estimate` tells what they need now,
    `per_token` being for each token of that text.

    While the text is `writing`, the first call takes it; later each call draws an equal part of what is `held`.
    `longest_prompt` is in bytes, of the calls that drew on it; `tokens` are those of the text, as far as they are known.
    """

    tracker: BudgetTracker
    estimate_cost: Callable[[], CostEstimate]
    owner: BudgetOwner
    writing: bool = True
    remaining: dict[str, float] | None = None
    max_prompt_bytes: int = 0
    tokens: float = 0.0
    _need: CostEstimate | None = None
    _prompts: Amounts = field(default_factory=dict)

    @property
    def next_share(self) -> dict[str, float]:
        """What the next call draws."""
        held = self.remaining or ZERO_AMOUNTS
        calls = max(1.0, held["calls"])
        return {name: amount / calls for name, amount in held.items()}

    @property
    def is_pending(self) -> bool:
        """Whether it is still to be taken, by the call that writes the text."""
        return self.writing and self.remaining is None

    @property
    def prompt_tokens(self) -> float:
        """Tokens of the prompt of a call that draws on it: by those of the text, which were counted. Infinite once all have."""
        if self._need is None or not self.remaining or self.remaining["calls"] < 1:
            return inf
        return self._need.amounts(self._need.likely, self.tokens)["input_tokens"] / self._need.likely["calls"]

    def hold(self, need: CostEstimate, tokens: float, *, likely: bool) -> dict[str, float]:
        """Hold what is needed for a text of at most so many tokens."""
        self._need, self._prompts = need, need.likely if likely else need.upper_bound
        self.remaining = self.amounts_for(tokens)
        return self.remaining

    def amounts_for(self, tokens: float) -> dict[str, float]:
        """What is needed for a text of so many tokens, which it has."""
        assert self._need is not None
        self.tokens = tokens
        return self._need.amounts(self._prompts, tokens)


RESERVATION: ContextVar[Reservation | None] = ContextVar("reservation", default=None)
"""The reservation that the calls of the step under way take, or draw on."""


@dataclass(eq=False, slots=True)
class BudgetWaiter:
    """A call that waits until it is granted what it needs, by what is known then."""

    need: Callable[[], CostEstimate]
    reservation: Reservation | None
    grant: asyncio.Future[Grant]

    @property
    def minimum(self) -> dict[str, float]:
        """What it needs at the very least, with what is to be reserved for grades."""
        need = self.need()
        return (need.plus(self.reservation.estimate_cost()) if self.reservation and self.reservation.is_pending else need).minimum


class BudgetTracker:
    """A budget being spent: what is settled, what is reserved for calls under way, and what is `held` for grades to come.

    `on_change` is called after each change. `over`: a call was refused that the whole budget would have allowed. `dearest`:
    the most that a call has used. Calls that find too little left wait, in order, as long as those under way may turn out
    cheaper; calls for a text that is paid for come first.
    """

    def __init__(self, budget: Budget | None = None, on_change: Callable[[], object] | None = None) -> None:
        self.on_change = on_change
        self.is_exhausted = False
        self.spent, self.reserved, self.held_for_grades, self.max_call_usage = (dict(ZERO_AMOUNTS) for _ in range(4))
        self.budget = budget or Budget()
        self._limits = self.budget.limits
        self._active_calls = 0
        self._urgent: deque[BudgetWaiter] = deque()
        self._queue: deque[BudgetWaiter] = deque()
        self._holders: set[Reservation] = set()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._excess_causes: dict[str, None] = {}

    @property
    def spent_and_reserved(self) -> dict[str, float]:
        """What is settled, and what is reserved for calls under way."""
        return add_amounts(self.spent, self.reserved)

    @property
    def committed(self) -> dict[str, float]:
        """What is taken, and what is held for grades to come."""
        return add_amounts(self.spent_and_reserved, self.held_for_grades)

    @property
    def excess(self) -> str:
        """What was spent beyond the budget, and why, in words; "" where it was kept."""
        over = [(name, most) for name, most in self._limits.items() if self.spent[name] > most + FLOAT_TOLERANCE]
        if not over:
            return ""
        spent = ", ".join(f"{_amount(self.spent[name])} of {_amount(most)} {_unit(name, most)}" for name, most in over)
        return f"spent {spent}, {EXCESS_TEXT}: {'; '.join(self._excess_causes) or 'what was spent before, or elsewhere, counts'}"

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return bool(self._limits)

    def set_budget(self, budget: Budget) -> None:
        """Change the budget. Whoever waits looks again."""
        self.budget, self._limits = budget, budget.limits
        self._serve()

    async def reserve(self, need: Callable[[], CostEstimate], reservation: Reservation | None = None) -> Grant:
        """Set aside what a call needs by what is known now; with it what is held for grades, or drawing on that.

        Waits while calls under way may yet turn out cheaper; raises BudgetExhaustedError when not.
        """
        queue = self._queue if reservation is None or reservation.is_pending else self._urgent
        if not (self._urgent or self._queue) and (grant := self._try_grant(need, reservation)):
            return grant
        waiter = BudgetWaiter(need, reservation, asyncio.get_running_loop().create_future())
        queue.append(waiter)
        self._serve()
        try:
            return await waiter.grant
        except asyncio.CancelledError:
            if waiter.grant.done() and not waiter.grant.cancelled() and not waiter.grant.exception():
                self.settle(waiter.grant.result(), ZERO_AMOUNTS)
            raise
        finally:
            if waiter in queue:
                queue.remove(waiter)
                self._serve()

    def settle(self, grant: Grant, usage: Mapping[str, float | None], return_to: Reservation | None = None) -> None:
        """Replace what was reserved by what was used; what is not known to be less counts as reserved.

        What was drawn goes back to where it may be drawn `again`, as far as it is left: before anybody else gets it.
        """
        self._active_calls -= 1
        for name in LIMITS:
            self.reserved[name] -= grant.amounts[name]
            known = usage[name]
            self.spent[name] += grant.amounts[name] if known is None else known
            if known and known > self.max_call_usage[name]:
                self.max_call_usage[name] = known
        self._excess_causes.update(dict.fromkeys(_excess_causes(grant, usage)))
        if return_to and grant.from_reserve:
            self._return_to_reserve(return_to, grant.from_reserve)
        self._notify_change()
        self._serve()

    def _return_to_reserve(self, reservation: Reservation, amounts: Amounts) -> None:
        """Hold what was drawn once more, unless nothing is held for that text any more, or there is not a call left."""
        left = self._remaining(None)
        back = {name: min(amount, max(0.0, left.get(name, amount))) for name, amount in amounts.items()}
        if reservation in self._holders and reservation.remaining and back["calls"] == amounts["calls"]:
            reservation.remaining, self.held_for_grades = (
                add_amounts(reservation.remaining, back),
                add_amounts(self.held_for_grades, back),
            )

    def resize(self, reservation: Reservation, amounts: Amounts) -> None:
        """Hold no more than this from now on."""
        if reservation.remaining is None:
            return
        for name in LIMITS:
            less = max(0.0, reservation.remaining[name] - amounts[name])
            reservation.remaining[name] -= less
            self.held_for_grades[name] -= less
        if not any(amounts.values()):
            self._holders.discard(reservation)
        self._serve()

    def release(self, reservation: Reservation) -> None:
        """Hold nothing any more."""
        self.resize(reservation, ZERO_AMOUNTS)

    def reopen(self, reservation: Reservation) -> None:
        """There is no text: what is held for its grades is to be taken anew, by the next call that writes one."""
        self.release(reservation)
        reservation.remaining = None

    def end_step(self, owner: BudgetOwner) -> None:
        """A step has ended: with it may end the hope of those who wait."""
        owner.active_steps -= 1
        if self._queue or self._urgent:
            self._serve()

    def check(self, amounts: Amounts) -> None:
        """Raise BudgetExhaustedError where this is more than can ever be left."""
        for name, most in self._limits.items():
            if amounts[name] > 0 and self.spent[name] + amounts[name] > most + FLOAT_TOLERANCE:
                self.is_exhausted |= amounts[name] <= most
                raise BudgetExhaustedError(self._exhausted_message(name, amounts[name]), limit=name)

    def exceeded_limit(self, amounts: Amounts) -> str:
        """The first limit under which less than this is left for a call that draws on nothing; "" for none."""
        left = self._remaining(None)
        return next((name for name in left if amounts[name] > 0 and amounts[name] > left[name] + FLOAT_TOLERANCE), "")

    @property
    def waiting_minimums(self) -> list[dict[str, float]]:
        """What each of those who wait needs at the very least."""
        return [waiter.minimum for waiter in (*self._urgent, *self._queue)]

    # ---- who gets what

    def _try_grant(
        self, estimate: Callable[[], CostEstimate], reservation: Reservation | None, *, alone: bool = False
    ) -> Grant | None:
        """What a call may take now; None where it is to wait. Raises BudgetExhaustedError where there will never be enough."""
        need, grades = estimate(), reservation.estimate_cost() if reservation and reservation.is_pending else None
        whole = need.plus(grades) if grades else need
        fit = self._fit(whole, self._remaining(reservation), alone=alone)
        if fit is None:
            return None
        self._active_calls += 1
        drawn = reservation.next_share if reservation and reservation.remaining and not reservation.writing else None
        amounts = need.amounts(need.likely if fit.uses_likely else need.upper_bound, fit.tokens)
        grant = Grant(amounts, int(fit.tokens) if fit.limited else None, drawn)
        self.reserved = add_amounts(self.reserved, grant.amounts)
        if reservation and grades:
            self.held_for_grades = add_amounts(self.held_for_grades, reservation.hold(grades, fit.tokens, likely=fit.uses_likely))
            self._holders.add(reservation)
        elif drawn and reservation and reservation.remaining:
            reservation.remaining, self.held_for_grades = (
                _subtract(reservation.remaining, drawn),
                _subtract(self.held_for_grades, drawn),
            )
        self._notify_change()
        return grant

    def _fit(self, total: CostEstimate, remaining: Amounts, *, alone: bool) -> AnswerRoom | None:
        """How many tokens the answer may have. What is `alone`, so that there will be no more, goes by its likely prompts."""
        room, likely = _max_answer_tokens(remaining, total.upper_bound, total.per_token), False
        if room < total.expected_answer_tokens:
            self.check(total.minimum)
            if not alone:
                return None
            if room < max(total.min_answer_tokens, min(total.expected_answer_tokens, MIN_ANSWER_TOKENS)):
                room, likely = _max_answer_tokens(remaining, total.likely, total.per_token), True
            if room < total.min_answer_tokens:
                return None
        if room == inf:
            return AnswerRoom(total.expected_answer_tokens, uses_likely=likely, limited=False)
        return AnswerRoom(
            min(total.max_answer_tokens, room, max(total.expected_answer_tokens, room // (self._active_calls + 2))),
            uses_likely=likely,
            limited=True,
        )

    def _remaining(self, reservation: Reservation | None) -> dict[str, float]:
        """What is left under each limit for a call that may draw on a reservation."""
        own = reservation.next_share if reservation and not reservation.writing else ZERO_AMOUNTS
        return {
            name: most - self.spent[name] - self.reserved[name] - self.held_for_grades[name] + own[name]
            for name, most in self._limits.items()
        }

    def _refusal(self, waiter: BudgetWaiter) -> BudgetExhaustedError | None:
        """What a call is told for which there is not enough; None where it is to wait for more all the same."""
        minimum, left = waiter.minimum, self._remaining(waiter.reservation)
        name = max((name for name in self._limits if minimum[name] > 0), key=lambda name: 1 - left[name] / minimum[name])
        self.is_exhausted |= minimum[name] <= self._limits[name]
        return BudgetExhaustedError(self._exhausted_message(name, minimum[name]), limit=name)

    def _serve(self, *, patient: bool = True) -> None:
        """Give those who wait what there is, in order. Where none of them can hope for more, refuse one at a time."""
        while self._grant_all() and (waiter := self._next_to_refuse(patient=patient)):
            if not (refusal := self._refusal(waiter)):
                break
            waiter.grant.set_exception(refusal)
            patient = True
        self._start_idle_timer()

    def _grant_all(self) -> bool:
        """Grant what can be; whether somebody still waits."""
        for waiter in list(self._urgent):
            if self._try_resolve(waiter):
                self._urgent.remove(waiter)
        while self._queue and not self._urgent and self._try_resolve(self._queue[0]):
            self._queue.popleft()
        return bool(self._urgent or self._queue)

    def _try_resolve(self, waiter: BudgetWaiter) -> bool:
        """Whether a waiter has been told what it may take, or that it may not."""
        if not waiter.grant.done():
            try:
                if grant := self._try_grant(waiter.need, waiter.reservation, alone=self._is_idle):
                    waiter.grant.set_result(grant)
            except BudgetExhaustedError as error:
                waiter.grant.set_exception(error)
        return waiter.grant.done()

    @property
    def _is_idle(self) -> bool:
        """Whether nobody will give anything back: no call is under way, and who holds money waits for more with all its steps."""
        if self._active_calls:
            return False
        waiting = Counter(w.reservation.owner for w in (*self._urgent, *self._queue) if w.reservation and not w.grant.done())
        return all(waiting[holder.owner] >= max(1, holder.owner.active_steps) for holder in self._holders)

    def _next_to_refuse(self, *, patient: bool) -> BudgetWaiter | None:
        """Who is to be refused next: who has not begun comes first."""
        if self._active_calls or (patient and not self._is_idle):
            return None
        return next((waiter for waiter in (*self._queue, *reversed(self._urgent)) if not waiter.grant.done()), None)

    def _start_idle_timer(self) -> None:
        """While calls wait and none is under way, don't wait for ever: who holds money may wait for them in a roundabout way."""
        if self._idle_timer:
            self._idle_timer.cancel()
            self._idle_timer = None
        if (self._urgent or self._queue) and not self._active_calls:
            self._idle_timer = asyncio.get_running_loop().call_later(IDLE_TIMEOUT, lambda: self._serve(patient=False))

    def _notify_change(self) -> None:
        if self.on_change:
            self.on_change()

    def _exhausted_message(self, name: str, amount: float) -> str:
        most, reserved = self._limits[name], self.reserved[name] + self.held_for_grades[name]
        beside = f", {_amount(reserved)} reserved" if reserved > FLOAT_TOLERANCE else ""
        state = "is used up" if self.spent[name] or reserved > FLOAT_TOLERANCE else "is too small"
        said = f"the budget of {_amount(most)} {_unit(name, most)} {state}: {_amount(self.spent[name])} spent{beside}"
        next_step = f"the next step, with the grades of its text, may take {_amount(amount)}"
        return f"{said}, {next_step}" + (f"; {self.excess}" if self.excess else "")


def _excess_causes(grant: Grant, usage: Mapping[str, float | None]) -> Iterator[str]:
    """Why a call took more than was reserved for it."""
    if grant.max_tokens is not None and (usage["output_tokens"] or 0) > grant.max_tokens:
        yield "the server wrote more than max_tokens"
    if (usage["input_tokens"] or 0) > grant.amounts["input_tokens"]:
        yield "the server counted more tokens in a prompt than were reserved"


def _max_answer_tokens(remaining: Amounts, prompts: Amounts, per_token: Amounts) -> float:
    """The most tokens an answer can have: below 0 where not even the prompts fit, infinite where no limit depends on it."""
    room = inf
    for name, amount in remaining.items():
        spare, each = amount - prompts[name], per_token[name]
        if each > 0:
            room = min(room, floor(spare / each + FLOAT_TOLERANCE))
        elif prompts[name] > 0 and spare < -FLOAT_TOLERANCE:
            return -1.0
    return room


def _subtract(one: Amounts, other: Amounts) -> dict[str, float]:
    return {name: one[name] - other[name] for name in LIMITS}


def _amount(number: float) -> str:
    """A whole number as it is, another to six digits; neither with an exponent."""
    return f"{number:.0f}" if float(number).is_integer() else format(Decimal(f"{number:.6g}"), "f")


def _unit(name: str, amount: float) -> str:
    unit = "USD" if name == "usd" else name.replace("_", " ")
    return unit.removesuffix("s") if amount == 1 else unit
