"""The performer: `async (step) -> record`, the one place where steps reach models, graders and the
editor.

Every step gives a record: an exception of a model, a grader or an editor is classified here, once,
and recorded as a `Failure`. Retries, limits, budgets and caches are wrapped around the calls (see
`middleware`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from ..answers import AnswerForm
from ..base.checks import is_blank
from ..base.error_text import error_text
from ..base.text import format_duration
from ..base.threads import run_in_thread, run_in_thread_if_large
from ..errors import (
    BudgetExhaustedError,
    ConfigError,
    RedraftError,
    ValidatorError,
    attach,
    error_name,
)
from ..graders.base import as_feedback, retry_once
from ..graders.fingerprint import grader_fingerprint
from ..graders.traits import GraderTraits
from ..loop.engine import cancel_and_wait
from ..loop.records import Candidate, Comparison, Failure, Feedback, Record, StopReason
from ..loop.steps import Compare, Generate, Grade, Refine, Repair, Step, Stop
from ..loop.task import Message, Task, as_messages
from ..middleware.call_costs import CostEstimator, Pricing
from ..middleware.shortage import wait_for_room
from ..middleware.timeout import enforce_deadline
from ..protocols import (
    Call,
    Edit,
    Editor,
    Perform,
    Reply,
    Request,
    Requirement,
)
from ..usage import NO_USAGE, CallLedger, Usage, sum_usage


@dataclass(frozen=True, slots=True)
class ModelClient:
    """A connected model: its name, its call with all middleware, and its identity (see
    `Model.identity`).

    `price` is the price of its tokens (None: unknown), `costs` estimates the cost of its calls
    (None: there is no budget), `endpoint` names the model and its address, for messages.
    `max_tokens` applies to requests that set none (None: no limit).
    """

    name: str
    call: Call
    identity: str = ""
    price: Pricing | None = None
    costs: CostEstimator | None = None
    endpoint: str = ""
    max_tokens: int | None = None


@dataclass(frozen=True)
class Roles:
    """The model that writes, the traits of the graders by name, the model that each of them uses,
    and the editor.

    `request` is what each request that writes has besides its messages: how it samples, the tools
    of the task, the schema of the answer's form. `connect_client` returns the clients of models
    that graders name themselves. `answer` is the form of the answer (None: text).
    `known_fingerprints` has the graders' fingerprints, by name.
    """

    writer: ModelClient | None = None
    traits: Mapping[str, GraderTraits] = field(default_factory=dict)
    judges: Mapping[str, ModelClient | None] = field(default_factory=dict)
    editor: Editor | None = None
    requirements: Sequence[Requirement] = ()
    request: Request = Request((), is_generation=True)
    connect_client: Callable[[Any], ModelClient] | None = None
    answer: AnswerForm[Any] | None = None
    known_fingerprints: dict[str, str] = field(default_factory=dict)

    def for_task(self, task: Task) -> Roles:
        """Return the roles for one task: with its tools, and the form of its answer."""
        request = self.request
        if task.tools:
            tools, choice = task.tools, task.tool_choice
            request = replace(request, tools=tools, tool_choice=choice, schema=None)
        form = self.answer and self.answer.for_task(task)
        return replace(self, answer=form, request=request)

    def fingerprint(self, grader: str) -> str:
        """Return the fingerprint of a grader on the panel, with the models that it uses."""
        judge = self.judges.get(grader)

        def identity_of(model: Any) -> str | None:
            connect = self.connect_client
            client = judge if model is None or connect is None else connect(model)
            return client.identity if client else None

        return grader_fingerprint(self.traits[grader].grader, identity_of)

    def identify(self, grader: str) -> tuple[str, Mapping[str, str]]:
        """Return the fingerprint of a grader, and hashes of what it is made of: the criteria, all
        of the grader but its models, and the model that it asks.
        """
        traits, client = self.traits[grader], self.judges.get(grader)
        return self.fingerprint(grader), {
            "rubric": grader_fingerprint(traits.criteria, str),
            "judge": grader_fingerprint(traits.grader, lambda _: ""),
            "model": grader_fingerprint(client and client.identity, str),
        }

    def known_fingerprint(self, grader: str) -> str:
        """Return the same, computed once for each grader."""
        if grader not in self.known_fingerprints:
            self.known_fingerprints[grader] = self.fingerprint(grader)
        return self.known_fingerprints[grader]


# the steps that are more than an end
Work: TypeAlias = Generate | Refine | Repair | Grade | Compare


@dataclass(eq=False)
class StepCalls:
    """The calls of one step, whichever of its clients makes them.

    `ledgers`: one for each question. `models`: the names of those that answered.
    `unanswered_endpoints`: those whose calls were cancelled. `pending_tasks` still wait for an
    answer.
    """

    started_at: float = field(default_factory=monotonic)
    ledgers: list[CallLedger] = field(default_factory=list)
    models: dict[str, None] = field(default_factory=dict)
    unanswered_endpoints: dict[str, None] = field(default_factory=dict)
    pending_tasks: set[Any] = field(default_factory=set)
    has_ended: bool = False


@dataclass(eq=False)
class StepClient:
    """The model client of one step: it counts the usage of every call, including failed and
    cancelled ones.

    `repeat`: the response cache keeps repeats apart. `answer` is the form of the answer, for
    functions that grade its value. `calls` belong to the step, and the clients that
    `with_options` makes share them.
    """

    client: ModelClient | None
    repeat: int = 0
    connect_client: Callable[[Any], ModelClient] | None = None
    answer: AnswerForm[Any] | None = None
    calls: StepCalls = field(default_factory=StepCalls)

    def with_options(self, model: Any = None, repeat: int = 0) -> StepClient:
        """Return a client for another model, or for another repeat, that adds to the same usage."""
        client = self.client
        if model is not None:
            if self.connect_client is None:
                raise ConfigError(f"{model!r} cannot be used here")
            client = self.connect_client(model)
        return replace(self, client=client, repeat=self.repeat + repeat)

    @property
    def by(self) -> str:
        """The names of the models that answered."""
        return ", ".join(self.calls.models)

    @property
    def max_tokens(self) -> int | None:
        """The `max_tokens` of requests that set none; None: no limit."""
        return self.client.max_tokens if self.client else None

    @property
    def usage(self) -> Usage:
        """The usage of all calls; unknown where a call was sent and not answered."""
        return sum_usage(self.calls.ledgers)

    @property
    def seconds(self) -> float:
        """The seconds since the step began."""
        return monotonic() - self.calls.started_at

    async def cancel_pending(self) -> None:
        """Cancel the calls that are still running and wait for them, so that the usage is complete.

        There are some if a grader made calls in tasks of its own and did not wait for all of them.
        """
        if self.calls.pending_tasks:
            await cancel_and_wait(self.calls.pending_tasks)

    def close(self) -> None:
        """End the step: further calls raise ConfigError."""
        self.calls.has_ended = True

    async def __call__(self, prompt: str | Iterable[Message]) -> str:
        reply = await self.complete(Request(tuple(as_messages(prompt))))
        return reply.text

    async def complete(self, request: Request) -> Reply:
        client, calls, task = self.client, self.calls, asyncio.current_task()
        if client is None:
            raise ConfigError(
                "a model is needed here and there is none: give one as `model` or `judge`"
            )
        if calls.has_ended:
            raise ConfigError(
                f"{client.name} was called after the step had ended: a grader must wait for all "
                "its calls"
            )
        if self.repeat:
            request = replace(request, sample_index=request.sample_index + self.repeat)
        calls.models[client.name] = None
        calls.ledgers.append(ledger := CallLedger())
        calls.pending_tasks.add(task)
        try:
            with ledger:
                reply = await client.call(request)
        except asyncio.CancelledError:
            calls.unanswered_endpoints[client.endpoint] = None
            raise
        finally:
            calls.pending_tasks.discard(task)
        ledger.record_answer(reply.usage)
        if reply.by:
            calls.models.pop(client.name, None)
            calls.models[reply.by] = None
        return reply

    def deadline_message(self, deadline: float | None) -> str:
        """Return the message for a deadline that passed during this step (None: its seconds are not
        known).
        """
        limit = (
            "the deadline" if deadline is None else f"the deadline of {format_duration(deadline)}"
        )
        waited_for = " and ".join(self.calls.unanswered_endpoints)
        return (
            f"no answer from {waited_for} before {limit}" if waited_for else f"{limit} has passed"
        )


def make_performer(
    roles: Roles, deadline_at: float | None = None, deadline: float | None = None
) -> Perform:
    """Return the performer for these roles.

    After `deadline_at` (monotonic clock) every step except Stop fails with BudgetExhaustedError;
    `deadline` is the number of seconds it was set to, for messages. A cancelled step raises
    CancelledError, whose `record` is the Failure if the step had called a model.
    """
    work_with_room = wait_for_room(partial(_work_on, roles), lambda work: work[1].cancel_pending())
    perform_in_time = enforce_deadline(
        work_with_room, deadline_at, lambda work: work[1].deadline_message(deadline)
    )

    async def perform(step: Step) -> Record:
        if isinstance(step, Stop):
            return step
        client = _client_for(step, roles)
        try:
            try:
                return await perform_in_time((step, client))
            except Exception as error:  # noqa: BLE001  (the one boundary where foreign exceptions are caught)
                await client.cancel_pending()
                return failure_record(step, error, client)
        except asyncio.CancelledError as error:
            with suppress(asyncio.CancelledError):  # the first one is raised below
                await client.cancel_pending()
            record = failure_record(step, error, client)
            # another task was cancelled, which is an ordinary failure
            if not _is_cancel_requested():
                return record
            if record.usage != NO_USAGE:
                attach(error, record=record)
            raise
        finally:
            client.close()

    return perform


def _is_cancel_requested() -> bool:
    """Whether cancellation of the current task was requested."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def failure_record(step: Step, error: BaseException, client: StepClient) -> Failure:
    """Return the record of a step that failed."""
    stop_reason = StopReason.FAILED if isinstance(error, ValidatorError) else None
    if isinstance(error, BudgetExhaustedError):
        stop_reason = StopReason.DEADLINE if error.limit == "deadline" else StopReason.BUDGET
    details = error.details if isinstance(error, RedraftError) else {}
    return Failure(
        step.slot,
        step.role,
        error=error_name(
            error, "GradingError" if isinstance(step, Grade | Compare) else "ModelError"
        ),
        message=error_text(error)[:2000],
        stop_reason=stop_reason,
        by=client.by,
        usage=client.usage,
        seconds=client.seconds,
        **details,
    )


