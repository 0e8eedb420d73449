"""No text is bought that cannot be graded: its grades are reserved with it, in money and in time.

This stands around the performer of one task. A step that writes a text goes out only when the budget has room for the text and
for every look of the graders that ask a model, and when both are likely to be there before the deadline. The calls that grade
the text draw on what was reserved for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic
from typing import Any

from .core.records import Candidate, Failure, Feedback, Outcome, Record, Task
from .core.steps import Compare, Generate, Grade, Refine, Repair, Step
from .core.trace import PanelGrader, Trace
from .errors import BudgetExhaustedError
from .middleware.budget import RESERVATION, BudgetOwner, BudgetTracker, Reservation
from .middleware.call_costs import ZERO_AMOUNTS, CostEstimate
from .middleware.token_counts import PromptSize, messages_size, text_size
from .perform import ModelClient, Roles, StepClient, failure_record
from .protocols import Perform
from .text import utf8_size

JUDGE_TOKEN_FACTOR = 1.25  # tokens of a judge's prompt for each token of the text: its tokenizer may be another
DEFAULT_INSTRUCTION_BYTES = 2000  # bytes of instructions of a grader that does not show them
MAX_DURATIONS = 64  # durations, the latest


@dataclass
class StepStatistics:
    """What the steps of a run have taken so far: seconds, and by grader bytes of instructions and calls for a look."""

    writing_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))
    grading_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_DURATIONS))
    instruction_bytes: dict[str, int] = field(default_factory=dict)
    calls_per_repeat: dict[str, int] = field(default_factory=dict)

    @property
    def expected_seconds(self) -> float | None:
        """What a text takes with its grades, by the medians; None before there was one."""
        if not self.writing_seconds:
            return None
        return median(self.writing_seconds) + (median(self.grading_seconds) if self.grading_seconds else 0.0)


@dataclass
class PendingGrades:
    """A text whose grades are to come: what is reserved for them, how many looks, and since when."""

    reservation: Reservation
    repeats_left: int
    started_at: float = field(default_factory=monotonic)


@dataclass
class Reservations:
    """The reservations of one task. `moment`: the deadline, on the monotonic clock; None: there is none."""

    trace: Trace
    roles: Roles
    budget_tracker: BudgetTracker
    deadline_at: float | None
    statistics: StepStatistics
    _owner: BudgetOwner = field(default_factory=BudgetOwner)
    _pending: dict[int, PendingGrades] = field(default_factory=dict)
    _content_keys: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._content_keys = {c.id: c.content_key for c in self.trace.candidates}
        self._seen_graders = {record.grader for record in self.trace.records if isinstance(record, Feedback)}
        self._task_size = task_size(self.trace.task)
        self._llm_graders = [seat for seat in self.trace.pointwise_graders or self.trace.panel if not seat.model_free]
        for record in self.trace.records:
            self._note_seconds(record)

    def wrap(self, perform: Perform) -> Perform:
        """The performer, with every text reserved together with its grades."""

        async def perform_reserved(step: Step) -> Record:
            self._owner.active_steps += 1
            try:
                return await self._perform(perform, step)
            finally:
                self.budget_tracker.end_step(self._owner)

        return perform_reserved

    def release(self) -> None:
        """The task has ended: nothing is held for it any more."""
        for written in self._pending.values():
            self.budget_tracker.release(written.reservation)
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
            self._pending[step.id] = self._pending[step.parent.id]  # what is reserved for a text is for its repair
        return self._with_excess_note(record) if isinstance(record, Outcome) else record

    async def _write(self, perform: Perform, step: Generate | Refine) -> Record:
        try:
            self._check_time()
        except BudgetExhaustedError as error:
            return failure_record(step, error, StepClient(None))
        reservation = Reservation(self.budget_tracker, self._grading_need, self._owner)
        kept, token = False, RESERVATION.set(reservation)
        try:
            record = await perform(step)
            kept = isinstance(record, Candidate) and not self._is_copy(record)
        finally:
            RESERVATION.reset(token)
            reservation.writing = False
            if not kept:
                self.budget_tracker.release(reservation)
        self._note_seconds(record)
        if isinstance(record, Candidate):
            self._content_keys[record.id] = record.content_key
        if kept:
            self._pending[step.id] = PendingGrades(reservation, sum(seat.repeats for seat in self._llm_graders))
        return record

    async def _grade(self, perform: Perform, step: Grade | Compare, candidate_id: int) -> Record:
        written = self._pending.get(candidate_id)
        if written is None or step.grader not in {seat.name for seat in self._llm_graders}:
            return await perform(step)
        token, over = RESERVATION.set(written.reservation), True
        try:
            record = await perform(step)
            over = isinstance(record, Failure) and record.stop_reason is not None
        finally:
            RESERVATION.reset(token)
            written.repeats_left -= 1
            if over or written.repeats_left <= 0:
                self.budget_tracker.release(written.reservation)
        self._note_grade(step, written, record)
        return record

    def _with_excess_note(self, outcome: Outcome) -> Outcome:
        """The outcome; where more was spent than the budget allows, it says so."""
        excess = self.budget_tracker.excess
        if not excess or excess in outcome.note:
            return outcome
        return replace(outcome, note="; ".join(filter(None, [outcome.note, excess])))

    # ---- time

    def _check_time(self) -> None:
        """Raise BudgetExhaustedError where a text is not likely to be graded before the deadline."""
        seconds = self.statistics.expected_seconds
        if self.deadline_at is None or seconds is None:
            return
        if (left := self.deadline_at - monotonic()) < seconds:
            said = f"a text with its grades takes about {seconds:.1f} s, {max(0.0, left):.1f} s are left before the deadline"
            raise BudgetExhaustedError(said, limit="deadline")

    def _note_seconds(self, record: Record) -> None:
        """Take note of how long a model took to write."""
        if isinstance(record, Candidate) and record.usage.calls and record.seconds is not None:
            self.statistics.writing_seconds.append(record.seconds)

    # ---- money

    def _grading_need(self) -> CostEstimate:
        """What it takes to grade one text by everybody who asks a model."""
        need = CostEstimate(ZERO_AMOUNTS, lambda: ZERO_AMOUNTS, ZERO_AMOUNTS)
        for seat in self._llm_graders:
            for call in self._call_needs(seat) if self.budget_tracker.is_limited else ():
                need = need.plus(call)
        return need

    def _call_needs(self, panel_grader: PanelGrader) -> Iterator[CostEstimate]:
        """What each call of a grader needs, for all its looks."""
        first = panel_grader.name not in self._seen_graders
        asked = list(
            grader_calls(
                self.roles.graders[panel_grader.name], self.roles.judges.get(panel_grader.name), self.roles, first_for_task=first
            )
        )
        calls = max(len(asked), self.statistics.calls_per_repeat.get(panel_grader.name, 0)) if asked else 0
        for n in range(calls * panel_grader.repeats):
            line, grader = asked[n % len(asked)]
            if line is None or line.costs is None:
                continue
            size = self._task_size.plus(PromptSize(self._instruction_bytes(panel_grader, grader), messages=2))
            yield line.costs.grade_cost(size, getattr(grader, "max_tokens", None), JUDGE_TOKEN_FACTOR)

    def _instruction_bytes(self, panel_grader: PanelGrader, grader: Any) -> int:
        known = self.statistics.instruction_bytes.get(panel_grader.name)
        return instruction_bytes(grader) if known is None else known

    def _note_grade(self, step: Grade | Compare, pending: PendingGrades, record: Record) -> None:
        """Take note of what grading took."""
        known, seat = self.statistics, step.grader
        text = utf8_size(step.candidate.text) if isinstance(step, Grade) else 0
        if prompt := pending.reservation.max_prompt_bytes:
            rest = prompt - text - self._task_size.bytes
            known.instruction_bytes[seat] = max(known.instruction_bytes.get(seat, 0), rest)
        if isinstance(record, Failure):
            return
        self._seen_graders.add(seat)
        if not hasattr(self.roles.graders[seat], "prompt_texts"):  # a foreign one may ask as often as it likes
            known.calls_per_repeat[seat] = max(known.calls_per_repeat.get(seat, 0), record.usage.calls - record.usage.retried_calls)
        if pending.repeats_left == 0:
            known.grading_seconds.append(monotonic() - pending.started_at)

    def _is_copy(self, candidate: Candidate) -> bool:
        """Whether it is the same text as its parent: it is not graded again."""
        return candidate.parent is not None and self._content_keys.get(candidate.parent) == candidate.content_key


def grader_calls(
    grader: Any, client: ModelClient | None, roles: Roles, *, first_for_task: bool
) -> Iterator[tuple[ModelClient | None, Any]]:
    """The way to the model and the grader, for each call that one look of a grader makes; `first`: at a task."""
    if getattr(grader, "model_free", False):
        return
    own = getattr(grader, "model", None)
    client = roles.connect_client(own) if own is not None and roles.connect_client else client
    if parts := getattr(grader, "parts", ()):
        for _ in range(getattr(grader, "repeats", 1)):
            for part in parts:
                yield from grader_calls(part, client, roles, first_for_task=first_for_task)
        return
    for _ in range(1 + first_for_task * getattr(grader, "setup_calls", 0)):
        yield client, grader


def instruction_bytes(grader: Any) -> int:
    """Bytes of what a grader tells a model beside the task and the text, before it was seen to."""
    wording = getattr(grader, "prompt_texts", None)
    if wording is None:
        return DEFAULT_INSTRUCTION_BYTES
    asked = getattr(grader, "rubric", None) or getattr(grader, "questions", None)
    return sum(text_size(str(words)).bytes for words in (*wording, asked or ""))


def task_size(task: Task) -> PromptSize:
    """The size of all that a task tells a grader."""
    size = messages_size(task.messages)
    for text in (task.reference, task.context, task.tests):
        size = size.plus(text_size(text or ""))
    return size
