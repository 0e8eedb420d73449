"""The public entry points: `refine`, `refine_sync`, `stream` and `refine_many`, and the refinement behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any, Unpack

from .checks import format_value, invalid_argument
from .core.cancellation import cancel_and_wait
from .core.engine import advance
from .core.records import Candidate, Outcome, StopReason
from .core.steps import Stop
from .core.task import Message, Task, message_text
from .core.trace import Trace
from .errors import ConfigError, RedraftError
from .middleware.observe import observe
from .models import find_model
from .options import Options
from .perform import make_performer
from .plans import NoiseAwarePlan, Plan, outcome_if_stopped
from .protocols import Perform, Store
from .quality.lineage import llm_graders
from .quality.priors import Priors
from .requirements import parse, reads_file
from .reservations import Reservations
from .result import Result, result_or_raise
from .session import Session, check_task
from .settings import Settings
from .sync import run_sync

TaskInput = str | Iterable[Message] | Task | Trace


async def refine(
    task: TaskInput,
    model: Any = None,
    graders: Any = None,
    judge: Any = None,
    **settings: Unpack[Settings],
) -> Result:
    """Answer a task as well as the settings allow, and return the best answer with everything that led to it.

    When cancelled, it makes no further call and raises CancelledError, which carries the best answer so far as `.result`;
    under `asyncio.timeout` that is `error.__cause__.result` of the TimeoutError. A TaskGroup drops that exception; `on_record`
    and a `store` have every record in any case. Use `deadline` to get the best answer by a given time.

    Every error carries the best answer so far as `.result`, or None.

    Args:
        task: A prompt, chat messages, a `Task`, or a `Trace` to continue, whose requirements name no files.
        model: The model that writes: a name such as "openai:gpt-4o-mini", a `Model`, or a function `(messages) -> str`, sync or
            async. None looks for one (see `redraft models`) and works with the editor alone if there is none; False means no
            model.
        graders: A name, the spec of a requirement such as "words:80-200", a function, a grader, or a list of these. None means
            the LLM judge.
        judge: The model that LLM graders ask, in the same forms. None means `model`.
        **settings: Any of the settings, such as `target_score`, `max_iterations`, `budget` or `deadline`.

    Returns:
        The best answer with its score, the reason why the work stopped, and the trace. At the end of a budget or deadline it
            is the best so far.

    Raises:
        ConfigError: An argument is wrong. Raised before any call.
        ModelError: No answer could be obtained.
        GradingError: No answer could be graded.
        BudgetExhaustedError: The budget or the time ran out before anything was graded; with `strict_budget` also afterwards.
    """
    options = Options.from_settings(settings)
    return await finish_refinement(await prepare_refinement(task, model, graders, judge, options))


def refine_sync(task: TaskInput, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]) -> Result:
    """Call `refine` without await. It also works where an event loop is running.

    Ctrl-C stops it at once: KeyboardInterrupt carries the best answer so far as `.result`, or None if no call had begun.

    Args:
        task: As in `refine`.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        **settings: As in `refine`.

    Returns:
        As in `refine`, which also lists the errors.
    """
    return run_sync(refine(task, model, graders, judge, **settings))


async def stream(
    task: TaskInput, model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> AsyncGenerator[Trace, None]:
    """Refine, and yield the trace after each new record.

    The last trace has an `outcome`. Arguments and errors are those of `refine`, except that a limit that ends the run early, such
    as a budget, raises no error: it is the reason in the outcome. If the generator is cancelled or closed early, it
    makes no further call.

    Args:
        task: As in `refine`.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        **settings: As in `refine`.

    Yields:
        The trace so far. Its newest record is `trace.records[-1]`; `trace.best` is the best answer so far, or None.
    """
    refinement = await prepare_refinement(task, model, graders, judge, Options.from_settings(settings))
    async with aclosing(run_refinement(refinement)) as traces:
        async for trace in traces:
            yield trace


async def refine_many(
    tasks: Iterable[TaskInput], model: Any = None, graders: Any = None, judge: Any = None, **settings: Unpack[Settings]
) -> list[Result]:
    """Refine many tasks with one budget, one deadline and one limit on calls in flight.

    A task that fails does not stop the others. When cancelled, it makes no further call, and CancelledError carries `.results`,
    one for each task.

    Args:
        tasks: The tasks, each as in `refine`.
        model: As in `refine`.
        graders: As in `refine`.
        judge: As in `refine`.
        **settings: As in `refine`; `budget`, `deadline` and `max_in_flight` are shared by all tasks.

    Returns:
        One result for each task, in their order. The result of a task that failed has an `error`.

    Raises:
        ConfigError: An argument is wrong. Raised before any call.
    """
    inputs = as_tasks(tasks)
    refinements: list[Refinement] = []
    running: list[asyncio.Task[Result]] = []
    try:
        async with AsyncExitStack() as cleanup:
            session = Session(Options.from_settings(settings), await resolve_model(model), graders, judge)
            cleanup.push_async_callback(session.close)
            deadline_at = session.options.deadline_at
            refinements += [
                replace(
                    with_priors_in_settings(make_refinement(task, session, deadline_at, model_searched=model is None)),
                    owns_session=False,
                )
                for task in inputs
            ]
            semaphore = asyncio.Semaphore(session.options.max_in_flight)
            running += [asyncio.ensure_future(_refine_one(refinement, semaphore)) for refinement in refinements]
            cleanup.push_async_callback(cancel_and_wait, running)
            return await asyncio.gather(*running)
    except asyncio.CancelledError as error:
        error.results = [_result_of(task, refinement) for task, refinement in zip(running, refinements, strict=True)]  # type: ignore[attr-defined]
        raise


async def _refine_one(refinement: Refinement, semaphore: asyncio.Semaphore) -> Result:
    trace = refinement.trace
    try:
        async with semaphore:
            trace = await final_trace(refinement)
        return result_or_raise(trace, strict_budget=refinement.session.options.strict_budget)
    except RedraftError as error:
        return Result(error.result.trace if error.result else trace, error)
    except asyncio.CancelledError as cancelled:
        return getattr(cancelled, "result", None) or Result(refinement.trace)


def _result_of(finished: asyncio.Task[Result], refinement: Refinement) -> Result:
    """Return the result of a finished task; the state before it if it failed or was cancelled."""
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
    next_steps: Plan | None = None  # called instead of the plan: a wrapper that records or prices its decisions


async def prepare_refinement(task: TaskInput, model: Any, graders: Any, judge: Any, options: Options) -> Refinement:
    """Prepare a refinement and check all arguments before any call is made. Raises ConfigError."""
    session = Session(options, await resolve_model(model), graders, judge)
    return with_priors_in_settings(make_refinement(task, session, options.deadline_at, model_searched=model is None))


async def resolve_model(model: Any) -> Any:
    """Return the given model, or one that is found; None for False, or if none is found."""
    if model is not None:
        return None if model is False else model
    try:
        return (await find_model()).model
    except asyncio.CancelledError as error:
        error.result = None  # type: ignore[attr-defined]  # no call has begun
        raise


def make_refinement(
    task: TaskInput, session: Session, deadline_at: float | None = None, *, model_searched: bool = True
) -> Refinement:
    """Make a refinement in a session, with its deadline on the monotonic clock. Raises ConfigError.

    `model_searched` says whether a model was searched for, for the message if there is none.
    """
    options = session.options
    trace = _check_reads_no_files(task) if isinstance(task, Trace) else Trace(_with_file_contents(_as_task(task)))
    response = trace.task.response
    if session.writer is None and response is None and not trace.candidates:
        raise ConfigError(NO_MODEL_MESSAGE if model_searched else MODEL_DISABLED_MESSAGE)
    if not any(message_text(message).strip() for message in trace.task.messages):
        raise ConfigError(f"task: the prompt is empty, got {format_value(trace.task.prompt)}")
    panel, roles = session.resolve_panel(trace.task.requirements)
    if trace.task.tools:
        sampling = replace(roles.sampling, tools=trace.task.tools, tool_choice=trace.task.tool_choice)
        roles = replace(roles, sampling=sampling)
    for grader in roles.graders.values():
        check_task(grader, trace.task)
    trace = replace(trace, panel=panel)
    if response is not None and not trace.candidates:
        trace += Candidate(0, response)
    plan = options.make_plan(writes=roles.writer is not None, noisy=bool(llm_graders(panel)), priors=session.priors)
    perform = make_performer(roles, deadline_at, options.deadline)
    reservations = None
    if options.budget or deadline_at is not None:
        reservations = Reservations(trace, roles, session.budget_tracker, deadline_at, session.statistics)
        perform = reservations.wrap(perform)
    if options.on_step:
        perform = observe(perform, on_start=options.on_step)
    return Refinement(
        reopen_if_needed(trace, with_original_priors(trace, plan, options)),
        plan,
        perform,
        session,
        roles.writer.name if roles.writer else None,
        options.store,
        reservations=reservations,
    )


def with_priors_in_settings(refinement: Refinement) -> Refinement:
    """Record the priors of the plan in the settings of the trace if they are not the shipped ones."""
    settings = {name: value for name, value in refinement.trace.settings.items() if name != "priors"}
    if isinstance(refinement.plan, NoiseAwarePlan) and refinement.plan.priors != Priors():
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
    "Ollama, LM Studio, llama.cpp and vLLM (`redraft models` shows what it found). Name one as `model`, or give a `response` and "
    "requirements: the built-in editor can repair an answer, but it never invents one"
)


def as_tasks(tasks: Any) -> list[TaskInput]:
    """Return the tasks in an iterable. Raises ConfigError for a single task, or anything else."""
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
    """Replace files that requirements name by their contents, so that the trace is self-contained."""
    if not any(map(reads_file, task.requirements)):
        return task
    return replace(task, requirements=tuple(parse(spec).spec if reads_file(spec) else spec for spec in task.requirements))


def _check_reads_no_files(trace: Trace) -> Trace:
    """Raise ConfigError for a trace whose requirements read files: its author must not choose files here."""
    for spec in filter(reads_file, trace.task.requirements):
        parse(spec, files=False)
    return trace


async def run_refinement(refinement: Refinement) -> AsyncGenerator[Trace, None]:
    """Run a refinement. Every record is stored, then passed to `on_record`, then the trace is yielded.

    When cancelled or closed, it makes no more calls; what was recorded by then, and an outcome `cancelled`, is stored and
    passed on. CancelledError and RedraftError carry the result so far as `result`.
    """
    log = RecordLog(refinement)
    try:
        try:
            log.add(refinement.trace)
            async with aclosing(
                advance(refinement.trace, refinement.next_steps or refinement.plan, refinement.perform, log.persist)
            ) as traces:
                async for trace in traces:
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
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt) as interruption:
        if not log.trace.outcome:
            log.add(with_outcome(log.trace, refinement.plan, StopReason.CANCELLED, "interrupted"))
        interruption.result = Result(log.trace)  # type: ignore[union-attr]
        raise
    except RedraftError as error:
        error.result = Result(log.trace) if log.trace.candidates else None
        error.usage = log.trace.usage
        raise


class RecordLog:
    """Passes the records of a refinement to its store, then to `on_record`. `trace` is the latest trace."""

    def __init__(self, refinement: Refinement) -> None:
        self.trace = refinement.trace
        self._reported_count = len(refinement.trace.records)
        self._store, self._on_record = refinement.store, refinement.session.options.on_record

    def add(self, trace: Trace) -> None:
        """Store the new records of a trace, then pass them to `on_record`."""
        self.persist(trace)
        if self._on_record:
            for record in trace.records[self._reported_count :]:
                self._reported_count += 1
                self._on_record(record)

    def persist(self, trace: Trace) -> None:
        """Store the new records of a trace; `on_record` gets them with the next `add`."""
        self.trace = trace
        if self._store:
            self._store.append(trace)


def with_outcome(trace: Trace, plan: Plan, reason: StopReason | None = None, note: str = "") -> Trace:
    """Add an outcome, for plans that end without one and for runs that are cut short."""
    failure = trace.fatal_failure
    if reason is None and failure is not None:
        reason, note = failure.stop_reason or StopReason.FAILED, failure.message
    if reason is None:
        reason, note = (
            (StopReason.DONE, "the plan has no more steps")
            if trace.graded_candidates
            else (StopReason.FAILED, "nothing could be graded")
        )
    return trace + outcome_if_stopped(plan, trace, reason, note)


async def finish_refinement(refinement: Refinement) -> Result:
    """Run a refinement to its end and return its result, or raise its error."""
    return result_or_raise(await final_trace(refinement), strict_budget=refinement.session.options.strict_budget)


async def final_trace(refinement: Refinement) -> Trace:
    """Run a refinement to its end and return its last trace."""
    trace = refinement.trace
    async with aclosing(run_refinement(refinement)) as traces:
        async for latest in traces:
            trace = latest
    return trace


def reopen_if_needed(trace: Trace, plan: Plan) -> Trace:
    """Return a finished trace unchanged if the plan would end it again for the same reason, else without its outcome."""
    if trace.outcome is None:
        return trace
    reasons = [step.reason for step in plan(without_outcome(trace).for_new_run()) if isinstance(step, Stop)]
    return trace if reasons == [trace.outcome.reason] else without_outcome(trace)


def without_outcome(trace: Trace) -> Trace:
    """Return a trace without its outcome."""
    return replace(trace, records=tuple(r for r in trace.records if not isinstance(r, Outcome)))


def with_original_priors(trace: Trace, plan: Plan, options: Options) -> Plan:
    """Return the plan with the shipped priors if those reproduce the stored outcome and the learned ones do not.

    Priors that were learned in the meantime must not cause more calls; priors that the user gives may.
    """
    if trace.outcome is None or not isinstance(plan, NoiseAwarePlan) or options.priors != "learned" or options.plan is not None:
        return plan
    shipped = plan.with_priors(Priors())
    return shipped if reproduces(shipped, trace) and not reproduces(plan, trace) else plan


def reproduces(plan: NoiseAwarePlan, trace: Trace) -> bool:
    """Whether the plan reproduces the trace's stored outcome."""
    end = trace.outcome
    return end is not None and plan.outcome_if_stopped(without_outcome(trace).for_new_run(), end.reason, end.note) == end
