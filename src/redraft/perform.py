"""The door to the world: `async (step) -> record`.

A step goes in, a record comes out, always: whatever a model, a grader or an editor raises is classified here, once,
and recorded as a `Failure`. Retries, limits, budgets and caches are not here but around the calls (see `around`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import monotonic
from typing import Any

from .core.cancellation import cancel_and_wait, run_in_thread
from .core.records import (
    NO_USAGE,
    Candidate,
    Comparison,
    Failure,
    Feedback,
    Message,
    Record,
    StopReason,
    Usage,
    as_messages,
)
from .core.steps import Compare, Generate, Grade, Refine, Repair, Step, Stop
from .error_text import error_text
from .errors import BudgetExhaustedError, ConfigError, RedraftError, error_name
from .ledger import CallLedger
from .middleware import enforce_deadline
from .middleware.budget import CostEstimator, Pricing
from .protocols import Call, Comparer, Edit, Editor, Grader, Perform, Reply, Request, Requirement
from .text import format_duration


@dataclass(frozen=True, slots=True)
class ModelClient:
    """A model's name, the way to call it with all wrappers included, what decides its answers (see `Model.identity`), the
    price of its tokens (None: unknown), what its calls need of a budget (None: there is none), and where it is asked, in words.
    """

    name: str
    call: Call
    identity: str = ""
    price: Pricing | None = None
    costs: CostEstimator | None = None
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How drafts and refinements are asked for; None leaves it to the model. `tools` and `tool_choice` are those of the task."""

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Roles:
    """Who plays which part: the model that writes, the graders by name, the model each of them asks, the editor.

    `lines` leads to the models that graders name themselves.
    """

    writer: ModelClient | None = None
    graders: Mapping[str, Grader | Comparer] = field(default_factory=dict)
    judges: Mapping[str, ModelClient | None] = field(default_factory=dict)
    editor: Editor | None = None
    requirements: Sequence[Requirement] = ()
    sampling: Sampling = Sampling()
    connect_client: Callable[[Any], ModelClient] | None = None


class StepClient:
    """One step's way to models: what it asks for goes on its bill, whatever comes of it."""

    def __init__(
        self, client: ModelClient | None, repeat: int = 0, connect_client: Callable[[Any], ModelClient] | None = None
    ) -> None:
        self._client, self._repeat, self._connect_client = client, repeat, connect_client
        self._step_usage = StepUsage()

    @property
    def repeat(self) -> int:
        """Which of several looks this is; what is asked here is kept apart from other looks in a cache."""
        return self._repeat

    def with_options(self, model: Any = None, repeat: int = 0) -> StepClient:
        """The same bill on another model's line, or for one more look."""
        if model is not None and self._connect_client is None:
            raise ConfigError(f"there is no way to {model!r} from here")
        other = StepClient(
            self._connect_client(model) if model is not None and self._connect_client else self._client,
            self._repeat + repeat,
            self._connect_client,
        )
        other._step_usage = self._step_usage
        return other

    def provenance(self, usage: Usage = NO_USAGE, by: str = "") -> dict[str, Any]:
        """What a record says of its making: by whom, at what expense, in how many seconds."""
        bill = self._step_usage
        return {"by": ", ".join(bill.models) or by, "usage": usage + bill.usage, "seconds": monotonic() - bill.started_at}

    async def cancel_pending(self) -> None:
        """Cancel the calls that are still under way, and wait for them: the bill is complete then.

        There are some where a grader has asked from tasks of its own and did not wait for all of them.
        """
        if self._step_usage.pending_tasks:
            await cancel_and_wait(list(self._step_usage.pending_tasks))

    def close(self) -> None:
        """The step has ended: nothing more can be asked on its bill."""
        self._step_usage.closed = True

    async def __call__(self, prompt: str | Iterable[Message]) -> str:
        reply = await self.complete(Request(tuple(as_messages(prompt))))
        return reply.text

    async def complete(self, request: Request) -> Reply:
        if self._client is None:
            raise ConfigError("a model is needed here and there is none: give one as `model` or `judge`")
        bill, task = self._step_usage, asyncio.current_task()
        if bill.closed:
            raise ConfigError(f"{self._client.name} was asked after the step had ended: a grader must wait for all that it asks")
        bill.models[self._client.name] = None
        bill.ledgers.append(ledger := CallLedger())
        bill.pending_tasks.add(task)
        try:
            with ledger:
                reply = await self._client.call(
                    replace(request, sample_index=request.sample_index + self._repeat) if self._repeat else request
                )
        except asyncio.CancelledError:
            bill.unanswered_endpoints[self._client.endpoint] = None
            raise
        finally:
            bill.pending_tasks.discard(task)
        ledger.record_answer(reply.usage)
        return reply

    def deadline_message(self, deadline: float | None) -> str:
        """What came too late for a deadline of so many seconds (None: they are not known)."""
        it = "the deadline" if deadline is None else f"the deadline of {format_duration(deadline)}"
        waited_for = " and ".join(self._step_usage.unanswered_endpoints)
        return f"no answer from {waited_for} before {it}" if waited_for else f"{it} has passed"


@dataclass(slots=True)
class StepUsage:
    """What a step has asked so far, a ledger for each question; the names of the models, the endpoints whose calls were cancelled,
    and the tasks that wait for an answer.
    """

    ledgers: list[CallLedger] = field(default_factory=list)
    models: dict[str, None] = field(default_factory=dict)
    unanswered_endpoints: dict[str, None] = field(default_factory=dict)
    started_at: float = field(default_factory=monotonic)
    pending_tasks: set[Any] = field(default_factory=set)
    closed: bool = False

    @property
    def usage(self) -> Usage:
        """What all that took: unknown where a call was sent and has not been answered."""
        return sum((ledger.usage for ledger in self.ledgers), NO_USAGE)


