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

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import fmean
from typing import Any, NamedTuple, Self, TypeAlias

from ..core.records import Comparison, Failure, Outcome, Record, Usage
from ..core.steps import Step
from ..core.trace import PanelGrader, Trace
from ..middleware import Budget
from ..plans.adaptive import Adaptive, Choice, CostUnit, answer_cost
from ..quality.posterior import Posterior
from ..quality.priors import Priors
from .imagined import DUEL, JUDGE, imagined, worked

MADE_UP = 16.0  # rows for which those count that are made up
MOST = 384  # rows that are remembered, the latest
DEEPEST = 24  # decisions of a row that are told apart
OFTEN, FINELY = 16, 64  # so many times the price is found anew while as much happens as rows are known, or are left
HALVINGS = 10  # of the interval in which the price is looked for, on a logarithmic scale
SCALE: Mapping[CostUnit, int] = {"usd": 1, "tokens": 1000, "calls": 1}  # of a budget's limit in a unit of gains
CHEAP, CHEAPEST = 0.005, 1e-4  # the price of a call at which made-up rows go on, and the least that is looked at
FREELY = 1e9  # the rate of gain of what costs nothing, and more than any price


class Quote(NamedTuple):
    """The price of the moment: what a unit must be expected to gain, in points of the score."""

    price: float
    unit: CostUnit


Parked: TypeAlias = tuple[int, float, float]  # decisions made, and the last one's rate and cost, roughly


class Rung(NamedTuple):
    """A decision of a row: the best rate of gain on offer (0: nothing was), and what that step took, or would have taken."""

    rate: float
    cost: float


@dataclass
class Ladder:
    """What a row took before its first decision (None: that is not known yet), and its decisions so far, all in one unit.

    `duel`: what comparing its best took at the end; `rivals`: whether there may be two to compare. `spent`: what it had taken
    but for that at the last decision, `due`: what it will have at the next.
    """

    unit: CostUnit
    base: float | None = None
    rungs: list[Rung] = field(default_factory=list)
    duel: float = 0.0
    rivals: bool = False
    spent: float = 0.0
    due: float = 0.0

    def told(self, trace: Trace, choice: Choice | None = None, *, going: bool = False) -> None:
        """A decision of a row that stands so (the same one again replaces itself), what was worth most in it, and whether it is
        `going` on; without a choice its end. Where it is not known what the row took, nothing is learned of it.
        """
        others, dueled = apart(trace.records)
        self.duel, self.rivals = paid(dueled, self.unit), self.rivals or going or len(trace.graded_candidates) > 1
        spent = taken(others, self.unit)
        if spent is None:
            return
        if choice or self.base is None or spent > self.spent:
            self._decided(spent, Rung(min(choice.gain_per_cost, FREELY), choice.cost or 0.0) if choice else Rung(0.0, 0.0))
        self.due = spent + (self.rungs[-1].cost if going else 0.0)

    def _decided(self, spent: float, rung: Rung) -> None:
        if self.base is None:
            self.base = spent
        elif spent > self.spent and self.rungs:
            self.rungs[-1] = self.rungs[-1]._replace(cost=spent - self.spent)
        else:
            del self.rungs[-1:]
        self.rungs.append(rung)
        self.spent = spent

    def as_data(self) -> list[Any]:
        """As JSON can keep it."""
        return [self.unit, self.base, self.rungs, self.duel]

    @classmethod
    def of(cls, data: Sequence[Any]) -> Self:
        """What `as_data` told."""
        unit, base, rungs, *duel = data
        return cls(unit, base, [Rung(rate, cost) for rate, cost in rungs], sum(duel))

    @property
    def offer(self) -> Rung | None:
        """What was worth most when it ended; None where that is not known, or its best were compared: that is done once."""
        return self.rungs[-1] if self.rungs and not self.duel else None

    @property
    def parked(self) -> Parked:
        """As the market counts it, once it has ended."""
        rate, cost = self.offer or Rung(0.0, 0.0)
        return min(len(self.rungs), DEEPEST), float(f"{rate:.2g}"), float(f"{cost:.2g}")

    @property
    def least(self) -> float:
        """The price at which it would be going on still."""
        return min((rung.rate for rung in self.rungs), default=FREELY)


@dataclass(frozen=True)
class Told(Adaptive):
    """A plan that tells a ladder of its decisions, in the ladder's unit whatever its own price is for."""

    ladder: Ladder = field(kw_only=True, repr=False, compare=False)

    def choices(self, trace: Trace, belief: Posterior) -> list[Choice]:
        """What may come next."""
        found, unit = super().choices(trace, belief), self.ladder.unit
        told = found if self.cost_unit == unit else Adaptive.choices(replace(self, cost_unit=unit), trace, belief)
        going = any(choice.gain_per_cost >= self.min_expected_gain for choice in found)
        self.ladder.told(trace, max(told, key=lambda choice: choice.gain_per_cost, default=None), going=going)
        return found


