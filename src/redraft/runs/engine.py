"""The engine of a run: every row is taken to its end, whatever happens on the way.

Rows are tasks of one event loop. A row is begun only while no call waits for its turn at any endpoint, so those under way
come first and finished work grows steadily. Every record that was paid for is in the journal before the row's next step is
asked for; what stands there is never asked again. How a row is refined is the loop's business, how an endpoint is asked the gate's.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from io import BufferedWriter, TextIOWrapper
from itertools import islice, takewhile
from pathlib import Path
from time import monotonic
from typing import IO, Any, ClassVar, NamedTuple

from ..api import Refinement, make_refinement, resolve_model, run_refinement, with_outcome, with_priors_in_settings, without_outcome
from ..core.cancellation import cancel_and_wait
from ..core.records import NO_USAGE, Outcome, StopReason
from ..core.serialize import record_to_json
from ..core.trace import Trace
from ..errors import ConfigError, StoreError
from ..middleware import Budget, BudgetTracker
from ..models.pricing import FREE
from ..options import Options
from ..plans import Plan
from ..plans.adaptive import Adaptive, CostUnit
from ..protocols import Call, Model
from ..quality.lineage import llm_graders, observe
from ..quality.priors import Priors
from ..session import Session
from ..storage.journal import Journal, RowInfo
from ..storage.priors_store import PriorsStore, StoredPriors
from ..storage.secure_files import PUBLIC, open_following_links
from ..tables.readers import BadRow
from ..tables.values import merge_columns, result_column_names
from ..tables.writers import Output
from .asked import STDOUT, Asked
from .endpoints import ROW, Endpoints
from .entries import Entry, Survey, Table
from .keys import Keys, key_of
from .market import Ladder, Market, Row, left_of, unit_of
from .progress import Progress
from .report import Report, Tally, report_of
from .rows import COLUMNS, Came, came_of, failed, not_started
from .schooling import LEAST, Schooling, taught
from .watch import Loss, Watch, free_place

CHUNK = 64  # rows read at a time
MOST_ROWS = 2  # rows under way, in terms of the most calls in flight
MOST_WAITING = 200_000  # rows that may wait for an earlier one to be written

LOOK = 1.0  # seconds between two looks at whether the files are still there
UNASKED = {"fatal", "outage"}  # after these ends a row without an answer was not tried
MARKING = {"budget", "deadline"}  # after these ends the rows that are left are marked as not started


@dataclass
class Engine:
    """Takes the rows of a table through a desk into a journal and an output."""

    school: ClassVar[Callable[..., Schooling]] = Schooling.of

    asked: Asked
    table: Table
    survey: Survey
    desk: Session
    plan: Plan
    journal: Journal
    output: Output | Nowhere
    refused: Refused
    endpoints: Endpoints
    progress: Progress
    tally: Tally = field(default_factory=Tally)
    ended: str = ""
    message: str = ""
    market: Market | None = field(default=None, init=False)  # where rows share a budget
    schooling: Schooling | None = field(default=None, init=False)  # where what is believed follows from what was seen
    _too_dear: str = field(default="", init=False)  # why a row was refused that the whole budget would not have paid for
    _files: Watch = field(default_factory=Watch, init=False)
    _lost: list[Loss] = field(default_factory=list, init=False)
    _grown: bool = field(default=False, init=False)  # there is more money than rows had that ended
    _rows: set[asyncio.Task[None]] = field(default_factory=set)
    _turn: asyncio.Event = field(default_factory=asyncio.Event)  # something ended: a row, or the run
    _keys: Keys = field(init=False)
    _moment: float | None = field(init=False)
    _names: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._keys = Keys(self.desk, self.plan)
        self._moment = self.desk.options.deadline_at
        self._names = result_column_names(("id", *COLUMNS), self.table.columns)

    # --- the whole

    async def go(self) -> Report:
        """All rows; what they came to. Cancelled, it stops at once, and CancelledError carries that as `result`."""
        self._look_at_budget()
        self._prepare()
        self._note(state="running", settings=self._known_settings())
        try:
            await self._with_files_watched(self._take_rows())
        except asyncio.CancelledError as cut:
            cut.result = self._report()  # type: ignore[attr-defined]
            raise
        if self._too_dear and not (self.ended or self.progress.worked or self.progress.kept):
            self.end("budget", self._too_dear)
        report = self._report()
        try:
            return await self._remembered(report)
        except StoreError as error:
            self.endpoints.say(f"what the run teaches could not be kept: {error}")
            return report
        except asyncio.CancelledError as cut:  # all else is done
            cut.result = report  # type: ignore[attr-defined]
            raise

    # --- its files

    async def _with_files_watched(self, work: Awaitable[None]) -> None:
        """Do the work; where a file of the run is deleted, moved or replaced meanwhile, the run ends."""
        with suppress(StoreError):
            await self.journal.wait_for_commit()
        self._add_files()
        watching = asyncio.ensure_future(self._watch_files())
        try:
            await work
        finally:
            await cancel_and_wait([watching])

    def _add_files(self) -> None:
        journal, output = self.asked.journal, self.asked.output
        self._files.add("journal", journal)
        self._files.add("journal", journal.with_name(f"{journal.name}-wal"))
        if output not in {None, STDOUT}:
            self._files.add("output's folder", Path(str(output)).resolve().parent)
            if self.output.is_in_place:
                self._files.add("output", Path(str(output)))

    async def _watch_files(self) -> None:
        while not self._lost:
            await asyncio.sleep(LOOK)
            self._miss(await asyncio.to_thread(self._files.losses))

    def _miss(self, losses: Sequence[Loss]) -> None:
        """End the run where files are missing, with the reason; those that were moved with their folder are told of once."""
        if not losses or self._lost:
            return
        self._lost = list(losses)
        folder = next((loss for loss in losses if loss.what == "output's folder"), None)
        self.ended, self.message = "", ""  # whatever ended it: this is what there is to do something about
        self.end("disk", str(folder or losses[0]))

    def _check_files(self) -> None:
        """Look once more, when the output is closed."""
        output = self.asked.output
        losses = self._files.losses()
        if not losses and output not in {None, STDOUT} and not self.ended and not os.path.lexists(str(output)):
            losses = [Loss("output", Path(str(output)), "deleted")]
        self._miss(losses)

    def _with_what_is_left(self, report: Report) -> Report:
        """The report with what is left of a run whose files are missing. A deleted journal is written anew: it is still open."""
        if not self._lost:
            return report
        gone = [loss for loss in self._lost if loss.what == "journal" and loss.fate != "moved"]
        journal = self.asked.journal
        if not gone:
            there = (
                "; move it back, and" if any(loss.fate == "moved" for loss in self._lost) else ": everything is in the journal, and"
            )
            return replace(report, message=f"{report.message}{there} the same command goes on")
        if gone[0].path != journal:  # what SQLite keeps beside it: it is written into the journal when that is closed
            return replace(report, message=f"{report.message}: all is in the journal nevertheless, and the same command goes on")
        try:
            place = free_place(journal)
            self.journal.copy(place)
        except (OSError, StoreError) as error:
            return replace(
                report, message=f"{report.message}, and it could not be saved ({error}): a new run begins anew", lost=True
            )
        onward = (
            "it was written again, and" if place == journal else f"what it held is in {str(place)!r}: move that to its place, and"
        )
        return replace(report, message=f"{report.message}; {onward} the same command goes on")

    async def _take_rows(self) -> None:
        """Take rows until all have ended, or something ends the run; none is under way afterwards."""
        async with AsyncExitStack() as at_the_end:
            at_the_end.push_async_callback(self._stop_rows)
            try:
                await self._look_back()
                await self._work()
                await self._drain()
            except StoreError as error:
                self.end("disk", str(error), now=True)
            except asyncio.CancelledError:
                self.end("interrupted", "", now=True)
                raise

    async def _work(self) -> None:
        async with aclosing(self._due()) as rows:
            async for due in rows:
                came = self._kept(due)
                await self._met(due, came)
                if came:
                    self._written(due.entry, came, kept=True)
                elif await self._room():
                    self._begin(due)
                    await asyncio.sleep(0)  # its first call takes its place before the next row looks for one
                elif self.ended in MARKING:
                    self._written(due.entry, self._left(due), kept=False)
                if self.ended and self.ended not in MARKING:
                    return
        while self._rows and not self.ended:
            await self._next_turn()

    async def _due(self) -> AsyncGenerator[Due, None]:
        """The rows in order, with what the journal knows of each."""
        entries = takewhile(self._surveyed, self.table.entries(self.survey.twins, self.refused.put))
        while chunk := await asyncio.to_thread(list, islice(entries, CHUNK)):
            self._note_spent()
            await self.journal.wait_for_commit()  # where nothing is left to do, reading must not run ahead of writing
            known = self.journal.rows_by_id(self.asked.name, [entry.id for entry in chunk])
            self.journal.mark_seen(self.asked.name, list(known))
            for entry in chunk:
                parts = self._keys.parts(entry.task)
                yield Due(entry, key_of(parts), parts, known.get(entry.id))

    def _surveyed(self, entry: Entry) -> bool:
        """Rows that came while the run was going on are left to the next one: nobody looked whether they are sound."""
        return entry.n < self.survey.total

    async def _room(self) -> bool:
        """Wait until a row may begin; False when the run ends before."""
        most = MOST_ROWS * self.desk.options.max_in_flight
        while not self.ended:
            full = len(self._rows) >= most or self.output.pending_count >= MOST_WAITING
            if not full and self.endpoints.room:
                return True
            await (self._next_turn() if full else self._next_turn(self.endpoints.room_made()))
        return False

    async def _next_turn(self, also: Any = None) -> None:
        """Until something happened."""
        self._turn.clear()
        waits = [asyncio.ensure_future(self._turn.wait()), *([asyncio.ensure_future(also)] if also else [])]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    # --- the end

    def end(self, ended: str, message: str, *, now: bool = False) -> None:
        """Begin no more rows. Where money or time is up, those under way find out by themselves; else nothing more is asked."""
        if not self.ended or (self.ended in MARKING and ended not in MARKING):
            self.ended, self.message, self.progress.state = ended, message, "stopping"
        if ended not in MARKING:
            self.endpoints.close(now=now)
        self._turn.set()

    async def _drain(self) -> None:
        """Wait for what is in flight. Where money or time is up, rows end by themselves."""
        while self._rows and self.ended in MARKING:
            await self._next_turn()
        if self._rows:
            await self.endpoints.quiet()

    async def _stop_rows(self) -> None:
        """Cut short the rows that are under way; all that is known of them is written."""
        await cancel_and_wait(self._rows)

    def _report(self) -> Report:
        try:
            self.output.close(complete=not self.ended)
        except StoreError as error:
            self.end("disk", str(error))
        self._check_files()
        self.progress.finish(self.ended or "finished")
        about = {"ended": self.ended, "message": self.message, "output": self.asked.output, "journal": str(self.asked.journal)}
        self.quote()
        about["excess"] = self.desk.budget_tracker.excess
        report = report_of(self.progress, self.tally, run=self.asked.name, **about, **self._taught_before)
        with suppress(StoreError):
            self._note_spent()
            self._note_budget()
            if not self.ended and self.asked.limit is None:  # rows that this run did not meet are not in the input any more
                self._note(whole=self.journal.invocation(self.asked.name))
            self._note(state=self.ended or "finished", report=report.as_data())
        report = self._with_what_is_left(report)
        self._files.close()
        return report

    def _note_spent(self) -> None:
        """Where there is no budget, what is spent is noted now and then: there may be one the next time."""
        if self.desk.options.budget and not self.desk.budget_tracker.on_change:
            self._note(spent=self.endpoints.billed(self.desk.budget_tracker))

    def quote(self) -> None:
        """Show the price as it was last asked for."""
        if self.market and self.market.told:
            self.progress.price, self.progress.price_unit = self.market.told

    @property
    def _taught_before(self) -> dict[str, Any]:
        """What the report tells of what is believed."""
        began = self.plan.priors if isinstance(self.plan, Adaptive) else Priors()
        given = None if began == Priors() else began.to_dict()
        return {"priors": given, "began_with": began.tasks, "learned": self.schooling.told if self.schooling else ()}

    def _note(self, **about: Any) -> None:
        self.journal.update_run(self.asked.name, **about)

    def _known_settings(self) -> dict[str, Any]:
        """The parts of all settings that this run had so far, by their key; the newest last."""
        run = self.journal.run(self.asked.name)
        known = dict(run.metadata.get("settings", {})) if run else {}
        known.pop(self._keys.shared, None)
        return known | {self._keys.shared: self._keys.settings}

    # --- more money

    def _look_at_budget(self) -> None:
        """Whether there is more to spend than before: then rows that the price had ended are looked at again, until all were."""
        run = self.journal.run(self.asked.name)
        about = run.metadata if run else {}
        self._grown = bool(about.get("grown")) or larger(self.asked.options.budget, about.get("budget"))
        if self._grown or "budget" not in about:
            self._note(budget=limits_of(self.asked.options.budget), grown=self._grown)

    def _note_budget(self) -> None:
        """Remember what rows ended by."""
        if self.progress.worked:
            self._note(budget=limits_of(self.asked.options.budget))
        if self._grown and not self.ended:
            self._note(grown=False)

    async def _look_back(self) -> None:
        """Tell the market of all rows that may be taken up again, before it sets a price for the first of them."""
        if not (self._grown and self.market):
            return
        refused, self.refused = self.refused, Unheard()
        try:
            async with aclosing(self._due()) as rows:
                async for due in rows:
                    if due.ladder:
                        self.market.recall(due.ladder)
                    if due.ladder and due.parked:
                        self.market.park(due.ladder)
                    if self.ended:
                        return
        finally:
            self.refused = refused

    def _taken_up(self, due: Due) -> bool:
        """Whether a row that the price had ended is worth the price of the moment."""
        if not (self._grown and due.parked and due.ladder and isinstance(self.plan, Adaptive)):
            return False
        if self.market:
            return self.market.takes_up(due.ladder)
        offer = due.ladder.offer
        return offer is not None and (due.ladder.unit != self.plan.cost_unit or offer.rate >= self.plan.min_expected_gain)

    # --- what rows go by

    def _prepare(self) -> None:
        """Find out what is believed, and what there is to spend."""
        plan, asked = self.plan, self.asked
        if not isinstance(plan, Adaptive) or asked.plan is not None:
            return
        panel, cast = self.desk.common_panel()
        if not isinstance(asked.options.priors, Priors):
            on = asked.learn and asked.engine == "local" and bool(llm_graders(panel))
            source = asked.options.priors or "shipped"
            if source == "learned" and plan.priors == Priors():
                self.endpoints.say("nothing was learned yet of this model with these graders: the shipped priors hold")
            self.schooling = self.school(plan.priors, self._goes_on_with(plan.priors), on=on, source=source)
            self.plan = plan = replace(plan, priors=self.schooling.start)
            pair = self.desk.priors_key
            self._note(pair=pair.as_data() if pair else None)
            self._note_schooling()
        free = all(line.price == FREE for line in (cast.writer, *cast.judges.values()) if line)
        if unit := unit_of(self.desk.options.budget, free=free):
            answered = self.survey.answered == self.survey.total
            money = partial(self._money, unit)
            self.market = Market(plan, unit, money, lambda: self.desk.budget_tracker.spent, self._to_do, panel, answered)

    def _money(self, unit: CostUnit) -> float:
        """What the run may still spend, less what a call has used: at the end that much cannot be spent."""
        budget, purse = self.desk.options.budget, self.desk.budget_tracker
        return left_of(budget, purse.spent, unit, purse.max_call_usage[unit] if unit != "calls" else 0.0) if budget else 0.0

    @property
    def _to_do(self) -> int:
        """How many rows there are to work on, as far as one can tell before they come by."""
        run = self.journal.run(self.asked.name)
        same = run and next(reversed(run.metadata.get("settings", {})), None) == self._keys.shared
        return max(1, self.survey.total - (run.counts["done"] + run.counts["failed"] if run and same else 0))

    def _plan(self, n: int) -> Plan:
        """What the row at place n goes by."""
        if self.schooling is None or not isinstance(self.plan, Adaptive):
            return self.plan
        return replace(self.plan, priors=self.schooling.priors(n))

    async def _met(self, due: Due, came: Came | None) -> None:
        """A row comes by. Where it is to go by what others teach, wait for them; what it was offered before is recalled."""
        if self.schooling:
            self.schooling.met(due.entry.n, due.entry.id, ended=came is not None)
            stage = self.schooling.stage(due.entry.n)
            if came is None and stage is not None:
                await self._schooled(self.schooling, stage)
        if self.market:
            if self.schooling:
                self.market.believing(self.schooling.priors(due.entry.n))
            if came and due.ladder and not self._grown:
                self.market.recall(due.ladder)

    async def _schooled(self, schooling: Schooling, stage: int) -> None:
        """Learn for a stage once those have ended from whom is learned, unless that takes too long; once for all."""
        until = monotonic() + schooling.patience
        while not (self.ended or schooling.ready(stage)) and (left := until - monotonic()) > 0:
            await self._next_turn(asyncio.sleep(left))
        if self.ended:
            return
        learned = await self._taught(schooling.pupils(stage), schooling.start) if schooling.ready(stage) else None
        schooling.stages[stage] = learned[0] if learned else None
        self._note_schooling()
        if learned is None:
            self.endpoints.say(f"rows from {stage:,} on learn nothing of those before: some take too long, or none is graded")

    async def _taught(self, ids: Sequence[str], before: Priors) -> tuple[Priors, int] | None:
        """What rows teach, and how many of them can; None where none can."""
        families = []
        for id in ids:
            if trace := self.journal.trace(self.asked.name, id):
                families.append(observe(trace))
            await asyncio.sleep(0)
        priors, graded = await asyncio.to_thread(taught, families, before)
        return (priors, graded) if graded else None

    def _goes_on_with(self, priors: Priors) -> dict[str, Any] | None:
        """What this run noted of its priors, which hold until its end unless a user asks for others; None where nothing holds."""
        noted = self._schooled_before().get(self._keys.shared)
        if noted is None or self.asked.options.priors in {None, noted.get("source")} or Priors.from_dict(noted["start"]) == priors:
            return noted
        return None

    def _schooled_before(self) -> dict[str, Any]:
        """What this run was taught so far, by the key of its settings."""
        run = self.journal.run(self.asked.name)
        return dict(run.metadata.get("schooling", {})) if run else {}

    def _note_schooling(self) -> None:
        if self.schooling:
            self._note(schooling={**self._schooled_before(), self._keys.shared: self.schooling.as_data()})

    async def _remembered(self, report: Report) -> Report:
        """Keep what a whole run teaches for the next one with this model and these graders; the report with that.

        Raises StoreError.
        """
        schooling, asked = self.schooling, self.asked
        if schooling is None or self.ended or not asked.learn or not self.progress.worked:
            return report
        pair, learned = self.desk.priors_key, await self._taught(schooling.pupils(), Priors())
        if pair is None or learned is None or learned[1] < LEAST:
            return report
        source = f"run {asked.name} in {asked.journal}, {learned[1]:,} of {self.survey.total:,} rows"
        kept = PriorsStore.in_folder().save_if_more_tasks(StoredPriors.create(pair, learned[0], source))
        report = replace(report, taught=learned[1], for_next=kept.priors.tasks)
        self._note(report=report.as_data())
        return report

    # --- one row

    def _kept(self, due: Due) -> Came | None:
        """What came of a row that is not to be redone."""
        came = due.came
        if came is None or came.status == "open" or self.asked.redoes(came) or self._taken_up(due):
            return None
        if due.note and due.note.position != due.entry.n:
            self.journal.set_position(self.asked.name, due.entry.id, due.entry.n)
        return came

    def _left(self, due: Due) -> Came:
        """What there is of a row for which nothing is left: the best of an earlier run, if it had one."""
        if due.came:
            return due.came
        kept = self.journal.trace(self.asked.name, due.entry.id) if due.known else None
        if kept and kept.graded_candidates:
            return came_of(with_outcome(kept, self._plan(due.entry.n), StopReason(self.ended), self.message))
        return not_started(self.message)

    def _begin(self, due: Due) -> None:
        row = asyncio.ensure_future(self._row(due))
        self._rows.add(row)
        row.add_done_callback(self._row_ended)
        self.progress.under_way = len(self._rows)

    def _row_ended(self, row: asyncio.Task[None]) -> None:
        self._rows.discard(row)
        self.progress.under_way = len(self._rows)
        self._turn.set()
        if not row.cancelled() and (error := row.exception()):
            self.end("disk" if isinstance(error, StoreError) else "fatal", str(error) or type(error).__name__, now=True)

    async def _row(self, due: Due) -> None:
        """A row from where it stands to its end. Whatever is wrong with it is its own end, not that of the run."""
        ROW.set(due.entry.id)
        account = self.market.begun() if self.market else None
        job = trace = None
        try:
            job, store = self._job(due, account)
            trace = await self._driven(job, store)
            if unkept := next((f for f in trace.failures.values() if f.error == StoreError.__name__), None):
                raise StoreError(unkept.message)  # the journal, which also answers calls, is what failed, and not the row
            came = came_of(trace)
            if self.ended in UNASKED and came.status == "open" and not any(c.by != "given" for c in trace.candidates):
                came = not_started(self.message)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  (a row may hold, and its graders may do, anything)
            came = failed(error)
            if job is None:
                self._anew(due, Trace(due.entry.task))
        data = came.as_data()
        if account:
            account.ended(trace)
            data["ladder"] = account.ladder.as_data()
        self.journal.finish_row(self.asked.name, due.entry.id, came.status, data)
        await self.journal.wait_for_commit()
        if self.schooling:
            self.schooling.ended(due.entry.n)
        self._written(due.entry, came, kept=False)

    def _job(self, due: Due, account: Row | None) -> tuple[Refinement, RowStore]:
        """The refinement of a row, taken up where the journal left it, or begun; and where it is kept. Raises ConfigError."""
        task = due.entry.task
        if self.asked.mode == "grade" and task.response is None:
            raise ConfigError("there is no response to grade")
        cut = bool(due.came and due.came.truncated and "truncated" in self.asked.retry)
        kept = self.journal.trace(self.asked.name, due.entry.id) if due.known and not cut else None
        if kept and kept.outcome and kept.outcome.reason is StopReason.GAIN:  # it is taken up again
            kept = without_outcome(kept)
            if due.note and due.note.result:
                self.journal.finish_row(self.asked.name, due.entry.id, "open", due.note.result)
        plan = self._plan(due.entry.n)
        job = with_priors_in_settings(
            replace(make_refinement(replace(kept, task=task) if kept else task, self.desk, self._moment), plan=plan)
        )
        if kept is None:
            self._anew(due, job.trace)
        store = RowStore(self.journal, self.asked.name, due.entry.id, self.progress, len(kept.records) if kept else 0)
        if account and isinstance(plan, Adaptive):
            if kept:
                account.resumed(job.trace, plan)
            plan = account.plan(plan)
        return replace(job, plan=plan, store=store, owns_session=False), store

    def _anew(self, due: Due, trace: Trace) -> None:
        """Begin a row in the journal. Columns that are nobody's business but the output's are not kept there."""
        bare = replace(trace, task=replace(trace.task, metadata={}), records=())
        self.journal.begin_row(self.asked.name, due.entry.id, due.entry.n, due.key, due.parts, bare.header())

    async def _driven(self, job: Refinement, store: RowStore) -> Trace:
        """The trace at its end, or as far as it got before the run ended."""
        try:
            async with aclosing(run_refinement(job)) as growing:
                async for trace in growing:
                    if trace.records[-1].usage is not NO_USAGE:
                        await self.journal.wait_for_commit()  # what was paid for is safe before more is asked
        except asyncio.CancelledError:
            if not self.ended:
                raise
        trace = store.trace or job.trace
        if trace.outcome and (
            trace.outcome.reason == "deadline" or (trace.outcome.reason == "budget" and self.desk.budget_tracker.is_exhausted)
        ):
            self.end(str(trace.outcome.reason), trace.outcome.note)
        elif trace.outcome and trace.outcome.reason == "budget":
            self._too_dear = trace.outcome.note
        return trace

    def _written(self, entry: Entry, came: Came, *, kept: bool) -> None:
        self.progress.settle(came, kept=kept)
        self.tally.settle(came)
        id = {} if self.table.shape.columns.id else {"id": entry.id}
        self.output.put(entry.n, merge_columns(entry.values, {**id, **came.columns}, self._names))


async def desk_of(  # noqa: PLR0917
    asked: Asked,
    model: Any,
    graders: Any,
    judge: Any,
    options: Options,
    hold: Callable[[Call, Model], Call] | None,
    purse: BudgetTracker | None = None,
) -> tuple[Session, Plan]:
    """Where the rows of a run are worked on, and by which plan. `purse`: one that others share; None: the desk's own."""
    writer = model
    if asked.mode == "grade":
        options = replace(options, max_iterations=0, editor=False)
        writer, judge = False, await resolve_model(model if judge is None else judge)
    desk = Session(options, await resolve_model(writer), graders, judge, hold)
    desk.budget_tracker = purse or desk.budget_tracker
    panel, _ = desk.common_panel()
    noisy = bool(llm_graders(panel))
    return desk, asked.plan or options.make_plan(writes=desk.writer is not None, noisy=noisy, priors=desk.priors)


