"""Where a run stands, in figures. Nothing here draws."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..core.records import NO_USAGE, Usage
from ..plans.adaptive import UNIT_PHRASES
from .rows import NOT_STARTED, Came

WINDOW = 30.0  # seconds over which the pace is taken


@dataclass(slots=True)
class Mean:
    """A mean of what was known."""

    n: int = 0
    sum: float = 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.n, self.sum = self.n + 1, self.sum + value

    @property
    def value(self) -> float | None:
        return self.sum / self.n if self.n else None


def price_told(price: float, unit: str) -> str:
    """A price in words."""
    return f"price {f'{price:.2g}' if price < 100 else f'{price:,.0f}'} {UNIT_PHRASES[unit]}"


@dataclass
class Progress:
    """Rows by what became of them, what was paid for in this run, and how fast it goes. Unknown is None.

    `kept` rows were finished before and are not redone; they count in `done` and `failed`, too. `cut` rows were cut
    short, the best of them is written. `state` is "reading", "running", "stopping", why a model is not asked for now, and in
    the end "finished" or what cut the run short ("interrupted", "budget" ...; see `Report.ended`). `price`: what each
    `price_unit` must be expected to gain, where rows share a purse.
    """

    total: int | None = None
    read: int = 0
    done: int = 0
    failed: int = 0
    kept: int = 0
    cut: int = 0
    not_started: int = 0
    bad: int = 0
    under_way: int = 0
    in_flight: int = 0
    limit: int = 0
    state: str = "reading"
    usage: Usage = NO_USAGE
    first: Mean = field(default_factory=Mean)
    best: Mean = field(default_factory=Mean)
    price: float | None = None
    price_unit: str = ""
    started: float = field(default_factory=monotonic)
    ended: float | None = None
    _ends: deque[tuple[float, int]] = field(default_factory=deque)

    def settle(self, came: Came, *, kept: bool) -> None:
        """Count a row that ended."""
        self.kept += kept
        self.done += came.status == "done"
        self.failed += came.status == "failed"
        self.not_started += came.kind == NOT_STARTED
        self.cut += came.status == "open" and came.kind != NOT_STARTED
        self.first.add(came.columns["initial_score"])
        self.best.add(came.columns["best_score"])
        if not kept:
            self._tick()

    def take(self, **counted: Any) -> None:
        """Figures that were counted elsewhere, by their names here."""
        for name, value in counted.items():
            setattr(self, name, value)
        self._tick()

    def finish(self, state: str = "finished") -> None:
        """Stop the clock; `state` says what ended it."""
        self.ended, self.state, self.in_flight = monotonic(), state, 0

    def _tick(self) -> None:
        now = monotonic()
        if not self._ends:
            self._ends.append((self.started, 0))
        self._ends.append((now, self._finished))
        while len(self._ends) > 2 and now - self._ends[0][0] > WINDOW:
            self._ends.popleft()
        while len(self._ends) > 2000:
            del self._ends[1]

    @property
    def worked(self) -> int:
        """Rows that ended in this run."""
        return self.done + self.failed + self.cut - self.kept

    @property
    def _finished(self) -> int:
        """Rows that ended in this run, and were not cut short."""
        return self.done + self.failed - self.kept

    @property
    def left(self) -> int | None:
        return None if self.total is None else max(0, self.total - self.done - self.failed - self.cut - self.not_started)

    @property
    def seconds(self) -> float:
        return (self.ended or monotonic()) - self.started

    @property
    def rows_per_s(self) -> float | None:
        """Rows that ended in a result or an error, over the last half minute; over all once the run has ended."""
        if self.ended is not None:
            return self._finished / self.seconds if self._finished and self.seconds > 0 else None
        if len(self._ends) < 3:  # the beginning, and two rows
            return None
        (then, before), (_, now) = self._ends[0], self._ends[-1]
        seconds = monotonic() - then
        return (now - before) / seconds if seconds > 0 else None

    @property
    def eta(self) -> float | None:
        """Seconds to go at this pace."""
        pace, left = self.rows_per_s, self.left
        return left / pace if pace and left is not None else None

    @property
    def projected_cost(self) -> float | None:
        """USD for this run in all, if the rows that are left take what those before took."""
        cost, left = self.usage.cost, self.left
        if cost is None or left is None or not self.worked:
            return None
        return cost * (1 + left / self.worked)

    def as_data(self) -> Mapping[str, Any]:
        """Plain data, for JSON and metrics."""
        names = ("total", "read", "done", "failed", "kept", "cut", "not_started", "bad", "left", "under_way", "in_flight", "limit")
        usage = self.usage
        return {
            "state": self.state,
            **{name: getattr(self, name) for name in names},
            "calls": usage.calls,
            "cached_calls": usage.cached_calls,
            "tokens": usage.tokens,
            "cost": usage.cost,
            "projected_cost": self.projected_cost,
            "price": self.price,
            "price_unit": self.price_unit,
            "mean_first": self.first.value,
            "mean_best": self.best.value,
            "rows_per_s": self.rows_per_s,
            "eta": self.eta,
            "seconds": self.seconds,
        }
