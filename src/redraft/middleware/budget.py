"""The budget of a run: reserved before each call and settled after it, so that concurrent calls
cannot exceed it together.

With a limit on output tokens, tokens or USD, every call has a `max_tokens` that fits into the rest
of the budget, and the most that it can take is reserved: on an endpoint that honours `max_tokens`
and reports its usage, no limit is exceeded. On other endpoints the excess is at most what was in
flight, and `BudgetTracker.excess` reports it.

A call that does not fit waits while other calls may turn out cheaper than reserved. If none can, it
is granted what is left, or refused with a BudgetExhaustedError.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import ceil, floor, inf

from ..base import checks
from ..base.money import usd_amount
from ..errors import BudgetExhaustedError
from .call_costs import (
    LIMITS,
    ZERO_AMOUNTS,
    Amounts,
    CostEstimate,
    add_amounts,
    subtract_amounts,
)

# seconds that a call waits for amounts reserved for grades while no call is in flight
IDLE_TIMEOUT = 2.0
FLOAT_TOLERANCE = 1e-9  # sums of USD are not exact
EXCESS_TEXT = "more than the budget allows"


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent. None means no limit.

    A call is made only if it fits into what the calls in flight leave of the budget. If answers
    count against a limit, each call has a `max_tokens` that fits.

    Args:
        calls: Number of model calls, retries included.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models write.
        tokens: Both together.
        usd: Cost in USD. The price of each model must be known.
        min_tokens: A call that would get fewer tokens than this for its answer is not made.

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
            limit = getattr(self, name)
            if name == "usd":
                checks.number("budget: usd", limit, optional=True)
            else:
                checks.whole_number(f"budget: {name}", limit, 0, optional=True)
        checks.whole_number("budget: min_tokens", self.min_tokens, 1)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}


@dataclass(eq=False, slots=True)
class Grant:
    """What a call may take, and the `max_tokens` of its answer (None: no limit depends on it).

    `from_reserve` is the part that was drawn from the amounts held for grades.
    """

    amounts: Amounts
    max_tokens: int | None
    from_reserve: Amounts | None


@dataclass(eq=False, slots=True)
class BudgetOwner:
    """A task for which amounts are reserved, and the number of its steps that are running."""

    active_steps: int = 0


def no_cost() -> CostEstimate:
    """Return the estimated cost of no call."""
    return CostEstimate(ZERO_AMOUNTS, ZERO_AMOUNTS)


@dataclass(eq=False, slots=True)
class Reservation:
    """The part of a budget for the calls that grade a text. It is reserved together with the text,
    or with the first of them.

    Attributes:
        tracker: The budget.
        estimate_cost: Returns what the calls may cost now; `per_token` is for each token of the
            text.
        owner: The task.
        writing: The text is being written; the call that writes it takes the reservation. After
            that, each call that grades it draws an equal share.
        for_text: A text is to be written. If not, the first call that grades takes the reservation,
            for those that follow.
        remaining: What is held; None until it is taken.
        max_prompt_bytes: Bytes of the longest prompt that drew on it.
        tokens: Tokens of the text, or the most that it may have.
    """

    tracker: BudgetTracker
    estimate_cost: Callable[[], CostEstimate]
    owner: BudgetOwner
    writing: bool = True
    for_text: bool = True
    remaining: dict[str, float] | None = None
    max_prompt_bytes: int = 0
    tokens: float = 0.0
    _need: CostEstimate | None = None

    @property
    def next_share(self) -> dict[str, float] | None:
        """What the next call that grades may draw; None if nothing is held for it."""
        if self.writing or self.remaining is None:
            return None
        calls = max(1.0, self.remaining["calls"])
        return {name: amount / calls for name, amount in self.remaining.items()}

    @property
    def is_pending(self) -> bool:
        """Whether the call that writes the text is still to take it."""
        return self.writing and self.remaining is None

    @property
    def prompt_tokens(self) -> float:
        """Tokens of the prompt of the next call, from the counted tokens of the text; infinite once
        nothing is held.
        """
        if self._need is None or not self.remaining or self.remaining["calls"] < 1:
            return inf
        return self._need.amounts(self.tokens)["input_tokens"] / self._need.prompts["calls"]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """While this is open, the calls of the current step take it or draw on it."""
        token = RESERVATION.set(self)
        try:
            yield
        finally:
            RESERVATION.reset(token)

    def close(self) -> None:
        """End its text. Contexts of what goes on for longer keep a reservation, so it must not keep
        the task.
        """
        self.writing, self.estimate_cost = False, no_cost

    def hold(self, need: CostEstimate, tokens: float) -> dict[str, float]:
        """Hold what is needed for a text of at most this many tokens."""
        self._need = need
        self.remaining, self.writing = self.amounts_for(tokens), self.for_text
        return self.remaining

    def amounts_for(self, tokens: float) -> dict[str, float]:
        """Record the tokens of the text, and return what is needed to grade it."""
        assert self._need is not None
        self.tokens = tokens
        return self._need.amounts(tokens)


RESERVATION: ContextVar[Reservation | None] = ContextVar("reservation", default=None)
"""The reservation that the calls of the current step take or draw on."""


@dataclass(eq=False, slots=True)
class BudgetWaiter:
    """A call that waits for a grant. `need` returns what it may cost, by what is known at the
    time.
    """

    need: Callable[[], CostEstimate]
    reservation: Reservation | None
    grant: asyncio.Future[Grant]

    @property
    def minimum(self) -> dict[str, float]:
        """The least with which it can be made, with what it reserves for grades."""
        need = self.need()
        return (
            need.plus(self.reservation.estimate_cost())
            if self.reservation and self.reservation.is_pending
            else need
        ).minimum

    @property
    def unused_grant(self) -> Grant | None:
        """What it was granted before it was cancelled; None if nothing."""
        ended = self.grant.done() and not self.grant.cancelled()
        return None if not ended or self.grant.exception() else self.grant.result()


class BudgetTracker:
    """Keeps account of a budget, and grants calls what they may take.

    Calls that do not fit wait, in order, as long as calls in flight may turn out cheaper; calls
    that draw on a reservation come first. `on_change` is called after each change.

    Attributes:
        spent: What settled calls have taken.
        reserved: What is reserved for calls in flight.
        held_for_grades: What is reserved for grades whose calls have not started.
        max_call_usage: The most that one call has taken.
        is_exhausted: A call was refused that the whole budget would have allowed.
    """

    def __init__(
        self, budget: Budget | None = None, on_change: Callable[[], object] | None = None
    ) -> None:
        self.on_change = on_change
        self.is_exhausted = False
        self.spent, self.reserved, self.held_for_grades, self.max_call_usage = (
            dict(ZERO_AMOUNTS) for _ in range(4)
        )
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
        """What is spent, and what is reserved for calls in flight."""
        return add_amounts(self.spent, self.reserved)

    @property
    def committed(self) -> dict[str, float]:
        """What is spent, reserved, or held for grades."""
        return add_amounts(self.spent_and_reserved, self.held_for_grades)

    @property
    def left(self) -> dict[str, float]:
        """What is left of each limit, by its name, with what is held for grades of texts that
        exist.
        """
        used = self.spent_and_reserved
        return {name: max(0.0, limit - used[name]) for name, limit in self._limits.items()}

    @property
    def excess(self) -> str:
        """A text about what was spent beyond the budget, and why; "" if the budget was kept."""
        over = [
            (name, most)
            for name, most in self._limits.items()
            if self.spent[name] > most + FLOAT_TOLERANCE
        ]
        if not over:
            return ""
        spent = ", ".join(
            f"{_amount(self.spent[name], name)} of {_amount(most, name)} {_unit(name, most)}"
            for name, most in over
        )
        return (
            f"spent {spent}, {EXCESS_TEXT}: "
            f"{'; '.join(self._excess_causes) or 'spending of earlier or other runs counts'}"
        )

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit."""
        return bool(self._limits)

    def set_budget(self, budget: Budget) -> None:
        """Change the budget, and grant waiting calls what fits now."""
        self.budget, self._limits = budget, budget.limits
        self._serve()

    async def reserve(
        self, need: Callable[[], CostEstimate], reservation: Reservation | None = None
    ) -> Grant:
        """Reserve what a call may cost. A pending `reservation` is taken with it; on another one,
        the call draws.

        Waits while calls in flight may turn out cheaper. Raises BudgetExhaustedError if there will
        not be enough.
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
            if grant := waiter.unused_grant:
                self.settle(grant, ZERO_AMOUNTS)
            raise
        finally:
            if waiter in queue:
                queue.remove(waiter)
                self._serve()

    def settle(
        self, grant: Grant, usage: Mapping[str, float | None], return_to: Reservation | None = None
    ) -> None:
        """Replace what was reserved by what was used. An unknown amount (None) counts as what was
        reserved.

        What the call drew goes back to `return_to`, as far as it is left, before waiting calls get
        it.
        """
        self._active_calls -= 1
        self._excess_causes.update(dict.fromkeys(_excess_causes(grant, usage)))
        self.reserved = subtract_amounts(self.reserved, grant.amounts)
        for name, used in usage.items():
            self.spent[name] += grant.amounts[name] if used is None else used
            self.max_call_usage[name] = max(self.max_call_usage[name], used or 0.0)
        if return_to and grant.from_reserve:
            self._return_to_reserve(return_to, grant.from_reserve)
        self._notify_change()
        self._serve()

    def _return_to_reserve(self, reservation: Reservation, amounts: Amounts) -> None:
        """Hold again what was drawn, unless the reservation was released or no call is left in the
        budget.
        """
        left = self._remaining(None)
        back = {
            name: min(amount, max(0.0, left.get(name, amount))) for name, amount in amounts.items()
        }
        if (
            reservation in self._holders
            and reservation.remaining
            and back["calls"] == amounts["calls"]
        ):
            reservation.remaining, self.held_for_grades = (
                add_amounts(reservation.remaining, back),
                add_amounts(self.held_for_grades, back),
            )

    def split(self, reservation: Reservation, calls: int) -> Reservation:
        """Move what is held for so many calls into a reservation of its own, so that more of them
        take nothing from the others.
        """
        if not (held := reservation.remaining):
            return reservation
        share = min(1.0, calls / max(1.0, held["calls"]))
        part = replace(
            reservation,
            remaining={name: amount * share for name, amount in held.items()},
            max_prompt_bytes=0,
        )
        reservation.remaining = {name: amount * (1 - share) for name, amount in held.items()}
        self._holders.add(part)
        return part

    def resize(self, reservation: Reservation, amounts: Amounts) -> None:
        """Hold at most this from now on."""
        if reservation.remaining is None:
            return
        for name in LIMITS:
            surplus = max(0.0, reservation.remaining[name] - amounts[name])
            reservation.remaining[name] -= surplus
            self.held_for_grades[name] -= surplus
        if not any(amounts.values()):
            self._holders.discard(reservation)
        self._serve()

    def release(self, reservation: Reservation) -> None:
        """Release what is held."""
        self.resize(reservation, ZERO_AMOUNTS)

    def reopen(self, reservation: Reservation) -> None:
        """Release what is held because no text was written; the next call that writes one takes the
        reservation again.
        """
        self.release(reservation)
        reservation.remaining = None

    def end_step(self, owner: BudgetOwner) -> None:
        """Record that a step ended: waiting calls may now be refused, because it releases nothing
        more.
        """
        owner.active_steps -= 1
        if self._queue or self._urgent:
            self._serve()

    def check(self, amounts: Amounts) -> None:
        """Raise BudgetExhaustedError if the amounts exceed what is not spent yet, so that waiting
        is useless.
        """
        for name, limit in self._limits.items():
            if amounts[name] > 0 and self.spent[name] + amounts[name] > limit + FLOAT_TOLERANCE:
                raise self._exhaustion_error(name, amounts[name])

    def exceeded_limit(self, amounts: Amounts) -> str:
        """Return the first limit that leaves less than this for a call without a reservation; "" if
        all leave enough.
        """
        left = self._remaining(None)
        return next(
            (
                name
                for name in left
                if amounts[name] > 0 and amounts[name] > left[name] + FLOAT_TOLERANCE
            ),
            "",
        )

    @property
    def waiting_minimums(self) -> list[dict[str, float]]:
        """The least with which each waiting call can be made."""
        return [waiter.minimum for waiter in (*self._urgent, *self._queue)]

    # ---- granting

    def _try_grant(
        self,
        estimate: Callable[[], CostEstimate],
        reservation: Reservation | None,
        *,
        alone: bool = False,
    ) -> Grant | None:
        """Return what a call may take now; None if it must wait. Raises BudgetExhaustedError if
        there will never be enough.

        `alone`: no other call or step will release anything.
        """
        need = estimate()
        grades = reservation.estimate_cost() if reservation and reservation.is_pending else None
        whole = need.plus(grades) if grades else need
        room = _max_answer_tokens(self._remaining(reservation), whole.prompts, whole.per_token)
        if room < whole.expected_answer_tokens:
            self.check(whole.minimum)
            if not alone or room < whole.min_answer_tokens:
                return None
        max_tokens = self._max_tokens(whole, room)
        tokens = whole.expected_answer_tokens if max_tokens is None else max_tokens
        drawn = reservation.next_share if reservation else None
        grant = Grant(need.amounts(tokens), max_tokens, drawn)
        self._active_calls += 1
        self.reserved = add_amounts(self.reserved, grant.amounts)
        if reservation:
            self._adjust_holding(reservation, grades, drawn, tokens)
        self._notify_change()
        return grant

    def _max_tokens(self, need: CostEstimate, room: float) -> int | None:
        """Return the `max_tokens` of an answer, which leaves something to other calls; None if no
        limit depends on it.
        """
        if room == inf:
            return None
        share = max(need.expected_answer_tokens, room // (self._active_calls + 2))
        return int(min(need.max_answer_tokens, room, share))

    def _adjust_holding(
        self,
        reservation: Reservation,
        grades: CostEstimate | None,
        drawn: Amounts | None,
        tokens: float,
    ) -> None:
        """Hold what the grades of a text of so many tokens need, or take what a call has drawn."""
        held = self.held_for_grades
        if grades:
            self.held_for_grades = add_amounts(held, reservation.hold(grades, tokens))
            self._holders.add(reservation)
        elif drawn and reservation.remaining:
            reservation.remaining = subtract_amounts(reservation.remaining, drawn)
            self.held_for_grades = subtract_amounts(held, drawn)

    def _remaining(self, reservation: Reservation | None) -> dict[str, float]:
        """Return what is left under each limit for a call that may draw on a reservation."""
        own = (reservation.next_share if reservation else None) or ZERO_AMOUNTS
        return {
            name: limit
            - self.spent[name]
            - self.reserved[name]
            - self.held_for_grades[name]
            + own[name]
            for name, limit in self._limits.items()
        }

    def _refusal(self, waiter: BudgetWaiter) -> BudgetExhaustedError | None:
        """Return the error for a waiting call that cannot be made; a subclass may return None to
        let it wait.
        """
        minimum, left = waiter.minimum, self._remaining(waiter.reservation)
        name = max(
            (name for name in self._limits if minimum[name] > 0),
            key=lambda name: 1 - left[name] / minimum[name],
        )
        return self._exhaustion_error(name, minimum[name])

    def _serve(self, *, patient: bool = True) -> None:
        """Grant waiting calls what fits, in order. If nothing more will be released, refuse one at
        a time.

        `patient`: wait for tasks that hold something but have no call in flight.
        """
        if not (self._urgent or self._queue or self._idle_timer):
            return
        while self._grant_all() and (waiter := self._next_to_refuse(patient=patient)):
            if not (refusal := self._refusal(waiter)):
                break
            waiter.grant.set_exception(refusal)
            patient = True
        self._start_idle_timer()

    def _grant_all(self) -> bool:
        """Grant what fits. Return whether calls still wait."""
        for waiter in list(self._urgent):
            if self._try_resolve(waiter):
                self._urgent.remove(waiter)
        while self._queue and not self._urgent and self._try_resolve(self._queue[0]):
            self._queue.popleft()
        return bool(self._urgent or self._queue)

    def _try_resolve(self, waiter: BudgetWaiter) -> bool:
        """Grant or refuse a waiting call. Return whether it no longer waits."""
        if not waiter.grant.done():
            try:
                if grant := self._try_grant(waiter.need, waiter.reservation, alone=self._is_idle):
                    waiter.grant.set_result(grant)
            except BudgetExhaustedError as error:
                waiter.grant.set_exception(error)
        return waiter.grant.done()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing will be released: no call is in flight, and every task that holds
        something waits with all its steps.
        """
        if self._active_calls:
            return False
        waiting = Counter(
            w.reservation.owner
            for w in (*self._urgent, *self._queue)
            if w.reservation and not w.grant.done()
        )
        return all(
            waiting[holder.owner] >= max(1, holder.owner.active_steps) for holder in self._holders
        )

    def _next_to_refuse(self, *, patient: bool) -> BudgetWaiter | None:
        """Return the call to refuse next; those without a reservation come first."""
        if self._active_calls or (patient and not self._is_idle):
            return None
        return next(
            (
                waiter
                for waiter in (*self._queue, *reversed(self._urgent))
                if not waiter.grant.done()
            ),
            None,
        )

    def _start_idle_timer(self) -> None:
        """Bound the wait while no call is in flight: a task that holds something may wait
        indirectly for the waiting calls.
        """
        if self._idle_timer:
            self._idle_timer.cancel()
            self._idle_timer = None
        if (self._urgent or self._queue) and not self._active_calls:
            self._idle_timer = asyncio.get_running_loop().call_later(
                IDLE_TIMEOUT, lambda: self._serve(patient=False)
            )

    def _notify_change(self) -> None:
        if self.on_change:
            self.on_change()

    def _exhaustion_error(self, name: str, amount: float) -> BudgetExhaustedError:
        """Return the error of a call that takes more than is left under a limit."""
        limit, spent = self._limits[name], self.spent[name]
        reserved = self.reserved[name] + self.held_for_grades[name]
        self.is_exhausted |= amount <= limit
        has_reserved = reserved > FLOAT_TOLERANCE
        state = "is used up" if spent or has_reserved else "is too small"
        message = (
            f"the budget of {_amount(limit, name)} {_unit(name, limit)} {state}: "
            f"{_amount(spent, name)} spent"
            + (f", {_amount(reserved, name)} reserved" if has_reserved else "")
            + f", the next step, with the grades of its text, may take {_amount(amount, name)}"
            + (f"; {self.excess}" if self.excess else "")
        )
        return BudgetExhaustedError(message, limit=name)


