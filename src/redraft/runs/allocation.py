"""Budget allocation: one marginal price for all rows of a run, so that the budget goes where it gains most.

Every row with a noise-aware plan continues while a step is expected to gain the price for each unit of its cost: easy rows then
take a call or two, hard ones more. The price (the shadow price of the budget) is the lowest at which the remaining rows are
expected to cost what is left of the budget; it moves as they proceed. The expectation comes from the rows themselves, from what
each of them could have gained at each decision; before there are any, from simulated tasks (see `simulate`). No journal, no
network and no plan's inside is known here, and no plan writes to anything:

    allocator = BudgetAllocator(plan, "calls", left=lambda: 1000 - calls, spent=lambda: {"calls": calls}, rows=len(tasks))
    for task in tasks:  # one after the other, or concurrently
        account = allocator.start_row()
        trace = ...  # carried out by partial(account.next_steps, plan), which reads the price at each decision
        account.finish(trace)
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import fmean
from typing import Any, NamedTuple, Self, TypeAlias

from ..core.records import Comparison, Failure, Outcome, Record
from ..core.steps import Step
from ..core.trace import PanelGrader, Trace
from ..middleware import Budget
from ..plans import CostUnit, NoiseAwarePlan, PlanDecision
from ..plans.adaptive import answer_cost
from ..quality.priors import Priors
from ..usage import Usage
from .simulate import COMPARISON, JUDGE, run_to_end, simulate_tasks

SIMULATED_WEIGHT = 16.0  # the number of rows for which all simulated tasks together count
MAX_LOGS = 384  # logs of finished rows that are kept, the latest
MAX_DEPTH = 24  # decisions of a row that are distinguished
UPDATES_PER_ROW, UPDATES_PER_REMAINING_ROW = 16, 64  # how often the price is computed anew
HALVINGS = 10  # of the interval in which the price is searched, on a logarithmic scale
SCALE: Mapping[CostUnit, int] = {"usd": 1, "tokens": 1000, "calls": 1}  # of a budget's limit in a unit of gains
SIMULATED_PRICE, MIN_PRICE = 0.005, 1e-4  # the price for each call at which simulated tasks stop, and the least that is tried
FREE_RATE = 1e9  # the rate of gain of a free step, and more than any price


class MarginalPrice(NamedTuple):
    """What each unit of cost must be expected to gain, in points of the score."""

    price: float
    unit: CostUnit


StoppedRow: TypeAlias = tuple[int, float, float]  # the number of decisions, and the last one's rate and cost, rounded


class Decision(NamedTuple):
    """A decision on a row: the best rate of gain on offer (0: there was no offer), and what that step cost, or would have cost."""

    rate: float
    cost: float


@dataclass
class DecisionLog:
    """The cost of a row before its first decision (None: not known yet), and its decisions so far, all in one unit.

    `comparison`: what comparing its two best cost at the end; `has_rivals`: whether there may be two to compare. `spent`: its
    cost without that at the last decision, `committed`: what it will be at the next.
    """

    unit: CostUnit
    base: float | None = None
    decisions: list[Decision] = field(default_factory=list)
    comparison: float = 0.0
    has_rivals: bool = False
    spent: float = 0.0
    committed: float = 0.0

    def record(self, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> bool:
        """Record a decision, in the log's unit whatever the price is for; return False if the plan had none to make."""
        if decision.choices is None:
            return False
        choices = plan.choices_in(self.unit, trace, decision.choices)
        best = max(choices, key=lambda choice: choice.gain_per_cost, default=None)
        self._update(
            trace, Decision(min(best.gain_per_cost, FREE_RATE), best.cost or 0.0) if best else None, continues=decision.continues
        )
        return True

    def finish(self, trace: Trace) -> None:
        """Record the end of a row."""
        self._update(trace, None, continues=False)

    def next_steps(self, plan: NoiseAwarePlan, trace: Trace) -> Sequence[Step]:
        """Return the plan's next steps, and record its decision."""
        decision = plan.decide(trace)
        self.record(plan, trace, decision)
        return decision.steps

    def _update(self, trace: Trace, offer: Decision | None, *, continues: bool) -> None:
        """Add a decision; one at the same cost as the last replaces that. If the cost is unknown, nothing is learned of it."""
        others, comparisons = split_comparisons(trace.records)
        self.comparison = amount_paid(comparisons, self.unit)
        self.has_rivals = self.has_rivals or continues or len(trace.graded_candidates) > 1
        spent = cost_of_answers(others, self.unit)
        if spent is None:
            return
        if offer or self.base is None or spent > self.spent:
            if self.base is None:
                self.base = spent
            elif spent > self.spent and self.decisions:
                self.decisions[-1] = self.decisions[-1]._replace(cost=spent - self.spent)
            else:
                del self.decisions[-1:]
            self.decisions.append(offer or Decision(0.0, 0.0))
            self.spent = spent
        self.committed = spent + (self.decisions[-1].cost if continues else 0.0)

    def as_data(self) -> list[Any]:
        """Return plain data for JSON."""
        return [self.unit, self.base, self.decisions, self.comparison]

    @classmethod
    def from_data(cls, data: Sequence[Any]) -> Self:
        """Return the log that `as_data` described."""
        unit, base, decisions, *comparison = data
        return cls(unit, base, [Decision(rate, cost) for rate, cost in decisions], sum(comparison))

    @property
    def last_offer(self) -> Decision | None:
        """The best offer when the row ended; None if that is unknown, or its best were compared: that is done only once."""
        return self.decisions[-1] if self.decisions and not self.comparison else None

    @property
    def stopped_row(self) -> StoppedRow:
        """The finished row as the allocator counts it."""
        rate, cost = self.last_offer or Decision(0.0, 0.0)
        return min(len(self.decisions), MAX_DEPTH), float(f"{rate:.2g}"), float(f"{cost:.2g}")

    @property
    def lowest_rate(self) -> float:
        """The highest price at which the row would still be under way."""
        return min((decision.rate for decision in self.decisions), default=FREE_RATE)


