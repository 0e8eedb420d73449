"""One price for all rows of a run with a budget, so that money goes where it buys most.

Every row of a plan that weighs gains (`Adaptive`) goes on while a step gains the price for each unit of its cost. Easy rows
then take a call or two, hard ones more. The price is the lowest at which the rows that are left can be expected to cost what
is left of the budget; it moves as they go on. What is to be expected is told by the rows themselves: by what each was offered
at each decision, whatever came of that. Before there are any, by tasks that are made up (see `imagined`). No journal and no
network are known here, nor who is asked:

    market = Market(plan, "calls", left=lambda: 1000 - calls, spent=lambda: {"calls": calls}, rows=len(tasks))
    for task in tasks:  # one after the other, or all at once
        row = market.begun()
        trace = ...  # carried out by row.plan(plan), which reads the price at each decision
        row.ended(trace)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from typing import Any, NamedTuple, Protocol, Self

from ..around import Budget
from ..core.belief import Belief
from ..core.plans.adaptive import Adaptive, Choice, Unit, answers
from ..core.records import Failure, Outcome, Record, Usage
from ..core.steps import Step
from ..core.trace import Seat, Trace
from .imagined import JUDGE, imagined, worked

MADE_UP = 16.0  # rows for which those count that are made up
MOST = 384  # rows that are remembered, the latest
DEEPEST = 24  # decisions of a row that are told apart
OFTEN, FINELY = 16, 64  # so many times the price is found anew while as much happens as rows are known, or are left
HALVINGS = 10  # of the interval in which the price is looked for, on a logarithmic scale
SCALE: Mapping[Unit, int] = {"usd": 1, "tokens": 1000, "calls": 1}  # of a budget's limit in a unit of gains
CHEAP, CHEAPEST = 0.005, 1e-4  # the price of a call at which made-up rows go on, and the least that is looked at


class Quote(NamedTuple):
    """The price of the moment: what a unit must be expected to gain, in points of the score."""

    price: float
    unit: Unit


class Rung(NamedTuple):
    """A decision of a row: the best rate of gain on offer (0: nothing was), and what that step took, or would have taken."""

    rate: float
    cost: float


@dataclass
class Ladder:
    """What a row took before its first decision (None: that is not known yet), and its decisions so far.

    `spent`: what it had taken at the last of them, `due`: what it will have at the next.
    """

    base: float | None = None
    rungs: list[Rung] = field(default_factory=list)
    spent: float = 0.0
    due: float = 0.0

    def decided(self, spent: float, choice: Choice | None) -> None:
        """A decision of a row that has taken so much. The same one again replaces itself."""
        if self.base is None:
            self.base = spent
        elif spent > self.spent and self.rungs:
            self.rungs[-1] = self.rungs[-1]._replace(cost=spent - self.spent)
        else:
            del self.rungs[-1:]
        self.rungs.append(Rung(choice.rate, choice.cost or 0.0) if choice else Rung(0.0, 0.0))
        self.spent, self.due = spent, spent + self.rungs[-1].cost

    def as_data(self, unit: Unit) -> list[Any]:
        """As JSON can keep it."""
        return [unit, self.base, self.rungs]

    @classmethod
    def of(cls, data: Sequence[Any]) -> tuple[Self, Unit]:
        """What `as_data` told."""
        unit, base, rungs = data
        return cls(base, [Rung(rate, cost) for rate, cost in rungs]), unit

    @property
    def least(self) -> float:
        """The price at which it would be going on still."""
        return min((rung.rate for rung in self.rungs), default=1e9)


class Quoting(Protocol):
    """Where the price of the moment is known, and moves by what rows tell."""

    unit: Unit

    @property
    def quote(self) -> Quote: ...

    def quoted(self, row: Row) -> Quote: ...

    def moved(self) -> None: ...

    def finished(self, row: Row, trace: Trace | None) -> None: ...


@dataclass(frozen=True)
class AtMarket(Adaptive):
    """The plan of one row, at the price of the moment."""

    row: Row = field(kw_only=True, repr=False, compare=False)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        price, unit = self.row.market.quoted(self.row)
        return Adaptive.__call__(replace(self, price=price, unit=unit), trace)

    def choices(self, trace: Trace, belief: Belief) -> list[Choice]:
        """What may come next; the market is told of it."""
        found = super().choices(trace, belief)
        self.row.decided(trace, max(found, key=lambda choice: choice.rate, default=None))
        return found


@dataclass(eq=False)
class Row:
    """A row's account. `own`: what it had taken before this going of the run."""

    market: Quoting
    ladder: Ladder = field(default_factory=Ladder)
    own: float = 0.0

    def plan(self, plan: Adaptive) -> AtMarket:
        """A plan for this row that goes by the price of the market."""
        return AtMarket(**vars(plan), row=self)

    def decided(self, trace: Trace, choice: Choice | None) -> None:
        """A decision, and what was worth most in it. Where it is not known what the row took, nothing is learned of it."""
        spent = taken(trace.records, self.market.unit)
        if spent is not None:
            self.ladder.decided(spent, choice)
            self.market.moved()

    def resumed(self, trace: Trace, plan: Adaptive) -> None:
        """A row that is taken up where it was cut short: the decisions it has made are looked at again."""
        self.own = taken(trace.records, self.market.unit) or 0.0
        seen, again = Trace(trace.task, trace.panel), self.plan(plan)
        for record in trace.records:
            if not isinstance(record, Outcome):
                seen += record
                again(seen)

    def ended(self, trace: Trace | None) -> None:
        """The row's end; None where there is nothing to be told of it."""
        spent = taken(trace.records, self.market.unit) if trace and trace.graded else None
        if spent is not None and (self.ladder.base is None or spent > self.ladder.spent):
            self.ladder.decided(spent, None)
        self.market.finished(self, trace)