def _excess_causes(grant: Grant, usage: Mapping[str, float | None]) -> Iterator[str]:
    """Yield why a call took more than was reserved for it."""
    if grant.max_tokens is not None and (usage["output_tokens"] or 0) > grant.max_tokens:
        yield "the server wrote more than max_tokens"
    if (usage["input_tokens"] or 0) > grant.amounts["input_tokens"]:
        yield "the server counted more tokens in a prompt than were reserved"


def _max_answer_tokens(remaining: Amounts, prompts: Amounts, per_token: Amounts) -> float:
    """Return the most tokens an answer can have: below 0 if the prompts do not fit, infinite if no
    limit depends on it.
    """
    room = inf
    for name, amount in remaining.items():
        spare, each = amount - prompts[name], per_token[name]
        if each > 0:
            room = min(room, floor(spare / each + FLOAT_TOLERANCE))
        elif prompts[name] > 0 and spare < -FLOAT_TOLERANCE:
            return -1.0
    return room


def _amount(number: float, name: str) -> str:
    """Format an amount of a limit; calls and tokens are rounded up."""
    return usd_amount(number) if name == "usd" else str(ceil(number - FLOAT_TOLERANCE))


def _unit(name: str, amount: float) -> str:
    unit = "USD" if name == "usd" else name.replace("_", " ")
    return unit.removesuffix("s") if amount == 1 else unit