@dataclass(eq=False)
class RowAccount:
    """A row's share of the budget. `priors`: those of rows that start when it does; `spent_before`: its cost in earlier runs;
    `reserved`: what is set aside for it.
    """

    allocator: BudgetAllocator
    log: DecisionLog
    priors: Priors
    spent_before: float = 0.0
    reserved: float = 0.0

    def price(self, plan: NoiseAwarePlan, trace: Trace) -> NoiseAwarePlan:
        """Return the plan at the price of the moment."""
        _, comparisons = split_comparisons(trace.records)
        return plan.with_price(*self.allocator.price_for(self, compared=bool(comparisons)))

    def record(self, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> None:
        """Record a decision of the row."""
        if self.log.record(plan, trace, decision):
            self.allocator.update(self)

    def next_steps(self, plan: NoiseAwarePlan, trace: Trace) -> Sequence[Step]:
        """Return the plan's next steps at the price of the moment, and record its decision."""
        plan = self.price(plan, trace)
        decision = plan.decide(trace)
        self.record(plan, trace, decision)
        return decision.steps

    def resume(self, plan: NoiseAwarePlan, trace: Trace) -> None:
        """Record the decisions of a row that is resumed, one after the other."""
        others, comparisons = split_comparisons(trace.records)
        self.spent_before = (cost_of_answers(others, self.log.unit) or 0.0) + amount_paid(comparisons, self.log.unit)
        replayed = Trace(trace.task, trace.panel)
        for record in trace.records:
            if not isinstance(record, Outcome):
                replayed += record
                self.log.next_steps(plan, replayed)
        self.allocator.update(self)

    def finish(self, trace: Trace | None) -> None:
        """End the row; trace None: nothing is known of it."""
        if trace and trace.graded_candidates:
            self.log.finish(trace)
        self.allocator.finish(self, trace)


class Estimate(NamedTuple):
    """What the allocator goes by until the next update: the price, the price at which one call gains all there is to gain, the
    cost of a row before its first decision, and the cost of comparing its two best.
    """

    price: MarginalPrice
    highest: float
    base: float
    comparison: float


class BudgetAllocator:
    """Computes the price of a run. `left()`: what may still be spent, in the `unit` (tokens in thousands); `spent()`: what was
    spent so far, by the names of a budget's limits; `rows`: how many have not started yet.

    No price is below the plan's own: each unit must gain that much even if there is budget for more.
    """

    def __init__(  # noqa: PLR0917
        self,
        plan: NoiseAwarePlan,
        unit: CostUnit,
        left: Callable[[], float],
        spent: Callable[[], Mapping[str, float]],
        rows: int,
        panel: Iterable[PanelGrader] = (JUDGE,),
        with_response: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.plan, self.left, self.spent = plan, left, spent
        self.unit: CostUnit = unit
        self.waiting = rows
        self.under_way: set[RowAccount] = set()
        self._panel, self._with_response = tuple(panel), with_response
        self._comparison = sum(COMPARISON.calls * grader.repeats for grader in self._panel if grader.compares)
        self._rivals_at_start = plan.drafts > 1 or any(grader.editable for grader in self._panel)  # two to compare from the start
        self._spent_at_start, self._paid = self._spent_so_far, 0.0
        self._finished: deque[DecisionLog] = deque(maxlen=MAX_LOGS)
        self._totals: dict[CostUnit, float | None] = dict.fromkeys(SCALE, 0.0)
        self._simulated = simulated_logs(plan, self._panel, with_response=with_response)
        self._stopped: Counter[StoppedRow] = Counter()
        self.last_price: MarginalPrice | None = None
        self._estimate: Estimate | None = None
        self._reserved = 0.0
        self._updates = 0

    def start_row(self) -> RowAccount:
        """Open the account of a row that starts."""
        account = RowAccount(self, DecisionLog(self.unit, has_rivals=self._rivals_at_start), self.plan.priors)
        self.waiting = max(0, self.waiting - 1)
        self.under_way.add(account)
        self._reserve(account, self.estimate)
        return account

    def update(self, account: RowAccount) -> None:
        """A row has changed. The price is computed anew as often as that may change it."""
        self._reserve(account, self.estimate)
        self._updates += 1
        known = len(self._finished) + len(self.under_way)
        ahead = self.waiting + len(self.under_way) + self._stopped.total()
        if self._updates > min(known / UPDATES_PER_ROW, ahead / UPDATES_PER_REMAINING_ROW):
            self._estimate = None

    def finish(self, account: RowAccount, trace: Trace | None) -> None:
        """A row has ended."""
        self.update(account)
        self.under_way.discard(account)
        self._reserved -= account.reserved
        if account.log.base is not None:
            self._finished.append(account.log if account.priors == self.plan.priors else replace(account.log, decisions=[]))
        if trace is not None:
            self._paid += amount_paid(trace.records[trace.resumed_at :], self.unit)
            for unit, total in self._totals.items():
                self._totals[unit] = _sum(total, cost_of_answers(trace.records, unit))

    def add_finished(self, log: DecisionLog) -> None:
        """Add a row that an earlier run finished."""
        if log.unit == self.unit and log.base is not None:
            self._finished.append(log)

    def add_stopped(self, log: DecisionLog) -> None:
        """Add a row that the price stopped in an earlier run; `reopen` decides on it later."""
        self._stopped[log.stopped_row] += 1
        self._estimate = None

    def reopen(self, log: DecisionLog) -> bool:
        """Return whether a row that was added by `add_stopped` is worth the price of the moment; then it waits to start.

        A row whose log is in another unit is reopened: its plan decides.
        """
        price, unit = self.price
        self._stopped[log.stopped_row] -= 1
        offer = log.last_offer
        if offer is None or (unit == log.unit and offer.rate < price):
            return False
        with suppress(ValueError):
            self._finished.remove(log)
        self.waiting += 1
        return True

    def set_priors(self, priors: Priors) -> None:
        """Rows that start from now on have other priors: the decisions of others say nothing about theirs, only the costs do."""
        if priors != self.plan.priors:
            self.plan = self.plan.with_priors(priors)
            self._simulated = simulated_logs(self.plan, self._panel, with_response=self._with_response)
            self._finished = deque((replace(log, decisions=[]) for log in self._finished), MAX_LOGS)
            self._estimate = None

    @property
    def price(self) -> MarginalPrice:
        """The price now: for each call until the cost of a call is known, then for each unit."""
        return self.estimate.price

    @property
    def estimate(self) -> Estimate:
        """The current estimate."""
        if self._estimate is None or (self._estimate.price.unit != self.unit and self._ratio("calls", self.unit)):
            self._estimate, self._updates = self._new_estimate(), 0
            self.last_price = self._estimate.price
        return self._estimate

    def price_for(self, account: RowAccount, *, compared: bool = False) -> MarginalPrice:
        """Return the price for a row. It is prohibitive if one more text costs more than what is not reserved for other rows, and
        if the best were `compared`, which is done once, at the end.
        """
        price, highest, base, comparison = self.estimate
        if price.unit != self.unit:
            return price
        spare = self._available - self._reserved - self.waiting * (base + comparison * self._rivals_at_start)
        affordable = spare >= (base + comparison * (not account.log.has_rivals)) * (1 - 1e-9)
        return price if affordable and not compared else MarginalPrice(max(price.price, highest), self.unit)

    def _reserve(self, account: RowAccount, estimate: Estimate) -> None:
        """Set aside what a row needs in any case: its next step, and a comparison at its end."""
        log = account.log
        needed = log.committed - account.spent_before if log.decisions else estimate.base
        reserved = needed + estimate.comparison * log.has_rivals
        self._reserved += reserved - account.reserved
        account.reserved = reserved

    @property
    def _available(self) -> float:
        """The budget for all rows that have not ended, with what they have spent."""
        return self.left() + self._spent_so_far - self._spent_at_start - self._paid

    @property
    def _spent_so_far(self) -> float:
        return self.spent().get(self.unit, 0.0) / SCALE[self.unit]

    def _ratio(self, of: CostUnit, unit: CostUnit) -> float | None:
        """Return how much of a unit goes with one of another: by finished rows, else by what was spent; None if unknown."""
        if of == unit:
            return 1.0
        one, other = self._totals[of], self._totals[unit]
        if not (one and other):
            one, other = (self.spent().get(name, 0.0) / SCALE[name] for name in (of, unit))
        return other / one if one and other else None

    def _lowest_price(self, unit: CostUnit) -> float:
        """Return the plan's own price; 0 if it cannot be converted to the unit."""
        one = self._ratio(self.plan.cost_unit, unit)
        return self.plan.min_expected_gain / one if one else 0.0

    def _new_estimate(self) -> Estimate:
        per_call = self._ratio("calls", self.unit)
        if per_call is None:
            return Estimate(MarginalPrice(self._lowest_price("calls"), "calls"), 1.0, 0.0, 0.0)
        comparisons = [log.comparison for log in self._finished if log.comparison]
        comparison = fmean(comparisons) if comparisons else self._comparison * per_call
        estimate = Estimate(MarginalPrice(0.0, self.unit), 1 / per_call, self._base(per_call), comparison)
        for account in self.under_way:
            self._reserve(account, estimate)
        self._reserved = sum(account.reserved for account in self.under_way)
        return estimate._replace(price=MarginalPrice(self._search_price(per_call, estimate), self.unit))

    def _search_price(self, per_call: float, estimate: Estimate) -> float:
        """Return the lowest price at which the expected cost does not exceed the available budget."""
        logs = [*self._finished, *(account.log for account in self.under_way if account.priors == self.plan.priors)]
        available, comparison = self._available, estimate.comparison * self._comparison_share()

        def is_affordable(price: float) -> bool:
            further = self._expected_costs(logs, price, per_call, comparison * (not self._rivals_at_start))
            need = self.waiting * (estimate.base + further[0] + comparison * self._rivals_at_start)
            for account in self.under_way:
                log = account.log
                need += account.reserved - (estimate.comparison - comparison) * log.has_rivals
                need += further[min(len(log.decisions), MAX_DEPTH)] if log.lowest_rate >= price else 0.0
            for (depth, rate, cost), rows in self._stopped.items():
                need += rows * (cost + further[depth] + comparison) if rate >= price else 0.0
            return need <= available

        least, most = self._lowest_price(self.unit), estimate.highest
        low, most = max(least, most * MIN_PRICE), max(least, most)
        if is_affordable(low):
            return least
        a, b = math.log(low), math.log(most)
        for _ in range(HALVINGS):
            a, b = (a, (a + b) / 2) if is_affordable(math.exp((a + b) / 2)) else ((a + b) / 2, b)
        return math.exp(b)

    def _base(self, per_call: float) -> float:
        """Return the expected cost of a row before its first decision."""
        simulated = fmean(log.base or 0.0 for log in self._simulated) * per_call
        known = [log.base or 0.0 for log in self._finished]
        return (SIMULATED_WEIGHT * simulated + sum(known)) / (SIMULATED_WEIGHT + len(known))

    def _comparison_share(self) -> float:
        """Return the share of rows that end with a comparison, of those that may: that continued, or had two from the start."""
        weight = SIMULATED_WEIGHT / len(self._simulated)
        weighted = [*((log, 1.0) for log in self._finished), *((log, weight) for log in self._simulated)]
        able = [(log, counts) for log, counts in weighted if len(log.decisions) > 1 or self._rivals_at_start]
        total = sum(counts for _, counts in able)
        return sum(counts for log, counts in able if log.comparison) / total if total else 1.0

    def _expected_costs(self, logs: Iterable[DecisionLog], price: float, per_call: float, comparison: float) -> list[float]:
        """Return the expected further cost of a row after 0, 1, 2 ... decisions at a price; `comparison`: once it has continued.

        The probability of continuing is estimated decision by decision, among all rows that came to it (Kaplan & Meier 1958,
        Journal of the American Statistical Association 53:457): most of those that have ended had ended early.
        """
        reached, continued, costs = ([0.0] * MAX_DEPTH for _ in range(3))
        weight = SIMULATED_WEIGHT / len(self._simulated)
        simulated = (self._simulated, price * per_call, weight, weight * per_call)
        for group, at, count, cost in ((logs, price, 1.0, 1.0), simulated):
            for one in group:
                for k, decision in zip(range(MAX_DEPTH), one.decisions, strict=False):
                    reached[k] += count
                    if decision.rate < at:
                        break
                    continued[k] += count
                    costs[k] += decision.cost * cost
        costs[0] += continued[0] * comparison
        further = [0.0]
        for k in reversed(range(MAX_DEPTH)):
            further.append((costs[k] + continued[k] * further[-1]) / reached[k] if reached[k] else 0.0)
        return further[::-1]


def simulated_logs(plan: NoiseAwarePlan, panel: Iterable[PanelGrader], *, with_response: bool) -> Sequence[DecisionLog]:
    """Return the logs of simulated tasks, in calls. They take about a second to compute, and are computed once."""
    cheap = plan.with_price(SIMULATED_PRICE, "calls")
    panel = tuple(panel)
    try:
        return _simulate_logs(cheap, panel, with_response)
    except TypeError:  # the plan is the user's own, and cannot be hashed
        return _simulate_logs.__wrapped__(cheap, panel, with_response)


@lru_cache(maxsize=16)
def _simulate_logs(plan: NoiseAwarePlan, panel: tuple[PanelGrader, ...], with_response: bool) -> Sequence[DecisionLog]:  # noqa: FBT001
    logs: list[DecisionLog] = []
    for task, trace in simulate_tasks(plan.priors, panel, with_response=with_response):
        log = DecisionLog("calls")
        log.finish(run_to_end(trace, partial(log.next_steps, plan), task))
        logs.append(log)
    return tuple(logs)


def budget_unit(budget: Budget | None, *, free: bool = False) -> CostUnit | None:
    """Return the unit of a budget: USD (unless calls are `free`) before tokens before calls; None if it limits none of them."""
    units: list[CostUnit] = [name for name in SCALE if not (free and name == "usd")]
    return next((name for name in units if budget and getattr(budget, name) is not None), None)


def budget_left(budget: Budget, spent: Mapping[str, float], unit: CostUnit, reserve: float = 0.0) -> float:
    """Return what is left of a budget but for a reserve, in a unit."""
    return max(0.0, (getattr(budget, unit) or 0) - spent[unit] - reserve) / SCALE[unit]


def cost_of_answers(records: Iterable[Record], unit: CostUnit) -> float | None:
    """Return what the answers of a row cost, paid for or not; None if unknown. Failures do not count: they are tried again."""
    total: float | None = 0.0
    for record in records:
        if not isinstance(record, Failure):
            total = _sum(total, answer_cost(record.usage, unit))
    return total


def split_comparisons(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Split off the comparisons at the end, failed ones included: they are not tried again."""
    comparisons: list[Record] = []
    others: list[Record] = []
    for record in records:
        compares = isinstance(record, Comparison) or (isinstance(record, Failure) and record.role == "compare")
        (comparisons if compares else others).append(record)
    return others, comparisons


def amount_paid(records: Iterable[Record], unit: CostUnit) -> float:
    """Return what was paid, as far as it is known; retries and failures included."""
    return sum(payment(record.usage, unit) or 0.0 for record in records)


def payment(usage: Usage, unit: CostUnit) -> float | None:
    """Return what was paid, retries and failures included; None if unknown."""
    match unit:
        case "calls":
            return float(usage.calls)
        case "tokens":
            return None if usage.tokens is None else usage.tokens / 1000
        case "usd":
            return usage.cost


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
