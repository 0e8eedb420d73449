"""The entry points: a batch in one call, or a run that can be previewed, watched and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, Unpack

from .. import checks
from ..api import resolve_model
from ..errors import ConfigError
from ..graders.inputs import check_columns
from ..middleware import Budget
from ..options import Options
from ..perform import Roles
from ..plans import Plan
from ..session import Session
from ..settings import BATCH_DEFAULTS, BatchFields, OptionFields, check_settings
from ..storage.journal import Journal
from ..sync import run_sync
from ..tables.sources import open_source
from ..tables.spool import ReadInterrupted
from ..tables.values import result_column_names
from ..tables.writers import Output, open_output
from .config import STDOUT, BatchCallbacks, BatchConfig, BatchSettings, lists_errors
from .dataset import BatchDataset, DatasetSummary, UnusableDatasetError, open_dataset
from .endpoints import LimitedEndpoints
from .executors.local import LocalExecutor
from .executors.provider_batch import POLL, BatchEndpoints, check_batch_model
from .executors.ray import RayPool
from .executors.sharded import ShardedExecutor, merge_shards
from .job import BatchJob, Executor
from .outputs import NullOutput, RejectsFile
from .preview import BatchPreview, preview_run
from .progress import BatchProgress
from .report import BatchReport, ReportBuilder, build_report
from .row_result import COLUMNS
from .runner import make_session, restore_capabilities

TICK = 0.5  # seconds between two calls of on_progress


class StoppedEarlyError(Exception):
    """The run was stopped before it had started."""


@dataclass
class BatchRun:
    """One data set refined into one output.

    `prepare` returns a preview, `go` runs it, `stop` ends it early, `progress` is its progress. `on_progress` is called every half
    second, `say` with what happens to endpoints meanwhile.
    """

    config: BatchConfig
    model: Any = None
    graders: Any = None
    judge: Any = None
    on_progress: Callable[[BatchProgress], object] | None = None
    say: Callable[[str], object] | None = None
    _progress: BatchProgress = field(default_factory=BatchProgress, init=False)
    _job: BatchJob | None = field(default=None, init=False)
    _stop_orders: list[bool] = field(default_factory=list, init=False)
    _data: tuple[BatchDataset, DatasetSummary] | None = field(default=None, init=False)

    @classmethod
    def of(
        cls, source: Any, output: Any = None, model: Any = None, graders: Any = None, judge: Any = None, **arguments: Any
    ) -> Self:
        """Return a run with the arguments of `batch`. Raises ConfigError."""
        known = [f.name for declaration in (OptionFields, BatchFields, BatchCallbacks) for f in fields(declaration)]
        for name in arguments:
            if name not in known:
                raise ConfigError(checks.unknown_name_message("argument", name, known))
        callbacks = {f.name: arguments.pop(f.name, None) for f in fields(BatchCallbacks)}
        check_settings(BatchCallbacks, SimpleNamespace(**callbacks))
        own = {f.name: arguments.pop(f.name) for f in fields(BatchFields) if f.name in arguments}
        options = Options(**{**BATCH_DEFAULTS, **arguments})
        return cls(BatchConfig.of(source, output, options=options, **own), model, graders, judge, **callbacks)

    @property
    def progress(self) -> BatchProgress:
        """The progress of the run."""
        if (job := self._job) and self._progress.ended_at is None:
            endpoints = job.scheduler.endpoints
            self._progress.in_flight, self._progress.limit = endpoints.in_flight, endpoints.limit
            if self.config.engine != "ray":
                job.show_price()
            self._progress.state = "stopping" if job.scheduler.reason else endpoints.state or "running"
        return self._progress

    def stop(self, *, now: bool = False) -> None:
        """Make no further call, and end when those in flight have ended; `now`: without waiting for them. Nothing is lost."""
        self._stop_orders.append(now)
        if self._job:
            self._job.scheduler.end("interrupted", "", now=now)

    async def check_rows(self, *, list_errors: bool = True) -> None:
        """Read and check all rows. Raises ConfigError as `go` does.

        `list_errors`: if no row can be used, list all of them in the errors file.
        """
        with suppress(StoppedEarlyError, ReadInterrupted):
            await self._load(list_errors=list_errors)

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self._stop_orders)

    async def prepare(self, *, explain: bool = False) -> BatchPreview:
        """Return what would be read, called and spent. `explain`: also which rows of an earlier run would be redone, and why."""
        dataset, summary = await self._load()
        self.config.check_files({"output": self.config.output, "errors": self.config.errors}, dataset.source.paths)
        session, plan = await self._session(self.config.options)
        try:
            self._check(dataset, summary, session)
            return await asyncio.to_thread(preview_run, self.config, dataset, summary, session, plan, explain=explain)
        finally:
            await session.close()

    async def go(self) -> BatchReport:
        """Run everything to its end. Raises ConfigError for wrong arguments, StoreError for files that cannot be used."""
        async with AsyncExitStack() as at_the_end, self._progress_reported():
            try:
                self._job, executor = await self._open(at_the_end)
            except (StoppedEarlyError, ReadInterrupted):
                return self._empty_report()
            except asyncio.CancelledError as cut:
                cut.result = self._empty_report()  # type: ignore[attr-defined]
                raise
            for now in self._stop_orders:
                self.stop(now=now)
            return await self._job.run(executor, self.say or _ignore)

    def _empty_report(self) -> BatchReport:
        """Return the report of a run that was stopped before it had started."""
        self._progress.finish("interrupted")
        return build_report(self._progress, ReportBuilder(), run=self.config.name, ended="interrupted")

    async def _load(self, *, list_errors: bool = False) -> tuple[BatchDataset, DatasetSummary]:
        """Return the data set, read and checked once. No file is written before this but what came in by stdin.

        `list_errors`: if no row can be used, list all of them in the errors file.
        """
        if self._data is None:
            try:
                self._data = await asyncio.to_thread(self._read)
            except UnusableDatasetError as error:
                if list_errors:
                    await asyncio.to_thread(self._list_errors, error)
                raise
            except asyncio.CancelledError:
                self.stop(now=True)  # which ends the thread
                raise
        return self._data

    def _read(self) -> tuple[BatchDataset, DatasetSummary]:
        config, progress = self.config, self._progress
        source = open_source(config.source, spool=config.journal.parent, should_stop=lambda: self.is_stopped)
        dataset = open_dataset(source, config.columns, config.on_duplicate, config.limit)
        summary = dataset.summarize(self._rows_read)
        progress.total, progress.bad = summary.total, summary.bad
        return dataset, summary

    def _list_errors(self, error: UnusableDatasetError) -> None:
        """Write all unusable rows into the errors file, and name that in the error; do not replace another file."""
        place = Path(self.config.errors)
        if self.config.has_strange_errors or (place.exists() and place.stat().st_size and not lists_errors(place)):
            return
        rejects = RejectsFile(self.config.errors)
        error.list_rows(rejects.put)
        if not rejects.is_empty:
            error.args = (f"{error}; all are listed in {self.config.errors}",)
        rejects.close()

    def _rows_read(self, rows: int) -> None:
        self._progress.read = rows
        if self._stop_orders:
            raise StoppedEarlyError

    async def _session(self, options: Options, endpoints: LimitedEndpoints | BatchEndpoints | None = None) -> tuple[Session, Plan]:
        """Return what the rows share, and their plan. Without endpoints no call can be made."""
        hold = endpoints.hold if endpoints else check_batch_model if self.config.engine == "provider-batch" else None
        return await make_session(self.config, self.model, self.graders, self.judge, options, hold)

    async def _open(self, at_the_end: AsyncExitStack) -> tuple[BatchJob, Executor]:
        """Open everything that the run needs; return the run and its executor."""
        config = self.config
        dataset, summary = await self._load(list_errors=True)
        if self.say:
            self.say(f"{summary.total:,} rows in {dataset.source.name}: {dataset.shape.description}")
        if not config.journal.exists():
            config.check_files(None, dataset.source.paths)
            config.check_places()
            await self._check_session(dataset, summary)
        journal = Journal(config.journal, durability=config.durability)
        at_the_end.callback(journal.close)
        await asyncio.to_thread(merge_shards, journal)
        endpoints = self._endpoints(journal)
        session, plan = await self._session(self._options(journal), endpoints)
        if isinstance(endpoints, BatchEndpoints):
            session = endpoints.session(session)
            at_the_end.push_async_callback(endpoints.aclose)
        at_the_end.push_async_callback(session.close)
        roles = self._check(dataset, summary, session)
        run = journal.run(config.name)
        known = run.metadata if run else {}
        config.check_files(known, dataset.source.paths)
        restore_capabilities(session, config.name, journal)
        if session.options.budget:
            session.budget_tracker.spent.update(known.get("spent", {}))
        if config.options.budget:
            session.budget_tracker.on_change = lambda: journal.update_run(
                config.name, spent=endpoints.spent_if_killed(session.budget_tracker)
            )
        output, rejects = self._files(at_the_end, known, dataset.columns)
        about: dict[str, Any] = {"source": dataset.source.name, "shape": dataset.shape.description}
        about |= {"mode": config.mode, "output": config.output, "errors": config.errors}
        about |= {"model": roles.writer.name if roles.writer else None, "rows": summary.total}
        journal.update_run(config.name, **about, invocation=known.get("invocation", 0) + 1)
        job = BatchJob(config, dataset, summary, session, plan, journal, output, rejects, self._progress, endpoints)
        if config.engine != "ray":
            return job, LocalExecutor()
        models = (session.writer or False, self.graders, session.judge)
        return job, ShardedExecutor(RayPool(config.ray_address, config.shards), models, self.say or _ignore)

    async def _check_session(self, dataset: BatchDataset, summary: DatasetSummary) -> None:
        """Raises ConfigError for models, graders and settings that cannot be used, before any file is created."""
        if self.model is None and self.config.mode != "grade":
            self.model = await resolve_model(None) or False
        session, _ = await self._session(self.config.options)
        try:
            self._check(dataset, summary, session)
        finally:
            await session.close()

    def _options(self, journal: Journal) -> Options:
        """Return the options with the journal as call cache. What is spent is tracked even without a budget."""
        options = self.config.options
        budget = options.budget or (Budget() if self.config.engine == "local" else None)
        return replace(options, cache=journal.response_cache if options.cache is None else options.cache, budget=budget)

    def _check(self, dataset: BatchDataset, summary: DatasetSummary, session: Session) -> Roles:
        """Raises ConfigError for a run of which no row could be worked on."""
        _, roles = session.common_panel() if dataset.shape.columns.requirements else session.resolve_panel(())
        if not summary.with_response and roles.writer is None:
            why = dataset.missing_response_reason
            if self.config.mode == "grade":
                raise ConfigError(f"there is no response to grade: {why}")
            raise ConfigError(
                f"there is no model to write an answer, and no response to repair: {why}. "
                "Give responses, or name a model (`redraft models` shows where one was looked for)"
            )
        check_columns(roles.graders.values(), dataset.shape.columns, dataset.source.name)
        return roles

    def _files(
        self, at_the_end: AsyncExitStack, known: Mapping[str, Any], columns: Sequence[str]
    ) -> tuple[Output | NullOutput, RejectsFile]:
        """Return the output, and the file for unusable rows; that of an earlier run is removed."""
        config = self.config
        if known.get("errors") == config.errors or lists_errors(Path(config.errors)):
            Path(config.errors).unlink(missing_ok=True)
        rejects = RejectsFile(config.errors)
        at_the_end.callback(rejects.close)
        output = NullOutput() if config.output is None else self._output(config.output, columns, resume=bool(known))
        at_the_end.callback(output.close, complete=False)
        return output, rejects

    def _output(self, name: str, columns: Sequence[str], *, resume: bool) -> Output:
        """Return the output; rows that end before earlier ones wait in a file beside it."""
        types = {called: COLUMNS[column] for column, called in result_column_names(COLUMNS, columns).items()}
        return open_output(
            name,
            ordered=self.config.ordered,
            resume=resume,
            spool=None if name == STDOUT else Path(name).parent,
            notify=self.say,
            types=types,
            spreadsheet_safe=self.config.spreadsheet_safe,
        )

    def _endpoints(self, journal: Journal) -> LimitedEndpoints | BatchEndpoints:
        config, say = self.config, self.say or _ignore
        if config.engine != "provider-batch":
            return LimitedEndpoints(config.limits, config.options.max_in_flight, self._halt, say)
        return BatchEndpoints(config.limits, self._halt, say, journal, config.name, self._progress, config.poll or POLL)

    def _halt(self, reason: str, message: str) -> None:
        if self._job:
            self._job.scheduler.end(reason, message)

    @asynccontextmanager
    async def _progress_reported(self) -> AsyncIterator[None]:
        """Call on_progress regularly, and once more at the end."""
        if self.on_progress is None:
            yield
            return
        reporting = asyncio.ensure_future(self._report_progress(self.on_progress))
        try:
            yield
        finally:
            reporting.cancel()
            self.on_progress(self.progress)

    async def _report_progress(self, on_progress: Callable[[BatchProgress], object]) -> None:
        while True:
            on_progress(self.progress)
            await asyncio.sleep(TICK)


def _ignore(message: str) -> None:
    """Nobody wants to know."""


async def batch(
    source: Any,
    output: str | Path | None = None,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **arguments: Unpack[BatchSettings],
) -> BatchReport:
    """Refine every row of a data set, or only grade it, or keep the best of several drafts.

    Everything is saved in a journal as it arrives. The same call again resumes an interrupted run; it redoes what a change of
    data, settings or graders affects, and nothing else. When cancelled, it makes no further call, writes what is known, and
    raises CancelledError with the report as `.result`.

    Args:
        source: A file (JSONL, JSON, CSV, TSV, Parquet; .gz and .zst), a glob, a list of these, a folder, "-" for stdin, a
            Hugging Face data set, a DataFrame, or an iterable of mappings.
        output: A .jsonl, .parquet, .csv or .tsv file, "-" for stdout, or None. It gets the columns of the input and those of
            the results.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        **arguments: The settings of a batch, such as `mode`, `columns`, `journal` or `engine`, and those of `refine`. `budget`
            and `deadline` are those of the whole run.

    Returns:
        The report: how many rows are done, how much better they became, and what ended the run early, if anything.

    Raises:
        ConfigError: An argument is wrong. Raised before any call.
        StoreError: The journal or the output cannot be used.
    """
    return await BatchRun.of(source, output, model, graders, judge, **arguments).go()


def batch_sync(
    source: Any,
    output: str | Path | None = None,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **arguments: Unpack[BatchSettings],
) -> BatchReport:
    """Call `batch` without await. It also works where an event loop is running.

    The first Ctrl-C waits for calls in flight, the second does not. KeyboardInterrupt then carries the report as `.result`;
    nothing is lost, and the same call resumes the run.

    Args:
        source: As in `batch`.
        output: As in `batch`.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        **arguments: As in `batch`.

    Returns:
        As in `batch`.
    """
    run = BatchRun.of(source, output, model, graders, judge, **arguments)
    return run_sync(run.go(), run.stop, partial(run.stop, now=True))
