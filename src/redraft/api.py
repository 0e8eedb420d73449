"""The doors for people: refine one task, watch it grow, or refine many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any, Unpack

from .checks import format_value, invalid_argument
from .core.cancellation import cancel_and_wait
from .core.engine import advance
from .core.records import Candidate, Message, Outcome, StopReason, Task, message_text
from .core.steps import Stop
from .core.trace import Trace
from .errors import ConfigError, RedraftError
from .middleware import observe
from .models import find_model
from .options import Options, Settings
from .perform import make_performer
from .plans import Plan
from .plans.adaptive import Adaptive
from .protocols import Perform, Store
from .quality.lineage import llm_graders
from .quality.priors import Priors
from .requirements import parse, reads_file
from .reservations import Reservations
from .result import Result, result_or_raise
from .session import Session, check_task
from .sync import run_sync

TaskInput = str | Iterable[Message] | Task | Trace


async def refine(
    task: TaskInput,
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
    options = Options.from_settings(settings)
    job = await prepare_refinement(task, model, graders, judge, options)
    return await finish_refinement(job)


def refine_sync(task: TaskInput, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]) -> Result:
    """`refine` without await; works where an event loop is running, too.

    Ctrl-C ends it at once: KeyboardInterrupt carries the best so far as `.result`, None where nothing had begun.
    """
    return run_sync(refine(task, model, graders, judge, **settings))


async def stream(
    task: TaskInput, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> AsyncGenerator[Trace, None]:
    """The trace after every new record, ending with one that has an outcome. Arguments and errors as `refine`'s, but
    what ends a run early is no error here: it stands in the outcome. Cancelled or closed before its end it asks nothing more.
    """
    job = await prepare_refinement(task, model, graders, judge, Options.from_settings(settings))
    async with aclosing(run_refinement(job)) as growing:
        async for trace in growing:
            yield trace


async def refine_many(
    tasks: Iterable[TaskInput], model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> list[Result]:
    """Refine many tasks with one limit on what is in flight, one budget and one deadline; results in the order of tasks.

    A task that fails does not stop the others: its result carries the `error`. Bad arguments raise ConfigError before
    anything is asked. When cancelled, it asks nothing more, and CancelledError carries `.results`, one for each task.
    """
    listed = as_tasks(tasks)
    jobs: list[Refinement] = []
    rows: list[asyncio.Task[Result]] = []
    try:
        async with AsyncExitStack() as at_the_end:
            desk = Session(Options.from_settings(settings), await resolve_model(model), graders, judge)
            at_the_end.push_async_callback(desk.close)
            moment = desk.options.deadline_at
            jobs += [
                replace(
                    with_priors_in_settings(make_refinement(task, desk, moment, model_searched=model is None)), owns_session=False
                )
                for task in listed
            ]
            places = asyncio.Semaphore(desk.options.max_in_flight)
            rows += [asyncio.ensure_future(_refine_one(job, places)) for job in jobs]
            at_the_end.push_async_callback(cancel_and_wait, rows)
            return await asyncio.gather(*rows)
    except asyncio.CancelledError as cut:
        cut.results = [_result_of(row, job) for row, job in zip(rows, jobs, strict=True)]  # type: ignore[attr-defined]
        raise


async def _refine_one(refinement: Refinement, semaphore: asyncio.Semaphore) -> Result:
    trace = refinement.trace
    try:
        async with semaphore:
            trace = await final_trace(refinement)
        return result_or_raise(trace, strict_budget=refinement.session.options.strict_budget)
    except RedraftError as error:
        return Result(error.result.trace if error.result else trace, error)
    except asyncio.CancelledError as cut:
        return getattr(cut, "result", None) or Result(refinement.trace)


def _result_of(finished: asyncio.Task[Result], refinement: Refinement) -> Result:
    """What came of a row that has ended, however it did."""
    return Result(refinement.trace) if finished.cancelled() or finished.exception() else finished.result()


@dataclass(frozen=True)
class Refinement:
    """One refinement, ready to run."""

    trace: Trace
    plan: Plan
    perform: Perform
    session: Session
    writer_name: str | None = None  # the name of the model that writes
    store: Store | None = None
    owns_session: bool = True
    reservations: Reservations | None = None


async def prepare_refinement(task: TaskInput, model: Any, graders: Any, judge: Any, options: Options) -> Refinement:
    """Everything a refinement needs, checked before anything is asked. Raises ConfigError."""
    desk = Session(options, await resolve_model(model), graders, judge)
    return with_priors_in_settings(make_refinement(task, desk, options.deadline_at, model_searched=model is None))


async def resolve_model(model: Any) -> Any:
    """The model that was given, or one that is found; None when there is none. False is no model."""
    if model is not None:
        return None if model is False else model
    try:
        return (await find_model()).model
    except asyncio.CancelledError as cut:
        cut.result = None  # type: ignore[attr-defined]  # nothing has begun
        raise


def make_refinement(
    task: TaskInput, session: Session, deadline_at: float | None = None, *, model_searched: bool = True
) -> Refinement:
    """One refinement at a desk, to be over at a moment of the monotonic clock; `searched`: whether a model was looked for.

    Raises ConfigError.
    """
    options = session.options
    trace = _check_reads_no_files(task) if isinstance(task, Trace) else Trace(_with_file_contents(_as_task(task)))
    response = trace.task.response
    if session.writer is None and response is None and not trace.candidates:
        raise ConfigError(NO_MODEL_MESSAGE if model_searched else MODEL_DISABLED_MESSAGE)
    if not any(message_text(message).strip() for message in trace.task.messages):
        raise ConfigError(f"task: the prompt is empty, got {format_value(trace.task.prompt)}")
    panel, cast = session.resolve_panel(trace.task.requirements)
    if trace.task.tools:
        offered = replace(cast.sampling, tools=trace.task.tools, tool_choice=trace.task.tool_choice)
        cast = replace(cast, sampling=offered)
    for grader in cast.graders.values():
        check_task(grader, trace.task)
    trace = replace(trace, panel=panel)
    if response is not None and not trace.candidates:
        trace += Candidate(0, response)
    plan = options.make_plan(writes=cast.writer is not None, noisy=bool(llm_graders(panel)), priors=session.priors)
    perform = make_performer(cast, deadline_at, options.deadline)
    reservations = None
    if options.budget or deadline_at is not None:
        reservations = Reservations(trace, cast, session.budget_tracker, deadline_at, session.statistics)
        perform = reservations.wrap(perform)
    if options.on_step:
        perform = observe(perform, on_start=options.on_step)
    return Refinement(
        reopen_if_needed(trace, with_original_priors(trace, plan, options)),
        plan,
        perform,
        session,
        cast.writer.name if cast.writer else None,
        options.store,
        reservations=reservations,
    )


def with_priors_in_settings(refinement: Refinement) -> Refinement:
    """The job, with the priors of its plan in the settings of its trace, where they are not the shipped ones."""
    settings = {name: value for name, value in refinement.trace.settings.items() if name != "priors"}
    if isinstance(refinement.plan, Adaptive) and refinement.plan.priors != Priors():
        settings["priors"] = refinement.plan.priors.to_dict()
    return (
        refinement
        if settings == refinement.trace.settings
        else replace(refinement, trace=replace(refinement.trace, settings=settings))
    )


MODEL_DISABLED_MESSAGE = (
    "model=False: there is no model, and nothing to repair: name a model, such as model='openai:gpt-4o-mini', or give the task "
    "a `response` and requirements"
)
NO_MODEL_MESSAGE = (
    "no model was found, so nothing can be written: Redraft looked for REDRAFT_MODEL, OPENAI_API_KEY, and local servers of "
    "Ollama, LM Studio, llama.cpp and vLLM (`redraft models` tells more). Name one as `model`, or give a `response` and "
    "requirements: the built-in editor can repair an answer, but it never invents one"
)


def as_tasks(tasks: Any) -> list[TaskInput]:
    """The tasks in a list or an iterable. Raises ConfigError for one task, or anything else."""
    if isinstance(tasks, str | bytes | Mapping | Task | Trace | type) or not isinstance(tasks, Iterable):
        raise invalid_argument("tasks", "a list of prompts, of lists of messages, or of Tasks", tasks)
    return list(tasks)


def _as_task(task: str | Iterable[Message] | Task) -> Task:
    if isinstance(task, Task):
        return task
    try:
        return Task(task)
    except ConfigError as error:
        raise ConfigError(f"task: {str(error).removeprefix('messages: ')}") from None


def _with_file_contents(task: Task) -> Task:
    """The task with what is in the files that its requirements name: so its trace has all that it needs."""
    if not any(map(reads_file, task.requirements)):
        return task
    return replace(task, requirements=tuple(parse(spec).spec if reads_file(spec) else spec for spec in task.requirements))


def _check_reads_no_files(trace: Trace) -> Trace:
    """A trace that reads no files: whoever wrote it may not choose some here. Raises ConfigError."""
    for spec in filter(reads_file, trace.task.requirements):
        parse(spec, files=False)
    return trace


def reopen_if_needed(trace: Trace, plan: Plan) -> Trace:
    """A finished trace as it is when the plan would end it again; else without its outcome, to go on."""
    if trace.outcome is None:
        return trace
    ends = [step.reason for step in plan(without_outcome(trace).for_new_run()) if isinstance(step, Stop)]
    return trace if ends == [trace.outcome.reason] else without_outcome(trace)


def without_outcome(trace: Trace) -> Trace:
    """A trace without its outcome."""
    return replace(trace, records=tuple(r for r in trace.records if not isinstance(r, Outcome)))


def with_original_priors(trace: Trace, plan: Plan, options: Options) -> Plan:
    """The plan with the priors by which a finished trace went, where that was before any were learned.

    What was learned since is no reason to pay for more; priors that a user gave are.
    """
    if trace.outcome is None or not isinstance(plan, Adaptive) or options.priors != "learned" or options.plan is not None:
        return plan
    untaught = replace(plan, priors=Priors())
    return untaught if reproduces(untaught, trace) and not reproduces(plan, trace) else plan


def reproduces(plan: Adaptive, trace: Trace) -> bool:
    """Whether a plan would believe at the end of a trace what was believed there."""
    end = trace.outcome
    return end is not None and plan.outcome_if_stopped(without_outcome(trace).for_new_run(), end.reason, end.note) == end


async def run_refinement(refinement: Refinement) -> AsyncGenerator[Trace, None]:
    """Carry a job out: every record is stored, then told, then the trace is handed on.

    Cancelled or closed before its end, it asks nothing more; what was asked by then is stored and told, and an outcome
    `cancelled`. CancelledError and RedraftError carry what there is as `result`.
    """
    log = RecordLog(refinement)
    try:
        try:
            log.add(refinement.trace)
            async with aclosing(advance(refinement.trace, refinement.plan, refinement.perform, log.persist)) as growing:
                async for trace in growing:
                    log.add(trace)
                    yield trace
            if not log.trace.outcome:
                log.add(with_outcome(log.trace, refinement.plan))
                yield log.trace
        finally:
            if refinement.reservations:
                refinement.reservations.release()
            if refinement.owns_session:
                await refinement.session.close()
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt) as cut:
        if not log.trace.outcome:
            log.add(with_outcome(log.trace, refinement.plan, StopReason.CANCELLED, "interrupted"))
        cut.result = Result(log.trace)  # type: ignore[union-attr]
        raise
    except RedraftError as error:
        error.result = Result(log.trace) if log.trace.candidates else None
        error.usage = log.trace.usage
        raise


class RecordLog:
    """Where the records of a job go: to its store, then to `on_record`. `trace` is all that there is so far."""

    def __init__(self, refinement: Refinement) -> None:
        self.trace = refinement.trace
        self._reported_count = len(refinement.trace.records)
        self._store, self._on_record = refinement.store, refinement.session.options.on_record

    def add(self, trace: Trace) -> None:
        """Store what is new in a trace, then tell of it."""
        self.persist(trace)
        if self._on_record:
            for record in trace.records[self._reported_count :]:
                self._reported_count += 1
                self._on_record(record)

    def persist(self, trace: Trace) -> None:
        """Store what is new in a trace; it is told with what comes next."""
        self.trace = trace
        if self._store:
            self._store.append(trace)


def with_outcome(trace: Trace, plan: Plan, reason: StopReason | None = None, note: str = "") -> Trace:
    """The trace with an outcome, for plans that end without one and for work that was cut short."""
    trouble = trace.fatal_failure
    if reason is None and trouble is not None:
        reason, note = trouble.stop_reason or StopReason.FAILED, trouble.message
    if reason is None:
        reason, note = (
            (StopReason.DONE, "the plan has no more steps")
            if trace.graded_candidates
            else (StopReason.FAILED, "nothing could be graded")
        )
    if isinstance(plan, Adaptive):
        return trace + plan.outcome_if_stopped(trace, reason, note)
    return trace + Outcome(trace.best.id if trace.best else None, reason, note)


async def finish_refinement(refinement: Refinement) -> Result:
    """Run a job to its end and conclude."""
    return result_or_raise(await final_trace(refinement), strict_budget=refinement.session.options.strict_budget)


async def final_trace(refinement: Refinement) -> Trace:
    """The trace of a job at its end."""
    trace = refinement.trace
    async with aclosing(run_refinement(refinement)) as growing:
        async for grown in growing:
            trace = grown
    return trace
