"""The entry points: `batch` and `batch_sync`, and `BatchRun` for a run that can be previewed,
watched and stopped.

`BatchRun.go` reads and checks the data, opens the journal, the session and the output, and passes
them to a `BatchJob` with the executor for the engine. Each file is opened only after everything
that can be checked without it has been checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, Unpack

from ..base.log import log
from ..base.sync import check_event_loop, run_sync, sync_form_of
from ..base.text import pluralize
from ..errors import ConfigError, attach
from ..graders.traits import check_columns, check_environments
from ..middleware import Budget
from ..plans import Plan, plan_traits
from ..session.options import ROLE_ARGUMENTS, Options
from ..session.panel import graders_for_columns
from ..session.perform import Roles
from ..session.refinement import log_default_judge, resolve_model
from ..session.session import Session
from ..settings import (
    BATCH_DEFAULTS,
    BatchFields,
    OptionFields,
    check_settings,
    settings_of,
    unknown_setting_error,
)
from ..storage.journal import Journal
from ..tables.sources import open_source
from ..tables.spool import ReadInterrupted
from ..tables.writers import Output, open_output, result_column_names
from .config import (
    STDOUT,
    BatchCallbacks,
    BatchConfig,
    BatchSettings,
    lists_errors,
)
from .dataset import (
    BatchDataset,
    DatasetSummary,
    UnusableDatasetError,
    open_dataset,
)
from .earlier_output import OutputCheck
from .endpoints import LimitedEndpoints
from .executors.processes import ProcessPool
from .executors.provider_batch import POLL, BatchEndpoints, check_batch_model
from .executors.ray import RayPool
from .executors.sharded import ShardedExecutor, merge_shards
from .files import NullOutput, RejectsFile
from .job import BatchJob, Executor, LocalExecutor
from .pilot import choose_pilot, pilot_config, with_forecast
from .preview import BatchPreview, preview_run
from .progress import BatchProgress
from .report import BatchReport, ReportBuilder, build_report
from .row_key import RowKeys
from .runner import make_session, restore_capabilities
from .sample_prompts import sample_prompts
from .saved_summary import summarize

TICK = 0.5  # seconds between two calls of on_progress


class StoppedEarlyError(Exception):
    """The run was stopped before its job was open."""


@dataclass
class BatchRun:
    """A batch in steps: `prepare` returns a preview, `go` runs it, `stop` ends it early, `progress`
    shows how far it is.

    `on_progress` is called with the progress every half second, `say` with messages about
    endpoints.
    """

    config: BatchConfig
    model: Any = None
    graders: Any = None
    judge: Any = None
    on_progress: Callable[[BatchProgress], object] | None = None
    say: Callable[[str], object] | None = None
    _progress: BatchProgress = field(default_factory=BatchProgress, init=False)
    _job: BatchJob | None = field(default=None, init=False)
    _stop_now: bool | None = field(default=None, init=False)  # None: `stop` was not called
    _data: tuple[BatchDataset, DatasetSummary] | None = field(default=None, init=False)

    @classmethod
    def from_arguments(
        cls,
        source: Any,
        output: Any = None,
        model: Any = None,
        graders: Any = None,
        judge: Any = None,
        **arguments: Any,
    ) -> Self:
        """Return a run with the arguments of `batch`. Raises ConfigError."""
        names = settings_of(OptionFields, BatchFields, BatchCallbacks)
        for name in arguments:
            if name not in names:
                known = *names, "source", "output", *ROLE_ARGUMENTS
                raise unknown_setting_error(name, known)
        callbacks = {name: arguments.pop(name, None) for name in settings_of(BatchCallbacks)}
        check_settings(BatchCallbacks, SimpleNamespace(**callbacks))
        settings = {
            name: arguments.pop(name) for name in settings_of(BatchFields) if name in arguments
        }
        options = Options(**{**BATCH_DEFAULTS, **arguments})
        return cls(
            BatchConfig.from_settings(source, output, options=options, **settings),
            model,
            graders,
            judge,
            **callbacks,
        )

    @property
    def progress(self) -> BatchProgress:
        """The progress of the run."""
        if (job := self._job) and self._progress.ended_at is None:
            endpoints = job.scheduler.endpoints
            self._progress.in_flight, self._progress.limit = endpoints.in_flight, endpoints.limit
            self._progress.calls_made = endpoints.calls_made
            job.show_price()
            self._progress.state = (
                "stopping" if job.scheduler.reason else endpoints.state or "running"
            )
        return self._progress

    def stop(self, *, now: bool = False) -> None:
        """End the run: make no further call, wait for those in flight (unless `now`), and save
        everything.

        The same arguments resume the run.
        """
        self._stop_now = now or bool(self._stop_now)
        if self._job:
            self._job.scheduler.end("interrupted", "", now=now)

    def _check_stop(self) -> None:
        """Raise StoppedEarlyError if `stop` was called."""
        if self.is_stopped:
            raise StoppedEarlyError

    async def check_rows(self, *, list_errors: bool = True) -> None:
        """Read and check all rows, as `go` does first. Raises ConfigError.

        `list_errors`: if no row can be used, write them all to the errors file.
        """
        with suppress(StoppedEarlyError, ReadInterrupted):
            await self._load(list_errors=list_errors)

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_now is not None

    async def prepare(self, *, explain: bool = False) -> BatchPreview:
        """Return a preview: what would be read, called and spent. `explain`: also which rows would
        be redone, and why.
        """
        dataset, summary = await self._load()
        self.config.check_files(
            {"output": self.config.output, "errors": self.config.errors}, dataset.source.paths
        )
        session, plan = await self._session(self.config.options)
        async with session:
            self._check(dataset, summary, session)
            self._name_default_judge(session)
            preview = await asyncio.to_thread(
                preview_run, self.config, dataset, summary, session, plan, explain=explain
            )
            notice = await asyncio.to_thread(
                self._output_notice, dataset, summary, RowKeys(session, plan)
            )
            preview = replace(preview, summary=(*preview.summary, notice)) if notice else preview
            rows = dataset.rows(summary.duplicates, _ignore)
            task = next((row.task for row in rows if session.grades(row.task)), None)
            return (
                replace(preview, prompts=await sample_prompts(session, plan, task))
                if task
                else preview
            )

    def _output_notice(self, dataset: BatchDataset, summary: DatasetSummary, keys: RowKeys) -> str:
        """Return what the run would say about the rows in its output, also if it would be
        refused.
        """
        if not self.config.journal.exists():
            return ""
        with closing(Journal(self.config.journal, create=False, read_only=True)) as journal:
            try:
                return OutputCheck(
                    self.config, dataset, summary, keys, journal, self._check_stop
                ).notice()
            except ConfigError as error:
                return str(error)

    async def go(self) -> BatchReport:
        """Run the batch and return its report, whatever ends it.

        When cancelled, it makes no further call, saves everything, and raises CancelledError with
        the report as `result`. Raises ConfigError for wrong arguments, and StoreError for files
        that cannot be used.
        """
        check_event_loop()
        async with AsyncExitStack() as resources, self._report_progress():
            try:
                self._job, executor = await self._open(resources)
            except (StoppedEarlyError, ReadInterrupted):
                return self._empty_report()
            except asyncio.CancelledError as error:
                attach(error, result=self._empty_report())
                raise
            if self.is_stopped:
                self.stop(now=bool(self._stop_now))
            report = await self._job.run(executor, self.say or _ignore)
            return (
                report
                if self.config.pilot is None
                else await asyncio.to_thread(with_forecast, report, self._job)
            )

    def _empty_report(self) -> BatchReport:
        """Return the report of a run that was stopped before its job was open."""
        self._progress.finish("interrupted")
        return build_report(
            self._progress, ReportBuilder(), run=self.config.name, stop="interrupted"
        )

    async def _load(self, *, list_errors: bool = False) -> tuple[BatchDataset, DatasetSummary]:
        """Return the data set after the first pass over it, which is done once. Until then only
        stdin is copied to a file.

        `list_errors`: if no row can be used, write them all to the errors file.
        """
        if self._data is None:
            try:
                self._data = await asyncio.to_thread(self._read)
            except UnusableDatasetError as error:
                if list_errors:
                    await asyncio.to_thread(self._list_errors, error)
                raise
            except asyncio.CancelledError:
                self.stop(now=True)  # ends the thread
                raise
        return self._data

    def _read(self) -> tuple[BatchDataset, DatasetSummary]:
        config, progress = self.config, self._progress

        def count(rows: int) -> None:
            progress.read = rows
            self._check_stop()

        source = open_source(
            config.source, spool=config.journal.parent, should_stop=lambda: self.is_stopped
        )
        dataset = open_dataset(source, config.columns, config.on_duplicate, config.limit)
        summary = summarize(dataset, config.journal, config.name, count)
        progress.total, progress.bad = summary.total, summary.bad
        return dataset, summary

    def _list_errors(self, error: UnusableDatasetError) -> None:
        """Write all unusable rows to the errors file, unless that is another file, and add its name
        to the error.
        """
        path = Path(self.config.errors)
        if self.config.has_unsafe_errors_path or (
            path.exists() and path.stat().st_size and not lists_errors(path)
        ):
            return
        rejects = RejectsFile(self.config.errors)
        error.list_rows(rejects.put)
        if not rejects.is_empty:
            error.args = (f"{error}; all are listed in {self.config.errors}",)
        rejects.close()

    async def _session(
        self, options: Options, endpoints: LimitedEndpoints | BatchEndpoints | None = None
    ) -> tuple[Session, Plan]:
        """Return the session of the run and the plan for its rows. Without endpoints it is only for
        checks.
        """
        hold = (
            endpoints.hold
            if endpoints
            else check_batch_model
            if self.config.engine == "provider-batch"
            else None
        )
        dataset, _ = await self._load()
        graders = graders_for_columns(
            self.graders, self.judge, options.answer, dataset.shape.columns
        )
        return await make_session(self.config, self.model, graders, self.judge, options, hold)

    def _name_default_judge(self, session: Session) -> None:
        """Log and say which model the default judge asks, if nothing is named that grades."""
        log_default_judge(session)
        if self.say and (note := session.default_judge_note):
            self.say(note)

    async def _open(self, resources: AsyncExitStack) -> tuple[BatchJob, Executor]:
        """Open everything that the run needs; return its job and its executor."""
        config = self.config
        processes = resources.enter_context(closing(ProcessPool(self._processes)))
        dataset, summary = await self._load(list_errors=True)
        if self.say:
            self.say(
                f"{pluralize(summary.total, 'row')} in {dataset.source.name}: "
                f"{dataset.shape.description}"
            )
        if not config.journal.exists():
            config.check_files(None, dataset.source.paths)
            config.check_folders()
            await self._check_session(dataset, summary)
            # a new run has rows for all of them
            processes.start(min(processes.size, summary.total, config.options.max_in_flight))
        journal = Journal(config.journal, durability=config.durability)
        resources.callback(journal.close)
        await asyncio.to_thread(merge_shards, journal)
        endpoints = self._endpoints(journal)
        cache = journal.response_cache if config.options.cache is None else config.options.cache
        # an empty one tracks what is spent
        budget = config.options.budget or (None if config.engine == "provider-batch" else Budget())
        session, plan = await self._session(
            replace(config.options, cache=cache, budget=budget), endpoints
        )
        session.models.listeners += filter(None, [self.say])
        self._name_default_judge(session)
        if isinstance(endpoints, BatchEndpoints):
            session = endpoints.session(session)
            resources.push_async_callback(endpoints.aclose)
        resources.push_async_callback(session.close)
        roles = self._check(dataset, summary, session)
        metadata = journal.metadata(config.name)
        config.check_files(metadata, dataset.source.paths)
        check = OutputCheck(
            config, dataset, summary, RowKeys(session, plan), journal, self._check_stop
        )
        if notice := await asyncio.to_thread(check.notice):
            (self.say or log.info)(notice)
        restore_capabilities(session, config.name, journal)
        if session.options.budget:
            session.models.budget_tracker.spent.update(metadata.get("spent", {}))
        if config.options.budget:
            session.models.budget_tracker.on_change = lambda: journal.update_run(
                config.name, spent=endpoints.spent_if_killed(session.models.budget_tracker)
            )
        types = config.result_columns(session.common_panel())
        job_config = config if config.pilot is None else pilot_config(config)
        output, rejects = self._files(job_config, resources, metadata, dataset.columns, types)
        journal.update_run(
            config.name,
            source=dataset.source.name,
            shape=dataset.shape.description,
            mode=config.mode,
            output=metadata.get("output") if config.pilot else config.output,
            errors=config.errors,
            model=roles.writer.name if roles.writer else None,
            rows=summary.total,
            invocation=metadata.get("invocation", 0) + 1,
        )
        job = BatchJob(
            job_config,
            dataset,
            summary,
            session,
            plan,
            journal,
            output,
            rejects,
            self._progress,
            endpoints,
        )
        if config.pilot is not None:
            await asyncio.to_thread(choose_pilot, job, config.pilot)
        return job, self._executor(session, processes)

    @property
    def _processes(self) -> int:
        """The number of processes of this machine for the rows beside this one. A pilot has too few
        rows for several processes.
        """
        config = self.config
        is_local = config.has_workers and not config.ray and config.pilot is None
        return (config.workers or 1) if is_local else 0

    def _executor(self, session: Session, processes: ProcessPool) -> Executor:
        config, say = self.config, self.say or _ignore
        models = (session.models.writer or False, session.graders, session.models.judge)
        if config.ray:
            return ShardedExecutor(RayPool(config.ray, config.workers), models, say)
        return ShardedExecutor(processes, models, say) if processes.size else LocalExecutor()

    async def _check_session(self, dataset: BatchDataset, summary: DatasetSummary) -> None:
        """Raise ConfigError for models, graders and settings that cannot be used, before any file
        is created.
        """
        if self.model is None and self.config.mode != "grade":
            self.model = await resolve_model(None) or False
        session, _ = await self._session(self.config.options)
        async with session:
            self._check(dataset, summary, session)

    def _check(self, dataset: BatchDataset, summary: DatasetSummary, session: Session) -> Roles:
        """Return the roles of the session. Raises ConfigError if no row could be processed."""
        _, roles = (
            session.common_panel()
            if dataset.shape.columns.requirements
            else session.resolve_panel(())
        )
        if not summary.with_response and roles.writer is None:
            why = dataset.missing_response_reason
            if self.config.mode == "grade":
                raise ConfigError(f"there is no response to grade: {why}")
            raise ConfigError(
                f"there is no model to write an answer, and no response to repair: {why}. "
                "Give responses, or name a model (`redraft models` shows where one was looked for)"
            )
        if not self.config.ray:  # there it is the workers that run code
            check_environments(roles.traits.values())
        check_columns(roles.traits.values(), dataset.shape.columns, dataset.source.name)
        plan = self.config.plan
        if prompts := plan_traits(plan).prompts if plan else session.options.prompts:
            prompts.check_columns(dataset.shape.metadata_columns(dataset.columns))
        return roles

    def _files(
        self,
        config: BatchConfig,
        resources: AsyncExitStack,
        metadata: Mapping[str, Any],
        columns: Sequence[str],
        types: Mapping[str, type],
    ) -> tuple[Output | NullOutput, RejectsFile]:
        """Open the output, with result columns of these types, and the errors file, which replaces
        that of an earlier run.
        """
        if metadata.get("errors") == config.errors or lists_errors(Path(config.errors)):
            Path(config.errors).unlink(missing_ok=True)
        rejects = RejectsFile(config.errors)
        resources.callback(rejects.close)
        output: Output | NullOutput = NullOutput()
        if config.output is not None:
            names = result_column_names(types, columns)
            output = open_output(
                config.output,
                ordered=config.ordered,
                resume=bool(metadata),
                spool=None if config.output == STDOUT else Path(config.output).parent,
                notify=self.say,
                types={name: types[column] for column, name in names.items()},
                spreadsheet_safe=config.spreadsheet_safe,
            )
        resources.callback(output.close, complete=False)
        return output, rejects

    def _endpoints(self, journal: Journal) -> LimitedEndpoints | BatchEndpoints:
        config, say = self.config, self.say or _ignore
        if config.engine != "provider-batch":
            return LimitedEndpoints(
                config.limits, config.options.max_in_flight, self._halt, say, config.options.timeout
            )
        poll, has_all_rows = config.poll or POLL, config.limit is None
        return BatchEndpoints(
            config.limits, self._halt, say, journal, config.name, self._progress, poll, has_all_rows
        )

    def _halt(self, reason: str, message: str, detail: str) -> None:
        if self._job:
            self._job.scheduler.end(reason, message, detail)

    @asynccontextmanager
    async def _report_progress(self) -> AsyncIterator[None]:
        """Call `on_progress` every half second, and once more at the end."""
        if (on_progress := self.on_progress) is None:
            yield
            return

        async def report() -> None:
            while True:
                on_progress(self.progress)
                await asyncio.sleep(TICK)

        reporting = asyncio.ensure_future(report())
        try:
            yield
        finally:
            reporting.cancel()
            on_progress(self.progress)


def _ignore(message: object) -> None:
    """Do nothing: the caller of `batch` has passed no `say`, or another pass reports the row."""


async def batch(
    source: Any,
    output: str | Path | None = None,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    *,
    answer: Any = None,
    **arguments: Unpack[BatchSettings],
) -> BatchReport:
    """Refine every row of a data set, or only grade it, or keep the best of several drafts.

    Everything is saved in a journal as it arrives. The same call resumes an interrupted run; it
    redoes the rows that a change of data, settings or graders affects, and no others. When
    cancelled, it makes no further call, saves everything, and raises CancelledError with the report
    as `result`.

    Args:
        source: A file (JSONL, JSON, CSV, TSV, Parquet; .gz and .zst), a glob, a list of these, a
            folder, "-" for stdin, a Hugging Face data set, a DataFrame, or an iterable of mappings.
        output: A .jsonl, .parquet, .csv or .tsv file, "-" for stdout, or None. It contains the
            columns of the input and those of the results.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        answer: As in `refine`. The output then has a column `parsed` beside `best`, with the value
            as JSON.
        **arguments: The settings of a batch, such as `mode`, `columns`, `journal` or `engine`, and
            those of `refine`. `budget` and `deadline` are those of the whole run.

    Returns:
        The report: how many rows are done, how much better they became, and why the run ended
        early, if it did.

    Raises:
        ConfigError: An argument is wrong. Raised before any call.
        StoreError: The journal or the output cannot be used.
    """
    return await BatchRun.from_arguments(
        source, output, model, graders, judge, answer=answer, **arguments
    ).go()


@sync_form_of(batch)
def batch_sync(*arguments: Any, **settings: Any) -> BatchReport:
    """Call `batch` without await, also while an event loop is running.

    The first Ctrl-C ends the run after the calls in flight, the second does not wait for them.
    KeyboardInterrupt then has the report as `result`; everything is saved, and the same call
    resumes the run.
    """
    run = BatchRun.from_arguments(*arguments, **settings)
    return run_sync(run.go(), run.stop, partial(run.stop, now=True))
