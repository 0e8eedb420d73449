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
    NOTHING,
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
from .errors import BudgetExhaustedError, ConfigError, RedraftError, name_of
from .ledger import Ledger
from .middleware import until
from .middleware.budget import Costs, Rate
from .protocols import Call, Comparer, Edit, Editor, Grader, Perform, Reply, Request, Requirement
from .text import duration


@dataclass(frozen=True, slots=True)
class Line:
    """A model's name, the way to call it with all wrappers included, what decides its answers (see `Model.identity`), the
    price of its tokens (None: unknown), what its calls need of a budget (None: there is none), and where it is asked, in words.
    """

    name: str
    call: Call
    identity: str = ""
    price: Rate | None = None
    costs: Costs | None = None
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
class Cast:
    """Who plays which part: the model that writes, the graders by name, the model each of them asks, the editor.

    `lines` leads to the models that graders name themselves.
    """

    writer: Line | None = None
    graders: Mapping[str, Grader | Comparer] = field(default_factory=dict)
    judges: Mapping[str, Line | None] = field(default_factory=dict)
    editor: Editor | None = None
    requirements: Sequence[Requirement] = ()
    sampling: Sampling = Sampling()
    lines: Callable[[Any], Line] | None = None


class Tab:
    """One step's way to models: what it asks for goes on its bill, whatever comes of it."""

    def __init__(self, line: Line | None, look: int = 0, lines: Callable[[Any], Line] | None = None) -> None:
        self._line, self._look, self._lines = line, look, lines
        self._bill = Bill()

    @property
    def look(self) -> int:
        """Which of several looks this is; what is asked here is kept apart from other looks in a cache."""
        return self._look

    def on(self, model: Any = None, look: int = 0) -> Tab:
        """The same bill on another model's line, or for one more look."""
        if model is not None and self._lines is None:
            raise ConfigError(f"there is no way to {model!r} from here")
        other = Tab(self._lines(model) if model is not None and self._lines else self._line, self._look + look, self._lines)
        other._bill = self._bill
        return other

    def stamp(self, usage: Usage = NOTHING, by: str = "") -> dict[str, Any]:
        """What a record says of its making: by whom, at what expense, in how many seconds."""
        bill = self._bill
        return {"by": ", ".join(bill.by) or by, "usage": usage + bill.usage, "seconds": monotonic() - bill.begun}

    async def settle(self) -> None:
        """Cancel the calls that are still under way, and wait for them: the bill is complete then.

        There are some where a grader has asked from tasks of its own and did not wait for all of them.
        """
        if self._bill.asking:
            await cancel_and_wait(list(self._bill.asking))

    def close(self) -> None:
        """The step has ended: nothing more can be asked on its bill."""
        self._bill.closed = True

    async def __call__(self, prompt: str | Iterable[Message]) -> str:
        reply = await self.complete(Request(tuple(as_messages(prompt))))
        return reply.text

    async def complete(self, request: Request) -> Reply:
        if self._line is None:
            raise ConfigError("a model is needed here and there is none: give one as `model` or `judge`")
        bill, task = self._bill, asyncio.current_task()
        if bill.closed:
            raise ConfigError(f"{self._line.name} was asked after the step had ended: a grader must wait for all that it asks")
        bill.by[self._line.name] = None
        bill.questions.append(ledger := Ledger())
        bill.asking.add(task)
        try:
            with ledger:
                reply = await self._line.call(replace(request, look=request.look + self._look) if self._look else request)
        except asyncio.CancelledError:
            bill.unanswered[self._line.endpoint] = None
            raise
        finally:
            bill.asking.discard(task)
        ledger.answer(reply.usage)
        return reply

    def late(self, deadline: float | None) -> str:
        """What came too late for a deadline of so many seconds (None: they are not known)."""
        it = "the deadline" if deadline is None else f"the deadline of {duration(deadline)}"
        waited_for = " and ".join(self._bill.unanswered)
        return f"no answer from {waited_for} before {it}" if waited_for else f"{it} has passed"


@dataclass(slots=True)
class Bill:
    """What a step has asked so far, a ledger for each question; the names of the models, the endpoints whose calls were cancelled,
    and the tasks that wait for an answer.
    """

    questions: list[Ledger] = field(default_factory=list)
    by: dict[str, None] = field(default_factory=dict)
    unanswered: dict[str, None] = field(default_factory=dict)
    begun: float = field(default_factory=monotonic)
    asking: set[Any] = field(default_factory=set)
    closed: bool = False

    @property
    def usage(self) -> Usage:
        """What all that took: unknown where a call was sent and has not been answered."""
        return sum((ledger.usage for ledger in self.questions), NOTHING)


