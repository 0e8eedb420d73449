"""Put a budget around a model's call: reserve before it, settle after it, and enter what it cost in the open ledger."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from ..errors import BudgetExhaustedError, ConfigError, ModelError
from ..ledger import CallLedger, LedgerEntry, current_ledger
from ..protocols import Call, Reply, Request
from ..usage import NO_USAGE, Usage
from .budget import RESERVATION, BudgetTracker, Grant, Reservation
from .call_costs import LIMITS, CostEstimator, Pricing
from .token_counts import MIN_ANSWER_TOKENS, PromptSize, request_size

_MAX_TOKENS_REFUSED = re.compile(
    r"max_?(completion_|new_|output_)?tokens|completion tokens|in the completion|context length", re.IGNORECASE
)


def with_cost(call: Call, pricing: Pricing | None) -> Call:
    """Enter each call in the open ledger, with what it cost in USD (None: the price is unknown).

    The same stands in the usage of its reply, and that this is what the answer took.
    """

    async def call_with_cost(request: Request) -> Reply:
        entry = ledger.new_entry() if (ledger := current_ledger()) else LedgerEntry()
        try:
            reply = await call(request)
        except ModelError as error:
            error.usage = entry.settle(_usage_with_cost(error.usage, pricing))
            raise
        except ConfigError:
            entry.settle(NO_USAGE)
            raise
        used = entry.settle(_usage_with_cost(reply.usage, pricing))
        return replace(reply, usage=replace(used, answer_tokens=used.tokens, answer_cost=used.cost))

    return call_with_cost


def meter(call: Call, tracker: BudgetTracker, pricing: Pricing | None = None, costs: CostEstimator | None = None) -> Call:
    """Reserve before and settle after each call, at this rate, by what the endpoint is known to count (`costs`, or new ones).

    Where a limit depends on the answer, `max_tokens` is set to what was reserved; one that the request has is never raised,
    and where it has none, a smaller one is tried when an endpoint says that it takes none so high. It stands around `priced`,
    which says what a call cost, and by whose entries in the ledger it is known what was sent of one that was cancelled.
    """
    known = costs or CostEstimator(pricing)

    async def call_metered(request: Request) -> Reply:
        attempts = MeteredCall(tracker, known, request, request_size(request))
        sent = await attempts.reserve()
        while True:
            try:
                reply = await try_call(attempts, sent)
            except ModelError as error:
                if not attempts.lower_max_tokens(error):
                    error.usage = attempts.total_usage(error.usage)
                    raise
                sent = await attempts.reserve_again(error.usage)
            else:
                return replace(reply, usage=attempts.total_usage(reply.usage)) if attempts.previous_usage is not NO_USAGE else reply

    async def try_call(attempts: MeteredCall, request: Request) -> Reply:
        used: Usage | None = None
        answered = False
        token = RESERVE_AGAIN.set(attempts.reserve_again)
        try:
            with attempts.ledger:
                reply = await call(request)
            used, answered = reply.usage, True
            return reply
        except ModelError as error:
            used = error.usage
            raise
        except asyncio.CancelledError:
            used = attempts.ledger.total_usage
            raise
        finally:
            RESERVE_AGAIN.reset(token)
            attempts.settle(used, answered=answered)

    return call_metered


@dataclass(slots=True)
class MeteredCall:
    """A call and its repetitions: what the one under way was granted, and what those before have consumed.

    `room` is the `max_tokens` to try where the request has none and the endpoint refused a higher one. `ledger` holds what was
    sent since the last of them was settled.
    """

    tracker: BudgetTracker
    costs: CostEstimator
    request: Request
    size: PromptSize
    max_tokens_cap: int | None = None
    granted_max_tokens: int | None = None
    previous_usage: Usage = NO_USAGE
    grant: Grant | None = None
    ledger: CallLedger = field(default_factory=lambda: CallLedger(outer=current_ledger()))

    @property
    def reservation(self) -> Reservation | None:
        """What the call takes or draws on; what is of another purse is not for it: a grader may refine something itself."""
        reservation = RESERVATION.get()
        return reservation if reservation and reservation.tracker is self.tracker else None

    async def reserve(self) -> Request:
        """The request, with the `max_tokens` that it may have. Raises BudgetExhaustedError."""
        reservation = self.reservation
        drawn = reservation.prompt_tokens if reservation and not reservation.writing else inf
        need = partial(self.costs.request_cost, self.request, self.size, self.tracker.budget.min_tokens, self.max_tokens_cap, drawn)
        try:
            self.grant = await self.tracker.reserve(need, reservation)
        except BudgetExhaustedError as error:
            error.usage = self.total_usage(error.usage)
            raise
        self.granted_max_tokens = self.grant.max_tokens
        return _with_granted_max_tokens(self.request, self.grant)

    def settle(self, usage: Usage | None, *, answered: bool) -> None:
        """The attempt under way has ended; None: what it consumed is unknown."""
        grant, self.grant = self.grant, None
        if grant is None:
            return
        if usage and usage.calls == 1:
            self.costs.token_estimator.update(self.size, usage, schema=self.request.schema is not None)
            if self.max_tokens_cap and usage.output_tokens:
                self.costs.token_estimator.max_tokens_limit = self.max_tokens_cap
        if reservation := self.reservation:
            _update_reservation(self.tracker, reservation, self.size, usage, answered=answered)
        self.tracker.settle(grant, _amounts(usage), None if answered else reservation)
        self.ledger.entries.clear()

    async def reserve_again(self, usage: Usage) -> Request:
        """Settle the attempt that failed, and reserve another."""
        self.settle(usage, answered=False)
        self.previous_usage += usage
        return await self.reserve()

    def total_usage(self, usage: Usage) -> Usage:
        """What all attempts consumed, with the last."""
        return usage if self.previous_usage is NO_USAGE else (self.previous_usage + usage).as_single_answer()

    def lower_max_tokens(self, error: ModelError) -> bool:
        """Whether to ask once more with half the `max_tokens`: the caller has set none, and the endpoint takes none so high."""
        about = error.status in {400, 422} and _MAX_TOKENS_REFUSED.search(str(error))
        if (
            not about
            or self.request.max_tokens is not None
            or self.granted_max_tokens is None
            or self.granted_max_tokens < 2 * MIN_ANSWER_TOKENS
        ):
            return False
        self.max_tokens_cap = self.granted_max_tokens // 2
        return True


RESERVE_AGAIN: ContextVar[Callable[[Usage], Awaitable[Request]] | None] = ContextVar("again", default=None)
"""What reserves another attempt of the call under way, told what the last one consumed: for a wrapper within that repeats it."""


def _with_granted_max_tokens(request: Request, grant: Grant) -> Request:
    """The request with the `max_tokens` that it may have."""
    if grant.max_tokens is None or grant.max_tokens == request.max_tokens:
        return request
    return replace(request, max_tokens=grant.max_tokens, original=request)


def _update_reservation(
    tracker: BudgetTracker, reservation: Reservation, size: PromptSize, usage: Usage | None, *, answered: bool
) -> None:
    """What a call tells of the money held for grades: how long the text is, or the prompts of those who grade it."""
    if not reservation.writing:
        reservation.max_prompt_bytes = max(reservation.max_prompt_bytes, size.bytes)
    elif not answered:
        tracker.reopen(reservation)
    elif usage and usage.output_tokens is not None:
        tracker.resize(reservation, reservation.amounts_for(usage.output_tokens))


def _usage_with_cost(usage: Usage, pricing: Pricing | None) -> Usage:
    return replace(usage, cost=pricing.cost(usage)) if pricing and usage.cost is None else usage


def _amounts(usage: Usage | None) -> dict[str, float | None]:
    """A usage by limit; None where it is unknown."""
    if usage is None:
        return {**dict.fromkeys(LIMITS), "calls": 1}
    read, written = usage.input_tokens, usage.output_tokens
    return {"calls": usage.calls, "input_tokens": read, "output_tokens": written, "tokens": usage.tokens, "usd": usage.cost}
