"""The doors for people: refine one task, watch it grow, or refine many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack

from .around import observe
from .casting import Desk, check_task
from .contracts import Perform, Store
from .core.engine import advance
from .core.errors import ConfigError, RedraftError
from .core.family import noisy_among
from .core.plans import Plan
from .core.plans.adaptive import Adaptive
from .core.priors import Priors
from .core.records import Candidate, Message, Outcome, StopReason, Task, text_of
from .core.steps import Stop
from .core.trace import Trace
from .models import find
from .options import Options, Settings
from .perform import door
from .result import Result, concluded

T = TypeVar("T")
Given = str | Iterable[Message] | Task | Trace


async def refine(
    task: Given,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **settings: Unpack[Settings],
) -> Result:
    """Answer a task as well as the settings allow, and return the best answer with all that led to it.

    `task`: a prompt, chat messages, a `Task`, or a `Trace` to be continued. `model`: a name such as
    "openai:gpt-4o-mini", a Model, or a callable `(messages) -> str`; None looks for one (see `redraft models`), and
    works with the editor alone where there is none; False looks for none. `graders`: a name, a requirement's spec, a
    function, a Grader, or a list of them; None is the LLM judge. `judge`: the model that LLM graders ask; None: `model`.
    The settings are those of `redraft.options.Options`.

    Raises ConfigError for what cannot be; ModelError when no answer could be had; GradingError when none could be
    graded; BudgetExhaustedError when money or time ran out before anything was. Each carries `.result`, the best so
    far, where there is one. When cancelled with something graded, it returns that with `stop="cancelled"`.
    """
    options = Options.of(settings)
    job = await prepare(task, model, graders, judge, options)
    return await finish(job)


def refine_sync(task: Given, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]) -> Result:
    """`refine` without await; works where an event loop is running, too. Ctrl-C returns the best so far."""
    return sync(refine(task, model, graders, judge, **settings))


async def stream(
    task: Given, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> AsyncGenerator[Trace, None]:
    """The trace after every new record, ending with one that has an outcome. Arguments and errors as `refine`'s, but
    what ends a run early is no error here: it stands in the outcome.
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
    anything is asked. When cancelled with something graded, what there is comes back.
    """
    desk = Desk(Options.of(settings), await chosen(model), graders, judge)
    moment = desk.options.ends_at
    jobs = [replace(job_for(task, desk, moment), owned=False) for task in tasks]
    rows = asyncio.Semaphore(desk.options.max_in_flight)
    running = [asyncio.ensure_future(_row(job, rows)) for job in jobs]
    try:
        return await asyncio.gather(*running)
    except asyncio.CancelledError:
        ends = await asyncio.gather(*running, return_exceptions=True)
        results = [end if isinstance(end, Result) else Result(job.trace) for end, job in zip(ends, jobs, strict=True)]
        if not any(result.trace.graded for result in results):
            raise
        uncancel()
        return results
    finally:
        for row in running:
            row.cancel()
        await desk.close()


async def _row(job: Job, rows: asyncio.Semaphore) -> Result:
    async with rows:
        try:
            return await finish(job)
        except RedraftError as error:
            return Result(error.result.trace if error.result else job.trace, error)


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


async def prepare(task: Given, model: Any, graders: Any, judge: Any, options: Options) -> Job:
    """Everything a refinement needs, checked before anything is asked. Raises ConfigError."""
    return job_for(task, Desk(options, await chosen(model), graders, judge), options.ends_at)


async def chosen(model: Any) -> Any:
    """The model that was given, or one that is found; None when there is none."""
    if model is None:
        return (await find()).model
    return model or None


def job_for(given: Given, desk: Desk, moment: float | None = None) -> Job:
    """One refinement at a desk, to be over at a moment of the monotonic clock. Raises ConfigError."""
    options = desk.options
    trace = given if isinstance(given, Trace) else Trace(_task(given))
    response = trace.task.response
    if desk.writer is None and response is None and not trace.candidates:
        raise ConfigError(NO_MODEL)
    if not any(text_of(message).strip() for message in trace.task.messages):
        raise ConfigError(f"task: the prompt is empty, got {trace.task.prompt!r}")
    panel, cast = desk.seat(trace.task.requirements)
    for grader in cast.graders.values():
        check_task(grader, trace.task)
    trace = replace(trace, panel=panel)
    if response is not None and not trace.candidates:
        trace += Candidate(0, response)
    plan = options.make_plan(writes=cast.writer is not None, noisy=bool(noisy_among(panel)), priors=desk.priors)
    perform = door(cast, moment)
    if options.on_step:
        perform = observe(perform, begun=options.on_step)
    return Job(
        reconsidered(trace, as_before(trace, plan, options)),
        plan,
        perform,
        desk,
        cast.writer.name if cast.writer else None,
        options.store,
    )


NO_MODEL = (
    "no model was found, so nothing can be written: Redraft looked for REDRAFT_MODEL, OPENAI_API_KEY, and local servers of "
    "Ollama, LM Studio, llama.cpp and vLLM (`redraft models` tells more). Name one as `model`, or give a `response` and "
    "requirements: the built-in editor can repair an answer, but it never invents one"
)


def _task(given: str | Iterable[Message] | Task) -> Task:
    if isinstance(given, Task):
        return given
    try:
        return Task(given)
    except ValueError as error:
        raise ConfigError(f"task: {error}") from error


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
    if trace.outcome is None or not isinstance(plan, Adaptive) or options.priors is not None or options.plan is not None:
        return plan
    untaught = replace(plan, priors=Priors())
    return untaught if believes(untaught, trace) and not believes(plan, trace) else plan


def believes(plan: Adaptive, trace: Trace) -> bool:
    """Whether a plan would believe at the end of a trace what was believed there."""
    end = trace.outcome
    return end is not None and plan.keep(opened(trace).reopened(), end.reason, end.note) == end


async def drive(job: Job) -> AsyncGenerator[Trace, None]:
    """Carry a job out: every record is stored, then told, then the trace is handed on."""
    trace = job.trace
    if job.store:
        job.store.append(trace)
    try:
        async with aclosing(advance(trace, job.plan, job.perform)) as growing:
            async for trace in growing:
                keep(job, trace)
                yield trace
        if not trace.outcome:
            trace = ended(trace, job.plan)
            keep(job, trace)
            yield trace
    finally:
        if job.owned:
            await job.desk.close()


def keep(job: Job, trace: Trace) -> None:
    """Store the newest record, then tell of it."""
    if job.store:
        job.store.append(trace)
    if job.desk.options.on_record:
        job.desk.options.on_record(trace.records[-1])


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
    trace = job.trace
    try:
        async with aclosing(drive(job)) as growing:
            async for grown in growing:
                trace = grown
    except asyncio.CancelledError:
        if not trace.graded:
            raise
        uncancel()
        trace = ended(trace, job.plan, StopReason.CANCELLED, "interrupted")
        keep(job, trace)
    except RedraftError as error:
        error.result = Result(trace) if trace.candidates else None
        raise
    return concluded(trace, strict=job.desk.options.strict_budget)


def uncancel() -> None:
    """Go on in a task that was cancelled."""
    current = asyncio.current_task()
    while current and current.cancelling():
        current.uncancel()


def sync(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end: here, or in a thread of its own where an event loop is running. Ctrl-C cancels the work."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    at_work: list[asyncio.Task[Any]] = []

    async def watched() -> T:
        at_work.extend(filter(None, [asyncio.current_task()]))
        return await work

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(asyncio.run, watched())
        try:
            return result.result()
        except KeyboardInterrupt:
            at_work[0].get_loop().call_soon_threadsafe(at_work[0].cancel)
            return result.result()