class Market:
    """The price of a run. `left()`: what may still be spent, in the `unit` (tokens by the thousand); `spent()`: what was spent
    so far, by the names of a budget's limits; `rows`: how many are not begun yet.

    No price is below the plan's own: so much a unit must gain even where there is money for more.
    """

    def __init__(  # noqa: PLR0917
        self,
        plan: Adaptive,
        unit: Unit,
        left: Callable[[], float],
        spent: Callable[[], Mapping[str, float]],
        rows: int,
        panel: Iterable[Seat] = (JUDGE,),
        answered: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.least, self.unit, self.left, self.spent = Quote(plan.price, plan.unit), unit, left, spent
        self.waiting = rows
        self.under_way: set[Row] = set()
        self._before, self._paid = self._gone, 0.0
        self._over: deque[Ladder] = deque(maxlen=MOST)
        self._took: dict[Unit, float | None] = dict.fromkeys(SCALE, 0.0)
        self._made_up = made_up(plan, panel, answered=answered)
        self._quote: Quote | None = None
        self._moves = 0

    def begun(self) -> Row:
        """A row begins."""
        row = Row(self)
        self.waiting = max(0, self.waiting - 1)
        self.under_way.add(row)
        return row

    def moved(self) -> None:
        """There is news. The price is found anew as often as that may change it."""
        self._moves += 1
        known = len(self._over) + len(self.under_way)
        ahead = self.waiting + len(self.under_way)
        if self._moves > min(known / OFTEN, ahead / FINELY):
            self._quote = None

    def finished(self, row: Row, trace: Trace | None) -> None:
        """A row has ended."""
        self.under_way.discard(row)
        if row.ladder.base is not None:
            self._over.append(row.ladder)
        if trace is not None:
            self._paid += sum(payment(r.usage, self.unit) or 0.0 for r in trace.records[trace.since :])
            for unit, took in self._took.items():
                self._took[unit] = _plus(took, taken(trace.records, unit))
        self.moved()

    def recall(self, ladder: Ladder, unit: Unit) -> None:
        """A row that had ended before."""
        if unit == self.unit and ladder.base is not None:
            self._over.append(ladder)

    @property
    def price(self) -> float:
        return self.quote.price

    @property
    def quote(self) -> Quote:
        """The price now: for each call until it is known what a call costs, then for each unit."""
        if self._quote is None:
            self._quote, self._moves = self._quoted(), 0
        return self._quote

    def quoted(self, row: Row) -> Quote:
        """The price for a row. Where one more text is more than there is beside what all others are owed, nothing is worth it."""
        price, unit = self.quote
        a_call = self._rate("calls", unit) or 1.0
        base = self._base(a_call)
        owed = self.waiting * base + sum(one.ladder.due - one.own if one.ladder.rungs else base for one in self.under_way)
        spare = self._there_is - owed
        return Quote(price, unit) if spare >= base * (1 - 1e-9) else Quote(max(price, 1 / a_call), unit)

    @property
    def _there_is(self) -> float:
        """The money for all rows that have not ended, with what they have spent."""
        return self.left() + self._gone - self._before - self._paid

    def _quoted(self) -> Quote:
        a_call = self._rate("calls", self.unit)
        if a_call is None:
            return Quote(self._floor("calls"), "calls")
        return Quote(self._found(a_call, self._floor(self.unit)), self.unit)

    @property
    def _gone(self) -> float:
        return self.spent().get(self.unit, 0.0) / SCALE[self.unit]

    def _rate(self, of: Unit, unit: Unit) -> float | None:
        """How much of a unit goes with one of another: by rows that ended, else by what was spent; None: not known."""
        if of == unit:
            return 1.0
        one, other = self._took[of], self._took[unit]
        if not (one and other):
            one, other = (self.spent().get(name, 0.0) / SCALE[name] for name in (of, unit))
        return other / one if one and other else None

    def _floor(self, unit: Unit) -> float:
        """The least price; 0 where it is given in what is not known."""
        one = self._rate(self.least.unit, unit)
        return self.least.price / one if one else 0.0

    def _found(self, a_call: float, least: float) -> float:
        """The lowest price at which what is to be done costs no more than there is for it."""
        pool = [*self._over, *(row.ladder for row in self.under_way)]
        base = self._base(a_call)
        there_is = self._there_is

        def affords(price: float) -> bool:
            further = self._further(pool, price, a_call)
            need = self.waiting * (base + further[0])
            for row in self.under_way:
                rungs = row.ladder.rungs
                need += (row.ladder.due - row.own) if rungs else base
                need += further[min(len(rungs), DEEPEST)] if row.ladder.least >= price else 0.0
            return need <= there_is

        most = max(least, 1 / a_call)  # no call gains more than all
        low = max(least, most * CHEAPEST)
        if affords(low):
            return least
        a, b = log(low), log(most)
        for _ in range(HALVINGS):
            a, b = (a, (a + b) / 2) if affords(exp((a + b) / 2)) else ((a + b) / 2, b)
        return exp(b)

    def _base(self, a_call: float) -> float:
        """What a row takes before its first decision."""
        made_up = sum(ladder.base or 0.0 for ladder in self._made_up) / len(self._made_up) * a_call
        known = [ladder.base or 0.0 for ladder in self._over]
        return (MADE_UP * made_up + sum(known)) / (MADE_UP + len(known))

    def _further(self, pool: Iterable[Ladder], price: float, a_call: float) -> list[float]:
        """What a row may be expected to take at a price beyond its first so many decisions.

        The odds of going on are taken decision by decision, among all rows that came to it (Kaplan & Meier 1958, Journal of
        the American Statistical Association 53:457): most of those that have ended had ended early.
        """
        met, passed, costs = ([0.0] * DEEPEST for _ in range(3))
        weight = MADE_UP / len(self._made_up)
        for ladders, at, each, cost in ((pool, price, 1.0, 1.0), (self._made_up, price * a_call, weight, weight * a_call)):
            for ladder in ladders:
                for k, rung in zip(range(DEEPEST), ladder.rungs, strict=False):
                    met[k] += each
                    if rung.rate < at:
                        break
                    passed[k] += each
                    costs[k] += rung.cost * cost
        further = [0.0]
        for k in reversed(range(DEEPEST)):
            further.append((costs[k] + passed[k] * further[-1]) / met[k] if met[k] else 0.0)
        return further[::-1]


@dataclass
class Fixed:
    """A price that does not move."""

    quote: Quote
    unit: Unit = "calls"

    def quoted(self, row: Row) -> Quote:
        """The same for all."""
        return self.quote

    def moved(self) -> None:
        """Nothing."""

    def finished(self, row: Row, trace: Trace | None) -> None:
        """Nothing."""


def made_up(plan: Adaptive, panel: Iterable[Seat], *, answered: bool) -> list[Ladder]:
    """The ladders of tasks as they may be expected, in calls."""
    cheap = Fixed(Quote(CHEAP, "calls"))
    ladders: list[Ladder] = []
    for world, trace in imagined(plan.priors, panel, answered=answered):
        row = Row(cheap)
        row.ended(worked(trace, row.plan(plan), world))
        ladders.append(row.ladder)
    return ladders


def unit_of(budget: Budget | None) -> Unit | None:
    """The unit of a budget: where it limits several, USD before tokens before calls; None where it limits none of them."""
    return next((name for name in SCALE if budget and getattr(budget, name) is not None), None)


def left_of(budget: Budget, spent: Mapping[str, float], unit: Unit, aside: float = 0.0) -> float:
    """What is left of a budget but for so much, in its unit."""
    return max(0.0, (getattr(budget, unit) or 0) - spent[unit] - aside) / SCALE[unit]


def taken(records: Iterable[Record], unit: Unit) -> float | None:
    """What the answers of a row took, whoever paid for them; None where it is not known. What failed is tried again."""
    whole: float | None = 0.0
    for record in records:
        if not isinstance(record, Failure):
            whole = _plus(whole, answers(record.usage, unit))
    return whole


def payment(usage: Usage, unit: Unit) -> float | None:
    """What was really paid, retries and failures included; None where it is not known."""
    match unit:
        case "calls":
            return float(usage.calls)
        case "tokens":
            return None if usage.tokens is None else usage.tokens / 1000
        case "usd":
            return usage.cost


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