def make_performer(roles: Roles, deadline_at: float | None = None, deadline: float | None = None) -> Perform:
    """The performer for a cast. From a `moment` of the monotonic clock on nothing is carried out but the end itself.

    `deadline`: how many seconds that was away at the beginning, for messages. A step that is cancelled raises CancelledError;
    where it had asked a model, that carries the Failure as `record`.
    """
    act = enforce_deadline(partial(_perform_step, roles), deadline_at, lambda work: work[1].deadline_message(deadline))

    async def perform(step: Step) -> Record:
        if isinstance(step, Stop):
            return step.outcome
        tab = StepClient(_client_for(step, roles), _repeat_of(step), roles.connect_client)
        try:
            try:
                return await act((step, tab))
            except Exception as error:  # noqa: BLE001  (the one boundary: everything foreign ends here)
                await tab.cancel_pending()
                return failure_record(step, error, tab)
        except asyncio.CancelledError as error:
            with suppress(asyncio.CancelledError):  # one of them is raised anyway
                await tab.cancel_pending()
            cut = failure_record(step, error, tab)
            if not _is_cancel_requested():  # something foreign was, which is a failure like any other
                return cut
            if cut.usage != NO_USAGE:
                error.record = cut  # type: ignore[attr-defined]
            raise
        finally:
            tab.close()

    return perform


def _is_cancel_requested() -> bool:
    """Whether somebody has asked for this task to be cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def failure_record(step: Step, error: BaseException, client: StepClient) -> Failure:
    """The record of a step that could not be carried out."""
    ends = None
    if isinstance(error, BudgetExhaustedError):
        ends = StopReason.DEADLINE if error.limit == "deadline" else StopReason.BUDGET
    details = error.details if isinstance(error, RedraftError) else {}
    return Failure(step.slot, step.role, error_name(error), error_text(error)[:2000], ends, **client.provenance(), **details)


def _client_for(step: Step, roles: Roles) -> ModelClient | None:
    return roles.judges.get(step.grader) if isinstance(step, Grade | Compare) else roles.writer


def _repeat_of(step: Step) -> int:
    if isinstance(step, Generate | Refine):
        return step.id
    return step.repeat if isinstance(step, Grade | Compare) else 0


async def _perform_step(roles: Roles, work: tuple[Step, StepClient]) -> Record:
    step, tab = work
    match step:
        case Generate() | Refine():
            return await _write(step, roles.sampling, tab)
        case Repair():
            return await _repair(step, roles, tab)
        case Grade():
            return await _grade(step, roles.graders[step.grader], tab)
        case Compare():
            return await _compare(step, roles.graders[step.grader], tab)
        case Stop():
            return step.outcome


async def _write(step: Generate | Refine, sampling: Sampling, client: StepClient) -> Candidate:
    parent = step.parent if isinstance(step, Refine) else None
    reply = await client.complete(
        Request(step.messages, **{f.name: getattr(sampling, f.name) for f in fields(sampling)}, is_generation=True)
    )
    told: dict[str, Any] = dict(truncated=reply.truncated, reasoning=reply.reasoning, tool_calls=reply.tool_calls)
    return Candidate(step.id, reply.text, parent, role=step.role, **told, **client.provenance())


async def _repair(step: Repair, roles: Roles, client: StepClient) -> Candidate:
    old, edit = step.parent, None
    if roles.editor:
        edit = await _edit(roles.editor, old.text, roles.requirements)
    edit = edit or Edit(old.text, "nothing more that can be repaired without a model")
    made = client.provenance(by="editor")
    return Candidate(step.id, edit.text, old.id, role=step.role, truncated=old.truncated, note=edit.note, lossy=edit.lossy, **made)


async def _edit(editor: Editor, text: str, requirements: Sequence[Requirement]) -> Edit | None:
    if repair := getattr(editor, "arepair", None):
        edit: Edit | None = await repair(text, requirements)
        return edit
    return await run_in_thread(editor.repair, text, requirements)


async def _grade(step: Grade, grader: Any, client: StepClient) -> Feedback:
    for last in (False, True):
        try:
            feedback = await grader.grade(step.task, step.candidate, client)
            await client.cancel_pending()
            if not isinstance(feedback, Feedback):
                raise TypeError(f"grader {step.grader!r} returned {feedback!r}; it must return Feedback")
            made = client.provenance(feedback.usage, feedback.by)
            return replace(feedback, candidate=step.candidate.id, grader=step.grader, repeat=step.repeat, **made)
        except RedraftError:
            raise  # a model's failure was retried where it arose
        except Exception:
            if last:
                raise
    raise AssertionError("unreachable")


async def _compare(step: Compare, grader: Any, client: StepClient) -> Comparison:
    comparison: Comparison = await grader.compare(step.task, step.candidates, client)
    await client.cancel_pending()
    ids = sorted(c.id for c in step.candidates)
    if sorted(comparison.ranking) != ids:
        raise ValueError(f"grader {step.grader!r} ranked {comparison.ranking!r}; it must rank each of {ids} once")
    return replace(comparison, grader=step.grader, repeat=step.repeat, **client.provenance(comparison.usage, comparison.by))
