"""The doors to runs: a batch in one call, or a run that can be looked into before, watched and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

from .. import checks
from ..api import resolve_model
from ..errors import ConfigError
from ..graders.inputs import check_columns
from ..middleware import Budget
from ..options import Options, Settings
from ..perform import Roles
from ..plans import Plan
from ..session import Session
from ..storage.journal import Journal
from ..storage.schema import Durability
from ..sync import run_sync
from ..tables.columns import TaskColumns
from ..tables.sources import ReadInterrupted, open_source
from ..tables.values import result_column_names
from ..tables.writers import Output, open_output
from .asked import STDOUT, Asked, Limits, lists_errors
from .endpoints import Endpoints
from .engine import Engine, Nowhere, Refused, desk_of, keep_capabilities
from .entries import Survey, Table, Unusable, table_of
from .preview import Preview, previewed
from .progress import Progress
from .ray import Cluster
from .report import Report, Tally, report_of
from .rows import COLUMNS
from .shards import Sharded, gather
from .waves import POLL, Waves, rehearsed

TICK = 0.5  # seconds between two tellings of progress
MOST_IN_FLIGHT = 512
RETRIES = 8  # a call that meets a busy endpoint may need several


class Batch(Settings, total=False):
    """The arguments of `batch` beside the settings of `refine`.

    `mode`: "refine", "grade" (the responses as they are) or "best" (of `n` drafts). `columns` says what columns mean where
    their names do not, such as {"prompt": "question"}. `on_duplicate`: "error", or for an id that comes twice keep the "first",
    the "last" or, renamed, all.
    `journal`: the file of what is known (default: the output's name and ".journal"), `name` the run's name in it, `retry`:
    what of finished rows to redo, "failed" or "truncated". `ordered=False` writes rows as they end. `errors`: the file for
    rows that cannot be read. `durability`: "normal" survives the death of the process, "full" that of the machine. `limits`:
    how fast endpoints may be asked, with `max_in_flight` calls at most (512). `limit`: only so many rows. `engine`: "local",
    "ray" (in `shards` parts, on the cluster at `ray_address`), or "provider-batch": by the batch API of the endpoints, which is
    looked at every `poll` seconds at first (1), later less often; there, limits do not count but for `limits.outage`. `learn`:
    whether later rows, and runs with `priors="learned"`, believe what earlier rows taught of noisy graders; later rows only with
    engine "local". `spreadsheet_safe`: in an output of CSV or TSV nothing is evaluated by a spreadsheet, and a last column
    `redraft_spreadsheet_safe` says so; without it texts are written as they are.
    """

    mode: str
    n: int
    columns: TaskColumns | Mapping[str, str] | None
    on_duplicate: str
    journal: str | Path | None
    name: str | None
    retry: Collection[str]
    ordered: bool
    errors: str | Path | None
    durability: Durability
    limits: Limits | None
    limit: int | None
    engine: str
    shards: int | None
    ray_address: str | None
    poll: float | None
    learn: bool
    spreadsheet_safe: bool
    on_progress: Callable[[Progress], object] | None
    say: Callable[[str], object] | None


OF_A_RUN = Batch.__annotations__.keys() - Settings.__annotations__.keys()


class Interrupted(Exception):
    """The run was stopped before it had begun."""


@dataclass
class Run:
    """One data set refined into one output.

    `prepare` tells what would be done, `go` does it, `stop` ends it early, `progress` tells where it stands.
    `on_progress` is called every half second, `say` with what happens to endpoints meanwhile.
    """

    asked: Asked
    model: Any = None
    graders: Any = None
    judge: Any = None
    on_progress: Callable[[Progress], object] | None = None
    say: Callable[[str], object] | None = None
    _progress: Progress = field(default_factory=Progress, init=False)
    _engine: Engine | None = field(default=None, init=False)
    _stopped: list[bool] = field(default_factory=list, init=False)
    _found: tuple[Table, Survey] | None = field(default=None, init=False)

    @classmethod
    def of(cls, source: Any, output: Any = None, model: Any = None, graders: Any = None, judge: Any = None, **asked: Any) -> Self:
        """A run from the arguments of `batch`. Raises ConfigError."""
        own = {name: asked.pop(name) for name in OF_A_RUN & asked.keys()}
        told = {name: own.pop(name) for name in ("on_progress", "say") if name in own}
        if unknown := sorted(asked.keys() - Settings.__annotations__.keys()):
            near = get_close_matches(unknown[0], Batch.__annotations__, 1)
            raise ConfigError(f"unknown argument {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        settings: Any = {"max_in_flight": MOST_IN_FLIGHT, "retries": RETRIES, **asked}
        for name, given in told.items():
            if not (given is None or callable(given)):
                raise checks.invalid_argument(name, "a function, or None", given)
        return cls(Asked.of(source, output, options=Options.from_settings(settings), **own), model, graders, judge, **told)

    @property
    def progress(self) -> Progress:
        """Where the run stands."""
        if (engine := self._engine) and self._progress.ended is None:
            self._progress.in_flight, self._progress.limit = engine.endpoints.in_flight, engine.endpoints.limit
            engine.quote()
            self._progress.state = "stopping" if engine.ended else engine.endpoints.state or "running"
        return self._progress

    def stop(self, *, now: bool = False) -> None:
        """Ask nothing more, and end when what is in flight has arrived; `now`: without waiting for it. Nothing is lost."""
        self._stopped.append(now)
        if self._engine:
            self._engine.end("interrupted", "", now=now)

    async def check_rows(self, *, list_errors: bool = True) -> None:
        """Look the data through, before anything else. Raises ConfigError for what cannot be, as `go` does.

        `list_errors`: where no row can be used, all are listed in the errors file.
        """
        with suppress(Interrupted, ReadInterrupted):
            await self._surveyed(list_errors=list_errors)

    @property
    def stopped(self) -> bool:
        """Whether it was stopped, by `stop`."""
        return bool(self._stopped)

    async def prepare(self, *, explain: bool = False) -> Preview:
        """What would be read, asked and spent; nothing is. `explain`: what of an earlier run would be redone, and why."""
        table, survey = await self._surveyed()
        self.asked.check_files({"output": self.asked.output, "errors": self.asked.errors}, table.source.paths)
        desk, plan = await self._desk(self.asked.options)
        try:
            self._checked(table, survey, desk)
            return await asyncio.to_thread(previewed, self.asked, table, survey, desk, plan, explain=explain)
        finally:
            await desk.close()

    async def go(self) -> Report:
        """Everything, to the end. Raises ConfigError for what cannot be, StoreError for files that cannot be used."""
        async with AsyncExitStack() as opened, self._told():
            try:
                self._engine = engine = await self._opened(opened)
            except (Interrupted, ReadInterrupted):
                return self._nothing()
            except asyncio.CancelledError as cut:
                cut.result = self._nothing()  # type: ignore[attr-defined]
                raise
            for now in self._stopped:
                self.stop(now=now)
            return await engine.go()

    def _nothing(self) -> Report:
        """The report of a run that was stopped before it had begun."""
        self._progress.finish("interrupted")
        return report_of(self._progress, Tally(), run=self.asked.name, ended="interrupted")

    async def _surveyed(self, *, list_errors: bool = False) -> tuple[Table, Survey]:
        """The data, looked through. Nothing is kept before this but what came in by stdin.

        `list_errors`: where no row can be used, all are listed in the errors file.
        """
        if self._found is None:
            try:
                self._found = await asyncio.to_thread(self._survey)
            except Unusable as error:
                if list_errors:
                    await asyncio.to_thread(self._list_errors, error)
                raise
            except asyncio.CancelledError:
                self.stop(now=True)  # the thread looks for it
                raise
        return self._found

    def _survey(self) -> tuple[Table, Survey]:
        asked, progress = self.asked, self._progress
        source = open_source(asked.source, spool=asked.journal.parent, should_stop=lambda: bool(self._stopped))
        table = table_of(source, asked.columns, asked.on_duplicate, asked.limit)
        survey = table.survey(self._look)
        progress.total, progress.bad = survey.total, survey.bad
        return table, survey

    def _list_errors(self, error: Unusable) -> None:
        """Write all rows that cannot be used into the errors file, and say with the error where that is; not over another file."""
        place = Path(self.asked.errors)
        if self.asked.has_strange_errors or (place.exists() and place.stat().st_size and not lists_errors(place)):
            return
        refused = Refused(self.asked.errors)
        error.rows(refused.put)
        if refused.started:
            error.args = (f"{error}; all are listed in {self.asked.errors}",)
        refused.close()

    def _look(self, rows: int) -> None:
        self._progress.read = rows
        if self._stopped:
            raise Interrupted

    async def _desk(self, options: Options, endpoints: Endpoints | None = None) -> tuple[Session, Plan]:
        """Where rows are worked on, and by which plan."""
        hold = endpoints.hold if endpoints else rehearsed if self.asked.engine == "provider-batch" else None
        return await desk_of(self.asked, self.model, self.graders, self.judge, options, hold)

    async def _opened(self, opened: AsyncExitStack) -> Engine:
        """Everything that a run holds open."""
        asked = self.asked
        table, survey = await self._surveyed(list_errors=True)
        if self.say:
            self.say(f"{survey.total:,} rows in {table.source.name}: {table.shape.description}")
        if not asked.journal.exists():
            asked.check_files(None, table.source.paths)
            asked.check_places()
            await self._check_desk(table, survey)
        journal = Journal(asked.journal, durability=asked.durability)
        opened.callback(journal.close)
        await asyncio.to_thread(gather, journal)
        endpoints = self._endpoints(journal)
        desk, plan = await self._desk(self._options(journal), endpoints)
        if isinstance(endpoints, Waves):
            desk = endpoints.watched(desk)
            opened.push_async_callback(endpoints.aclose)
        opened.push_async_callback(desk.close)
        cast = self._checked(table, survey, desk)
        run = journal.run(asked.name)
        known = run.metadata if run else {}
        asked.check_files(known, table.source.paths)
        keep_capabilities(desk, asked.name, journal)
        if desk.options.budget:
            desk.budget_tracker.spent.update(known.get("spent", {}))
        if asked.options.budget:
            desk.budget_tracker.on_change = lambda: journal.update_run(asked.name, spent=endpoints.billed(desk.budget_tracker))
        output, refused = self._files(opened, known, table.columns)
        about: dict[str, Any] = {
            "source": table.source.name,
            "shape": table.shape.description,
            "mode": asked.mode,
            "output": asked.output,
        }
        about |= {"model": cast.writer.name if cast.writer else None, "rows": survey.total, "errors": asked.errors}
        journal.update_run(asked.name, **about, serial=known.get("serial", 0) + 1)
        parts = (asked, table, survey, desk, plan, journal, output, refused, endpoints, self._progress)
        if asked.engine == "ray":
            models = (desk.writer or False, self.graders, desk.judge)
            return Sharded(*parts, crew=Cluster(asked.ray_address, asked.shards), models=models)
        return Engine(*parts)

    async def _check_desk(self, table: Table, survey: Survey) -> None:
        """Raises ConfigError for models, graders and settings that cannot be, before any file is made."""
        if self.model is None and self.asked.mode != "grade":
            self.model = await resolve_model(None) or False
        desk, _ = await self._desk(self.asked.options)
        try:
            self._checked(table, survey, desk)
        finally:
            await desk.close()

    def _options(self, journal: Journal) -> Options:
        """The options with the journal's cache. What a run spends is kept even where it may spend what it likes."""
        options = self.asked.options
        budget = options.budget or (Budget() if self.asked.engine == "local" else None)
        return replace(options, cache=journal.response_cache if options.cache is None else options.cache, budget=budget)

    def _checked(self, table: Table, survey: Survey, desk: Session) -> Roles:
        """Raises ConfigError for a run that no row of could be worked on."""
        _, cast = desk.common_panel() if table.shape.columns.requirements else desk.resolve_panel(())
        if not survey.answered and cast.writer is None:
            why = table.without_response
            if self.asked.mode == "grade":
                raise ConfigError(f"there is no response to grade: {why}")
            raise ConfigError(
                f"there is no model to write an answer, and no response to repair: {why}. "
                "Give responses, or name a model (`redraft models` shows where one was looked for)"
            )
        check_columns(cast.graders.values(), table.shape.columns, table.source.name)
        return cast

    def _files(self, opened: AsyncExitStack, known: Mapping[str, Any], columns: Sequence[str]) -> tuple[Output | Nowhere, Refused]:
        """The output, and the file for rows that cannot be read; that of an earlier run is gone."""
        asked = self.asked
        if known.get("errors") == asked.errors or lists_errors(Path(asked.errors)):
            Path(asked.errors).unlink(missing_ok=True)
        refused = Refused(asked.errors)
        opened.callback(refused.close)
        output = Nowhere() if asked.output is None else self._output(asked.output, columns, resume=bool(known))
        opened.callback(output.close, complete=False)
        return output, refused

    def _output(self, name: str, columns: Sequence[str], *, resume: bool) -> Output:
        """Rows that come before their turn wait beside it."""
        beside = None if name == STDOUT else Path(name).parent
        types = {called: COLUMNS[column] for column, called in result_column_names(COLUMNS, columns).items()}
        return open_output(
            name,
            ordered=self.asked.ordered,
            resume=resume,
            spool=beside,
            notify=self.say,
            types=types,
            spreadsheet_safe=self.asked.spreadsheet_safe,
        )

    def _endpoints(self, journal: Journal) -> Endpoints:
        asked = self.asked
        given = asked.limits, asked.options.max_in_flight, self._halted, self.say or (lambda _: None)
        if asked.engine != "provider-batch":
            return Endpoints(*given)
        return Waves(*given, journal=journal, run=asked.name, progress=self._progress, poll=asked.poll or POLL)

    def _halted(self, ended: str, message: str) -> None:
        if self._engine:
            self._engine.end(ended, message)

    @asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        """While the run goes on, whoever wants to know is told where it stands; and once more at its end."""
        if self.on_progress is None:
            yield
            return
        telling = asyncio.ensure_future(self._tell(self.on_progress))
        try:
            yield
        finally:
            telling.cancel()
            self.on_progress(self.progress)

    async def _tell(self, on_progress: Callable[[Progress], object]) -> None:
        while True:
            on_progress(self.progress)
            await asyncio.sleep(TICK)


async def batch(
    source: Any,
    output: str | Path | None = None,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **asked: Unpack[Batch],
) -> Report:
    """Refine every row of a data set (or only grade it, or keep the best of several drafts), whatever happens on the way.

    `source`: a file (JSONL, JSON, CSV, Parquet; .gz and .zst), a glob, a list of such, a folder, "-" for stdin, a Hugging
    Face data set, or an iterable of mappings. `output`: a .jsonl, .parquet or .csv file, "-" for stdout, None for none; it
    has the columns of the input and those in `redraft.runs.rows.COLUMNS`. `model`, `graders`, `judge`: as in `refine`.
    Further arguments are those of `Batch` and the settings of `refine`; `budget` and `deadline` are the whole run's.

    Everything is journalled as it arrives. The same call again goes on where it was cut short, and redoes what a change of
    data, settings or graders affects, and nothing else. Raises ConfigError for what cannot be, before anything is asked,
    and StoreError for a journal or output that cannot be used. What else ends a run early stands in the report. Cancelled, it
    asks nothing more, writes what is known, and lets CancelledError through with the report as `.result`.
    """
    return await Run.of(source, output, model, graders, judge, **asked).go()


def batch_sync(
    source: Any,
    output: str | Path | None = None,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **asked: Unpack[Batch],
) -> Report:
    """`batch` without await; works where an event loop is running, too.

    The first Ctrl-C lets what is in flight arrive, the second does not wait for it. KeyboardInterrupt then carries the report as
    `.result`: nothing is lost, the same call goes on.
    """
    run = Run.of(source, output, model, graders, judge, **asked)
    return run_sync(run.go(), run.stop, partial(run.stop, now=True))
