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
from .core.trace import Seat, Trace
from .errors import BudgetExhaustedError
from .middleware.budget import NONE, RESERVATION, Need, Owner, Purse, Reservation
from .middleware.token_counts import Size, messages_size, text_size
from .perform import Cast, Line, Tab, failure
from .protocols import Perform
from .text import utf8_size

SHOWN = 1.25  # tokens of a judge's prompt for each token of the text: its tokenizer may be another
FOREIGN = 2000  # bytes of instructions of a grader that does not show them
REMEMBERED = 64  # durations, the latest


@dataclass
class Experience:
    """What the steps of a run have taken so far: seconds, and by grader bytes of instructions and calls for a look."""

    writing: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    grading: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    instructions: dict[str, int] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """What a text takes with its grades, by the medians; None before there was one."""
        if not self.writing:
            return None
        return median(self.writing) + (median(self.grading) if self.grading else 0.0)


@dataclass
class PendingGrades:
    """A text whose grades are to come: what is reserved for them, how many looks, and since when."""

    reservation: Reservation
    looks: int
    since: float = field(default_factory=monotonic)


@dataclass
class Reservations:
    """The reservations of one task. `moment`: the deadline, on the monotonic clock; None: there is none."""

    trace: Trace
    cast: Cast
    purse: Purse
    moment: float | None
    experience: Experience
    _owner: Owner = field(default_factory=Owner)
    _written: dict[int, PendingGrades] = field(default_factory=dict)
    _texts: dict[int, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._texts = {c.id: c.substance for c in self.trace.candidates}
        self._looked = {record.grader for record in self.trace.records if isinstance(record, Feedback)}
        self._size = task_size(self.trace.task)
        self._paid = [seat for seat in self.trace.scoring or self.trace.panel if not seat.free]
        for record in self.trace.records:
            self._note_seconds(record)

    def around(self, perform: Perform) -> Perform:
        """The performer, with every text reserved together with its grades."""

        async def reserving(step: Step) -> Record:
            self._owner.active += 1
            try:
                return await self._perform(perform, step)
            finally:
                self.purse.end_step(self._owner)

        return reserving

    def release(self) -> None:
        """The task has ended: nothing is held for it any more."""
        for written in self._written.values():
            self.purse.release(written.reservation)
        self._written.clear()

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
        if isinstance(step, Repair) and step.parent.id in self._written:
            self._written[step.id] = self._written[step.parent.id]  # what is reserved for a text is for its repair
        return self._concluded(record) if isinstance(record, Outcome) else record

    async def _write(self, perform: Perform, step: Generate | Refine) -> Record:
        try:
            self._check_time()
        except BudgetExhaustedError as error:
            return failure(step, error, Tab(None))
        reservation = Reservation(self.purse, self._grades, self._owner)
        kept, token = False, RESERVATION.set(reservation)
        try:
            record = await perform(step)
            kept = isinstance(record, Candidate) and not self._is_copy(record)
        finally:
            RESERVATION.reset(token)
            reservation.writing = False
            if not kept:
                self.purse.release(reservation)
        self._note_seconds(record)
        if isinstance(record, Candidate):
            self._texts[record.id] = record.substance
        if kept:
            self._written[step.id] = PendingGrades(reservation, sum(seat.looks for seat in self._paid))
        return record

    async def _grade(self, perform: Perform, step: Grade | Compare, id: int) -> Record:
        written = self._written.get(id)
        if written is None or step.grader not in {seat.grader for seat in self._paid}:
            return await perform(step)
        token, over = RESERVATION.set(written.reservation), True
        try:
            record = await perform(step)
            over = isinstance(record, Failure) and record.ends is not None
        finally:
            RESERVATION.reset(token)
            written.looks -= 1
            if over or written.looks <= 0:
                self.purse.release(written.reservation)
        self._note_grade(step, written, record)
        return record

    def _concluded(self, outcome: Outcome) -> Outcome:
        """The outcome; where more was spent than the budget allows, it says so."""
        excess = self.purse.excess
        if not excess or excess in outcome.note:
            return outcome
        return replace(outcome, note="; ".join(filter(None, [outcome.note, excess])))

    # ---- time

    def _check_time(self) -> None:
        """Raise BudgetExhaustedError where a text is not likely to be graded before the deadline."""
        seconds = self.experience.seconds
        if self.moment is None or seconds is None:
            return
        if (left := self.moment - monotonic()) < seconds:
            said = f"a text with its grades takes about {seconds:.1f} s, {max(0.0, left):.1f} s are left before the deadline"
            raise BudgetExhaustedError(said, what="deadline")

    def _note_seconds(self, record: Record) -> None:
        """Take note of how long a model took to write."""
        if isinstance(record, Candidate) and record.usage.calls and record.seconds is not None:
            self.experience.writing.append(record.seconds)

    # ---- money

    def _grades(self) -> Need:
        """What it takes to grade one text by everybody who asks a model."""
        need = Need(NONE, lambda: NONE, NONE)
        for seat in self._paid:
            for call in self._calls(seat) if self.purse.limited else ():
                need = need.plus(call)
        return need

    def _calls(self, seat: Seat) -> Iterator[Need]:
        """What each call of a grader needs, for all its looks."""
        first = seat.grader not in self._looked
        asked = list(asks(self.cast.graders[seat.grader], self.cast.judges.get(seat.grader), self.cast, first=first))
        calls = max(len(asked), self.experience.calls.get(seat.grader, 0)) if asked else 0
        for n in range(calls * seat.looks):
            line, grader = asked[n % len(asked)]
            if line is None or line.costs is None:
                continue
            size = self._size.plus(Size(self._instructions(seat, grader), messages=2))
            yield line.costs.of_grade(size, getattr(grader, "max_tokens", None), SHOWN)

    def _instructions(self, seat: Seat, grader: Any) -> int:
        known = self.experience.instructions.get(seat.grader)
        return instructions(grader) if known is None else known

    def _note_grade(self, step: Grade | Compare, written: PendingGrades, record: Record) -> None:
        """Take note of what grading took."""
        known, seat = self.experience, step.grader
        text = utf8_size(step.candidate.text) if isinstance(step, Grade) else 0
        if prompt := written.reservation.longest_prompt:
            rest = prompt - text - self._size.bytes
            known.instructions[seat] = max(known.instructions.get(seat, 0), rest)
        if isinstance(record, Failure):
            return
        self._looked.add(seat)
        if not hasattr(self.cast.graders[seat], "wording"):  # a foreign one may ask as often as it likes
            known.calls[seat] = max(known.calls.get(seat, 0), record.usage.calls - record.usage.retried_calls)
        if written.looks == 0:
            known.grading.append(monotonic() - written.since)

    def _is_copy(self, candidate: Candidate) -> bool:
        """Whether it is the same text as its parent: it is not graded again."""
        return candidate.parent is not None and self._texts.get(candidate.parent) == candidate.substance


def asks(grader: Any, line: Line | None, cast: Cast, *, first: bool) -> Iterator[tuple[Line | None, Any]]:
    """The way to the model and the grader, for each call that one look of a grader makes; `first`: at a task."""
    if getattr(grader, "free", False):
        return
    own = getattr(grader, "model", None)
    line = cast.lines(own) if own is not None and cast.lines else line
    if parts := getattr(grader, "parts", ()):
        for _ in range(getattr(grader, "looks", 1)):
            for part in parts:
                yield from asks(part, line, cast, first=first)
        return
    for _ in range(1 + first * getattr(grader, "calls_once", 0)):
        yield line, grader


def instructions(grader: Any) -> int:
    """Bytes of what a grader tells a model beside the task and the text, before it was seen to."""
    wording = getattr(grader, "wording", None)
    if wording is None:
        return FOREIGN
    asked = getattr(grader, "rubric", None) or getattr(grader, "questions", None)
    return sum(text_size(str(words)).bytes for words in (*wording, asked or ""))


def task_size(task: Task) -> Size:
    """The size of all that a task tells a grader."""
    size = messages_size(task.messages)
    for text in (task.reference, task.context, task.tests):
        size = size.plus(text_size(text or ""))
    return size
