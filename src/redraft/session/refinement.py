"""A refinement: a task with its plan, its performer and its session, prepared, run to its end, and
reopened.

`refine`, `stream`, batches and `grade` prepare a `Refinement` and run it with `final_trace` or
`run_refinement`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, Self, TypeAlias

from ..answers import AnswerForm
from ..answers.forms import form_for_task
from ..base.checks import format_value, is_blank
from ..base.log import log, record_log
from ..base.sync import check_event_loop
from ..errors import ConfigError, RedraftError
from ..graders.fingerprint import grader_fingerprint
from ..loop.engine import Engine
from ..loop.fields import FORM_SETTING, JSON_FORM
from ..loop.records import Candidate, Comparison, Feedback, Outcome, Record, StopReason
from ..loop.steps import Stop
from ..loop.task import Message, Task, message_text
from ..loop.trace import PanelGrader, Trace
from ..middleware.observe import CallbackErrors, observe
from ..plans import (
    UNLIMITED,
    Left,
    NoiseAwarePlan,
    Plan,
    PlanDecision,
    outcome_if_stopped,
    plan_traits,
)
from ..plans.limits import asks_model
from ..plans.prompts import DraftPrompt, RefinePrompt
from ..plans.quality.calibration import Calibration
from ..plans.quality.priors import Priors
from ..plans.rounds import RoundByRound, returns_rounds
from ..plans.self_refine import full_note
from ..protocols import Perform, Store
from ..requirements import parse, reads_file
from ..requirements.spec import check_foreign_spec
from ..result import Result, result_or_raise
from ..tables.columns import PROMPT_NAMES, RESPONSE_NAMES, infer_columns
from ..telemetry import RecordSteps, record_refinement
from .options import SHIPPED, Options
from .perform import make_performer
from .reservations import Reservations
from .session import Session, graders_for_tasks

CALIBRATION_KEY = (
    "calibration"  # of what people's labels say about the judge, in the settings of a trace
)
PROMPT_KEYS = ("draft-prompt", "refine-prompt")  # of own prompts in the settings of a trace
# of all that is recorded of a plan
PLAN_KEYS = frozenset({"priors", CALIBRATION_KEY, *PROMPT_KEYS})
Sample: TypeAlias = Task | tuple[str | Sequence[Message], str] | Mapping[str, Any]
"""A `Task` with a response, `(prompt, response)`, or a mapping such as {"query": ..., "response":
...}.
"""
TaskInput: TypeAlias = str | Iterable[Message] | Sample | Trace


@dataclass(eq=False, slots=True)
class Refinement:
    """One refinement, ready to run. Whoever prepares it may still set its fields."""

    trace: Trace
    plan: Plan
    perform: Perform
    session: Session
    writer_name: str | None = None  # the name of the model that writes
    store: Store | None = None
    owns_session: bool = True
    reservations: Reservations | None = None
    next_steps: Plan | None = (
        None  # called instead of the plan: a wrapper that records or prices its decisions
    )
    fingerprint: Callable[[str], str] | None = None  # of a grader by its name on the panel
    callback_errors: CallbackErrors = field(default_factory=CallbackErrors)
    graders: Mapping[str, Any] = field(default_factory=dict)  # by their names on the panel

    @property
    def answer(self) -> AnswerForm[Any] | None:
        """The form of the answer; None for any text."""
        form: AnswerForm[Any] | None = self.session.options.answer
        return form

    def result(self, trace: Trace, error: RedraftError | None = None) -> Result[Any]:
        """Return the result of a trace of this refinement."""
        return Result(trace, error, self.answer, self.plan, self.callback_errors.texts)

    def result_or_raise(self, trace: Trace) -> Result[Any]:
        """Return the result of a finished trace. Raises its error (see `result_or_raise`)."""
        strict, errors = self.session.options.strict_budget, self.callback_errors.texts
        return result_or_raise(
            trace,
            strict_budget=strict,
            graders=self.graders,
            answer=self.answer,
            plan=self.plan,
            callback_errors=errors,
        )


async def prepare_refinement(
    task: TaskInput, model: Any, graders: Any, judge: Any, options: Options
) -> Refinement:
    """Prepare a refinement and check all arguments before any call is made. Raises ConfigError."""
    task = task if isinstance(task, Trace) else as_task(task)
    session = await open_session([task], model, graders, judge, options)
    deadline_at = options.deadline_at
    refinement = make_refinement(task, session, deadline_at, model_searched=model is None)
    return in_rounds(refinement, lambda: limits_left(session, deadline_at))


async def open_session(
    tasks: Iterable[Task | Trace], model: Any, graders: Any, judge: Any, options: Options
) -> Session:
    """Return the session of a run with these tasks. Raises ConfigError."""
    given = [task.task if isinstance(task, Trace) else task for task in tasks]
    named = graders_for_tasks(graders, judge, options.answer, given)
    session = Session(options, await resolve_model(model), named, None if judge is False else judge)
    log_default_judge(session)
    return session


def log_default_judge(session: Session) -> None:
    """Log which model the default judge asks, if nothing is named that grades."""
    if note := session.default_judge_note:
        log.info(note)


def limits_left(session: Session, deadline_at: float | None) -> Left:
    """Return what the only task of a session may still spend."""
    seconds = None if deadline_at is None else max(0.0, deadline_at - monotonic())
    return Left(**session.budget_tracker.left, seconds=seconds)


def no_limits() -> Left:
    """Return that nothing is limited: for a task that shares a budget, which other tasks may yet
    leave unspent.
    """
    return UNLIMITED


def in_rounds(refinement: Refinement, left: Callable[[], Left] = no_limits) -> Refinement:
    """Return the refinement with a noise-aware plan that is asked round by round, given what is
    left.
    """
    plan = plan_traits(refinement.plan).noise_aware
    if plan is None:
        return refinement

    def decide(trace: Trace) -> PlanDecision:
        return plan.decide(trace, left())

    refinement.next_steps = RoundByRound(decide, decide)
    return refinement


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
        error.result = None  # type: ignore[attr-defined]  # no call has begun
        raise


def make_refinement(
    task: TaskInput,
    session: Session,
    deadline_at: float | None = None,
    *,
    model_searched: bool = True,
    plan: Plan | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Refinement:
    """Make a refinement in a session, with its deadline on the monotonic clock. Raises ConfigError.

    `model_searched` says whether a model was searched for, for the message if there is none. `plan`
    replaces that of the session; `settings` are its `plan_settings`, if they are known.
    """
    options = session.options
    earlier = _check_reads_no_files(task) if isinstance(task, Trace) else None
    task = task.task if isinstance(task, Trace) else _with_file_contents(as_task(task))
    given = () if earlier and earlier.candidates else task.given_responses
    if session.writer is None and not given and not (earlier and earlier.candidates):
        raise ConfigError(NO_MODEL_MESSAGE if model_searched else MODEL_DISABLED_MESSAGE)
    _check_has_prompt(task)
    panel, roles, is_noisy, checks = session.setup(task.requirements, has_tests=bool(task.tests))
    if options.unseen_last and (
        judged := [grader.name for grader in panel if grader.must and asks_model(grader)]
    ):
        raise ConfigError(
            f"unseen_last cannot be combined with a must that a model judges, got {judged[0]!r}"
        )
    roles = replace(roles, answer=form_for_task(options.answer, task))
    if task.tools:
        sampling = replace(
            roles.sampling, tools=task.tools, tool_choice=task.tool_choice, schema=None
        )
        roles = replace(roles, sampling=sampling)
    for check in checks:
        check(task)
    if (prompts := options.plan_prompts) and (prompts.draft or prompts.refine):
        prompts.check_task(task)
    session_plan = session.plan_for(writes=roles.writer is not None, noisy=is_noisy)
    plan = plan or session_plan
    settings = plan_settings(plan) if settings is None else settings
    trace = _starting_trace(
        task,
        panel,
        given,
        earlier,
        settings=settings,
        session_plan=session_plan,
        options=options,
        form=roles.answer,
    )
    perform = make_performer(roles, deadline_at, options.deadline)
    reservations = None
    if session.has_limits or deadline_at is not None:
        reservations = Reservations(
            trace, roles, session.budget_tracker, deadline_at, session.statistics
        )
        perform = reservations.wrap(perform)
    errors = CallbackErrors(of_all=session.callback_errors)
    if options.on_step:
        perform = observe(perform, partial(errors.call, "on_step", options.on_step))
    return Refinement(
        trace,
        plan,
        perform,
        session,
        roles.writer.name if roles.writer else None,
        options.store,
        reservations=reservations,
        fingerprint=partial(session.cached_fingerprint, roles),
        callback_errors=errors,
        graders=roles.traits,
    )


def _starting_trace(
    task: Task,
    panel: tuple[PanelGrader, ...],
    given: Sequence[str],
    earlier: Trace | None,
    *,
    settings: Mapping[str, Any],
    session_plan: Plan,
    options: Options,
    form: AnswerForm[Any] | None,
) -> Trace:
    """Return the trace that the work begins with: the records of an earlier trace, if there is one,
    and the given answers.
    """
    records: tuple[Record, ...] = earlier.records if earlier else ()
    recorded: Mapping[str, Any] = earlier.settings if earlier else {}
    if form:
        records, recorded = _in_form(records, recorded, form)
        given = [form.extract(text, given=True) for text in given]
    records = (*records, *[Candidate(id, text) for id, text in enumerate(given)])
    if earlier is None:
        return Trace(task, panel, records, len(records), {**recorded, **settings})
    trace = Trace(task, panel, records, earlier.resumed_at, recorded)
    trace = reopen_if_needed(trace, with_original_settings(trace, session_plan, options))
    return _with_plan_settings(trace, settings)


def _check_has_prompt(task: Task) -> None:
    """Raise ConfigError if all messages are empty."""
    for message in task.messages:
        if not is_blank(message_text(message)):
            return
    raise ConfigError(f"task: the prompt is empty, got {format_value(task.prompt)}")


def _with_plan_settings(trace: Trace, settings: Mapping[str, Any]) -> Trace:
    """Record a plan (see `plan_settings`) in the settings of a trace, in place of what they had of
    one.
    """
    kept = {name: value for name, value in trace.settings.items() if name not in PLAN_KEYS}
    recorded = {**kept, **settings} if kept else settings
    return trace if recorded == trace.settings else replace(trace, settings=recorded)


def plan_settings(plan: Plan) -> dict[str, Any]:
    """Return what a trace records of a plan: its own prompts, its priors, if they are not the
    shipped ones, and its calibration.
    """
    settings: dict[str, Any] = {}
    traits = plan_traits(plan)
    if (prompts := traits.prompts) and (prompts.draft or prompts.refine):
        own = zip(PROMPT_KEYS, (prompts.draft, prompts.refine), strict=True)
        settings |= {key: prompt_data(prompt) for key, prompt in own if prompt}
    if noise_aware := traits.noise_aware:
        if noise_aware.priors != SHIPPED:
            settings["priors"] = noise_aware.priors.to_dict()
        if noise_aware.calibration:
            settings[CALIBRATION_KEY] = noise_aware.calibration.to_data()
    return settings


def prompt_data(prompt: DraftPrompt | RefinePrompt) -> dict[str, str]:
    """Return a prompt as plain data: a template as it is, a function by its name and a hash of its
    source.
    """
    if isinstance(prompt, str):
        return {"template": prompt}
    name = getattr(prompt, "__qualname__", type(prompt).__qualname__)
    return {"function": str(name), "fingerprint": grader_fingerprint(prompt, lambda _: None)}


def _in_form(
    records: tuple[Record, ...], settings: Mapping[str, Any], form: AnswerForm[Any]
) -> tuple[tuple[Record, ...], Mapping[str, Any]]:
    """Return the records of a trace, with the answers in them that were given extracted, and its
    settings with the form.

    Raises ConfigError if the trace has answers of another form.
    """
    kind, saved = (
        f"{JSON_FORM if form.is_json else 'text'}:{form.fingerprint}",
        settings.get(FORM_SETTING),
    )
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


MODEL_DISABLED_MESSAGE = (
    "model=False: there is no model, and nothing to repair: name a model, such as "
    "model='openai:gpt-4o-mini', or give the task a `response` and requirements"
)
NO_MODEL_MESSAGE = (
    "no model was found, so nothing can be written: Redraft looked for REDRAFT_MODEL, "
    "OPENAI_API_KEY, and local servers of Ollama, LM Studio, llama.cpp and vLLM (`redraft models` "
    "shows what it found). Name one as `model`, or give a `response` and requirements: the "
    "built-in editor can repair an answer, but it never invents one"
)


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


async def run_refinement(refinement: Refinement) -> AsyncGenerator[Trace, None]:
    """Run a refinement. Every record is stored, then passed to `on_record`, then the trace is
    yielded.

    When cancelled or closed, it makes no more calls; what was recorded by then, and an outcome
    `cancelled`, is stored and passed on. CancelledError and RedraftError carry the result so far as
    `result`.
    """
    async with RefinementRun(refinement) as run:
        with run.telemetry() as record_steps:
            async with run.engine(record_steps) as engine:
                while not engine.is_over:
                    yield await run.next_trace(engine)


class RefinementRun:
    """A refinement that runs. Its records go to its store, then to `on_record`; `trace` is the
    latest trace.

    Leaving its context frees what the refinement holds, and gives the error that ended it the
    result so far.
    """

    def __init__(self, refinement: Refinement) -> None:
        self.trace = refinement.trace
        self._refinement = refinement
        self._reported_count = len(refinement.trace.records)
        self._store, self._on_record = refinement.store, refinement.session.options.on_record

    async def __aenter__(self) -> Self:
        return self

    def telemetry(self) -> AbstractContextManager[RecordSteps]:
        """Store the trace, and return a context that is recorded as this refinement; its value
        makes a performer record steps.
        """
        self._persist(self.trace)
        return record_refinement(
            lambda: self.trace, self._refinement.writer_name, self._refinement.fingerprint
        )

    def engine(self, record_steps: RecordSteps) -> Engine:
        """Return the engine that continues the trace."""
        refinement = self._refinement
        plan, by_rounds = refinement.next_steps or refinement.plan, returns_rounds(refinement.plan)
        return Engine(
            self.trace, plan, record_steps(refinement.perform), self._persist, by_rounds=by_rounds
        )

    async def next_trace(self, engine: Engine) -> Trace:
        """Return the next trace, whose new record is stored and passed on. Not once the engine is
        over.
        """
        trace = await engine.next_trace()
        if trace is None:
            trace = engine.trace = with_outcome(self.trace, self._refinement.plan)
        await self._add(trace)
        return trace

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if self._refinement.reservations:
                self._refinement.reservations.release()
            if self._refinement.owns_session:
                await self._refinement.session.close()
        except BaseException as later:
            await self._attach_result(later)
            raise
        if error is not None:
            await self._attach_result(error)

    async def _attach_result(self, error: Any) -> None:
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
            error.result = self._refinement.result(self.trace)  # type: ignore[union-attr]
        elif isinstance(error, RedraftError):
            error.result = self._refinement.result(self.trace) if self.trace.candidates else None
            error.usage = self.trace.usage

    async def _add(self, trace: Trace) -> None:
        """Store the new records of a trace, then log them and pass them to `on_record`."""
        self._persist(trace)
        for record in trace.records[self._reported_count :]:
            self._reported_count += 1
            _log_record(record, trace.task.id)
            if self._on_record:
                await self._refinement.callback_errors.call("on_record", self._on_record, record)

    def _persist(self, trace: Trace) -> None:
        """Store the new records of a trace; `on_record` gets them with the next trace."""
        self.trace = trace
        if self._store:
            self._store.append(trace)


def with_outcome(
    trace: Trace, plan: Plan, reason: StopReason | None = None, note: str = ""
) -> Trace:
    """Add an outcome, for plans that end without one and for runs that are cut short."""
    failure = trace.fatal_failure
    if reason is None and failure is not None:
        reason, note = failure.stop_reason or StopReason.FAILED, failure.message
    if reason is None:
        graded = bool(trace.graded_candidates)
        reason, note = (
            (StopReason.DONE, "the plan has no more steps") if graded else (StopReason.FAILED, "")
        )
    return trace + outcome_if_stopped(plan, trace, reason, full_note(trace, note))


async def finish_refinement(refinement: Refinement) -> Result[Any]:
    """Run a refinement to its end and return its result, or raise its error."""
    return refinement.result_or_raise(await final_trace(refinement))


async def final_trace(refinement: Refinement) -> Trace:
    """Run a refinement to its end and return its last trace."""
    trace = refinement.trace
    async with RefinementRun(refinement) as run:
        with run.telemetry() as record_steps:
            async with run.engine(record_steps) as engine:
                while not engine.is_over:
                    trace = await run.next_trace(engine)
    return trace


def reopen_if_needed(trace: Trace, plan: Plan) -> Trace:
    """Return a finished trace unchanged if the plan would end it again for the same reason, else
    without its outcome.
    """
    if trace.outcome is None:
        return trace
    reasons = [
        step.reason for step in plan(without_outcome(trace).for_new_run()) if isinstance(step, Stop)
    ]
    return trace if reasons == [trace.outcome.reason] else without_outcome(trace)


def without_outcome(trace: Trace) -> Trace:
    """Return a trace without its outcome."""
    return replace(trace, records=tuple(r for r in trace.records if not isinstance(r, Outcome)))


def with_original_settings(trace: Trace, plan: Plan, options: Options) -> Plan:
    """Return the plan with the original priors and calibration if those reproduce the stored
    outcome and the present ones do not.

    Priors that were learned, and labels that were given, in the meantime must not cause more calls;
    priors that the user gives may.
    """
    present = plan_traits(plan).noise_aware
    if (
        trace.outcome is None
        or present is None
        or options.plan is not None
        or reproduces(present, trace)
    ):
        return plan
    original = present
    if present.calibration or trace.outcome.labels:
        original = with_recorded_settings(trace, present, options)
    elif options.priors == "learned":
        original = present.with_priors(Priors())
    return original if original is not present and reproduces(original, trace) else plan


def with_recorded_settings(trace: Trace, plan: NoiseAwarePlan, options: Options) -> NoiseAwarePlan:
    """Return the plan with the calibration that the trace recorded, and with its priors unless the
    user gave some.
    """
    calibration, priors = None, plan.priors
    with suppress(ConfigError, TypeError):
        if CALIBRATION_KEY in trace.settings:
            calibration = Calibration.from_data(trace.settings[CALIBRATION_KEY])
        if not isinstance(options.priors, Priors):
            priors = Priors.from_dict(trace.settings.get("priors", {}))
    return plan.with_priors(priors).with_calibration(calibration)


def reproduces(plan: NoiseAwarePlan, trace: Trace) -> bool:
    """Whether the plan reproduces the trace's stored outcome."""
    end = trace.outcome
    return (
        end is not None
        and plan.outcome_if_stopped(without_outcome(trace).for_new_run(), end.reason, end.note)
        == end
    )


def _log_record(record: Record, task_id: str | None) -> None:
    """Log a draft, a repair or a grade in one line, without its text."""
    if not record_log.isEnabledFor(logging.INFO) or not isinstance(
        record, Candidate | Feedback | Comparison
    ):
        return
    match record:
        case Candidate():
            what = f"candidate {record.id}: {record.role} by {record.by}"
        case Feedback():
            score = "no score" if record.score is None else f"{record.score:.2f}"
            what = f"candidate {record.candidate}: {score} by {_grader_text(record)}"
        case Comparison():
            what = f"candidates {record.order_text} by {_grader_text(record)}"
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