def keep_capabilities(desk: Session, name: str, journal: Journal) -> None:
    """Note with the run what its models are learned to take, so that it asks in the same way when it goes on."""
    run = journal.run(name)
    known = desk.capabilities
    known.restore(run.metadata.get("capabilities", {}) if run else {})
    known.on_change = lambda: journal.update_run(name, capabilities=known.as_data())


class Due(NamedTuple):
    """A row to be looked at, what decides its result, and what the journal knows of it."""

    entry: Entry
    key: str
    parts: dict[str, str]
    note: RowInfo | None

    @property
    def known(self) -> bool:
        """Whether the journal knows it as it is now."""
        return self.note is not None and self.note.key == self.key

    @property
    def came(self) -> Came | None:
        """What came of it so far."""
        if self.note is None or self.note.result is None or not self.known:
            return None
        return Came.of(self.note.status, self.note.result)

    @property
    def parked(self) -> bool:
        """Whether it is finished, and ended since nothing was worth the price."""
        return self.came is not None and self.came.status == "done" and self.came.columns["stop"] == StopReason.GAIN

    @property
    def ladder(self) -> Ladder | None:
        """What it was offered at each decision, where it went by the price of a market."""
        told = self.note.result.get("ladder") if self.note and self.note.result and self.known else None
        return Ladder.of(told) if told else None

    @property
    def again(self) -> Due:
        """The same, to be gone on with."""
        taken_up = self.note and self.parked
        return self._replace(note=replace(self.note, status="open")) if self.note and taken_up else self


