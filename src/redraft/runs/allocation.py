"""Budget allocation: one marginal price for all rows of a run, so that the budget is spent where it
gains most.

A row with a noise-aware plan continues while a step is expected to gain at least the price for each
unit of its cost, so easy rows take a call or two, and hard ones more. The price is the shadow price
of the budget: the lowest one at which the remaining rows are expected to cost no more than what is
left. It is updated while rows proceed. The expected cost is estimated from the decisions of rows so
far, that is from what each next step would have gained and cost; before there are any, from
simulated tasks (see `quality.simulate`). Plans are pure, and this module uses no journal and no
network:

    allocator = BudgetAllocator(plan, "calls", left=lambda: 1000 - calls, spent=lambda: {"calls": calls}, rows=len(tasks))
    for task in tasks:  # one after the other, or concurrently
        account = allocator.start_row()
        trace = ...  # refined with partial(account.next_steps, plan), which uses the present price for each decision
        account.finish(trace)
"""  # noqa: E501

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from random import Random
from statistics import fmean
from typing import Any, NamedTuple, Self, TypeAlias

from ..loop.records import Comparison, Failure, Outcome, Record
from ..loop.steps import Step
from ..loop.trace import PanelGrader, Trace
from ..middleware import Budget
from ..plans import CostUnit, NoiseAwarePlan, PlanDecision
from ..plans.limits import answer_cost
from ..plans.quality.priors import Priors
from ..plans.quality.simulate import COMPARISON, JUDGE, run_to_end, simulate_tasks
from ..usage import Usage

SIMULATED_WEIGHT = 16.0  # all simulated tasks together count as this many rows
MAX_LOGS = 384  # the latest logs of finished rows from which the expected cost is estimated
MAX_DEPTH = 24  # decisions of a row that the estimate distinguishes
PRICE_UPDATES, LAST_PRICE_UPDATES = 16, 64  # see BudgetAllocator.update
HALVINGS = 10  # bisection steps in the search for the price, on a logarithmic scale
# of a budget's limit in one cost unit
SCALE: Mapping[CostUnit, int] = {"usd": 1, "tokens": 1000, "calls": 1}
# the price of a call for simulated tasks, and the lowest price that is tried
SIMULATED_PRICE, MIN_PRICE = (0.005, 1e-4)
FREE_RATE = 1e9  # the rate of gain of a free step, higher than any price


class MarginalPrice(NamedTuple):
    """The gain of score that each unit of cost must be expected to bring."""

    price: float
    unit: CostUnit


StoppedRow: TypeAlias = tuple[int, float, float]
"""The number of decisions on a row that the price has stopped, and the rate and cost of its last
offer, rounded.
"""


class Decision(NamedTuple):
    """A decision on a row: the highest gain per cost of a possible step (0: there was none), and
    the cost of that step.

    The cost is the expected one until the step is done.
    """

    rate: float
    cost: float


