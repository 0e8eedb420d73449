"""The budget of a run as a row policy: the price for its rows, and which finished rows a larger budget reopens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from ..core.trace import Trace
from ..middleware import Budget
from ..plans import NoiseAwarePlan, Plan, PlanDecision
from ..quality.priors import Priors
from ..storage.journal import Journal
from .allocation import BudgetAllocator, RowAccount
from .pending_rows import PendingRow
from .row_result import RowResult


@dataclass
class BudgetPolicy:
    """A row policy: rows with a noise-aware plan go by one price, if the run has a budget.

    `allocator`: None if rows share no budget. `was_raised`: there is more budget than finished rows had; those that the price
    stopped are then reopened, if they are worth the price now. `priors_for` returns the priors of a row that comes by.
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
        """Find out whether the budget was raised, and note it: all rows are to be looked at, however often the run is resumed."""
        known = self.journal.run(self.run)
        about = known.metadata if known else {}
        self.was_raised = bool(about.get("budget_raised")) or is_larger(self.budget, about.get("budget"))
        if self.was_raised or "budget" not in about:
            self.journal.update_run(self.run, budget=limits_of(self.budget), budget_raised=self.was_raised)

    def note_end(self, *, worked: bool, complete: bool) -> None:
        """Note the budget that rows have ended by."""
        if worked:
            self.journal.update_run(self.run, budget=limits_of(self.budget))
        if self.was_raised and complete:
            self.journal.update_run(self.run, budget_raised=False)

    async def scan_stopped_rows(self, rows: AsyncGenerator[PendingRow, None], is_over: Callable[[], bool]) -> None:
        """Tell the allocator of all rows that may be reopened, before it sets a price for the first of them."""
        if not (self.was_raised and self.allocator):
            return
        async with aclosing(rows):
            async for row in rows:
                if decisions := row.decisions:
                    self.allocator.add_finished(decisions)
                    if row.stopped_for_value:
                        self.allocator.add_stopped(decisions)
                if is_over():
                    return

    def reopens(self, row: PendingRow) -> bool:
        """Return whether a row that the price had stopped is worth the price of the moment."""
        decisions = row.decisions
        if not (self.was_raised and row.stopped_for_value and decisions and isinstance(self.plan, NoiseAwarePlan)):
            return False
        if self.allocator:
            return self.allocator.reopen(decisions)
        offer = decisions.last_offer
        return offer is not None and (decisions.unit != self.plan.cost_unit or offer.rate >= self.plan.min_expected_gain)

    async def row_seen(self, row: PendingRow, result: RowResult | None) -> None:
        """Rows from here on have the priors of this one; what a finished row decided in an earlier run counts, too."""
        if not self.allocator:
            return
        if self.priors_for:
            self.allocator.set_priors(self.priors_for(row))
        if result and not self.was_raised and (decisions := row.decisions):
            self.allocator.add_finished(decisions)

    def row_started(self, row: PendingRow) -> None:
        """Open the row's account."""
        if self.allocator:
            self._accounts[row.n] = self.allocator.start_row()

    def plan_for(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace | None) -> NoiseAwarePlan:
        """Return the plan at the price of the moment."""
        account = self._accounts.get(row.n)
        return account.price(plan, trace) if account and trace else plan

    def row_resumed(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> None:
        """Record the decisions that the row has made before."""
        if account := self._accounts.get(row.n):
            account.resume(plan, trace)

    def decision_made(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> None:
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
        """Nothing to do."""


def limits_of(budget: Budget | None) -> dict[str, float]:
    """Return the limits of a budget, those that are set."""
    return (budget or Budget()).limits


def is_larger(budget: Budget | None, before: Mapping[str, float] | None) -> bool:
    """Return whether one of the limits before is higher now, or gone; False if they are unknown."""
    now = limits_of(budget)
    return any(name not in now or now[name] > limit for name, limit in (before or {}).items())