def door(cast: Cast, moment: float | None = None, deadline: float | None = None) -> Perform:
    """The performer for a cast. From a `moment` of the monotonic clock on nothing is carried out but the end itself.

    `deadline`: how many seconds that was away at the beginning, for messages. A step that is cancelled raises CancelledError;
    where it had asked a model, that carries the Failure as `record`.
    """
    act = until(partial(_carry_out, cast), moment, lambda work: work[1].late(deadline))

    async def perform(step: Step) -> Record:
        if isinstance(step, Stop):
            return step.outcome
        tab = Tab(_line_for(step, cast), _look_of(step), cast.lines)
        try:
            try:
                return await act((step, tab))
            except Exception as error:  # noqa: BLE001  (the one boundary: everything foreign ends here)
                await tab.settle()
                return failure(step, error, tab)
        except asyncio.CancelledError as error:
            with suppress(asyncio.CancelledError):  # one of them is raised anyway
                await tab.settle()
            cut = failure(step, error, tab)
            if not _is_cancelled():  # something foreign was, which is a failure like any other
                return cut
            if cut.usage != NOTHING:
                error.record = cut  # type: ignore[attr-defined]
            raise
        finally:
            tab.close()

    return perform


def _is_cancelled() -> bool:
    """Whether somebody has asked for this task to be cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def failure(step: Step, error: BaseException, tab: Tab) -> Failure:
    """The record of a step that could not be carried out."""
    ends = None
    if isinstance(error, BudgetExhaustedError):
        ends = StopReason.DEADLINE if error.what == "deadline" else StopReason.BUDGET
    details = error.details if isinstance(error, RedraftError) else {}
    return Failure(step.slot, step.role, name_of(error), error_text(error)[:2000], ends, **tab.stamp(), **details)


def _line_for(step: Step, cast: Cast) -> Line | None:
    return cast.judges.get(step.grader) if isinstance(step, Grade | Compare) else cast.writer


def _look_of(step: Step) -> int:
    if isinstance(step, Generate | Refine):
        return step.id
    return step.look if isinstance(step, Grade | Compare) else 0


async def _carry_out(cast: Cast, work: tuple[Step, Tab]) -> Record:
    step, tab = work
    match step:
        case Generate() | Refine():
            return await _write(step, cast.sampling, tab)
        case Repair():
            return await _repair(step, cast, tab)
        case Grade():
            return await _grade(step, cast.graders[step.grader], tab)
        case Compare():
            return await _compare(step, cast.graders[step.grader], tab)
        case Stop():
            return step.outcome


async def _write(step: Generate | Refine, sampling: Sampling, tab: Tab) -> Candidate:
    parent = step.parent if isinstance(step, Refine) else None
    reply = await tab.complete(Request(step.messages, **{f.name: getattr(sampling, f.name) for f in fields(sampling)}, writes=True))
    told: dict[str, Any] = dict(truncated=reply.truncated, reasoning=reply.reasoning, tool_calls=reply.tool_calls)
    return Candidate(step.id, reply.text, parent, role=step.role, **told, **tab.stamp())


async def _repair(step: Repair, cast: Cast, tab: Tab) -> Candidate:
    old, edit = step.parent, None
    if cast.editor:
        edit = await _edit(cast.editor, old.text, cast.requirements)
    edit = edit or Edit(old.text, "nothing more that can be repaired without a model")
    made = tab.stamp(by="editor")
    return Candidate(step.id, edit.text, old.id, role=step.role, truncated=old.truncated, note=edit.note, lossy=edit.lossy, **made)


async def _edit(editor: Editor, text: str, requirements: Sequence[Requirement]) -> Edit | None:
    if repair := getattr(editor, "arepair", None):
        edit: Edit | None = await repair(text, requirements)
        return edit
    return await run_in_thread(editor.repair, text, requirements)


async def _grade(step: Grade, grader: Any, tab: Tab) -> Feedback:
    for last in (False, True):
        try:
            feedback = await grader.grade(step.task, step.candidate, tab)
            await tab.settle()
            if not isinstance(feedback, Feedback):
                raise TypeError(f"grader {step.grader!r} returned {feedback!r}; it must return Feedback")
            made = tab.stamp(feedback.usage, feedback.by)
            return replace(feedback, candidate=step.candidate.id, grader=step.grader, look=step.look, **made)
        except RedraftError:
            raise  # a model's failure was retried where it arose
        except Exception:
            if last:
                raise
    raise AssertionError("unreachable")


async def _compare(step: Compare, grader: Any, tab: Tab) -> Comparison:
    comparison: Comparison = await grader.compare(step.task, step.candidates, tab)
    await tab.settle()
    ids = sorted(c.id for c in step.candidates)
    if sorted(comparison.ranking) != ids:
        raise ValueError(f"grader {step.grader!r} ranked {comparison.ranking!r}; it must rank each of {ids} once")
    return replace(comparison, grader=step.grader, look=step.look, **tab.stamp(comparison.usage, comparison.by))