def _client_for(step: Work, roles: Roles) -> StepClient:
    """Return the client of a step: its grader's, or the writer's."""
    match step:
        case Grade() | Compare():
            return StepClient(
                roles.judges.get(step.grader), step.repeat, roles.connect_client, roles.answer
            )
        case _:
            return StepClient(roles.writer, connect_client=roles.connect_client)


def _work_on(roles: Roles, work: tuple[Work, StepClient]) -> Awaitable[Record]:
    """Return the work on a step, to be awaited."""
    step, client = work
    match step:
        case Grade():
            return retry_once(partial(_grade, step, roles.traits[step.grader].grader, client))
        case Generate() | Refine():
            return _write(step, roles, client)
        case Repair():
            return _repair(step, roles, client)
        case Compare():
            return _compare(step, roles.traits[step.grader].grader, client)


async def _write(step: Generate | Refine, roles: Roles, client: StepClient) -> Candidate:
    messages = (
        step.messages
        if step.make_messages is None
        else await _own_messages(step, step.make_messages)
    )
    reply = await client.complete(replace(roles.request, messages=messages, sample_index=step.id))
    text = reply.text
    if roles.answer and not reply.tool_calls:
        text = await run_in_thread_if_large(len(text), roles.answer.extract, text)
    return Candidate(
        step.id,
        text,
        step.parent if isinstance(step, Refine) else None,
        role=step.role,
        truncated=reply.truncated,
        reasoning=reply.reasoning,
        note=reply.note,
        tool_calls=reply.tool_calls,
        reasoning_form=reply.reasoning_form,
        by=client.by,
        usage=client.usage,
        seconds=client.seconds,
    )