def limits_of(budget: Budget | None) -> dict[str, float]:
    """The limits of a budget, those there are."""
    return (budget or Budget()).limits


def larger(budget: Budget | None, before: Mapping[str, float] | None) -> bool:
    """Whether one of the limits before is higher now, or gone; False where it is not known what they were."""
    now = limits_of(budget)
    return any(name not in now or now[name] > limit for name, limit in (before or {}).items())


class Nowhere:
    """The output of a run that has none."""

    pending_count = 0
    is_in_place = False

    def put(self, n: int, values: Mapping[str, Any]) -> None:
        """Nothing: it is in the journal."""

    def close(self, *, complete: bool) -> None:
        """Nothing."""


@dataclass
class Refused:
    """The file of rows that cannot be used; made when there is one."""

    path: str
    _file: IO[str] | None = None

    def put(self, bad: BadRow) -> None:
        """Write one down. Raises StoreError."""
        try:
            if self._file is None:
                file = open_following_links(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PUBLIC)
                self._file = TextIOWrapper(BufferedWriter(file), "utf-8", line_buffering=True)
            self._file.write(json.dumps({"place": bad.location, "message": bad.message}) + "\n")
        except OSError as error:
            raise StoreError(f"errors file {self.path!r} cannot be written: {error.strerror}") from error

    @property
    def started(self) -> bool:
        """Whether anything was written."""
        return self._file is not None

    def close(self) -> None:
        if self._file:
            self._file.close()


class Unheard(Refused):
    """For rows that cannot be used where somebody else writes them down."""

    def __init__(self) -> None:
        super().__init__("")

    def put(self, bad: BadRow) -> None:
        """Nothing."""


@dataclass
class RowStore:
    """Puts the records of one row into the journal, and counts what they took. `trace` is the row as it is.

    How a run was cut short is no part of a row: it goes on.
    """

    journal: Journal
    run: str
    row: str
    progress: Progress
    written: int = 0
    trace: Trace | None = None

    def append(self, trace: Trace) -> None:
        """Hand on what of the trace is not there yet."""
        self.trace = trace
        fresh = [r for r in trace.records[self.written :] if not (isinstance(r, Outcome) and r.reason.resumable)]
        if fresh:
            self.journal.append_records(self.run, self.row, self.written, [record_to_json(r) for r in fresh])
            self.written += len(fresh)
            self.progress.usage = sum((r.usage for r in fresh), self.progress.usage)
