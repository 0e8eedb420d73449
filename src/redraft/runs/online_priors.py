"""Priors learned online: later rows of a run start with priors fitted to earlier rows.

In every fourth of the first 64 rows each judge grades the first answer twice (`second_look_rows`):
how much two scores of one text differ shows how noisy the judge is. There are refits at rows 32,
64, 128 and 256, and then at each row four times as far (1,024, 4,096 ...). If nothing shows the
noise of a judge, neither second looks nor people's labels, the first one is at row 256. A refit at
row n uses up to 256 evenly spaced rows before n / 2; row n waits until those have ended, and it and
all later rows start with the fitted priors. If they do not end within a minute, the refit is
omitted. Each refit, done or omitted, is saved in the journal, so that a resumed run repeats it.

Which rows learn from which, and which get second looks, is fixed by their positions, so the output
does not depend on the order in which rows end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from ..loop.trace import PanelGrader, Trace
from ..plans import NoiseAwarePlan, PlanDecision
from ..plans.quality.fit import fit_priors
from ..plans.quality.labelled_figures import UNLABELLED, LabelledFigures
from ..plans.quality.lineage import Observations, llm_graders, observe
from ..plans.quality.priors import Priors
from ..plans.quality.result_facts import ResultFacts
from ..storage.journal import Journal
from ..storage.priors_store import PriorsKey, PriorsStore, StoredPriors
from .dataset import PendingRow

LAST_DOUBLING = (
    256  # up to this row each refit is twice as far as the one before, after it four times
)
CALIBRATION_ROWS = 64  # first rows, among which every fourth gets second looks
SECOND_LOOK_SPACING = 4
MAX_TRAINING_ROWS = 256
MIN_ROWS_TO_SAVE = 32  # rows with grades without which priors are not saved for other runs


@dataclass
class RefitSchedule:
    """Which rows the refits learn from, and the priors that result.

    `start` are the priors of the first rows, `refits` those of later rows by the number of the
    first such row (None: omitted). `enabled`: whether there are refits. `source`: where `start`
    comes from, "shipped" or "learned". `first`: the row of the first refit. `second_looks`: the
    rows whose first answer each judge grades twice.
    """

    start: Priors
    enabled: bool = True
    refits: dict[int, Priors | None] = field(default_factory=dict)
    source: str = "shipped"
    first: int = 256
    second_looks: range = range(0)
    _ids: dict[int, str] = field(default_factory=dict)  # of evenly spaced rows, by their numbers
    _spacing: int = 1
    _unfinished: set[int] = field(default_factory=set)

    @classmethod
    def from_data(cls, start: Priors, data: Mapping[str, Any] | None, **others: Any) -> Self:
        """Return the schedule that `as_data` described; a new one with `start` if there is none."""
        if data is None:
            return cls(start, **others)
        refits = {
            int(n): priors and Priors.from_dict(priors) for n, priors in data["refits"].items()
        }
        return cls(
            Priors.from_dict(data["start"]),
            refits=refits,
            **{**others, "source": data.get("source", "")},
        )

    def as_data(self) -> dict[str, Any]:
        """Return plain data for the journal."""
        refits = {str(n): priors and priors.to_dict() for n, priors in self.refits.items()}
        return {"start": self.start.to_dict(), "refits": refits, "source": self.source}

    @property
    def summary(self) -> tuple[dict[str, int], ...]:
        """For each refit the first row that it applies to ("from"), and the number of "rows" to
        which it was fitted.
        """
        refits = sorted(self.refits.items()) if self.enabled else []
        return tuple(
            {"from": n, "rows": priors.tasks - self.start.tasks} for n, priors in refits if priors
        )

    def without_rows(self) -> Self:
        """Return a copy for other rows of the run: the priors, and no rows."""
        return replace(self, refits=dict(self.refits), _ids={}, _unfinished=set())

    def row_seen(self, n: int, id: str, *, finished: bool) -> None:
        """Register row n. Every row is registered, in order; evenly spaced ones are remembered, and
        those with second looks.
        """
        if n % self._spacing and n not in self.second_looks:
            return
        self._ids[n] = id
        if not finished:
            self._unfinished.add(n)
        if len(self._ids) > 4 * MAX_TRAINING_ROWS:
            self._spacing *= 2
            self._ids = {
                n: id
                for n, id in self._ids.items()
                if n % self._spacing == 0 or n in self.second_looks
            }

    def may_train(self, n: int) -> bool:
        """Return whether a refit may learn from row n."""
        return self.enabled and n in self._ids

    def row_finished(self, n: int) -> None:
        """Mark row n as ended."""
        self._unfinished.discard(n)

    def due_refit(self, n: int) -> int | None:
        """Return the row of the refit that must be done before row n starts; None if there is
        none.
        """
        if n < self.first or not self.enabled:
            return None
        refit = self.first
        while (after := refit * (2 if refit < LAST_DOUBLING else 4)) <= n:
            refit = after
        return None if refit in self.refits else refit

    def is_ready(self, refit: int) -> bool:
        """Return whether all training rows of a refit have ended."""
        return not any(n in self._unfinished for n in self._ids if n < refit // 2)

    def training_rows(self, refit: int | None = None) -> list[str]:
        """Return the IDs of the rows that a refit learns from; None: of those for the priors that
        are saved for other runs.
        """
        rows = [n for n in sorted(self._ids) if refit is None or n < refit // 2]
        most = min(MAX_TRAINING_ROWS, len(rows))
        chosen = {rows[i * len(rows) // most] for i in range(most)} | {
            n for n in rows if n in self.second_looks
        }
        return [self._ids[n] for n in sorted(chosen)]

    def priors(self, n: int) -> Priors:
        """Return the priors with which row n starts."""
        refits = [refit for refit, priors in self.refits.items() if refit <= n and priors]
        return (self.refits[max(refits)] if refits and self.enabled else None) or self.start


@dataclass
class OnlinePriors:
    """A row policy: rows start with the priors of the schedule.

    `wait_until(condition, seconds)` waits while rows end, `is_over()` returns whether the run is
    ending. `settings_key` is the key of the run's settings, under which the journal has the
    schedule. `second_looks` counts the grades for second looks.
    """

    first_refit: ClassVar[int] = 256
    first_calibrated_refit: ClassVar[int] = (
        32  # if second looks or labels show the noise, or scores have none
    )
    max_wait: ClassVar[float] = 60.0  # seconds that rows wait for a refit

    schedule: RefitSchedule
    journal: Journal
    run: str
    settings_key: str
    wait_until: Callable[[Callable[[], bool], float], Awaitable[None]]
    is_over: Callable[[], bool]
    say: Callable[[str], object]
    known: LabelledFigures = UNLABELLED  # what people's labels show, which no refit changes
    second_looks: int = 0
    # of rows that have ended in this run, by their IDs; the journal has those of others
    observations: dict[str, Observations] = field(default_factory=dict)

    def save_schedule(self) -> None:
        """Save the schedule in the journal."""
        schedules = saved_schedules(self.journal, self.run) | {
            self.settings_key: self.schedule.as_data()
        }
        self.journal.update_run(self.run, online_priors=schedules)

    async def row_seen(self, row: PendingRow, result: ResultFacts | None) -> None:
        """Do the refit that the row needs, if there is one, after waiting for its training rows."""
        self.schedule.row_seen(row.n, row.id, finished=result is not None)
        refit = self.schedule.due_refit(row.n)
        if result is None and refit is not None:
            await self._refit(refit)

    def row_started(self, row: PendingRow) -> None:
        """Do nothing."""

    def plan_for(
        self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace | None
    ) -> NoiseAwarePlan:
        """Return the plan with the priors of the row; with second looks, if it gets them."""
        if trace:
            return plan
        plan = plan.with_priors(self.schedule.priors(row.n))
        return plan.with_second_look() if row.n in self.schedule.second_looks else plan

    def row_resumed(self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace) -> None:
        """Do nothing."""

    def decision_made(
        self, row: PendingRow, plan: NoiseAwarePlan, trace: Trace, decision: PlanDecision
    ) -> None:
        """Do nothing."""

    def row_finished(self, row: PendingRow, trace: Trace | None) -> Mapping[str, Any]:
        """Count the second looks, and observe a training row. Return nothing: the trace contains
        its priors.
        """
        if trace and row.n in self.schedule.second_looks:
            self.second_looks += second_looks_in(trace)
        if trace and self.schedule.may_train(row.n):
            self.observations[row.id] = observe(trace)
        return {}

    def observe_saved(self, row: PendingRow) -> None:
        """Observe a training row that the journal has."""
        trace = self.journal.trace(self.run, row.id) if self.schedule.may_train(row.n) else None
        if trace:
            self.observations[row.id] = observe(trace)

    def row_saved(self, row: PendingRow) -> None:
        """Let refits learn from the row."""
        self.schedule.row_finished(row.n)

    async def _refit(self, refit: int) -> None:
        """Fit priors when the training rows have ended, or omit the refit after `max_wait` seconds;
        save which.
        """
        schedule = self.schedule
        await self.wait_until(lambda: schedule.is_ready(refit), self.max_wait)
        if self.is_over():
            return
        fitted = (
            await self._fit(schedule.training_rows(refit), schedule.start)
            if schedule.is_ready(refit)
            else None
        )
        schedule.refits[refit] = fitted[0] if fitted else None
        self.save_schedule()
        if fitted is None:
            self.say(
                f"priors were not refitted for rows from {refit:,} on: earlier rows did not "
                f"finish within {self.max_wait:g} s, or none was graded"
            )

    async def _fit(self, ids: Sequence[str], before: Priors) -> tuple[Priors, int] | None:
        """Return the priors fitted to rows and the number of rows with grades; None if there are
        none.
        """
        graded: list[Observations] = []
        for id in ids:
            observations = self._observations_of(id)
            if observations and observations.scores:
                graded.append(observations)
            await asyncio.sleep(0)
        return (
            (await asyncio.to_thread(fit_priors, graded, before, self.known), len(graded))
            if graded
            else None
        )

    def _observations_of(self, id: str) -> Observations | None:
        """Return what there is to learn from a row; None if the journal has no trace of it."""
        if id in self.observations:
            return self.observations[id]
        trace = self.journal.trace(self.run, id)
        return observe(trace) if trace else None

    async def save_for_other_runs(self, key: PriorsKey, source: str) -> tuple[int, Priors] | None:
        """Save priors fitted to this run under `key`, unless those saved there are fitted to more
        tasks. Raises StoreError.

        Returns the number of rows with grades, and the priors that are saved now; None if there
        were too few such rows. The fit starts from the shipped priors, so that priors do not drift
        from run to run.
        """
        fitted = await self._fit(self.schedule.training_rows(), Priors())
        if fitted is None or fitted[1] < MIN_ROWS_TO_SAVE:
            return None
        saved = PriorsStore.in_folder().save_if_more_tasks(
            StoredPriors.create(key, fitted[0], source.format(rows=fitted[1]))
        )
        return fitted[1], saved.priors


def second_look_rows(panel: Iterable[PanelGrader], start: Priors, rows: int) -> range:
    """Return the rows of a run whose first answer each judge grades twice.

    There are none if the run has too few rows to learn from, if `start` was learned from as many
    already, if no judge gives scores, or if judges grade every answer repeatedly anyway.
    """
    judges = [grader for grader, _ in llm_graders(panel)]
    is_known = start.tasks >= CALIBRATION_ROWS or any(judge.repeats > 1 for judge in judges)
    return (
        range(0)
        if rows < CALIBRATION_ROWS or not judges or is_known
        else range(0, CALIBRATION_ROWS, SECOND_LOOK_SPACING)
    )


def second_looks_in(trace: Trace) -> int:
    """Return the number of judges that graded the first answer of a trace more than once."""
    judges = [grader for grader, _ in llm_graders(trace.scorers)]
    grades = [f.grader for c in trace.candidates[:1] for f in trace.feedback[c.id]]
    return sum(grades.count(judge.name) > judge.repeats for judge in judges)


def saved_schedules(journal: Journal, run: str) -> dict[str, Any]:
    """Return the schedules of a run in its journal, by the key of the settings."""
    return dict(journal.metadata(run).get("online_priors", {}))