async def _own_messages(
    step: Generate | Refine, make_messages: Callable[[], tuple[Message, ...]]
) -> tuple[Message, ...]:
    """Return the messages of a prompt of the user's own, which is made in a thread. Raises
    ConfigError.
    """
    try:
        return await run_in_thread(make_messages)
    except Exception as error:  # a function of the user may raise anything
        name = "draft_prompt" if isinstance(step, Generate) else "refine_prompt"
        text = error_text(error)
        raise ConfigError(text if text.startswith(name) else f"{name}: {text}") from error


async def _repair(step: Repair, roles: Roles, client: StepClient) -> Candidate:
    old, edits = step.parent, await _edits(step, roles, client)
    note = "; ".join(edit.note for edit in edits)
    reasoned = "separate" if (old.reasoning or "").strip() else None
    return Candidate(
        step.id,
        edits[-1].text if edits else old.text,
        old.id,
        by=client.by or "editor",
        role=step.role,
        truncated=old.truncated,
        note=note or "nothing more that can be repaired without a model",
        lossy=any(edit.lossy for edit in edits),
        usage=client.usage,
        seconds=client.seconds,
        artifact=old.artifact,
        reasoning_form=old.reasoning_form or reasoned,
    )


async def _edits(step: Repair, roles: Roles, client: StepClient) -> list[Edit]:
    """Return the editor's repair of the form, and the repairs that graders of the panel offer, each
    made to the text of the one before. Without an editor there are none.
    """
    if roles.editor is None:
        return []
    candidate, edits = step.parent, list[Edit]()
    edit = await _repair_form(candidate.text, roles.editor, roles.requirements)
    if edit and edit.text != candidate.text:
        candidate, edits = replace(candidate, text=edit.text), [edit]
    for traits in roles.traits.values():
        others = [each for each in roles.traits.values() if each is not traits]
        if edit := await _repair_by_grader(traits, step.task, candidate, others, client):
            candidate = replace(candidate, text=edit.text)
            edits.append(edit)
    return edits


