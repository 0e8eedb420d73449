"""The progress of a run in figures; `redraft.cli.commands.batch` shows it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from ..plans.limits import UNIT_PHRASES
from ..plans.quality.result_facts import ResultFacts
from ..usage import NO_USAGE, Usage, add_optional
from .row_result import NOT_STARTED

ROW_COUNTS = (
    "total",
    "read",
    "done",
    "failed",
    "reused",
    "unfinished",
    "not_started",
    "bad",
    "remaining",
    "under_way",
)
CALL_COUNTS = ("in_flight", "limit")
WINDOW = 30.0  # seconds over which the rate is measured


@dataclass(slots=True)
class Mean:
    """The mean of known values."""

    n: int = 0
    sum: float = 0.0

    def add(self, value: float | None) -> None:
        if value is not None:
            self.n, self.sum = self.n + 1, self.sum + value

    @property
    def value(self) -> float | None:
        return self.sum / self.n if self.n else None


def format_price(price: float, unit: str) -> str:
    """Return a price as text, such as "price 0.01 a call"."""
    return f"price {f'{price:.2g}' if price < 100 else f'{price:,.0f}'} {UNIT_PHRASES[unit]}"


@dataclass
class BatchProgress:
    """The numbers of rows by their results, what was paid in this run, and its speed. None:
    unknown.

    `reused` rows were finished by an earlier run; they also count in `done` and `failed`.
    `unfinished` rows were cut short, and their best answer so far is in the output. `state` is
    "reading", "running", "stopping", or a message about endpoints that are not called now; at the
    end it is "finished" or the reason why the run ended early (see `BatchReport.end_reason`). If
    rows share a budget, a step must be expected to raise the score by `price` for each `price_unit`
    of its cost.
    """

    total: int | None = None
    read: int = 0
    done: int = 0
    failed: int = 0
    reused: int = 0
    unfinished: int = 0
    not_started: int = 0
    bad: int = 0
    under_way: int = 0
    in_flight: int = 0
    calls_made: int = 0
    limit: int = 0
    state: str = "reading"
    usage: Usage = NO_USAGE
    cache_savings: float | None = 0.0
    first: Mean = field(default_factory=Mean)
    best: Mean = field(default_factory=Mean)
    price: float | None = None
    price_unit: str = ""
    started_at: float = field(default_factory=monotonic)
    ended_at: float | None = None
    _ends: deque[tuple[float, int]] = field(default_factory=deque)

    def count(self, result: ResultFacts, *, reused: bool) -> None:
        """Count a row that has ended, in this run or (`reused`) in an earlier one."""
        if result.status == "done":
            self.done += 1
        elif result.status == "failed":
            self.failed += 1
        elif result.error_kind == NOT_STARTED:
            self.not_started += 1
        else:
            self.unfinished += 1
        self.first.add(result.initial_score)
        self.best.add(result.score)
        if reused:
            self.reused += 1
        else:
            self._tick()

    def add_usage(self, usage: Usage) -> None:
        """Add what a step has used in this run."""
        self.usage += usage
        self.cache_savings = add_optional(self.cache_savings, usage.cached_cost)

    def set_counts(self, **counts: Any) -> None:
        """Set figures that were counted in other processes."""
        for name, value in counts.items():
            setattr(self, name, value)
        self._tick()

    def finish(self, state: str = "finished") -> None:
        """Stop the clock, and set the final state."""
        self.ended_at, self.state, self.in_flight = monotonic(), state, 0

    def _tick(self) -> None:
        now = monotonic()
        if not self._ends:
            self._ends.append((self.started_at, 0))
        self._ends.append((now, self._finished))
        while len(self._ends) > 2 and now - self._ends[0][0] > WINDOW:
            self._ends.popleft()
        while len(self._ends) > 2000:
            del self._ends[1]

    @property
    def calls(self) -> int:
        """The number of calls in this run. `usage` has those of a step only once that has ended,
        after all retries.
        """
        return max(self.usage.calls, self.calls_made)

    @property
    def processed_rows(self) -> int:
        """The number of rows that ended in this run."""
        return self.done + self.failed + self.unfinished - self.reused

    @property
    def ended_rows(self) -> int:
        """The number of rows that ended, in this run or in an earlier one."""
        return self.done + self.failed + self.unfinished + self.not_started

    @property
    def _finished(self) -> int:
        """The number of rows that ended in this run and were not cut short."""
        return self.done + self.failed - self.reused

    @property
    def remaining(self) -> int | None:
        """The number of rows that have not ended."""
        return None if self.total is None else max(0, self.total - self.ended_rows)

    @property
    def seconds(self) -> float:
        return (self.ended_at or monotonic()) - self.started_at

    @property
    def rows_per_s(self) -> float | None:
        """Finished rows a second, over the last 30 seconds; over the whole run once it has
        ended.
        """
        if self.ended_at is not None:
            return self._finished / self.seconds if self._finished and self.seconds > 0 else None
        if len(self._ends) < 3:  # the start, and two rows
            return None
        (then, before), (_, now) = self._ends[0], self._ends[-1]
        seconds = monotonic() - then
        return (now - before) / seconds if seconds > 0 else None

    @property
    def eta(self) -> float | None:
        """The remaining time in seconds at the present rate."""
        rate, remaining = self.rows_per_s, self.remaining
        return remaining / rate if rate and remaining is not None else None

    @property
    def projected_cost(self) -> float | None:
        """The cost of the whole run in USD, if the remaining rows cost as much as those processed
        so far.
        """
        cost, remaining = self.usage.cost, self.remaining
        if cost is None or remaining is None or not self.processed_rows:
            return None
        return cost * (1 + remaining / self.processed_rows)

    def as_data(self) -> Mapping[str, Any]:
        """Return plain data for JSON."""
        usage = self.usage
        return {
            "state": self.state,
            **{name: getattr(self, name) for name in (*ROW_COUNTS, *CALL_COUNTS)},
            "calls": self.calls,
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
