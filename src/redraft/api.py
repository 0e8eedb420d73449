"""The doors for people: refine one task, watch it grow, or refine many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any, Unpack

from .checks import refused, shown
from .core.cancellation import cancel_and_wait
from .core.engine import advance
from .core.records import Candidate, Message, Outcome, StopReason, Task, text_of
from .core.steps import Stop
from .core.trace import Trace
from .errors import ConfigError, RedraftError
from .middleware import observe
from .models import find
from .options import Options, Settings
from .perform import door
from .plans import Plan
from .plans.adaptive import Adaptive
from .protocols import Perform, Store
from .quality.lineage import noisy_among
from .quality.priors import Priors
from .requirements import parse, reads_file
from .reservations import Reservations
from .result import Result, concluded
from .session import Desk, check_task
from .sync import run_sync

Given = str | Iterable[Message] | Task | Trace


async def refine(
    task: Given,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **settings: Unpack[Settings],
) -> Result:
    """Answer a task as well as the settings allow, and return the best answer with all that led to it.

    `task`: a prompt, chat messages, a `Task`, or a `Trace` to be continued, whose
    requirements name no files to read. `model`: a name such as
    "openai:gpt-4o-mini", a Model, or a callable `(messages) -> str`; None looks for one (see `redraft models`), and
    works with the editor alone where there is none; False looks for none. `graders`: a name, a requirement's spec, a
    function, a Grader, or a list of them; None is the LLM judge. `judge`: the model that LLM graders ask; None: `model`.
    The settings are those of `redraft.options.Options`.

    Raises ConfigError for what cannot be; ModelError when no answer could be had; GradingError when none could be
    graded; BudgetExhaustedError when money or time ran out before anything was. Each carries `.result`, the best so
    far, where there is one.

    When cancelled, it asks nothing more and lets CancelledError through, which carries the best so far as `.result`: under
    `asyncio.timeout` that is `error.__cause__.result` of the TimeoutError. In a TaskGroup the exception is gone; `on_record` and a
    `store` have all that was recorded in any case. `deadline` is the way to get the best so far at a given time.
    """
    options = Options.of(settings)
    job = await prepare(task, model, graders, judge, options)
    return await finish(job)


def refine_sync(task: Given, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]) -> Result:
    """`refine` without await; works where an event loop is running, too.

    Ctrl-C ends it at once: KeyboardInterrupt carries the best so far as `.result`, None where nothing had begun.
    """
    return run_sync(refine(task, model, graders, judge, **settings))


async def stream(
    task: Given, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> AsyncGenerator[Trace, None]:
    """The trace after every new record, ending with one that has an outcome. Arguments and errors as `refine`'s, but
    what ends a run early is no error here: it stands in the outcome. Cancelled or closed before its end it asks nothing more.
    """
    job = await prepare(task, model, graders, judge, Options.of(settings))
    async with aclosing(drive(job)) as growing:
        async for trace in growing:
            yield trace


async def refine_many(
    tasks: Iterable[Given], model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> list[Result]:
    """Refine many tasks with one limit on what is in flight, one budget and one deadline; results in the order of tasks.

    A task that fails does not stop the others: its result carries the `error`. Bad arguments raise ConfigError before
    anything is asked. When cancelled, it asks nothing more, and CancelledError carries `.results`, one for each task.
    """
    listed = as_tasks(tasks)
    jobs: list[Job] = []
    rows: list[asyncio.Task[Result]] = []
    try:
        async with AsyncExitStack() as at_the_end:
            desk = Desk(Options.of(settings), await chosen(model), graders, judge)
            at_the_end.push_async_callback(desk.close)
            moment = desk.options.ends_at
            jobs += [
                replace(with_priors_noted(job_for(task, desk, moment, searched=model is None)), owned=False) for task in listed
            ]
            places = asyncio.Semaphore(desk.options.max_in_flight)
            rows += [asyncio.ensure_future(_row(job, places)) for job in jobs]
            at_the_end.push_async_callback(cancel_and_wait, rows)
            return await asyncio.gather(*rows)
    except asyncio.CancelledError as cut:
        cut.results = [_result_of(row, job) for row, job in zip(rows, jobs, strict=True)]  # type: ignore[attr-defined]
        raise


async def _row(job: Job, places: asyncio.Semaphore) -> Result:
    trace = job.trace
    try:
        async with places:
            trace = await completed(job)
        return concluded(trace, strict=job.desk.options.strict_budget)
    except RedraftError as error:
        return Result(error.result.trace if error.result else trace, error)
    except asyncio.CancelledError as cut:
        return getattr(cut, "result", None) or Result(job.trace)


def _result_of(row: asyncio.Task[Result], job: Job) -> Result:
    """What came of a row that has ended, however it did."""
    return Result(job.trace) if row.cancelled() or row.exception() else row.result()


@dataclass(frozen=True)
class Job:
    """One refinement, ready to run."""

    trace: Trace
    plan: Plan
    perform: Perform
    desk: Desk
    writer: str | None = None  # the name of the model that writes
    store: Store | None = None
    owned: bool = True
    reservations: Reservations | None = None


async def prepare(task: Given, model: Any, graders: Any, judge: Any, options: Options) -> Job:
    """Everything a refinement needs, checked before anything is asked. Raises ConfigError."""
    desk = Desk(options, await chosen(model), graders, judge)
    return with_priors_noted(job_for(task, desk, options.ends_at, searched=model is None))


async def chosen(model: Any) -> Any:
    """The model that was given, or one that is found; None when there is none. False is no model."""
    if model is not None:
        return None if model is False else model
    try:
        return (await find()).model
    except asyncio.CancelledError as cut:
        cut.result = None  # type: ignore[attr-defined]  # nothing has begun
        raise


def job_for(given: Given, desk: Desk, moment: float | None = None, *, searched: bool = True) -> Job:
    """One refinement at a desk, to be over at a moment of the monotonic clock; `searched`: whether a model was looked for.

    Raises ConfigError.
    """
    options = desk.options
    trace = _as_found(given) if isinstance(given, Trace) else Trace(_with_files(_task(given)))
    response = trace.task.response
    if desk.writer is None and response is None and not trace.candidates:
        raise ConfigError(NO_MODEL if searched else MODEL_REFUSED)
    if not any(text_of(message).strip() for message in trace.task.messages):
        raise ConfigError(f"task: the prompt is empty, got {shown(trace.task.prompt)}")
    panel, cast = desk.seat(trace.task.requirements)
    if trace.task.tools:
        offered = replace(cast.sampling, tools=trace.task.tools, tool_choice=trace.task.tool_choice)
        cast = replace(cast, sampling=offered)
    for grader in cast.graders.values():
        check_task(grader, trace.task)
    trace = replace(trace, panel=panel)
    if response is not None and not trace.candidates:
        trace += Candidate(0, response)
    plan = options.make_plan(writes=cast.writer is not None, noisy=bool(noisy_among(panel)), priors=desk.priors)
    perform = door(cast, moment, options.deadline)
    reservations = None
    if options.budget or moment is not None:
        reservations = Reservations(trace, cast, desk.purse, moment, desk.experience)
        perform = reservations.around(perform)
    if options.on_step:
        perform = observe(perform, begun=options.on_step)
    return Job(
        reconsidered(trace, as_before(trace, plan, options)),
        plan,
        perform,
        desk,
        cast.writer.name if cast.writer else None,
        options.store,
        reservations=reservations,
    )


def with_priors_noted(job: Job) -> Job:
    """The job, with the priors of its plan in the settings of its trace, where they are not the shipped ones."""
    settings = {name: value for name, value in job.trace.settings.items() if name != "priors"}
    if isinstance(job.plan, Adaptive) and job.plan.priors != Priors():
        settings["priors"] = job.plan.priors.as_data()
    return job if settings == job.trace.settings else replace(job, trace=replace(job.trace, settings=settings))


MODEL_REFUSED = (
    "model=False: there is no model, and nothing to repair: name a model, such as model='openai:gpt-4o-mini', or give the task "
    "a `response` and requirements"
)
NO_MODEL = (
    "no model was found, so nothing can be written: Redraft looked for REDRAFT_MODEL, OPENAI_API_KEY, and local servers of "
    "Ollama, LM Studio, llama.cpp and vLLM (`redraft models` tells more). Name one as `model`, or give a `response` and "
    "requirements: the built-in editor can repair an answer, but it never invents one"
)


def as_tasks(given: Any) -> list[Given]:
    """The tasks in a list or an iterable. Raises ConfigError for one task, or anything else."""
    if isinstance(given, str | bytes | Mapping | Task | Trace | type) or not isinstance(given, Iterable):
        raise refused("tasks", "a list of prompts, of lists of messages, or of Tasks", given)
    return list(given)


def _task(given: str | Iterable[Message] | Task) -> Task:
    if isinstance(given, Task):
        return given
    try:
        return Task(given)
    except ConfigError as error:
        raise ConfigError(f"task: {str(error).removeprefix('messages: ')}") from None


def _with_files(task: Task) -> Task:
    """The task with what is in the files that its requirements name: so its trace has all that it needs."""
    if not any(map(reads_file, task.requirements)):
        return task
    return replace(task, requirements=tuple(parse(spec).spec if reads_file(spec) else spec for spec in task.requirements))


def _as_found(trace: Trace) -> Trace:
    """A trace that reads no files: whoever wrote it may not choose some here. Raises ConfigError."""
    for spec in filter(reads_file, trace.task.requirements):
        parse(spec, files=False)
    return trace


def reconsidered(trace: Trace, plan: Plan) -> Trace:
    """A finished trace as it is when the plan would end it again; else without its outcome, to go on."""
    if trace.outcome is None:
        return trace
    ends = [step.reason for step in plan(opened(trace).reopened()) if isinstance(step, Stop)]
    return trace if ends == [trace.outcome.reason] else opened(trace)


def opened(trace: Trace) -> Trace:
    """A trace without its outcome."""
    return replace(trace, records=tuple(r for r in trace.records if not isinstance(r, Outcome)))


def as_before(trace: Trace, plan: Plan, options: Options) -> Plan:
    """The plan with the priors by which a finished trace went, where that was before any were learned.

    What was learned since is no reason to pay for more; priors that a user gave are.
    """
    if trace.outcome is None or not isinstance(plan, Adaptive) or options.priors != "learned" or options.plan is not None:
        return plan
    untaught = replace(plan, priors=Priors())
    return untaught if believes(untaught, trace) and not believes(plan, trace) else plan


def believes(plan: Adaptive, trace: Trace) -> bool:
    """Whether a plan would believe at the end of a trace what was believed there."""
    end = trace.outcome
    return end is not None and plan.keep(opened(trace).reopened(), end.reason, end.note) == end


async def drive(job: Job) -> AsyncGenerator[Trace, None]:
    """Carry a job out: every record is stored, then told, then the trace is handed on.

    Cancelled or closed before its end, it asks nothing more; what was asked by then is stored and told, and an outcome
    `cancelled`. CancelledError and RedraftError carry what there is as `result`.
    """
    log = Log(job)
    try:
        try:
            log.add(job.trace)
            async with aclosing(advance(job.trace, job.plan, job.perform, log.keep)) as growing:
                async for trace in growing:
                    log.add(trace)
                    yield trace
            if not log.trace.outcome:
                log.add(ended(log.trace, job.plan))
                yield log.trace
        finally:
            if job.reservations:
                job.reservations.release()
            if job.owned:
                await job.desk.close()
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt) as cut:
        if not log.trace.outcome:
            log.add(ended(log.trace, job.plan, StopReason.CANCELLED, "interrupted"))
        cut.result = Result(log.trace)  # type: ignore[union-attr]
        raise
    except RedraftError as error:
        error.result = Result(log.trace) if log.trace.candidates else None
        error.usage = log.trace.usage
        raise


class Log:
    """Where the records of a job go: to its store, then to `on_record`. `trace` is all that there is so far."""

    def __init__(self, job: Job) -> None:
        self.trace = job.trace
        self._told = len(job.trace.records)
        self._store, self._on_record = job.store, job.desk.options.on_record

    def add(self, trace: Trace) -> None:
        """Store what is new in a trace, then tell of it."""
        self.keep(trace)
        if self._on_record:
            for record in trace.records[self._told :]:
                self._told += 1
                self._on_record(record)

    def keep(self, trace: Trace) -> None:
        """Store what is new in a trace; it is told with what comes next."""
        self.trace = trace
        if self._store:
            self._store.append(trace)


def ended(trace: Trace, plan: Plan, reason: StopReason | None = None, note: str = "") -> Trace:
    """The trace with an outcome, for plans that end without one and for work that was cut short."""
    trouble = trace.trouble
    if reason is None and trouble is not None:
        reason, note = trouble.ends or StopReason.FAILED, trouble.message
    if reason is None:
        reason, note = (
            (StopReason.DONE, "the plan has no more steps") if trace.graded else (StopReason.FAILED, "nothing could be graded")
        )
    if isinstance(plan, Adaptive):
        return trace + plan.keep(trace, reason, note)
    return trace + Outcome(trace.best.id if trace.best else None, reason, note)


async def finish(job: Job) -> Result:
    """Run a job to its end and conclude."""
    return concluded(await completed(job), strict=job.desk.options.strict_budget)


async def completed(job: Job) -> Trace:
    """The trace of a job at its end."""
    trace = job.trace
    async with aclosing(drive(job)) as growing:
        async for grown in growing:
            trace = grown
    return trace
