"""A refinement: one task and everything that works on it, made and run to its end.

`make_refinement` takes what is given (`Start`), checks it before any call is made, and puts
together the trace that the work begins with, the plan, and what performs the steps. `RefinementRun`
has the engine (`loop.engine`) ask the plan for steps until it stops; each record is stored and
passed on. `refine`, `stream`, batches and `grade` all do these two things.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from ..answers import AnswerForm
from ..base.checks import format_value, is_blank
from ..base.log import log, record_log
from ..base.sync import check_event_loop
from ..errors import ConfigError, RedraftError, attach
from ..loop.engine import Engine
from ..loop.fields import FORM_SETTING, JSON_FORM
from ..loop.records import Candidate, Comparison, Feedback, Record, StopReason
from ..loop.task import Message, Task, message_text
from ..loop.trace import PanelGrader, Trace
from ..middleware.observe import CallbackErrors, observe, observer
from ..plans import (
    UNLIMITED,
    Left,
    Plan,
    PlanDecision,
    outcome_if_stopped,
    plan_traits,
)
from ..plans.base import RoundByRound, returns_rounds
from ..plans.self_refine import full_note
from ..protocols import Perform, Store
from ..requirements import parse, reads_file
from ..requirements.spec import check_foreign_spec
from ..result import Result, raise_if_failed
from ..tables.columns import PROMPT_NAMES, RESPONSE_NAMES, infer_columns
from .models import Models
from .options import (
    Options,
    plan_settings,
    reopen_if_needed,
    with_original_settings,
    with_plan_settings,
)
from .panel import TaskPanel, graders_for_tasks
from .perform import Roles, make_performer
from .reservations import Reservations
from .session import Session

Sample: TypeAlias = Task | tuple[str | Sequence[Message], str] | Mapping[str, Any]
"""A `Task` with a response, `(prompt, response)`, or a mapping such as {"query": ..., "response":
...}.
"""
TaskInput: TypeAlias = str | Iterable[Message] | Sample | Trace
NO_MODEL_MESSAGE = (
    "no model was found, so nothing can be written: Redraft looked for REDRAFT_MODEL, "
    "OPENAI_API_KEY, and local servers of Ollama, LM Studio, llama.cpp and vLLM (`redraft models` "
    "shows what it found). Name one as `model`, or give a `response` and requirements: the "
    "built-in editor can repair an answer, but it never invents one"
)
MODEL_DISABLED_MESSAGE = (
    "model=False: there is no model, and nothing to repair: name a model, such as "
    "model='openai:gpt-4o-mini', or give the task a `response` and requirements"
)


@dataclass(frozen=True, eq=False, slots=True)
class Refinement:
    """A refinement that is ready to run: the trace that it begins with, and what performs the steps
    that a plan asks for.

    `next_steps` is the plan as the engine asks it, such as round by round; `plan` itself says which
    answer is best. `owns_session`: the session is for this refinement alone, which closes it.
    """

    trace: Trace
    plan: Plan
    next_steps: Plan
    perform: Perform
    session: Session
    roles: Roles
    store: Store | None = None
    reservations: Reservations | None = None
    callback_errors: CallbackErrors = field(default_factory=CallbackErrors)
    owns_session: bool = True

    @property
    def answer(self) -> AnswerForm[Any] | None:
        """The form of the answer; None for any text."""
        form: AnswerForm[Any] | None = self.session.options.answer
        return form

    def result(self, trace: Trace, error: RedraftError | None = None) -> Result[Any]:
        """Return the result of a trace of this refinement."""
        return Result(trace, error, self.answer, self.plan, self.callback_errors.texts)

    def result_or_raise(self, trace: Trace) -> Result[Any]:
        """Return the result of a finished trace. Raises its error (see `raise_if_failed`)."""
        result = self.result(trace)
        raise_if_failed(result, self.roles.traits, strict_budget=self.session.options.strict_budget)
        return result


async def prepare_refinement(
    task: TaskInput, model: Any, graders: Any, judge: Any, options: Options
) -> Refinement:
    """Prepare a refinement and check all arguments before any call is made. Raises ConfigError."""
    task = task if isinstance(task, Trace) else as_task(task)
    session = await open_session([task], model, graders, judge, options)
    return make_refinement(task, session, options.deadline_at, model_searched=model is None)


async def open_session(
    tasks: Iterable[Task | Trace], model: Any, graders: Any, judge: Any, options: Options
) -> Session:
    """Return the session of a run with these tasks. Raises ConfigError."""
    given = [task.task if isinstance(task, Trace) else task for task in tasks]
    named = graders_for_tasks(graders, judge, options.answer, given)
    models = Models(options, await resolve_model(model), None if judge is False else judge)
    session = Session(options, models, named)
    log_default_judge(session)
    return session


def log_default_judge(session: Session) -> None:
    """Log which model the default judge asks, if nothing is named that grades."""
    if note := session.default_judge_note:
        log.info(note)


async def resolve_model(model: Any) -> Any:
    """Return the given model, or one that is found; None for False, or if none is found. Raises
    RedraftError without asyncio.
    """
    check_event_loop()
    if model is not None:
        return None if model is False else model
    from ..models import find_model  # most runs name their model

    try:
        return (await find_model()).model
    except asyncio.CancelledError as error:
        attach(error, result=None)  # no call has begun
        raise


class Start(NamedTuple):
    """What a refinement begins with: a task, the answers that are graded first, and the trace that
    it continues.
    """

    task: Task
    answers: Sequence[str] = ()
    earlier: Trace | None = None

    @property
    def has_text(self) -> bool:
        """Whether there is a text, so that no model need write one."""
        return bool(self.answers or (self.earlier and self.earlier.candidates))


def make_refinement(
    given: TaskInput,
    session: Session,
    deadline_at: float | None = None,
    *,
    owns_session: bool = True,
    model_searched: bool = True,
    plan: Plan | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Refinement:
    """Make a refinement in a session, with its deadline on the monotonic clock. Raises ConfigError.

    `owns_session`: it is the only one there, so it may spend all that is left, and closes the
    session. `model_searched`: a model was searched for, which the message says if there is none.
    `plan` replaces the session's; `settings` are its `plan_settings`, if they are known.
    """
    start = _start_of(given)
    task, options = start.task, session.options
    graders = _checked_panel(start, session, model_searched=model_searched)
    roles = graders.roles.for_task(task)
    usual_plan = plan if plan and not start.earlier else session.plan_for(noisy=graders.is_noisy)
    plan = plan or usual_plan
    settings = plan_settings(plan) if settings is None else settings
    trace = _starting_trace(start, graders.panel, roles.answer, settings)
    if start.earlier:
        usual_plan = with_original_settings(trace, usual_plan, options)
        trace = with_plan_settings(reopen_if_needed(trace, usual_plan), settings)
    reservations = _reservations(trace, roles, session, deadline_at)
    errors = CallbackErrors(of_all=session.callback_errors)
    perform = make_performer(roles, deadline_at, options.deadline)
    if reservations:
        perform = reservations.wrap(perform)
    if options.on_step:
        perform = observe(perform, partial(errors.call, "on_step", options.on_step))
    # of a budget that tasks share, the others may yet leave their part unspent
    left = partial(_limits_left, session, deadline_at) if owns_session else lambda: UNLIMITED
    return Refinement(
        trace,
        plan,
        next_steps=_in_rounds(plan, left),
        perform=perform,
        session=session,
        roles=roles,
        store=options.store,
        reservations=reservations,
        callback_errors=errors,
        owns_session=owns_session,
    )


def _start_of(given: TaskInput) -> Start:
    """Return what a refinement of this input begins with. Raises ConfigError."""
    if not isinstance(given, Trace):
        task = _with_file_contents(as_task(given))
        return Start(task, task.given_responses)
    trace = _check_reads_no_files(given)
    return Start(trace.task, () if trace.candidates else trace.task.given_responses, trace)


def _checked_panel(start: Start, session: Session, *, model_searched: bool) -> TaskPanel:
    """Return the panel of the task. Raises ConfigError if nothing can be written or nothing is
    asked, or if a grader or a prompt of the user cannot work on the task.
    """
    task = start.task
    if session.models.writer is None and not start.has_text:
        raise ConfigError(NO_MODEL_MESSAGE if model_searched else MODEL_DISABLED_MESSAGE)
    if all(is_blank(message_text(message)) for message in task.messages):
        raise ConfigError(f"task: the prompt is empty, got {format_value(task.prompt)}")
    graders = session.resolve_panel(task.requirements, has_tests=bool(task.tests))
    graders.check_task(task)
    prompts = session.options.plan_prompts
    if prompts and (prompts.draft or prompts.refine):
        prompts.check_columns(task.metadata)
    return graders


def _starting_trace(
    start: Start,
    panel: tuple[PanelGrader, ...],
    form: AnswerForm[Any] | None,
    settings: Mapping[str, Any],
) -> Trace:
    """Return the trace that the work begins with: the records of an earlier trace, if there is one,
    and the given answers.
    """
    earlier, answers = start.earlier, start.answers
    records: tuple[Record, ...] = earlier.records if earlier else ()
    recorded: Mapping[str, Any] = earlier.settings if earlier else {}
    if form:
        records, recorded = _in_form(records, recorded, form)
        answers = [form.extract(text, given=True) for text in answers]
    records = (*records, *[Candidate(id, text) for id, text in enumerate(answers)])
    if earlier:
        return Trace(start.task, panel, records, earlier.resumed_at, recorded)
    return Trace(start.task, panel, records, len(records), {**recorded, **settings})


def _in_form(
    records: tuple[Record, ...], settings: Mapping[str, Any], form: AnswerForm[Any]
) -> tuple[tuple[Record, ...], Mapping[str, Any]]:
    """Return the records of a trace, with the answers in them that were given extracted, and its
    settings with the form.

    Raises ConfigError if the trace has answers of another form.
    """
    kind, saved = _form_kind(form), settings.get(FORM_SETTING)
    given = [
        record for record in records if isinstance(record, Candidate) and record.role == "given"
    ]
    if saved is None and len(given) == len(records):
        records = tuple(
            [
                replace(candidate, text=form.extract(candidate.text, given=True))
                for candidate in given
            ]
        )
    elif records and saved != kind:
        raise ConfigError(
            f"answer: the trace was made with {'another' if saved else 'no'} form of answer, so "
            f"its grades do not say whether an answer is valid as {form.name}; pass its task, "
            "with the best answer as `response`"
        )
    return records, {**settings, FORM_SETTING: kind}


def _form_kind(form: AnswerForm[Any]) -> str:
    """Return what the settings of a trace say of the form of its answers."""
    return f"{JSON_FORM if form.is_json else 'text'}:{form.fingerprint}"


def _reservations(
    trace: Trace, roles: Roles, session: Session, deadline_at: float | None
) -> Reservations | None:
    """Return what reserves money and time for the grades of each text; None without limits."""
    budget = session.options.budget
    if deadline_at is None and not (budget and budget.limits):
        return None
    return Reservations(
        trace, roles, session.models.budget_tracker, deadline_at, session.statistics
    )


def _in_rounds(plan: Plan, left: Callable[[], Left]) -> Plan:
    """Return a noise-aware plan as one that is asked round by round, given what is left; another
    plan as it is.
    """
    noise_aware = plan_traits(plan).noise_aware
    if noise_aware is None:
        return plan

    def decide(trace: Trace) -> PlanDecision:
        return noise_aware.decide(trace, left())

    return RoundByRound(decide, decide)


def _limits_left(session: Session, deadline_at: float | None) -> Left:
    """Return what the only task of a session may still spend."""
    seconds = None if deadline_at is None else max(0.0, deadline_at - monotonic())
    return Left(**session.models.budget_tracker.left, seconds=seconds)


async def finish_refinement(refinement: Refinement) -> Result[Any]:
    """Run a refinement to its end and return its result, or raise its error."""
    return refinement.result_or_raise(await RefinementRun(refinement).finish())


class RefinementRun:
    """A refinement that runs. Every record is stored, then passed to `on_record`; `trace` is the
    latest trace, also once an error has ended the run.

    When cancelled or closed, it makes no more calls; what was recorded by then, and an outcome
    `cancelled`, is stored and passed on. CancelledError and RedraftError carry the result so far as
    `result`.
    """

    def __init__(self, refinement: Refinement) -> None:
        self.trace = refinement.trace
        self._refinement = refinement
        self._reported_count = len(refinement.trace.records)

    async def traces(self) -> AsyncGenerator[Trace, None]:
        """Run to the end, and yield the trace after each record. It frees what the refinement
        holds.
        """
        try:
            async with AsyncExitStack() as resources:
                engine = await self._start(resources)
                while not engine.is_over:
                    yield await self._next_trace(engine)
        except BaseException as error:
            await self._attach_result(error)
            raise

    async def _start(self, resources: AsyncExitStack) -> Engine:
        """Return the engine that runs the refinement until `resources` are closed."""
        refinement, roles = self._refinement, self._refinement.roles
        if refinement.owns_session:
            resources.push_async_callback(refinement.session.close)
        if refinement.reservations:
            resources.callback(refinement.reservations.release)
        self._persist(self.trace)
        writer = roles.writer.name if roles.writer else None
        record_steps = resources.enter_context(
            observer().record_refinement(lambda: self.trace, writer, roles.known_fingerprint)
        )
        engine = Engine(
            self.trace,
            refinement.next_steps,
            record_steps(refinement.perform),
            self._persist,
            by_rounds=returns_rounds(refinement.plan),
        )
        return await resources.enter_async_context(engine)

    async def finish(self) -> Trace:
        """Run to the end, and return the last trace."""
        async with aclosing(self.traces()) as traces:
            async for _ in traces:
                pass
        return self.trace

    async def _next_trace(self, engine: Engine) -> Trace:
        """Return the next trace, whose new record is stored and passed on. Not once the engine is
        over.
        """
        trace = await engine.next_trace()
        if trace is None:
            trace = engine.trace = with_outcome(self.trace, self._refinement.plan)
        await self._add(trace)
        return trace

    async def _attach_result(self, error: BaseException) -> None:
        """Give an error the result so far; an interruption becomes the outcome."""
        if isinstance(error, asyncio.CancelledError | GeneratorExit | KeyboardInterrupt):
            if not self.trace.outcome:
                try:
                    await self._add(
                        with_outcome(
                            self.trace, self._refinement.plan, StopReason.CANCELLED, "interrupted"
                        )
                    )
                except asyncio.CancelledError as again:  # while `on_record` works
                    await self._attach_result(again)
                    raise
            attach(error, result=self._refinement.result(self.trace))
        elif isinstance(error, RedraftError):
            error.result = self._refinement.result(self.trace) if self.trace.candidates else None
            error.usage = self.trace.usage

    async def _add(self, trace: Trace) -> None:
        """Store the new records of a trace, then log them and pass them to `on_record`."""
        self._persist(trace)
        refinement = self._refinement
        for record in trace.records[self._reported_count :]:
            self._reported_count += 1
            _log_record(record, trace.task.id)
            if on_record := refinement.session.options.on_record:
                await refinement.callback_errors.call("on_record", on_record, record)

    def _persist(self, trace: Trace) -> None:
        """Store the new records of a trace; `on_record` gets them with the next trace."""
        self.trace = trace
        if self._refinement.store:
            self._refinement.store.append(trace)


def with_outcome(
    trace: Trace, plan: Plan, reason: StopReason | None = None, note: str = ""
) -> Trace:
    """Add an outcome, for plans that end without one and for runs that are cut short."""
    failure = trace.fatal_failure
    if reason is None and failure is not None:
        reason, note = failure.stop_reason or StopReason.FAILED, failure.message
    if reason is None:
        reason, note = (
            (StopReason.DONE, "the plan has no more steps")
            if trace.graded_candidates
            else (StopReason.FAILED, "")
        )
    return trace + outcome_if_stopped(plan, trace, reason, full_note(trace, note))


def _log_record(record: Record, task_id: str | None) -> None:
    """Log a draft, a repair or a grade in one line, without its text."""
    if not record_log.isEnabledFor(logging.INFO):
        return
    match record:
        case Candidate():
            what = f"candidate {record.id}: {record.role} by {record.by}"
        case Feedback():
            score = "no score" if record.score is None else f"{record.score:.2f}"
            what = f"candidate {record.candidate}: {score} by {_grader_text(record)}"
        case Comparison():
            what = f"candidates {record.order_text} by {_grader_text(record)}"
        case _:
            return
    tokens = "unknown" if record.usage.tokens is None else f"{record.usage.tokens:,}"
    seconds = "" if record.seconds is None else f", {record.seconds:.2f} s"
    record_log.info(
        "%s; calls %d, tokens %s%s",
        what,
        record.usage.calls,
        tokens,
        seconds,
        extra={"task": task_id},
    )


def _grader_text(record: Feedback | Comparison) -> str:
    """Return the grader without its argument, which may quote a text, and the model that it
    asked.
    """
    name = record.grader.partition(":")[0]
    return f"{name} ({record.by})" if record.by else name


def as_task(task: Any, name: str = "task") -> Task:
    """Return the task that a prompt, chat messages or a `Sample` stand for. Raises ConfigError that
    begins with the name.
    """
    try:
        match task:
            case Task():
                return task
            case Mapping():
                return _task_of_mapping(task)
        return Task(*task) if is_pair(task) else Task(task)
    except ValueError as error:  # a ConfigError is one
        raise ConfigError(f"{name}: {str(error).removeprefix('messages: ')}") from None


def is_pair(task: Any) -> bool:
    """Return whether a value is a prompt, or chat messages, with a response."""
    return isinstance(task, tuple) and len(task) == 2 and isinstance(task[1], str)


def _task_of_mapping(row: Mapping[str, Any]) -> Task:
    try:
        columns = infer_columns([row], check_requirement=check_foreign_spec)
    except ConfigError as error:
        problem = str(error).partition("; ")[0].replace("column", "key")
        raise ConfigError(
            f"{problem}; a mapping has one key for the prompt ({', '.join(PROMPT_NAMES)} or "
            f"messages) and one for the response ({', '.join(RESPONSE_NAMES)}), got "
            f"{', '.join(map(repr, list(row)[:20])) or 'no key'}"
        ) from None
    return columns.task(row)


def _with_file_contents(task: Task) -> Task:
    """Replace files that requirements name by their contents, so that the trace is
    self-contained.
    """
    if not (task.requirements and any(map(reads_file, task.requirements))):
        return task
    return replace(
        task,
        requirements=tuple(
            parse(spec).spec if reads_file(spec) else spec for spec in task.requirements
        ),
    )


def _check_reads_no_files(trace: Trace) -> Trace:
    """Raise ConfigError for a trace whose requirements read files: its author must not choose files
    here.
    """
    for spec in filter(reads_file, trace.task.requirements):
        parse(spec, files=False)
    return trace
