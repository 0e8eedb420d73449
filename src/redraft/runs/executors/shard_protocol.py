"""What the coordinator of a run with several workers and these send each other, and how quotas are
computed.

A worker receives one `ShardJob`, and then `Orders` after `Orders`: more rows, a new `Quota`, and a
`StopOrder` at the end. It answers each with a `ShardStatus`, which has the results of its rows, as
soon as it has something to say. Orders may arrive twice, or at a process that has taken the place
of another: they have a number, and rows are for one process only.

`QuotaSplitter` divides the calls in flight, the rates and the budget of the run among the workers.
No quota is granted twice: what one worker must give back is granted to another only after the first
has confirmed its smaller quota. So all workers together never use more than the total, whatever
messages are delayed and whichever workers die.

The budget is divided twice in this way. `Quota.amounts` limit the calls, which reserve upper
bounds. `Quota.share` limits what the rows of a shard may plan to spend: all of them must fit, those
that have not started as well. So no shard takes what the last row of another needs. Only the
coordinator knows that the budget will never cover a call (`Quota.refusal`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from ...errors import BudgetExhaustedError
from ...loop.trace import Trace
from ...middleware.budget import Budget, BudgetTracker
from ...middleware.call_costs import LIMITS
from ...plans.quality.lineage import Observations
from ...plans.quality.priors import Priors
from ...plans.quality.result_facts import ResultFacts
from ...usage import NO_USAGE, Usage
from ..config import BatchConfig
from ..dataset import BatchDataset, PendingRow
from ..online_priors import RefitSchedule

# of the progress, in a status
COUNTED = ("done", "under_way", "in_flight", "calls_made")
MIN_WEIGHT = 0.1  # of a shard that uses none of its quota, where one that could use more has 1
MIN_RATE_SHARE = 1e-6  # a rate cannot be 0

Amounts = Mapping[str, float]
"""Amounts of a budget by the names of its limits: "usd", "tokens" and "calls"."""


class AssignedRow(NamedTuple):
    """A row for a shard, with its trace in the journal of the run (None: there is none)."""

    row: PendingRow
    trace: Trace | None


@dataclass(frozen=True)
class ShardJob:
    """The whole description of a shard, in values that can be sent to another process.

    Attributes:
        config: The settings of the run.
        dataset: The data set without its source, for the names of its columns.
        model: The writer.
        graders: The graders, as the user gave them.
        judge: The judge.
        journal: The path of the shard's own journal.
        run_journal: The path of the journal of the run, if that has cached replies.
        attempt: Identifies this start of the run.
        folder: The working directory of the run.
        ends_at: The deadline of the run as a time since the epoch; None: there is none.
        rows: About how many rows the shard will have.
        capabilities: What is known about the endpoints.
        schedule: The priors of the rows, if they are learned online.
    """

    config: BatchConfig
    dataset: BatchDataset
    model: Any
    graders: Any
    judge: Any
    journal: Path
    run_journal: Path | None
    attempt: str
    folder: str
    ends_at: float | None
    rows: int
    capabilities: Mapping[str, Any]
    schedule: RefitSchedule | None = None


@dataclass(frozen=True, slots=True)
class StopOrder:
    """An order to end, with the arguments of `Scheduler.end`."""

    reason: str
    message: str
    now: bool = False


class Refusal(NamedTuple):
    """The budget will never cover a call that needs this amount, or more, under a limit; `message`
    says why.
    """

    limit: str
    amount: float
    message: str


@dataclass(frozen=True, slots=True)
class Quota:
    """What a shard may use: calls in flight, calls and tokens a minute, and `amounts` of the
    budget.

    `share` is what its rows may plan to spend in all, by the names of the limits. `refusal`: what a
    shard that waits for more of the budget will never get; None if it may get it.
    """

    in_flight: int = 0
    rpm: float | None = None
    tpm: float | None = None
    amounts: Amounts = field(default_factory=dict)
    share: Amounts = field(default_factory=dict)
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a shard uses of the quota that it has received.

    `committed` is what it has spent and reserved, `shortage` the amounts that a call waits for
    (None: no call waits). `is_saturated`: it could use more. `planned`: what it has spent, and what
    its `rows` that have not ended need in any case; by the limit that sets their price, if there is
    one.
    """

    quota: Quota = Quota()
    in_flight: int = 0
    is_saturated: bool = True
    spent: Amounts = field(default_factory=dict)
    committed: Amounts = field(default_factory=dict)
    shortage: Amounts | None = None
    planned: Amounts = field(default_factory=dict)
    rows: int = 0

    def planned_amount(self, name: str) -> float:
        """Return the planned amount; what is spent if none is planned, or less."""
        spent = self.spent.get(name, 0.0)
        return max(spent, self.planned.get(name, spent))


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker receives at an exchange.

    Attributes:
        number: Rises by one from exchange to exchange.
        process: The process for which the rows are; another one ignores them.
        quota: What the worker may use.
        stop: The order to end, if the run ends.
        rows: More rows, pickled `AssignedRow` objects; b"": none.
        is_last: There are no more rows.
        refits: The refits of the priors so far.
        pauses: Until when endpoints have asked for no call, by their addresses, as times since the
            epoch.
    """

    number: int
    process: str
    quota: Quota
    stop: StopOrder | None = None
    rows: bytes = b""
    is_last: bool = False
    refits: Mapping[int, Priors | None] = field(default_factory=dict)
    pauses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The state of a shard.

    Attributes:
        process: Identifies the worker's process, so it changes when the worker has died and was
            started again. `counts`, `usage`, `cache_savings` and `second_looks` are those of this
            process.
        use: None until the worker has opened its journal: before that, it does not know what an
            earlier process has spent.
        needs_rows: Whether the worker can take more rows.
        results: The results of rows by their numbers, which the shard's journal has. They are sent
            again until the next orders arrive.
        observations: What refits learn from rows, by their IDs.
        messages: What there is to say since the last status.
        reason: Why the shard has ended early; "" if it has not. `message` explains it.
        pauses: See `Orders`.
    """

    process: str
    use: QuotaUse | None = None
    counts: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    usage: Usage = NO_USAGE
    cache_savings: float | None = 0.0
    second_looks: int = 0
    limit: int = 0
    state: str = ""
    needs_rows: bool = False
    results: Mapping[int, ResultFacts] = field(default_factory=dict)
    observations: Mapping[str, Observations] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    pauses: Mapping[str, float] = field(default_factory=dict)