@dataclass
class DecisionLog:
    """The decisions on a row, all in one unit.

    Attributes:
        unit: The unit of all costs.
        base: The cost of the row before its first decision; None: not known yet.
        decisions: The decisions so far.
        comparison: The cost of comparing its two best answers at the end.
        has_rivals: Whether there may be two answers to compare.
        spent: Its cost without the comparison at the last decision.
        committed: What that cost will be at the next decision.
    """

    unit: CostUnit
    base: float | None = None
    decisions: list[Decision] = field(default_factory=list)
    comparison: float = 0.0
    has_rivals: bool = False
    spent: float = 0.0
    committed: float = 0.0

    def record(self, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> bool:
        """Record a decision in the unit of the log; return False if the plan had nothing to
        decide.
        """
        if decision.choices is None:
            return False
        choices = plan.choices_in(self.unit, trace, decision.choices)
        best = max(choices, key=lambda choice: choice.gain_per_cost, default=None)
        offer = Decision(min(best.gain_per_cost, FREE_RATE), best.cost or 0.0) if best else None
        self._update(trace, offer, continues=decision.continues)
        return True

    def finish(self, trace: Trace) -> None:
        """Record the end of the row."""
        self._update(trace, None, continues=False)

    def next_steps(self, plan: NoiseAwarePlan, trace: Trace) -> Sequence[Step]:
        """Return the plan's next steps, and record its decision."""
        decision = plan.decide(trace)
        self.record(plan, trace, decision)
        return decision.steps

    def _update(self, trace: Trace, offer: Decision | None, *, continues: bool) -> None:
        """Add a decision, or replace the last one if the row has spent nothing since. If its cost
        is unknown, do nothing.
        """
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
        """The best offer when the row ended; None if it is unknown, or if answers were compared,
        which is done only once.
        """
        return self.decisions[-1] if self.decisions and not self.comparison else None

    @property
    def stopped_row(self) -> StoppedRow:
        """The key under which the allocator counts the finished row."""
        rate, cost = self.last_offer or Decision(0.0, 0.0)
        return min(len(self.decisions), MAX_DEPTH), float(f"{rate:.2g}"), float(f"{cost:.2g}")

    @property
    def lowest_rate(self) -> float:
        """The highest price at which the row would not have stopped."""
        return min((decision.rate for decision in self.decisions), default=FREE_RATE)


@dataclass(eq=False)
class RowAccount:
    """A row under way. `priors`: those with which it has started; `spent_before`: its cost in
    earlier runs, which made the first `records_before` records; `reserved`: what is reserved for
    it.
    """

    allocator: BudgetAllocator
    log: DecisionLog
    priors: Priors
    spent_before: float = 0.0
    records_before: int = 0
    reserved: float = 0.0

    def price(self, plan: NoiseAwarePlan, trace: Trace) -> NoiseAwarePlan:
        """Return the plan with the present price."""
        _, comparisons = split_comparisons(trace.records)
        return plan.with_price(*self.allocator.price_for(self, compared=bool(comparisons)))

    def record(self, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> None:
        """Record a decision of the row."""
        if self.log.record(plan, trace, decision):
            self.allocator.update(self)

    def next_steps(self, plan: NoiseAwarePlan, trace: Trace) -> Sequence[Step]:
        """Return the plan's next steps at the present price, and record its decision."""
        plan = self.price(plan, trace)
        decision = plan.decide(trace)
        self.record(plan, trace, decision)
        return decision.steps

    def resume(self, plan: NoiseAwarePlan, trace: Trace) -> None:
        """Record the decisions of a resumed row, by replaying its trace record by record."""
        others, comparisons = split_comparisons(trace.records)
        self.records_before = len(trace.records)
        self.spent_before = (cost_of_answers(others, self.log.unit) or 0.0) + amount_paid(
            comparisons, self.log.unit
        )
        replayed = Trace(trace.task, trace.panel)
        for record in trace.records:
            if not isinstance(record, Outcome):
                replayed += record
                self.log.next_steps(plan, replayed)
        self.allocator.update(self)

    def finish(self, trace: Trace | None) -> None:
        """End the row with its trace; None if it could not start."""
        if trace and trace.graded_candidates:
            self.log.finish(trace)
        self.allocator.finish(self, trace)


class Estimate(NamedTuple):
    """What the allocator uses until its next update: the price, the price at which a call would
    have to gain 1, the cost of a row before its first decision, and the cost of a comparison.
    """

    price: MarginalPrice
    highest: float
    base: float
    comparison: float


class BudgetAllocator:
    """Computes the price of a run. It is never lower than the plan's own.

    `left()` returns what may still be spent, in the `unit` (tokens in thousands), and `spent()`
    what was spent so far, by the names of a budget's limits. `rows` is the number of rows that have
    not started, `with_response` whether they have a response.
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
        self._comparison = sum(
            COMPARISON.calls * grader.repeats for grader in self._panel if grader.compares
        )
        # Whether a row has two answers to compare from the start.
        self._rivals_at_start = plan.drafts > 1 or any(grader.editable for grader in self._panel)
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
        account = RowAccount(
            self, DecisionLog(self.unit, has_rivals=self._rivals_at_start), self.plan.priors
        )
        self.waiting = max(0, self.waiting - 1)
        self.under_way.add(account)
        self._reserve(account, self.estimate)
        return account

    def update(self, account: RowAccount) -> None:
        """Update the reserve of a row.

        The price is recomputed after (rows so far / 16) updates, or after (remaining rows / 64) if
        these are fewer.
        """
        self._reserve(account, self.estimate)
        self._updates += 1
        rows_so_far = len(self._finished) + len(self.under_way)
        remaining = self.waiting + len(self.under_way) + self._stopped.total()
        if self._updates > min(rows_so_far / PRICE_UPDATES, remaining / LAST_PRICE_UPDATES):
            self._estimate = None

    def finish(self, account: RowAccount, trace: Trace | None) -> None:
        """Close the account of a row that has ended."""
        self.update(account)
        self.under_way.discard(account)
        self._reserved -= account.reserved
        if account.log.base is not None:
            self._finished.append(
                account.log
                if account.priors == self.plan.priors
                else replace(account.log, decisions=[])
            )
        if trace is not None:
            self._paid += amount_paid(trace.records[account.records_before :], self.unit)
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
        """Return whether a row from `add_stopped` is worth the present price. If so, it counts as
        not started.

        A row with a log in another unit is always reopened.
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
        """Set the priors of rows that start from now on. Decisions by other priors are dropped;
        their costs still count.
        """
        if priors != self.plan.priors:
            self.plan = self.plan.with_priors(priors)
            self._simulated = simulated_logs(
                self.plan, self._panel, with_response=self._with_response
            )
            self._finished = deque((replace(log, decisions=[]) for log in self._finished), MAX_LOGS)
            self._estimate = None

    @property
    def price(self) -> MarginalPrice:
        """The present price: for each call until the cost of a call is known, then for each
        unit.
        """
        return self.estimate.price

    @property
    def estimate(self) -> Estimate:
        """The current estimate."""
        if self._estimate is None or (
            self._estimate.price.unit != self.unit and self._ratio("calls", self.unit)
        ):
            self._estimate, self._updates = self._new_estimate(), 0
            self.last_price = self._estimate.price
        return self._estimate

    def price_for(self, account: RowAccount, *, compared: bool = False) -> MarginalPrice:
        """Return the price for a row.

        It is prohibitive if another answer costs more than what is not reserved for other rows, and
        if the best answers were `compared`, which is done once, at the end.
        """
        price, highest, base, comparison = self.estimate
        if price.unit != self.unit:
            return price
        spare = self._available - self._open_rows_need
        affordable = spare >= (base + comparison * (not account.log.has_rivals)) * (1 - 1e-9)
        return (
            price
            if affordable and not compared
            else MarginalPrice(max(price.price, highest), self.unit)
        )

    @property
    def commitment(self) -> float:
        """What was spent, and what the rows that have not ended need in any case."""
        return self._spent_at_start + self._paid + self._open_rows_need

    @property
    def _open_rows_need(self) -> float:
        """What the rows that have not ended need in any case, including what they have spent."""
        _, _, base, comparison = self.estimate
        return self._reserved + self.waiting * (base + comparison * self._rivals_at_start)

    def _reserve(self, account: RowAccount, estimate: Estimate) -> None:
        """Reserve what a row needs in any case: its next step, and a comparison at its end."""
        log = account.log
        needed = (log.committed if log.decisions else estimate.base) - account.spent_before
        reserved = needed + estimate.comparison * log.has_rivals
        self._reserved += reserved - account.reserved
        account.reserved = reserved

    @property
    def _available(self) -> float:
        """The budget for all rows that have not ended, including what they have spent."""
        return self.left() + self._spent_so_far - self._spent_at_start - self._paid

    @property
    def _spent_so_far(self) -> float:
        return self.spent().get(self.unit, 0.0) / SCALE[self.unit]

    def _ratio(self, of: CostUnit, unit: CostUnit) -> float | None:
        """Return how many `unit` one `of` costs, by finished rows, or else by what was spent; None
        if unknown.
        """
        if of == unit:
            return 1.0
        denominator, numerator = self._totals[of], self._totals[unit]
        if not (denominator and numerator):
            denominator, numerator = (
                self.spent().get(name, 0.0) / SCALE[name] for name in (of, unit)
            )
        return numerator / denominator if denominator and numerator else None

    def _lowest_price(self, unit: CostUnit) -> float:
        """Return the plan's own price; 0 if it cannot be converted to the unit."""
        ratio = self._ratio(self.plan.cost_unit, unit)
        return self.plan.min_expected_gain / ratio if ratio else 0.0

    def _new_estimate(self) -> Estimate:
        per_call = self._ratio("calls", self.unit)
        if per_call is None:
            return Estimate(MarginalPrice(self._lowest_price("calls"), "calls"), 1.0, 0.0, 0.0)
        comparisons = [log.comparison for log in self._finished if log.comparison]
        comparison = fmean(comparisons) if comparisons else self._comparison * per_call
        estimate = Estimate(
            MarginalPrice(0.0, self.unit), 1 / per_call, self._base(per_call), comparison
        )
        for account in self.under_way:
            self._reserve(account, estimate)
        self._reserved = sum(account.reserved for account in self.under_way)
        return estimate._replace(
            price=MarginalPrice(self._search_price(per_call, estimate), self.unit)
        )

    def _search_price(self, per_call: float, estimate: Estimate) -> float:
        """Return the lowest price at which the expected cost does not exceed the available
        budget.
        """
        logs = [
            *self._finished,
            *(account.log for account in self.under_way if account.priors == self.plan.priors),
        ]
        available, comparison = self._available, estimate.comparison * self._comparison_share()

        def is_affordable(price: float) -> bool:
            further = self._expected_costs(
                logs, price, per_call, comparison * (not self._rivals_at_start)
            )
            need = self.waiting * (estimate.base + further[0] + comparison * self._rivals_at_start)
            for account in self.under_way:
                log = account.log
                need += account.reserved - (estimate.comparison - comparison) * log.has_rivals
                need += (
                    further[min(len(log.decisions), MAX_DEPTH)] if log.lowest_rate >= price else 0.0
                )
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
        """Return the share of rows that end with a comparison, among those that have two answers to
        compare.
        """
        simulated_weight = SIMULATED_WEIGHT / len(self._simulated)
        weighted = [
            *((log, 1.0) for log in self._finished),
            *((log, simulated_weight) for log in self._simulated),
        ]
        with_rivals = [
            (log, weight)
            for log, weight in weighted
            if len(log.decisions) > 1 or self._rivals_at_start
        ]
        total = sum(weight for _, weight in with_rivals)
        return (
            sum(weight for log, weight in with_rivals if log.comparison) / total if total else 1.0
        )

    def _expected_costs(
        self, logs: Iterable[DecisionLog], price: float, per_call: float, comparison: float
    ) -> list[float]:
        """Return the expected further cost of a row after 0, 1, 2 ... decisions at a price.
        `comparison`: added once it continues.

        The probability of continuing is estimated for each decision among the rows that have
        reached it, finished or not (Kaplan & Meier 1958, Journal of the American Statistical
        Association 53:457): finished rows alone are mostly those that ended early.
        """
        reached, continued, costs = ([0.0] * MAX_DEPTH for _ in range(3))
        weight = SIMULATED_WEIGHT / len(self._simulated)
        simulated = (self._simulated, price * per_call, weight, weight * per_call)
        for group, group_price, row_weight, cost_weight in ((logs, price, 1.0, 1.0), simulated):
            for log in group:
                for k, decision in zip(range(MAX_DEPTH), log.decisions, strict=False):
                    reached[k] += row_weight
                    if decision.rate < group_price:
                        break
                    continued[k] += row_weight
                    costs[k] += decision.cost * cost_weight
        costs[0] += continued[0] * comparison
        further = [0.0]
        for k in reversed(range(MAX_DEPTH)):
            further.append(
                (costs[k] + continued[k] * further[-1]) / reached[k] if reached[k] else 0.0
            )
        return further[::-1]


def simulated_logs(
    plan: NoiseAwarePlan, panel: Iterable[PanelGrader], *, with_response: bool
) -> Sequence[DecisionLog]:
    """Return the logs of simulated tasks, in calls. It takes about a second; the logs are cached by
    plan and panel.
    """
    plan, panel = plan.with_price(SIMULATED_PRICE, "calls"), tuple(panel)
    try:
        return _simulate_logs(plan, panel, with_response)
    except TypeError:  # a plan of the user's own that cannot be hashed
        return _simulate_logs.__wrapped__(plan, panel, with_response)


@lru_cache(maxsize=16)
def _simulate_logs(
    plan: NoiseAwarePlan,
    panel: tuple[PanelGrader, ...],
    with_response: bool,  # noqa: FBT001
) -> Sequence[DecisionLog]:
    logs: list[DecisionLog] = []
    for task, trace in simulate_tasks(plan.priors, panel, Random(0), with_response=with_response):
        log = DecisionLog("calls")
        log.finish(run_to_end(trace, partial(log.next_steps, plan), task))
        logs.append(log)
    return tuple(logs)


def budget_unit(budget: Budget | None, *, free: bool = False) -> CostUnit | None:
    """Return the unit of a budget: USD (unless calls are `free`), else tokens, else calls; None if
    it limits none of them.
    """
    units: list[CostUnit] = [name for name in SCALE if not (free and name == "usd")]
    return next((name for name in units if budget and getattr(budget, name) is not None), None)


def budget_left(
    budget: Budget, spent: Mapping[str, float], unit: CostUnit, reserve: float = 0.0
) -> float:
    """Return what is left of a budget in a unit, less a reserve."""
    return max(0.0, (getattr(budget, unit) or 0) - spent[unit] - reserve) / SCALE[unit]


def cost_of_answers(records: Iterable[Record], unit: CostUnit) -> float | None:
    """Return what the records of a row cost, from the cache or not; None if unknown. Failures,
    which are retried, do not count.
    """
    total: float | None = 0.0
    for record in records:
        if not isinstance(record, Failure):
            total = _sum(total, answer_cost(record.usage, unit))
    return total


def split_comparisons(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records without the comparisons, and the comparisons, including failed ones, which
    are not retried.
    """
    comparisons: list[Record] = []
    others: list[Record] = []
    for record in records:
        compares = isinstance(record, Comparison) or (
            isinstance(record, Failure) and record.role == "compare"
        )
        (comparisons if compares else others).append(record)
    return others, comparisons


def amount_paid(records: Iterable[Record], unit: CostUnit) -> float:
    """Return what was paid, including retries and failures; unknown amounts count as 0."""
    return sum(payment(record.usage, unit) or 0.0 for record in records)


def payment(usage: Usage, unit: CostUnit) -> float | None:
    """Return what was paid, including retries; None if unknown."""
    match unit:
        case "calls":
            return float(usage.calls)
        case "tokens":
            return None if usage.tokens is None else usage.tokens / 1000
        case "usd":
            return usage.cost


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
