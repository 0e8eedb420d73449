"""Priors learned online: a run learns from its own rows, and its output does not depend on which of them end first.

Rows from certain places on (256, then four times as far each time) start with priors fitted to rows before half of that place,
evenly spaced; a row at such a place waits for those. The fit is noted with the run, so that a resumed run has the same. A row
that never ends is not waited for long: then the refit is omitted for the whole run, and that is noted, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from ..core.trace import Trace
from ..plans import NoiseAwarePlan, PlanDecision
from ..quality.fit import fit_priors
from ..quality.lineage import Observations, observe
from ..quality.priors import Priors
from ..storage.journal import Journal
from ..storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from .pending_rows import PendingRow
from .row_result import RowResult

REFIT_FACTOR = 4  # the next refit is this many times as far
MAX_TRAINING_ROWS = 256
MIN_ROWS_TO_SAVE = 32  # rows with grades that a run must have for its priors to be saved for other runs


@dataclass
class RefitSchedule:
    """Which rows refit the priors, and from which place on the result holds.

    `start`: the priors at the start; `refits`: those by the place from which they hold, None if the refit was omitted.
    `enabled`: whether there are refits at all. `source`: the kind of priors that were asked for, "shipped" or "learned".
    """

    start: Priors
    enabled: bool = True
    refits: dict[int, Priors | None] = field(default_factory=dict)
    source: str = "shipped"
    first: int = 256
    _ids: dict[int, str] = field(default_factory=dict)  # of evenly spaced rows, by place
    _spacing: int = 1
    _unfinished: set[int] = field(default_factory=set)

    @classmethod
    def from_note(cls, start: Priors, note: Mapping[str, Any] | None, **given: Any) -> Self:
        """Return the schedule that was noted with the run; a new one with `start` if there is none."""
        if note is None:
            return cls(start, **given)
        refits = {int(place): priors and Priors.from_dict(priors) for place, priors in note["refits"].items()}
        return cls(Priors.from_dict(note["start"]), refits=refits, **{**given, "source": note.get("source", "")})

    def as_data(self) -> dict[str, Any]:
        """Return what is noted with the run."""
        refits = {str(place): priors and priors.to_dict() for place, priors in self.refits.items()}
        return {"start": self.start.to_dict(), "refits": refits, "source": self.source}

    @property
    def summary(self) -> tuple[dict[str, int], ...]:
        """For each refit the row "from" which it holds and the number of "rows" that it learned from."""
        refits = sorted(self.refits.items()) if self.enabled else []
        return tuple({"from": place, "rows": priors.tasks - self.start.tasks} for place, priors in refits if priors)

    def row_seen(self, n: int, id: str, *, finished: bool) -> None:
        """The row at place n comes by; all do, in order."""
        if n % self._spacing:
            return
        self._ids[n] = id
        if not finished:
            self._unfinished.add(n)
        if len(self._ids) > 4 * MAX_TRAINING_ROWS:
            self._spacing *= 2
            self._ids = {n: id for n, id in self._ids.items() if n % self._spacing == 0}

    def row_finished(self, n: int) -> None:
        """The row at place n has ended."""
        self._unfinished.discard(n)

    def due_refit(self, n: int) -> int | None:
        """Return the place of the refit that must be done before the row at place n starts; None if there is none."""
        if n < self.first or not self.enabled:
            return None
        place = self.first
        while place * REFIT_FACTOR <= n:
            place *= REFIT_FACTOR
        return None if place in self.refits else place

    def is_ready(self, refit: int) -> bool:
        """Return whether all training rows of a refit have ended."""
        return not any(n in self._unfinished for n in self._ids if n < refit // 2)

    def training_rows(self, refit: int | None = None) -> list[str]:
        """Return the IDs of the rows that a refit learns from; None: of those that are saved for other runs."""
        ids = [id for n, id in sorted(self._ids.items()) if refit is None or n < refit // 2]
        most = min(MAX_TRAINING_ROWS, len(ids))
        return [ids[i * len(ids) // most] for i in range(most)]

    def priors(self, n: int) -> Priors:
        """Return the priors of the row at place n."""
        places = sorted(place for place, priors in self.refits.items() if place <= n and priors)
        return (self.refits[places[-1]] if places and self.enabled else None) or self.start


@dataclass
class OnlinePriors:
    """A row policy: rows start with priors fitted to earlier rows of the run.

    `wait_until(condition, seconds)` waits for rows; `is_over()` tells whether the run has ended meanwhile; `key` is that of the
    run's settings, by which its note is found.
    """

    first_refit: ClassVar[int] = 256
    max_wait: ClassVar[float] = 60.0  # seconds that rows wait for a refit

    schedule: RefitSchedule
    journal: Journal
    run: str
    key: str
    wait_until: Callable[[Callable[[], bool], float], Awaitable[None]]
    is_over: Callable[[], bool]
    say: Callable[[str], object]

    def note(self) -> None:
        """Note the schedule with the run."""
        self.journal.update_run(self.run, online_priors={**notes_of(self.journal, self.run), self.key: self.schedule.as_data()})

    async def row_seen(self, row: PendingRow, result: RowResult | None) -> None:
        """If the row needs a refit that was not done, wait for its training rows and do it."""
        self.schedule.row_seen(row.n, row.id, finished=result is not None)
        refit = self.schedule.due_refit(row.n)
        if result is None and refit is not None:
            await self._refit(refit)

    def row_started(self, row: PendingRow) -> None:
        """Nothing to do."""

    def plan_for(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace | None) -> NoiseAwarePlan:
        """Return the plan with the priors of the row's place."""
        return plan if trace else plan.with_priors(self.schedule.priors(row.n))

    def row_resumed(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> None:
        """Nothing to do."""

    def decision_made(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision) -> None:
        """Nothing to do."""

    def row_finished(self, row: PendingRow, trace: Trace | None) -> Mapping[str, Any]:
        """Return nothing: the trace says by which priors it was planned."""
        return {}

    def row_saved(self, row: PendingRow) -> None:
        """The row may be learned from now."""
        self.schedule.row_finished(row.n)

    async def _refit(self, refit: int) -> None:
        """Fit priors once the training rows have ended; omit it if that takes too long. Either holds for good."""
        schedule = self.schedule
        await self.wait_until(lambda: schedule.is_ready(refit), self.max_wait)
        if self.is_over():
            return
        fitted = await self._fit(schedule.training_rows(refit), schedule.start) if schedule.is_ready(refit) else None
        schedule.refits[refit] = fitted[0] if fitted else None
        self.note()
        if fitted is None:
            self.say(
                f"priors were not refitted for rows from {refit:,} on: earlier rows did not finish within {self.max_wait:g} s, "
                "or none was graded"
            )

    async def _fit(self, ids: Sequence[str], before: Priors) -> tuple[Priors, int] | None:
        """Return the priors fitted to rows and the number of rows with grades; None if there are none."""
        families = []
        for id in ids:
            if trace := self.journal.trace(self.run, id):
                families.append(observe(trace))
            await asyncio.sleep(0)
        priors, graded = await asyncio.to_thread(fit_from, families, before)
        return (priors, graded) if graded else None

    async def save_for_other_runs(self, pair: PriorsKey, source: str) -> tuple[int, Priors] | None:
        """Save what a whole run has learned, unless more tasks taught what is saved already; raises StoreError.

        Return the number of rows with grades and the priors that are saved now; None if there were too few rows.
        """
        fitted = await self._fit(self.schedule.training_rows(), Priors())
        if fitted is None or fitted[1] < MIN_ROWS_TO_SAVE:
            return None
        saved = PriorsStore.in_folder().save_if_more_tasks(StoredPriors.create(pair, fitted[0], source.format(rows=fitted[1])))
        return fitted[1], saved.priors


def notes_of(journal: Journal, run: str) -> dict[str, Any]:
    """Return what a run noted of its priors so far, by the key of its settings."""
    known = journal.run(run)
    return dict(known.metadata.get("online_priors", {})) if known else {}


def fit_from(families: Iterable[Observations], before: Priors) -> tuple[Priors, int]:
    """Return the priors fitted to families, given those `before`, and the number of families with grades.

    Priors for other runs always start from the shipped ones, so that nothing drifts from run to run.
    """
    graded = [observe for observe in families if observe.scores]
    return fit_priors(graded, before), len(graded)
