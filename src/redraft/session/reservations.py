"""Reserve the grades of a text together with the text, so that no text is paid for that cannot be
graded.

`Reservations` wraps the performer of one task. A step that writes a text is performed only if the
budget has room for the text and for all its grades by graders that call a model, and if both are
likely to end before the deadline. The calls that grade the text use the reservation. A grade of a
given text is performed only if the budget has room for all its calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from math import inf
from time import monotonic
from typing import Any

from ..base.text import utf8_size
from ..errors import BudgetExhaustedError
from ..graders.traits import GraderTraits
from ..loop.records import Candidate, Failure, Feedback, Outcome, Record
from ..loop.steps import Compare, Generate, Grade, Refine, Repair, Step
from ..loop.task import Task
from ..loop.trace import PanelGrader, Trace
from ..middleware.budget import (
    BudgetOwner,
    BudgetTracker,
    Reservation,
)
from ..middleware.call_costs import (
    ZERO_AMOUNTS,
    CostEstimate,
    PromptSize,
    messages_size,
    text_size,
)
from ..protocols import Perform
from .perform import ModelClient, Roles, StepClient, failure_record

# tokens of a text in a judge's prompt for each token that the writer counted: tokenizers differ
JUDGE_TOKEN_FACTOR = 1.25
# of the prompt of a grader without `prompt_texts`, besides task and text
DEFAULT_INSTRUCTION_BYTES = 2000
NO_TEXT = PromptSize()
MAX_DURATIONS = 64  # the latest durations that are kept


@dataclass
class StepStatistics:
    """The durations of a run's steps in seconds and, by grader, the bytes of instructions and the
    calls for one grade.
    """

    writing_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))
    grading_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))
    instruction_bytes: dict[str, int] = field(default_factory=dict)
    calls_per_repeat: dict[str, int] = field(default_factory=dict)

    @property
    def expected_seconds(self) -> float | None:
        """The median seconds to write a text plus those to grade it; None before the first text."""
        writing = _median(self.writing_seconds)
        return None if writing is None else writing + (_median(self.grading_seconds) or 0.0)


def _median(values: Collection[float]) -> float | None:
    """Return the median; None without values."""
    from statistics import median  # few programs need it

    return median(values) if values else None


@dataclass
class PendingGrades:
    """A text that is not fully graded: its reservation, the number of grades that are left, and
    when it was written.
    """

    reservation: Reservation
    repeats_left: int
    started_at: float = field(default_factory=monotonic)


@dataclass
class Reservations:
    """The reservations of one task. `deadline_at` is on the monotonic clock; None: there is no
    deadline.
    """

    trace: Trace
    roles: Roles
    budget_tracker: BudgetTracker
    deadline_at: float | None
    statistics: StepStatistics
    _owner: BudgetOwner = field(default_factory=BudgetOwner)
    _pending: dict[int, PendingGrades] = field(default_factory=dict)
    _content_keys: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._seen_graders = {
            record.grader for record in self.trace.records if isinstance(record, Feedback)
        }
        members = self.trace.pointwise_graders or self.trace.panel
        self._llm_graders = [
            member
            for member in members
            if not member.model_free or self.roles.traits[member.name].makes_calls
        ]
        for record in self.trace.records:
            self._note_text(record)

    @cached_property
    def _task_size(self) -> PromptSize:
        return task_size(self.trace.task)

    def wrap(self, perform: Perform) -> Perform:
        """Wrap a performer: the grades of every text are reserved together with the text."""

        async def perform_reserved(step: Step) -> Record:
            self._owner.active_steps += 1
            try:
                return await self._perform(perform, step)
            finally:
                self.budget_tracker.end_step(self._owner)

        return perform_reserved

    def release(self) -> None:
        """Release all reservations, at the end of the task."""
        for pending in self._pending.values():
            self.budget_tracker.release(pending.reservation)
        self._pending.clear()

    # ---- steps

    async def _perform(self, perform: Perform, step: Step) -> Record:
        match step:
            case Generate() | Refine():
                return await self._write(perform, step)
            case Grade():
                return await self._grade(perform, step, step.candidate.id)
            case Compare():
                return await self._grade(perform, step, max(c.id for c in step.candidates))
        record = await perform(step)
        if isinstance(step, Repair) and step.parent.id in self._pending:
            # the reservation of a text also serves its repair
            self._pending[step.id] = self._pending[step.parent.id]
        return self._with_excess_note(record) if isinstance(record, Outcome) else record

    async def _write(self, perform: Perform, step: Generate | Refine) -> Record:
        if error := self._lack_of_time(self.statistics.expected_seconds):
            return failure_record(step, error, StepClient(None))
        reservation = Reservation(self.budget_tracker, self._grading_need, self._owner)
        will_be_graded = False
        try:
            with reservation.in_use():
                record = await perform(step)
            will_be_graded = self._is_new_text(record)
        finally:
            reservation.close()
            if not will_be_graded:
                self.budget_tracker.release(reservation)
        self._note_text(record)
        if will_be_graded:
            self._pending[step.id] = PendingGrades(
                reservation, sum(grader.repeats for grader in self._llm_graders)
            )
        return record

    async def _grade(self, perform: Perform, step: Grade | Compare, candidate_id: int) -> Record:
        pending = self._pending.get(candidate_id)
        member = next((grader for grader in self._llm_graders if grader.name == step.grader), None)
        if pending is None or member is None:
            return await self._grade_alone(perform, step, member)
        calls = sum(1 for _ in self._call_needs(member, 1))
        # to ask again takes no call of another grader
        part, must_end = self.budget_tracker.split(pending.reservation, calls), True
        try:
            with part.in_use():
                record = await perform(step)
            must_end = isinstance(record, Failure) and record.stop_reason is not None
        finally:
            self.budget_tracker.release(part)
            pending.repeats_left -= 1
            if must_end or pending.repeats_left <= 0:
                self.budget_tracker.release(pending.reservation)
        self._note_grade(step, pending, part.max_prompt_bytes, record)
        return record

    async def _grade_alone(
        self, perform: Perform, step: Grade | Compare, member: PanelGrader | None
    ) -> Record:
        """Perform a grade that was not reserved with its text, such as the grade of a given text:
        its first call reserves the others.
        """
        if member is None or isinstance(step, Compare) or not self._further_calls(member, step):
            return await perform(step)
        estimate = partial(self._further_need, member, step)
        reservation = Reservation(self.budget_tracker, estimate, self._owner, for_text=False)
        try:
            with reservation.in_use():
                record = await perform(step)
        finally:
            reservation.close()
            self.budget_tracker.release(reservation)
        if isinstance(record, Feedback):
            self._seen_graders.add(step.grader)
        return record

    def _with_excess_note(self, outcome: Outcome) -> Outcome:
        """Return the outcome; if more was spent than the budget allows, its note says so."""
        excess = self.budget_tracker.excess
        if not excess or excess in outcome.note:
            return outcome
        return replace(outcome, note="; ".join(filter(None, [outcome.note, excess])))

    # ---- time

    def _lack_of_time(self, seconds: float | None) -> BudgetExhaustedError | None:
        """Return the error of a text that takes so many seconds, if it is not likely to be finished
        before the deadline.
        """
        left = inf if self.deadline_at is None else self.deadline_at - monotonic()
        if seconds is None or left >= seconds:
            return None
        return BudgetExhaustedError(
            f"a text with its grades takes about {seconds:.1f} s, {max(0.0, left):.1f} s are left "
            "before the deadline",
            limit="deadline",
        )

    def _note_text(self, record: Record) -> None:
        """Record a text, and how long a model took to write it."""
        if isinstance(record, Candidate):
            self._content_keys[record.id] = record.content_key
            if record.usage.calls and record.seconds is not None:
                self.statistics.writing_seconds.append(record.seconds)

    # ---- money

    def _grading_need(self) -> CostEstimate:
        """Return the estimated cost of all grades of one text by graders that call a model."""
        graders = self._llm_graders if self.budget_tracker.is_limited else ()
        return _total(
            call for grader in graders for call in self._call_needs(grader, grader.repeats)
        )

    def _further_need(self, grader: PanelGrader, step: Grade) -> CostEstimate:
        """Return the estimated cost of the calls of one grade after the first; the text is part of
        their prompts.
        """
        return replace(_total(self._further_calls(grader, step)), per_token=ZERO_AMOUNTS)

    def _further_calls(self, grader: PanelGrader, step: Grade) -> list[CostEstimate]:
        if not self.budget_tracker.is_limited:
            return []
        return list(self._call_needs(grader, 1, text_size(step.candidate.display_text)))[1:]

    def _call_needs(
        self, panel_grader: PanelGrader, repeats: int, text: PromptSize = NO_TEXT
    ) -> Iterator[CostEstimate]:
        """Yield the estimated cost of each call of a grader for these repeats, with `text` in each
        prompt.
        """
        name = panel_grader.name
        first = name not in self._seen_graders
        traits, client = self.roles.traits[name], self.roles.judges.get(name)
        callers = list(
            grader_calls(traits, self.trace.task, client, self.roles, first_for_task=first)
        )
        calls = max(len(callers), self.statistics.calls_per_repeat.get(name, 0)) if callers else 0
        measured = self.statistics.instruction_bytes.get(name)
        for n in range(calls * repeats):
            client, caller = callers[n % len(callers)]
            if client is None or client.costs is None:
                continue
            instructions = instruction_bytes(caller) if measured is None else measured
            size = self._task_size.plus(PromptSize(instructions, messages=2)).plus(text)
            yield client.costs.grade_cost(
                size, caller.max_tokens, JUDGE_TOKEN_FACTOR, schema=caller.is_judge
            )

    def _note_grade(
        self, step: Grade | Compare, pending: PendingGrades, prompt: int, record: Record
    ) -> None:
        """Record the bytes of the longest prompt, the calls and the duration of a grade."""
        statistics, grader = self.statistics, step.grader
        text = utf8_size(step.candidate.text) if isinstance(step, Grade) else 0
        if prompt:
            rest = prompt - text - self._task_size.bytes
            statistics.instruction_bytes[grader] = max(
                statistics.instruction_bytes.get(grader, 0), rest
            )
        if isinstance(record, Failure):
            return
        self._seen_graders.add(grader)
        if self.roles.traits[grader].prompt_texts is None:  # a user's may make any number of calls
            calls = record.usage.calls - record.usage.retried_calls
            statistics.calls_per_repeat[grader] = max(
                statistics.calls_per_repeat.get(grader, 0), calls
            )
        if pending.repeats_left == 0:
            statistics.grading_seconds.append(monotonic() - pending.started_at)

    def _is_new_text(self, record: Record) -> bool:
        """Whether a record is a text that is graded: no copy of its parent."""
        return isinstance(record, Candidate) and (
            record.parent is None or self._content_keys.get(record.parent) != record.content_key
        )


def _total(calls: Iterable[CostEstimate]) -> CostEstimate:
    """Return the estimated cost of all the calls."""
    return reduce(CostEstimate.plus, calls, CostEstimate(ZERO_AMOUNTS, ZERO_AMOUNTS))


def grader_calls(
    traits: GraderTraits,
    task: Task,
    client: ModelClient | None,
    roles: Roles,
    *,
    first_for_task: bool,
) -> Iterator[tuple[ModelClient | None, GraderTraits]]:
    """Yield the client and the grader of each call for one grade; `first_for_task` adds the calls
    that are made once for a task.
    """
    if not traits.makes_calls:
        return
    if traits.model is not None and roles.connect_client:
        client = roles.connect_client(traits.model)
    if parts := traits.parts_for(task):
        for _ in range(traits.repeats):
            for part in parts:
                yield from grader_calls(part, task, client, roles, first_for_task=first_for_task)
        return
    for _ in range(traits.grade_calls + first_for_task * traits.setup_calls):
        yield client, traits


def instruction_bytes(traits: GraderTraits) -> int:
    """Return the estimated bytes of a grader's prompt besides the task and the text, before the
    first grade.
    """
    if traits.prompt_texts is None:
        return DEFAULT_INSTRUCTION_BYTES
    texts = (*traits.prompt_texts, traits.criteria or "")
    return sum(text_size(str(text)).bytes for text in texts)


def task_size(task: Task) -> PromptSize:
    """Return the size of a task in a grader's prompt."""
    size = messages_size(task.messages)
    for text in (task.reference, task.context, task.tests):
        size = size.plus(text_size(text or ""))
    return size
