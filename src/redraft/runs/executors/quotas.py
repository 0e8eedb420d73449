"""Quotas: how the shards of a run share its calls in flight, its rates and its budget. Arithmetic only.

Nothing is granted twice: what one shard is to give back is granted to another only after the first has confirmed its smaller
quota. All shards together therefore never use more than the total, whatever messages are delayed, or which shards die.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import BudgetExhaustedError
from ...middleware.budget import Budget, BudgetTracker
from ...middleware.call_costs import LIMITS

MIN_WEIGHT = 0.1  # of a shard that uses nothing now, beside 1 for one that could use more
MIN_RATE_SHARE = 1e-6  # a rate cannot be 0

Amounts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Quota:
    """What a shard may use: calls in flight, calls and tokens a minute, and `amounts` of the budget.

    `refusal`: why a shard that waits for more of the budget will never get it. `per_row`: what is left of the budget for each
    row that has not ended, in whatever shard.
    """

    in_flight: int = 0
    rpm: float | None = None
    tpm: float | None = None
    amounts: Amounts = field(default_factory=dict)
    refusal: str = ""
    per_row: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a shard uses of the quota that it confirms. `committed` is what it spent and reserved, `shortage` what it waits for."""

    quota: Quota = Quota()
    in_flight: int = 0
    is_saturated: bool = True
    spent: Amounts = field(default_factory=dict)
    committed: Amounts = field(default_factory=dict)
    shortage: Amounts | None = None


@dataclass
class QuotaSplitter:
    """Splits a total among `of` shards, anew whenever one asks. Every shard gets at least one call in flight.

    `spent` is what was spent of the `budget` before.
    """

    of: int
    in_flight: int
    rpm: float | None = None
    tpm: float | None = None
    budget: Budget | None = None
    spent: Amounts = field(default_factory=dict)
    _used: list[QuotaUse] = field(init=False)
    _granted_quotas: list[Quota] = field(init=False)
    _finished: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._used, self._granted_quotas = [QuotaUse()] * self.of, [Quota()] * self.of

    def update(self, k: int, use: QuotaUse, *, finished: bool = False) -> None:
        """Update the use of shard k. Once it has `finished` it uses nothing any more."""
        self._used[k] = use
        if finished:
            self._finished.add(k)

    def next(self, k: int) -> Quota:
        """Return what shard k may use from now on. It counts as granted until the shard confirms another quota."""
        part = self._fraction(k)
        active = self.of - len(self._finished)
        calls = 1 + int((self.in_flight - active) * part)
        self._granted_quotas[k] = Quota(
            int(self._grant(k, calls, self.in_flight, lambda s: s.in_flight, lambda u: u.in_flight)),
            self._rate(k, part, self.rpm, lambda s: s.rpm),
            self._rate(k, part, self.tpm, lambda s: s.tpm),
            {name: self._amount(k, part, name) for name in LIMITS if self._total(name) is not None},
            self._refusal(k),
        )
        return self._granted_quotas[k]

    def _fraction(self, k: int) -> float:
        """Return shard k's fraction of the total."""
        weights = [self._demand(j) for j in range(self.of)]
        return weights[k] / sum(weights) if weights[k] else 0.0

    def _demand(self, k: int) -> float:
        use = self._used[k]
        if k in self._finished:
            return 0.0
        return (
            1.0 if use.is_saturated or not use.quota.in_flight else max(MIN_WEIGHT, min(1.0, use.in_flight / use.quota.in_flight))
        )

    def _grant(self, k: int, wanted: float, total: float, of: Callable[[Quota], float], used: Callable[[QuotaUse], float]) -> float:
        """Return as much of the wanted amount as no other shard may use."""
        others = sum(self._in_use(j, of, used) for j in range(self.of) if j != k)
        return max(0.0, min(wanted, total - others))

    def _in_use(self, k: int, of: Callable[[Quota], float], used: Callable[[QuotaUse], float]) -> float:
        """Return the most that a shard may be using."""
        use = self._used[k]
        return used(use) if k in self._finished else max(of(self._granted_quotas[k]), of(use.quota), used(use))

    def _rate(self, k: int, part: float, total: float | None, of: Callable[[Quota], float | None]) -> float | None:
        if total is None:
            return None
        return max(self._grant(k, total * part, total, lambda quota: of(quota) or 0.0, lambda _: 0.0), total * MIN_RATE_SHARE)

    # --- the budget

    def left(self) -> Amounts:
        """Return what no shard has spent."""
        spent = {name: sum(use.spent.get(name, 0.0) for use in self._used) for name in LIMITS}
        return {name: max(0.0, most - spent[name]) for name in LIMITS if (most := self._total(name)) is not None}

    def _total(self, name: str) -> float | None:
        """Return what the shards may spend together."""
        limit = getattr(self.budget, name, None)
        return None if limit is None else max(0.0, limit - self.spent.get(name, 0.0))

    def _available(self, name: str) -> float:
        """Return what no shard has spent or reserved."""
        return (self._total(name) or 0.0) - sum(use.committed.get(name, 0.0) for use in self._used)

    def _promises(self) -> dict[int, Amounts]:
        """Return the shortages that can be met, by shard; those of the first shards come first."""
        free = {name: self._available(name) for name in LIMITS if self._total(name) is not None}
        promised: dict[int, Amounts] = {}
        for k, use in enumerate(self._used):
            if use.shortage and k not in self._finished and all(use.shortage[name] <= left + 1e-12 for name, left in free.items()):
                promised[k] = use.shortage
                free = {name: left - use.shortage[name] for name, left in free.items()}
        return promised

    def _amount(self, k: int, part: float, name: str) -> float:
        committed, promised = self._used[k].committed.get(name, 0.0), self._promises()
        rest = self._available(name) - sum(need[name] for need in promised.values())
        wanted = committed + promised.get(k, {}).get(name, 0.0) + max(0.0, rest) * part
        total = self._total(name) or 0.0
        granted = self._grant(k, wanted, total, lambda s: s.amounts.get(name, 0.0), lambda u: u.committed.get(name, 0.0))
        return granted if name == "usd" else int(granted + 1e-9)

    def _refusal(self, k: int) -> str:
        """Return why there will never be enough for what shard k waits for; "" if there may be."""
        shortage = self._used[k].shortage
        if shortage is None:
            return ""
        tracker = BudgetTracker(self.budget)
        tracker.spent.update({name: self.spent.get(name, 0.0) + sum(u.spent.get(name, 0.0) for u in self._used) for name in LIMITS})
        try:
            tracker.check(shortage)
        except BudgetExhaustedError as error:
            return str(error)
        return ""