@dataclass(frozen=True)
class AtMarket(Told):
    """The plan of one row, at the price of the moment."""

    row: Row = field(kw_only=True, repr=False, compare=False)

    def __call__(self, trace: Trace) -> Sequence[Step]:
        _, dueled = apart(trace.records)
        price, unit = self.row.market.quoted(self.row, compared=bool(dueled))
        return Adaptive.__call__(replace(self, min_expected_gain=price, cost_unit=unit), trace)

    def choices(self, trace: Trace, belief: Posterior) -> list[Choice]:
        """What may come next; the market is told of it."""
        found = super().choices(trace, belief)
        self.row.market.moved(self.row)
        return found


@dataclass(eq=False)
class Row:
    """A row's account. `priors`: what those believe who begin when it does; `own`: what it had taken before this going of the
    run; `held`: what is put aside for it.
    """

    market: Market
    ladder: Ladder
    priors: Priors
    own: float = 0.0
    held: float = 0.0

    def plan(self, plan: Adaptive) -> AtMarket:
        """A plan for this row that goes by the price of the market."""
        return AtMarket(**vars(plan), ladder=self.ladder, row=self)

    def resumed(self, trace: Trace, plan: Adaptive) -> None:
        """A row that is taken up where it was cut short: the decisions it has made are looked at again."""
        others, dueled = apart(trace.records)
        self.own = (taken(others, self.ladder.unit) or 0.0) + paid(dueled, self.ladder.unit)
        seen, again = Trace(trace.task, trace.panel), Told(**vars(plan), ladder=self.ladder)
        for record in trace.records:
            if not isinstance(record, Outcome):
                seen += record
                again(seen)
        self.market.moved(self)

    def ended(self, trace: Trace | None) -> None:
        """The row's end; None where there is nothing to be told of it."""
        if trace and trace.graded_candidates:
            self.ladder.told(trace)
        self.market.finished(self, trace)


class Terms(NamedTuple):
    """What the market goes by for a while: the price, and that of a single call that gains all there is to gain; what a row takes
    before its first decision, and what it takes to compare its two best.
    """

    quote: Quote
    whole: float
    base: float
    duel: float