async def _repair_by_grader(
    traits: GraderTraits,
    task: Task,
    candidate: Candidate,
    others: Iterable[GraderTraits],
    client: StepClient,
) -> Edit | None:
    """Return the repair that a grader offers, unless one of the others that guard repairs scores it
    lower.
    """
    edit = await traits.repair(task, candidate) if traits.editable and traits.repair else None
    if edit is None or is_blank(edit.text) or edit.text == candidate.text:
        return None
    edited = replace(candidate, text=edit.text)
    guards = [each.grader for each in others if each.guards_repairs]
    return None if await _lowers_a_score(guards, task, candidate, edited, client) else edit


async def _repair_form(
    text: str, editor: Editor, requirements: Sequence[Requirement]
) -> Edit | None:
    """Return the editor's repair of the form of a text."""
    if arepair := getattr(editor, "arepair", None):
        edit: Edit | None = await arepair(text, requirements)
        return edit
    return await run_in_thread(editor.repair, text, requirements)


async def _lowers_a_score(
    guards: Iterable[Any], task: Task, before: Candidate, after: Candidate, client: StepClient
) -> bool:
    """Whether one of the graders scores the text after a repair lower than the text before, or can
    no longer score it.
    """
    for guard in guards:
        old = as_feedback(await guard.grade(task, before, client), guard.name).score
        if old is not None:
            new = as_feedback(await guard.grade(task, after, client), guard.name).score
            if new is None or new < old:
                return True
    return False


async def _grade(step: Grade, grader: Any, client: StepClient) -> Feedback:
    result = await grader.grade(step.task, step.candidate, client)
    await client.cancel_pending()
    feedback = as_feedback(result, step.grader)
    return replace(
        feedback,
        candidate=step.candidate.id,
        grader=step.grader,
        repeat=step.repeat,
        by=client.by or feedback.by,
        usage=feedback.usage + client.usage,
        seconds=client.seconds,
    )


async def _compare(step: Compare, grader: Any, client: StepClient) -> Comparison:
    comparison: Comparison = await grader.compare(step.task, step.candidates, client)
    await client.cancel_pending()
    ids = sorted(c.id for c in step.candidates)
    if sorted(comparison.ranking) != ids:
        raise ValueError(
            f"grader {step.grader!r} ranked {comparison.ranking!r}; it must rank each of {ids} once"
        )
    by, usage = client.by or comparison.by, comparison.usage + client.usage
    return replace(
        comparison,
        grader=step.grader,
        repeat=step.repeat,
        by=by,
        usage=usage,
        seconds=client.seconds,
    )
