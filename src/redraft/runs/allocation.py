"""Budget allocation: one price for all rows of a run, so that the budget is spent where it gains
most.

A row with a noise-aware plan continues while a step is expected to gain at least its price for each
unit of cost, so easy rows take a call or two, and hard ones more. The price keeps the pace of the
run: a share is what is left for the rows that have not ended, divided by their number, and each
share that n ended rows have cost beyond n raises the price by a tenth, each one below lowers it:

    price = START_PRICE * exp(PACE * (cost of ended rows / share - n))

Balseiro and Gur (2019), "Learning in repeated auctions with budgets", Management Science 65:3952,
pace bids in this way. Rows that are at work at the same time end too late to teach it. So a row
pays the price times the shares that it will have spent after one more answer, but at least the
plan's own price. Plans are pure, and this module uses no journal and no network:

    allocator = BudgetAllocator(plan, "calls", left=lambda: 1000 - calls, spent=lambda: {"calls": calls}, rows=len(tasks))
    for task in tasks:  # one after the other, or concurrently
        account = allocator.start_row()
        trace = ...  # refined with partial(account.next_steps, plan), which uses the present price for each decision
        account.finish(trace)
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from typing import Any, NamedTuple, Self

from ..loop.records import Comparison, Failure, Outcome, Record
from ..loop.steps import Step
from ..loop.trace import PanelGrader, Trace
from ..middleware import Budget
from ..plans import CostUnit, NoiseAwarePlan, PlanDecision
from ..plans.limits import answer_cost
from ..plans.quality.priors import Priors
from ..plans.quality.simulate import COMPARISON, JUDGE
from ..usage import Usage

PACE = 0.1  # by how much one share changes the logarithm of the price
MOST_STEPS = 20.0  # the largest logarithm of the price
START_PRICE = 0.02  # for a call, if the plan's own price is lower
FIRST_WEIGHT = 16.0  # what is expected of a row's first cost counts as this many rows
# of a budget's limit in one cost unit
SCALE: Mapping[CostUnit, int] = {"usd": 1, "tokens": 1000, "calls": 1}
FREE_RATE = 1e9  # the rate of gain of a free step, higher than any price


class MarginalPrice(NamedTuple):
    """The gain of score that each unit of cost must be expected to bring."""

    price: float
    unit: CostUnit


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
    def cost(self) -> float:
        """What the row has cost, with the comparison."""
        steps = sum(decision.cost for decision in self.decisions[:-1])  # the last one was not done
        return (self.base or 0.0) + steps + self.comparison


class Need(NamedTuple):
    """What rows need in any case: the cost of rows before their first decision so many times, that
    of a comparison so many times, and an amount.
    """

    firsts: int = 0
    comparisons: int = 0
    amount: float = 0.0


@dataclass(eq=False)
class RowAccount:
    """A row under way. `spent_before`: its cost in earlier runs, which made the first
    `records_before` records; `need`: what it needs in any case.
    """

    allocator: BudgetAllocator
    log: DecisionLog
    spent_before: float = 0.0
    records_before: int = 0
    need: Need = Need()

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
        self.allocator.spent_before += self.spent_before
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
        panel = tuple(panel)
        self._comparison_calls = sum(COMPARISON.calls * g.repeats for g in panel if g.compares)
        grades = sum(grader.repeats for grader in panel if not grader.model_free)
        self._first_calls = max(1, plan.drafts) * (grades + (0 if with_response else 1))
        # Whether a row has two answers to compare from the start.
        self._rivals_at_start = plan.drafts > 1 or any(grader.editable for grader in panel)
        self._spent_at_start, self._paid = self._spent_so_far, 0.0
        self._totals: dict[CostUnit, float | None] = dict.fromkeys(SCALE, 0.0)
        self._bases = Sum()  # costs of rows before their first decision
        self._comparisons = Sum()  # costs of comparisons
        self.spent_before = 0.0  # what the rows under way have cost in earlier runs
        self._stopped = Sum()  # costs of rows that the price has stopped and may reopen
        self._finished = Sum()  # costs of rows that have ended
        self._need = Need()  # of the rows under way

    def start_row(self) -> RowAccount:
        """Open the account of a row that starts."""
        account = RowAccount(self, DecisionLog(self.unit, has_rivals=self._rivals_at_start))
        self.waiting = max(0, self.waiting - 1)
        self.under_way.add(account)
        self.update(account)
        return account

    def update(self, account: RowAccount) -> None:
        """Update what a row needs in any case: its next step, and a comparison at its end."""
        log, before = account.log, account.need
        firsts, amount = (0, log.committed) if log.decisions else (1, 0.0)
        account.need = Need(firsts, int(log.has_rivals), amount - account.spent_before)
        self._add_need(account.need, before)

    def _add_need(self, added: Need, removed: Need) -> None:
        total = self._need
        self._need = Need(
            total.firsts + added.firsts - removed.firsts,
            total.comparisons + added.comparisons - removed.comparisons,
            total.amount + added.amount - removed.amount,
        )

    def finish(self, account: RowAccount, trace: Trace | None) -> None:
        """Close the account of a row that has ended."""
        self.under_way.discard(account)
        self.spent_before -= account.spent_before
        self._add_need(Need(), account.need)
        if trace is not None:
            self._paid += amount_paid(trace.records[account.records_before :], self.unit)
            for unit, total in self._totals.items():
                self._totals[unit] = _sum(total, cost_of_answers(trace.records, unit))
        self.add_finished(account.log)

    def add_finished(self, log: DecisionLog) -> None:
        """Add a row that has ended, also in an earlier run: it changes the price."""
        if log.unit != self.unit or log.base is None:
            return
        self._bases.add(log.base)
        if log.comparison:
            self._comparisons.add(log.comparison)
        self._finished.add(log.cost)

    def add_stopped(self, log: DecisionLog) -> None:
        """Add a row that the price stopped in an earlier run; `reopen` decides on it later."""
        self._stopped.add(self._cost_of(log))

    def reopen(self, log: DecisionLog) -> bool:
        """Return whether a row from `add_stopped` is worth the present price. If so, it counts as
        not started.

        A row with a log in another unit is always reopened.
        """
        price, unit = self._price_at(self._cost_of(log))
        self._stopped.remove(self._cost_of(log))
        offer = log.last_offer
        if offer is None or (unit == log.unit and offer.rate < price):
            self.add_finished(log)
            return False
        self.waiting += 1
        return True

    def _cost_of(self, log: DecisionLog) -> float:
        return log.cost if log.unit == self.unit else 0.0

    def set_priors(self, priors: Priors) -> None:
        """Set the priors of rows that start from now on."""
        if priors != self.plan.priors:
            self.plan = self.plan.with_priors(priors)

    @property
    def price(self) -> MarginalPrice:
        """The present price of a row that has spent its share: for each call until the cost of a
        call is known, then for each unit.
        """
        unit = self.unit if self._per_call else "calls"
        start = max(self._lowest_price(unit), START_PRICE / (self._per_call or 1.0))
        excess = self._finished.total / self._share - self._finished.count if self._share else 0.0
        price = start * exp(min(PACE * excess, MOST_STEPS))
        return MarginalPrice(max(self._lowest_price(unit), price), unit)

    def price_for(self, account: RowAccount, *, compared: bool = False) -> MarginalPrice:
        """Return the price for a row.

        It is prohibitive if another answer costs more than what is not reserved for other rows, and
        if the best answers were `compared`, which is done once, at the end.
        """
        log = account.log
        price = self._price_at(log.committed if log.decisions else 0.0)
        if price.unit != self.unit:
            return price
        spare = self._available - self._open_rows_need
        needed = self._base + self._comparison * (not log.has_rivals)
        if spare >= needed * (1 - 1e-9) and not compared:
            return price
        return MarginalPrice(max(price.price, 1 / (self._per_call or 1.0)), self.unit)

    @property
    def commitment(self) -> float:
        """What was spent, and what the rows that have not ended need in any case."""
        return self._spent_at_start + self._paid + self._open_rows_need

    def _price_at(self, spent: float) -> MarginalPrice:
        """Return the price for a row that has spent so much, before another answer."""
        price, unit = self.price
        if unit != self.unit or not self._share:
            return MarginalPrice(self._lowest_price(unit), unit)
        shares = (spent + self._base) / self._share
        return MarginalPrice(max(self._lowest_price(unit), price * shares), unit)

    @property
    def _share(self) -> float:
        """What is left for the rows that have not ended, including what they have spent, divided by
        their number; 0 if nothing is left, or there is none.
        """
        rows = self.waiting + len(self.under_way) + self._stopped.count
        left = self._available + self.spent_before + self._stopped.total
        return max(0.0, left) / rows if rows else 0.0

    @property
    def _open_rows_need(self) -> float:
        """What the rows that have not ended need in any case, including what they have spent."""
        firsts = self._need.firsts + self.waiting
        comparisons = self._need.comparisons + self.waiting * self._rivals_at_start
        return firsts * self._base + comparisons * self._comparison + self._need.amount

    @property
    def _base(self) -> float:
        """The expected cost of a row before its first decision; 0 while the cost of a call is
        unknown.
        """
        if self._per_call is None:
            return 0.0
        expected = FIRST_WEIGHT * self._first_calls * self._per_call
        return (expected + self._bases.total) / (FIRST_WEIGHT + self._bases.count)

    @property
    def _comparison(self) -> float:
        """The expected cost of a comparison."""
        if self._comparisons.count:
            return self._comparisons.total / self._comparisons.count
        return self._comparison_calls * (self._per_call or 0.0)

    @property
    def _available(self) -> float:
        """The budget for all rows that have not ended, including what they have spent."""
        return self.left() + self._spent_so_far - self._spent_at_start - self._paid

    @property
    def _spent_so_far(self) -> float:
        return self.spent().get(self.unit, 0.0) / SCALE[self.unit]

    @property
    def _per_call(self) -> float | None:
        """What a call costs; None if unknown."""
        return self._ratio("calls", self.unit)

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


@dataclass
class Sum:
    """A sum, and of how many numbers."""

    total: float = 0.0
    count: int = 0

    def add(self, number: float) -> None:
        self.total, self.count = self.total + number, self.count + 1

    def remove(self, number: float) -> None:
        self.total, self.count = self.total - number, self.count - 1


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
