"""Put a budget around a model's call: reserve before it, settle after it, and record its cost in
the ledger.

The rules are in `budget`, the estimates in `call_costs`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf

from ..errors import BudgetExhaustedError, ConfigError, ModelError
from ..protocols import Call, Reply, Request
from ..usage import (
    NO_USAGE,
    CallLedger,
    LedgerEntry,
    Usage,
    current_ledger,
    sum_usage,
)
from .budget import RESERVATION, BudgetTracker, Grant, Reservation
from .call_costs import (
    MIN_ANSWER_TOKENS,
    CostEstimate,
    CostEstimator,
    Pricing,
    PromptSize,
    request_size,
)
from .endpoint_errors import refuses_max_tokens


def with_cost(
    call: Call, pricing: Pricing | None, check: Callable[[Request, Reply], Reply] | None = None
) -> Call:
    """Record each call in the open ledger and in the usage of its reply, with its cost in USD
    (`pricing` None: unknown).

    `check` returns a reply as it is to be, or raises a ModelError.
    """

    async def call_with_cost(request: Request) -> Reply:
        ledger = current_ledger()
        entry = LedgerEntry() if ledger is None else ledger.new_entry()
        try:
            reply = await call(request)
            if check is not None:
                reply = check(request, reply)
        except ModelError as error:
            error.usage = entry.settle(error.usage.with_cost(_cost(error.usage, pricing)))
            raise
        except ConfigError:
            entry.start_counting()  # it is raised before anything is sent
            raise
        return reply.with_usage(entry.settle_answer(reply.usage, _cost(reply.usage, pricing)))

    return call_with_cost


def meter(
    call: Call,
    tracker: BudgetTracker,
    pricing: Pricing | None = None,
    costs: CostEstimator | None = None,
) -> Call:
    """Reserve what each call may cost before it, and settle what it used after it. Raises
    BudgetExhaustedError.

    If a limit depends on the answer, `max_tokens` is set to what was reserved. The request's own
    `max_tokens` is never raised. If it has none and the endpoint refuses the one that was set, the
    call is made again with half of it.

    `costs` is what is known of the endpoint (None: nothing yet). `call` must be wrapped in
    `with_cost`, whose ledger entries say what was sent of a call that was cancelled.
    """
    estimator = costs or CostEstimator(pricing)

    async def call_metered(request: Request) -> Reply:
        ledger = current_ledger()
        if ledger is None:
            with CallLedger():
                return await call_metered(request)
        metered = MeteredCall(tracker, estimator, request, ledger, len(ledger.entries))
        attempt = await metered.reserve()
        while True:
            try:
                reply = await make_attempt(metered, attempt)
            except ModelError as error:
                if not metered.lower_max_tokens(error):
                    error.usage = metered.total_usage(error.usage)
                    raise
                attempt = await metered.reserve_again(error.usage)
            else:
                return reply.after(metered.previous_usage)

    async def make_attempt(metered: MeteredCall, request: Request) -> Reply:
        usage, reply = None, None
        metered.ledger.reserve_again = metered.reserve_again
        try:
            reply = await call(request)
            usage = reply.usage
            return reply
        except ModelError as error:
            usage = error.usage
            raise
        except (asyncio.CancelledError, ConfigError):
            usage = metered.sent_usage
            raise
        finally:
            metered.ledger.reserve_again = None
            metered.settle(usage, reply)

    return call_metered


@dataclass
class MeteredCall:
    """A call with its repeated attempts. `ledger` is open while it is made.

    Attributes:
        first_entry: The index of the first entry of the current attempt in the ledger.
        max_tokens_cap: The `max_tokens` to try if the request has none and the endpoint refused a
            higher one.
        granted_max_tokens: The `max_tokens` of the current attempt.
        previous_usage: The usage of earlier attempts.
        grant: What the current attempt may take.
    """

    tracker: BudgetTracker
    costs: CostEstimator
    request: Request
    ledger: CallLedger
    first_entry: int
    max_tokens_cap: int | None = None
    granted_max_tokens: int | None = None
    previous_usage: Usage = NO_USAGE
    grant: Grant | None = None

    @cached_property
    def size(self) -> PromptSize:
        """The size of the prompt."""
        return request_size(self.request)

    @property
    def reservation(self) -> Reservation | None:
        """The reservation that the call takes or draws on, unless it is of another budget: a grader
        may refine something itself.
        """
        reservation = RESERVATION.get()
        return reservation if reservation and reservation.tracker is self.tracker else None

    @property
    def sent_usage(self) -> Usage:
        """The usage of what was sent in the current attempt, as far as it is known."""
        return sum_usage(self.ledger.entries[self.first_entry :])

    async def reserve(self) -> Request:
        """Reserve an attempt. Return the request with the `max_tokens` that it may have. Raises
        BudgetExhaustedError.
        """
        reservation = self.reservation
        prompt_tokens = (
            reservation.prompt_tokens if reservation and not reservation.writing else inf
        )
        try:
            self.grant = await self.tracker.reserve(
                partial(self.estimate, prompt_tokens), reservation
            )
        except BudgetExhaustedError as error:
            error.usage = self.total_usage(error.usage)
            raise
        self.granted_max_tokens = self.grant.max_tokens
        if self.granted_max_tokens is None or self.granted_max_tokens == self.request.max_tokens:
            return self.request
        return replace(self.request, max_tokens=self.granted_max_tokens, original=self.request)

    def settle(self, usage: Usage | None, reply: Reply | None) -> None:
        """Settle the attempt that ended, with a reply or without. A usage of None is unknown."""
        grant, self.grant = self.grant, None
        if grant is None:
            return
        self._update_estimates(usage)
        if reservation := self.reservation:
            self._update_reservation(reservation, usage, answered=reply is not None)
        self.tracker.settle(grant, self.costs.amounts_of(usage), None if reply else reservation)
        self.first_entry = len(self.ledger.entries)

    def _update_estimates(self, usage: Usage | None) -> None:
        """Learn from the usage of a single request."""
        if usage and usage.calls == 1:
            tokens = self.costs.token_estimator
            tokens.update(self.size, usage, schema=self.request.is_judgement)
            if self.granted_max_tokens and usage.output_tokens:
                tokens.note_overrun(usage.output_tokens, self.granted_max_tokens)
            if self.max_tokens_cap and usage.output_tokens:
                tokens.max_tokens_limit = self.max_tokens_cap

    def estimate(self, prompt_tokens: float) -> CostEstimate:
        """Return what an attempt may cost, by what is known now."""
        return self.costs.request_cost(
            self.request,
            self.size,
            min_tokens=self.tracker.budget.min_tokens,
            max_tokens_cap=self.max_tokens_cap,
            prompt_tokens=prompt_tokens,
            is_limited=self.tracker.is_limited,
        )

    def _update_reservation(
        self, reservation: Reservation, usage: Usage | None, *, answered: bool
    ) -> None:
        """Adjust what is held for grades: to the length of the text, or to the prompts of its
        graders.
        """
        if not reservation.writing:
            reservation.max_prompt_bytes = max(reservation.max_prompt_bytes, self.size.bytes)
        elif not answered:
            self.tracker.reopen(reservation)
        elif usage and usage.output_tokens is not None and reservation.remaining is not None:
            self.tracker.resize(reservation, reservation.amounts_for(usage.output_tokens))

    async def reserve_again(self, usage: Usage) -> Request:
        """Settle the attempt that failed, and reserve another."""
        self.settle(usage, None)
        self.previous_usage += usage
        return await self.reserve()

    def total_usage(self, usage: Usage) -> Usage:
        """Return the usage of all attempts, given the usage of the last."""
        return (
            usage
            if self.previous_usage == NO_USAGE
            else (self.previous_usage + usage).as_single_answer()
        )

    def lower_max_tokens(self, error: ModelError) -> bool:
        """Halve `max_tokens` if the endpoint refused it and the caller did not set it. Return
        whether to repeat the call.
        """
        granted = self.granted_max_tokens
        is_own = self.request.max_tokens is not None
        if (
            is_own
            or granted is None
            or granted < 2 * MIN_ANSWER_TOKENS
            or not refuses_max_tokens(error)
        ):
            return False
        self.max_tokens_cap = granted // 2
        return True


def _cost(usage: Usage, pricing: Pricing | None) -> float | None:
    return pricing.cost(usage) if pricing and usage.cost is None else usage.cost
