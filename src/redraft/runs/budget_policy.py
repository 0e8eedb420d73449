"""The budget of a run: a row policy that sets one price for all rows, and decides which finished
rows a larger budget reopens.

The price is computed by `BudgetAllocator`; here are what the journal has of budgets and decisions,
and the amount that the rows of this process may spend (`BudgetShare`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..loop.trace import Trace
from ..middleware import Budget
from ..plans import CostUnit, NoiseAwarePlan, Plan, PlanDecision, plan_traits
from ..plans.quality.priors import Priors
from ..plans.quality.result_facts import ResultFacts
from ..session.session import Session
from ..storage.journal import Journal
from .allocation import BudgetAllocator, DecisionLog, RowAccount, budget_left
from .dataset import PendingRow


class BudgetShare(Protocol):
    """The part of the run's budget that the rows of this process may spend."""

    def rows_left(self) -> int:
        """Return the number of rows to be worked on, as far as it is known before they are read."""
        ...

    def left(self, unit: CostUnit) -> float:
        """Return the amount that they may still spend."""
        ...

    @property
    def is_short(self) -> bool:
        """Whether a call waits until the share grows."""
        ...

    async def wait_for_change(self) -> None:
        """Wait until the share may have changed."""
        ...


@dataclass
class WholeBudget:
    """The whole budget, for all rows. `settings_key`: the key of the run's settings."""

    session: Session
    journal: Journal
    run: str
    rows: int
    settings_key: str
    is_short: bool = False

    def rows_left(self) -> int:
        """Return the number of rows that the journal does not have as finished with the present
        settings; at least 1.
        """
        run = self.journal.run(self.run)
        is_same = (
            run and next(reversed(run.metadata.get("settings", {})), None) == self.settings_key
        )
        return max(
            1, self.rows - (run.counts["done"] + run.counts["failed"] if run and is_same else 0)
        )

    def left(self, unit: CostUnit) -> float:
        """Return the rest of the budget less the usage of the most expensive call: that much cannot
        be spent at the end.
        """
        budget, tracker = self.session.options.budget, self.session.models.budget_tracker
        return (
            budget_left(
                budget,
                tracker.spent,
                unit,
                tracker.max_call_usage[unit] if unit != "calls" else 0.0,
            )
            if budget
            else 0.0
        )

    async def wait_for_change(self) -> None:
        """Wait until cancelled: the share is always the whole budget."""
        await asyncio.Event().wait()


@dataclass
class BudgetPolicy:
    """A row policy: noise-aware plans stop by one price, if the run has a budget.

    `allocator` is None if rows share no budget. `was_raised`: the budget is larger than the one
    with which earlier rows ended, so those that the price stopped are reopened if they are worth
    the present price. `priors_for` returns the priors of a row.
    """

    budget: Budget | None
    plan: Plan
    journal: Journal
    run: str
    was_raised: bool = False
    allocator: BudgetAllocator | None = None
    priors_for: Callable[[PendingRow], Priors] | None = None
    _accounts: dict[int, RowAccount] = field(default_factory=dict)

    def note_start(self) -> None:
        """Compare the budget with that of the run so far. `was_raised` holds until a run has
        processed all rows.
        """
        metadata = self.journal.metadata(self.run)
        self.was_raised = bool(metadata.get("budget_raised")) or is_larger(
            self.budget, metadata.get("budget")
        )
        if self.was_raised or "budget" not in metadata:
            self.journal.update_run(
                self.run, budget=limits_of(self.budget), budget_raised=self.was_raised
            )

    def note_end(self, *, any_processed: bool, complete: bool) -> None:
        """Save the budget with which rows ended."""
        if any_processed:
            self.journal.update_run(self.run, budget=limits_of(self.budget))
        if self.was_raised and complete:
            self.journal.update_run(self.run, budget_raised=False)

    async def scan_stopped_rows(
        self, rows: AsyncGenerator[PendingRow, None], is_over: Callable[[], bool]
    ) -> None:
        """Add all rows that may be reopened to the allocator, so that its first price takes them
        into account.
        """
        if not (self.was_raised and self.allocator):
            return
        async with aclosing(rows):
            async for row in rows:
                if decisions := saved_decisions(row):
                    self.allocator.add_finished(decisions)
                    if row.stopped_for_value:
                        self.allocator.add_stopped(decisions)
                if is_over():
                    return

    def reopens(self, row: PendingRow) -> bool:
        """Return whether a row that the price had stopped is worth the present price."""
        plan = plan_traits(self.plan).noise_aware
        if not (self.was_raised and row.stopped_for_value and plan):
            return False
        decisions = saved_decisions(row)
        if decisions is None:
            return False
        if self.allocator:
            return self.allocator.reopen(decisions)
        offer = decisions.last_offer
        return offer is not None and (
            decisions.unit != plan.cost_unit or offer.rate >= plan.min_expected_gain
        )

    async def row_seen(self, row: PendingRow, result: ResultFacts | None) -> None:
        """Use the priors of this row from now on, and add the decisions of a finished row."""
        if not self.allocator:
            return
        if self.priors_for:
            self.allocator.set_priors(self.priors_for(row))
        if result and not self.was_raised and (decisions := saved_decisions(row)):
            self.allocator.add_finished(decisions)

    def row_started(self, row: PendingRow) -> None:
        """Open the row's account."""
        if self.allocator:
            self._accounts[row.n] = self.allocator.start_row()

    def plan_for(
        self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace | None
    ) -> NoiseAwarePlan:
        """Return the plan with the present price."""
        account = self._accounts.get(row.n)
        return account.price(plan, trace) if account and trace else plan

    def row_resumed(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> None:
        """Record the decisions that the trace shows."""
        if account := self._accounts.get(row.n):
            account.resume(plan, trace)

    def decision_made(
        self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision
    ) -> None:
        """Record the decision."""
        if account := self._accounts.get(row.n):
            account.record(plan, trace, decision)

    def row_finished(self, row: PendingRow, trace: Trace | None) -> Mapping[str, Any]:
        """Close the row's account; return its decisions."""
        account = self._accounts.pop(row.n, None)
        if account is None:
            return {}
        account.finish(trace)
        return {"decisions": account.log.as_data()}

    def row_saved(self, row: PendingRow) -> None:
        """Do nothing."""


def saved_decisions(row: PendingRow) -> DecisionLog | None:
    """Return the decisions on a row that the journal has from an earlier run, if that had a
    budget.
    """
    result = row.result
    return DecisionLog.from_data(result.decisions) if result and result.decisions else None


def limits_of(budget: Budget | None) -> dict[str, float]:
    """Return the limits that a budget sets."""
    return (budget or Budget()).limits


def is_larger(budget: Budget | None, before: Mapping[str, float] | None) -> bool:
    """Return whether a limit of `before` is higher now, or gone; False if those limits are
    unknown.
    """
    now = limits_of(budget)
    return any(name not in now or now[name] > limit for name, limit in (before or {}).items())