class Worker(Protocol):
    """A worker as the coordinator sees it: in a process of this machine, or in an actor on Ray.

    If its process dies, both methods go on with another one, which gets the same shard and the same
    orders.
    """

    async def run(self, shard: ShardJob) -> ShardStatus:
        """Process a shard to its end, and return the final status."""
        ...

    async def exchange(self, orders: Orders) -> ShardStatus:
        """Send orders, and return the status."""
        ...


class WorkerPool(Protocol):
    """Starts workers, as an asynchronous context manager that ends them.

    `size` is the number of workers that it should have, `setting` the setting that chooses it.
    """

    setting: ClassVar[str]

    @property
    def size(self) -> int: ...

    def dumps(self, value: object) -> bytes:
        """Return a value, with functions and objects of the user, as `pickle.loads` of a worker
        reads it. Raises what pickling raises.
        """
        ...

    def start_worker(self) -> Worker: ...


@dataclass
class QuotaSplitter:
    """Divides the limits of a run among shards by what they use. Every shard gets at least one call
    in flight.

    `rows` are the numbers of rows of the shards. `spent` is what earlier runs have spent of the
    `budget`. `exhaustion` says that it is used up; "" while it is not.
    """

    rows: Sequence[int]
    in_flight: int
    rpm: float | None = None
    tpm: float | None = None
    budget: Budget | None = None
    spent: Amounts = field(default_factory=dict)
    exhaustion: str = ""
    _used: list[QuotaUse] = field(init=False)
    _granted_quotas: list[Quota] = field(init=False)
    _unconfirmed: set[int] = field(default_factory=set)
    _finished: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._used, self._granted_quotas = (
            [QuotaUse(rows=rows) for rows in self.rows],
            [Quota()] * self.of,
        )
        for k in range(self.of):
            # grant every shard its first quota before any of them can give something back
            self.next(k)

    @property
    def of(self) -> int:
        """The number of shards."""
        return len(self.rows)

    def update(self, k: int, use: QuotaUse, *, finished: bool = False) -> None:
        """Set the use of shard k, which confirms its quota. A shard that has `finished` uses
        nothing any more.
        """
        self._used[k] = replace(use, planned={}, rows=0) if finished else use
        self._unconfirmed.discard(k)
        if finished:
            self._finished.add(k)

    def next(self, k: int) -> Quota:
        """Return the next quota of shard k, or the last one again until the shard confirms it.

        It counts as granted until the shard confirms another one.
        """
        if k not in self._unconfirmed:
            self._granted_quotas[k] = self._next(k)
            self._unconfirmed.add(k)
        return self._granted_quotas[k]

    def _next(self, k: int) -> Quota:
        weights = [self._demand(j) for j in range(self.of)]
        part = weights[k] / sum(weights) if weights[k] else 0.0
        active = self.of - len(self._finished)
        calls = 1 + int((self.in_flight - active) * part)
        limits = [name for name in LIMITS if self._total(name) is not None]
        return Quota(
            int(
                self._grant(k, calls, self.in_flight, lambda s: s.in_flight, lambda u: u.in_flight)
            ),
            self._rate(k, part, self.rpm, lambda s: s.rpm),
            self._rate(k, part, self.tpm, lambda s: s.tpm),
            {name: self._amount(k, part, name) for name in limits},
            {name: self._share(k, name) for name in limits},
            self._refusal(k),
        )

    def _demand(self, k: int) -> float:
        """Return the weight of shard k in [0, 1]: the part of its quota that it uses."""
        use = self._used[k]
        if k in self._finished:
            return 0.0
        if use.is_saturated or not use.quota.in_flight:
            return 1.0
        return max(MIN_WEIGHT, min(1.0, use.in_flight / use.quota.in_flight))

    def _grant(
        self,
        k: int,
        wanted: float,
        total: float,
        of: Callable[[Quota], float],
        used: Callable[[QuotaUse], float],
    ) -> float:
        """Return as much of the wanted amount as no other shard can be using, by its last quota or
        by the one it has confirmed.
        """

        def largest_use(j: int) -> float:
            use = self._used[j]
            return (
                used(use)
                if j in self._finished
                else max(of(self._granted_quotas[j]), of(use.quota), used(use))
            )

        return max(0.0, min(wanted, total - sum(largest_use(j) for j in range(self.of) if j != k)))

    def _rate(
        self, k: int, part: float, total: float | None, of: Callable[[Quota], float | None]
    ) -> float | None:
        if total is None:
            return None
        return max(
            self._grant(k, total * part, total, lambda quota: of(quota) or 0.0, lambda _: 0.0),
            total * MIN_RATE_SHARE,
        )

    # --- the budget

    def _total(self, name: str) -> float | None:
        """Return what all shards together may spend."""
        limit = getattr(self.budget, name, None)
        return None if limit is None else max(0.0, limit - self.spent.get(name, 0.0))

    def _available(self, name: str) -> float:
        """Return the amount that no shard has spent or reserved."""
        return (self._total(name) or 0.0) - sum(use.committed.get(name, 0.0) for use in self._used)

    def _coverable_shortages(self) -> dict[int, Amounts]:
        """Return the shortages that the available amounts cover, by shard; lower numbers take
        precedence.
        """
        free = {name: self._available(name) for name in LIMITS if self._total(name) is not None}
        shortages: dict[int, Amounts] = {}
        for k, use in enumerate(self._used):
            if (
                use.shortage
                and k not in self._finished
                and all(use.shortage[name] <= left + 1e-12 for name, left in free.items())
            ):
                shortages[k] = use.shortage
                free = {name: left - use.shortage[name] for name, left in free.items()}
        return shortages

    def _amount(self, k: int, part: float, name: str) -> float:
        """Return the amount of the budget for shard k: what it has committed, its shortage, and its
        part of the rest.
        """
        committed, shortages = self._used[k].committed.get(name, 0.0), self._coverable_shortages()
        rest = self._available(name) - sum(shortage[name] for shortage in shortages.values())
        wanted = committed + shortages.get(k, {}).get(name, 0.0) + max(0.0, rest) * part
        total = self._total(name) or 0.0
        granted = self._grant(
            k,
            wanted,
            total,
            lambda s: s.amounts.get(name, 0.0),
            lambda u: u.committed.get(name, 0.0),
        )
        return granted if name == "usd" else int(granted + 1e-9)

    def _share(self, k: int, name: str) -> float:
        """Return what the rows of shard k may plan to spend: what they need in any case, and an
        equal part of the rest for each.
        """
        total, rows = self._total(name) or 0.0, sum(use.rows for use in self._used)
        rest = max(0.0, total - sum(use.planned_amount(name) for use in self._used))
        wanted = self._used[k].planned_amount(name) + rest * self._used[k].rows / max(1, rows)
        return self._grant(
            k, wanted, total, lambda s: s.share.get(name, 0.0), lambda u: u.planned_amount(name)
        )

    def _refusal(self, k: int) -> Refusal | None:
        """Return what shard k waits for if the budget will never cover it; None if it may."""
        shortage = self._used[k].shortage
        if shortage is None:
            return None
        tracker = BudgetTracker(self.budget)
        tracker.spent.update(
            {
                name: self.spent.get(name, 0.0) + sum(u.spent.get(name, 0.0) for u in self._used)
                for name in LIMITS
            }
        )
        try:
            tracker.check(shortage)
        except BudgetExhaustedError as error:
            self.exhaustion = str(error) if tracker.is_exhausted else self.exhaustion
            return Refusal(error.limit, shortage[error.limit], str(error))
        return None