class Market:
    """The price of a run. `left()`: what may still be spent, in the `unit` (tokens by the thousand); `spent()`: what was spent
    so far, by the names of a budget's limits; `rows`: how many are not begun yet.

    No price is below the plan's own: so much a unit must gain even where there is money for more.
    """

    def __init__(  # noqa: PLR0917
        self,
        plan: Adaptive,
        unit: CostUnit,
        left: Callable[[], float],
        spent: Callable[[], Mapping[str, float]],
        rows: int,
        panel: Iterable[PanelGrader] = (JUDGE,),
        answered: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.plan, self.unit, self.left, self.spent = plan, unit, left, spent
        self.waiting = rows
        self.under_way: set[Row] = set()
        self._panel, self._answered = tuple(panel), answered
        self._duel = sum(DUEL.calls * seat.repeats for seat in self._panel if seat.compares)
        self._early = plan.base_plan.drafts > 1 or any(seat.editable for seat in self._panel)  # two to compare without going on
        self._before, self._paid = self._gone, 0.0
        self._over: deque[Ladder] = deque(maxlen=MOST)
        self._took: dict[CostUnit, float | None] = dict.fromkeys(SCALE, 0.0)
        self._made_up = made_up(plan, self._panel, answered=answered)
        self._parked: Counter[Parked] = Counter()
        self.told: Quote | None = None  # the price as it was last asked for
        self._terms: Terms | None = None
        self._held = 0.0
        self._moves = 0

    def begun(self) -> Row:
        """A row begins."""
        row = Row(self, Ladder(self.unit, rivals=self._early), self.plan.priors)
        self.waiting = max(0, self.waiting - 1)
        self.under_way.add(row)
        self._hold(row, self.terms)
        return row

    def moved(self, row: Row) -> None:
        """There is news of a row. The price is found anew as often as that may change it."""
        self._hold(row, self.terms)
        self._moves += 1
        known = len(self._over) + len(self.under_way)
        ahead = self.waiting + len(self.under_way) + self._parked.total()
        if self._moves > min(known / OFTEN, ahead / FINELY):
            self._terms = None

    def finished(self, row: Row, trace: Trace | None) -> None:
        """A row has ended."""
        self.moved(row)
        self.under_way.discard(row)
        self._held -= row.held
        if row.ladder.base is not None:
            self._over.append(row.ladder if row.priors == self.plan.priors else replace(row.ladder, rungs=[]))
        if trace is not None:
            self._paid += paid(trace.records[trace.resumed_at :], self.unit)
            for unit, took in self._took.items():
                self._took[unit] = _plus(took, taken(trace.records, unit))

    def recall(self, ladder: Ladder) -> None:
        """A row that had ended before."""
        if ladder.unit == self.unit and ladder.base is not None:
            self._over.append(ladder)

    def park(self, ladder: Ladder) -> None:
        """A row that had ended, and is still to be asked whether it is worth the price now: see `takes_up`."""
        self._parked[ladder.parked] += 1
        self._terms = None

    def takes_up(self, ladder: Ladder) -> bool:
        """Whether a row that was parked is worth it at the price of the moment; then it waits to begin, else it has ended.

        One that is told in another unit is taken up: it will find out by itself.
        """
        price, unit = self.quote
        self._parked[ladder.parked] -= 1
        offer = ladder.offer
        if offer is None or (unit == ladder.unit and offer.rate < price):
            return False
        with suppress(ValueError):
            self._over.remove(ladder)
        self.waiting += 1
        return True

    def believing(self, priors: Priors) -> None:
        """Rows from here on believe something else: what others decided tells nothing of them, only what they took."""
        if priors != self.plan.priors:
            self.plan = replace(self.plan, priors=priors)
            self._made_up = made_up(self.plan, self._panel, answered=self._answered)
            self._over = deque((replace(ladder, rungs=[]) for ladder in self._over), MOST)
            self._terms = None

    @property
    def quote(self) -> Quote:
        """The price now: for each call until it is known what a call costs, then for each unit."""
        return self.terms.quote

    @property
    def terms(self) -> Terms:
        """What it goes by now."""
        if self._terms is None or (self._terms.quote.unit != self.unit and self._rate("calls", self.unit)):
            self._terms, self._moves = self._found(), 0
            self.told = self._terms.quote
        return self._terms

    def quoted(self, row: Row, *, compared: bool = False) -> Quote:
        """The price for a row. Nothing is worth it where one more text is more than there is beside what all others are owed, and
        where the best are `compared`, which is done once, at the end.
        """
        quote, whole, base, duel = self.terms
        if quote.unit != self.unit:
            return quote
        spare = self._there_is - self._held - self.waiting * (base + duel * self._early)
        enough = spare >= (base + duel * (not row.ladder.rivals)) * (1 - 1e-9)
        return quote if enough and not compared else Quote(max(quote.price, whole), self.unit)

    def _hold(self, row: Row, terms: Terms) -> None:
        """Put aside what a row is to have, come what may: its step, and a duel at its end."""
        due = row.ladder.due - row.own if row.ladder.rungs else terms.base
        held = due + terms.duel * row.ladder.rivals
        self._held += held - row.held
        row.held = held

    @property
    def _there_is(self) -> float:
        """The money for all rows that have not ended, with what they have spent."""
        return self.left() + self._gone - self._before - self._paid

    @property
    def _gone(self) -> float:
        return self.spent().get(self.unit, 0.0) / SCALE[self.unit]

    def _rate(self, of: CostUnit, unit: CostUnit) -> float | None:
        """How much of a unit goes with one of another: by rows that ended, else by what was spent; None: not known."""
        if of == unit:
            return 1.0
        one, other = self._took[of], self._took[unit]
        if not (one and other):
            one, other = (self.spent().get(name, 0.0) / SCALE[name] for name in (of, unit))
        return other / one if one and other else None

    def _floor(self, unit: CostUnit) -> float:
        """The least price; 0 where it is given in what is not known."""
        one = self._rate(self.plan.cost_unit, unit)
        return self.plan.min_expected_gain / one if one else 0.0

    def _found(self) -> Terms:
        a_call = self._rate("calls", self.unit)
        if a_call is None:
            return Terms(Quote(self._floor("calls"), "calls"), 1.0, 0.0, 0.0)
        duels = [ladder.duel for ladder in self._over if ladder.duel]
        terms = Terms(Quote(0.0, self.unit), 1 / a_call, self._base(a_call), fmean(duels) if duels else self._duel * a_call)
        for row in self.under_way:
            self._hold(row, terms)
        self._held = sum(row.held for row in self.under_way)
        return terms._replace(quote=Quote(self._price(a_call, terms), self.unit))

    def _price(self, a_call: float, terms: Terms) -> float:
        """The lowest price at which what is to be done costs no more than there is for it."""
        pool = [*self._over, *(row.ladder for row in self.under_way if row.priors == self.plan.priors)]
        there_is, duel = self._there_is, terms.duel * self._share_of_duels()

        def affords(price: float) -> bool:
            further = self._further(pool, price, a_call, duel * (not self._early))
            need = self.waiting * (terms.base + further[0] + duel * self._early)
            for row in self.under_way:
                ladder = row.ladder
                need += row.held - (terms.duel - duel) * ladder.rivals
                need += further[min(len(ladder.rungs), DEEPEST)] if ladder.least >= price else 0.0
            for (depth, rate, cost), rows in self._parked.items():
                need += rows * (cost + further[depth] + duel) if rate >= price else 0.0
            return need <= there_is

        least, most = self._floor(self.unit), terms.whole  # no call gains more than all
        low, most = max(least, most * CHEAPEST), max(least, most)
        if affords(low):
            return least
        a, b = log(low), log(most)
        for _ in range(HALVINGS):
            a, b = (a, (a + b) / 2) if affords(exp((a + b) / 2)) else ((a + b) / 2, b)
        return exp(b)

    def _base(self, a_call: float) -> float:
        """What a row takes before its first decision."""
        made_up = fmean(ladder.base or 0.0 for ladder in self._made_up) * a_call
        known = [ladder.base or 0.0 for ladder in self._over]
        return (MADE_UP * made_up + sum(known)) / (MADE_UP + len(known))

    def _share_of_duels(self) -> float:
        """How many end with a duel, of the rows that may: those that went on, or had two to compare from the start."""
        weight = MADE_UP / len(self._made_up)
        each = [*((ladder, 1.0) for ladder in self._over), *((ladder, weight) for ladder in self._made_up)]
        able = [(ladder, counts) for ladder, counts in each if len(ladder.rungs) > 1 or self._early]
        whole = sum(counts for _, counts in able)
        return sum(counts for ladder, counts in able if ladder.duel) / whole if whole else 1.0

    def _further(self, pool: Iterable[Ladder], price: float, a_call: float, duel: float) -> list[float]:
        """What a row may be expected to take at a price beyond its first so many decisions; `duel`: once it has gone on at all.

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
        costs[0] += passed[0] * duel
        further = [0.0]
        for k in reversed(range(DEEPEST)):
            further.append((costs[k] + passed[k] * further[-1]) / met[k] if met[k] else 0.0)
        return further[::-1]


def made_up(plan: Adaptive, panel: Iterable[PanelGrader], *, answered: bool) -> list[Ladder]:
    """The ladders of tasks as they may be expected, in calls."""
    ladders: list[Ladder] = []
    cheap = replace(plan, min_expected_gain=CHEAP, cost_unit="calls")
    for world, trace in imagined(plan.priors, panel, answered=answered):
        ladder = Ladder("calls")
        ladder.told(worked(trace, Told(**vars(cheap), ladder=ladder), world))
        ladders.append(ladder)
    return ladders


def unit_of(budget: Budget | None, *, free: bool = False) -> CostUnit | None:
    """The unit of a budget: where it limits several, USD (unless calls are `free`) before tokens before calls; None where it
    limits none of them.
    """
    units = [name for name in SCALE if not (free and name == "usd")]
    return next((name for name in units if budget and getattr(budget, name) is not None), None)


def left_of(budget: Budget, spent: Mapping[str, float], unit: CostUnit, aside: float = 0.0) -> float:
    """What is left of a budget but for so much, in its unit."""
    return max(0.0, (getattr(budget, unit) or 0) - spent[unit] - aside) / SCALE[unit]


def taken(records: Iterable[Record], unit: CostUnit) -> float | None:
    """What the answers of a row took, whoever paid for them; None where it is not known. What failed is tried again."""
    whole: float | None = 0.0
    for record in records:
        if not isinstance(record, Failure):
            whole = _plus(whole, answer_cost(record.usage, unit))
    return whole


def apart(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """All but the duel at the end, and that, in vain or not: it is not tried again."""
    dueled: list[Record] = []
    others: list[Record] = []
    for record in records:
        compares = isinstance(record, Comparison) or (isinstance(record, Failure) and record.role == "compare")
        (dueled if compares else others).append(record)
    return others, dueled


def paid(records: Iterable[Record], unit: CostUnit) -> float:
    """What was really paid, as far as it is known."""
    return sum(payment(record.usage, unit) or 0.0 for record in records)


def payment(usage: Usage, unit: CostUnit) -> float | None:
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
