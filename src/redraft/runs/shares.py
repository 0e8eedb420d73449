"""What the shards of a run share: calls in flight, rates, and money. Sums only: who is told, and how, is not known here.

Nothing is given twice: what one shard is to give back is given to another only once the first has said that it keeps to
less. What a shard may use in all is therefore never more than the whole, whatever is on its way, or dies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..errors import BudgetExhaustedError
from ..middleware.budget import LIMITS, Budget, BudgetTracker

LEAST = 0.1  # the weight of a shard that uses nothing now, beside 1 for one that could use more
NEVER_NONE = 1e-6  # of a rate: there is no rate of 0

Money = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Share:
    """What a shard may use: calls in flight, calls and tokens a minute, and of the budget.

    `refused`: why a shard that is short of money will never get more. `each`: what there is of the budget for each row that has
    not ended, whoever works on it.
    """

    in_flight: int = 0
    rpm: float | None = None
    tpm: float | None = None
    money: Money = field(default_factory=dict)
    refused: str = ""
    each: Money = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Use:
    """What a shard uses of the share that it keeps to. `taken` is what it spent and reserved, `short` what it waits for."""

    share: Share = Share()
    in_flight: int = 0
    pressed: bool = True
    spent: Money = field(default_factory=dict)
    taken: Money = field(default_factory=dict)
    short: Money | None = None


@dataclass
class Shares:
    """So much for so many shards, divided anew whenever one asks. Every shard of `of` gets at least one call in flight.

    `spent` is what of the `budget` was spent before.
    """

    of: int
    in_flight: int
    rpm: float | None = None
    tpm: float | None = None
    budget: Budget | None = None
    spent: Money = field(default_factory=dict)
    _uses: list[Use] = field(init=False)
    _given: list[Share] = field(init=False)
    _over: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._uses, self._given = [Use()] * self.of, [Share()] * self.of

    def learn(self, k: int, use: Use, *, over: bool = False) -> None:
        """What shard k says of itself. Once it is `over` it uses nothing any more."""
        self._uses[k] = use
        if over:
            self._over.add(k)

    def next(self, k: int) -> Share:
        """What shard k may use from now on. It counts as given until the shard has said that it keeps to another."""
        part = self._fraction(k)
        active = self.of - len(self._over)
        calls = 1 + int((self.in_flight - active) * part)
        self._given[k] = Share(
            int(self._granted(k, calls, self.in_flight, lambda s: s.in_flight, lambda u: u.in_flight)),
            self._rate(k, part, self.rpm, lambda s: s.rpm),
            self._rate(k, part, self.tpm, lambda s: s.tpm),
            {name: self._money(k, part, name) for name in LIMITS if self._most(name) is not None},
            self._refusal(k),
        )
        return self._given[k]

    def _fraction(self, k: int) -> float:
        """What part of the whole would be shard k's."""
        weights = [self._weight(j) for j in range(self.of)]
        return weights[k] / sum(weights) if weights[k] else 0.0

    def _weight(self, k: int) -> float:
        use = self._uses[k]
        if k in self._over:
            return 0.0
        return 1.0 if use.pressed or not use.share.in_flight else max(LEAST, min(1.0, use.in_flight / use.share.in_flight))

    def _granted(self, k: int, wanted: float, whole: float, of: Callable[[Share], float], used: Callable[[Use], float]) -> float:
        """As much of what is wanted as no other may use."""
        others = sum(self._held(j, of, used) for j in range(self.of) if j != k)
        return max(0.0, min(wanted, whole - others))

    def _held(self, k: int, of: Callable[[Share], float], used: Callable[[Use], float]) -> float:
        """The most that a shard may be using."""
        use = self._uses[k]
        return used(use) if k in self._over else max(of(self._given[k]), of(use.share), used(use))

    def _rate(self, k: int, part: float, whole: float | None, of: Callable[[Share], float | None]) -> float | None:
        if whole is None:
            return None
        return max(self._granted(k, whole * part, whole, lambda share: of(share) or 0.0, lambda _: 0.0), whole * NEVER_NONE)

    # --- money

    def left(self) -> Money:
        """What nobody has spent."""
        spent = {name: sum(use.spent.get(name, 0.0) for use in self._uses) for name in LIMITS}
        return {name: max(0.0, most - spent[name]) for name in LIMITS if (most := self._most(name)) is not None}

    def _most(self, name: str) -> float | None:
        """What the shards may spend in all."""
        limit = getattr(self.budget, name, None)
        return None if limit is None else max(0.0, limit - self.spent.get(name, 0.0))

    def _free(self, name: str) -> float:
        """What nobody has spent or reserved."""
        return (self._most(name) or 0.0) - sum(use.taken.get(name, 0.0) for use in self._uses)

    def _promised(self) -> dict[int, Money]:
        """Who is short of money and what for, as far as there is enough; the first come first."""
        free = {name: self._free(name) for name in LIMITS if self._most(name) is not None}
        promised: dict[int, Money] = {}
        for k, use in enumerate(self._uses):
            if use.short and k not in self._over and all(use.short[name] <= left + 1e-12 for name, left in free.items()):
                promised[k] = use.short
                free = {name: left - use.short[name] for name, left in free.items()}
        return promised

    def _money(self, k: int, part: float, name: str) -> float:
        taken, promised = self._uses[k].taken.get(name, 0.0), self._promised()
        rest = self._free(name) - sum(need[name] for need in promised.values())
        wanted = taken + promised.get(k, {}).get(name, 0.0) + max(0.0, rest) * part
        whole = self._most(name) or 0.0
        granted = self._granted(k, wanted, whole, lambda s: s.money.get(name, 0.0), lambda u: u.taken.get(name, 0.0))
        return granted if name == "usd" else int(granted + 1e-9)

    def _refusal(self, k: int) -> str:
        """Why there will never be enough for what shard k waits for; "" where there may be."""
        short = self._uses[k].short
        if short is None:
            return ""
        purse = BudgetTracker(self.budget)
        purse.spent.update({name: self.spent.get(name, 0.0) + sum(u.spent.get(name, 0.0) for u in self._uses) for name in LIMITS})
        try:
            purse.check(short)
        except BudgetExhaustedError as error:
            return str(error)
        return ""
