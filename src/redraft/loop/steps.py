"""Steps: what a plan asks for next. Each step names the slot that its record will fill.

Steps are self-contained: a performer needs nothing else, so a step can be performed on another
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from .records import Candidate, Outcome, Slot
from .task import Message, Task


@dataclass(frozen=True, slots=True)
class Generate:
    """Ask a model for a first draft.

    A prompt of the user's own is made when the step is performed: `messages` is empty until then,
    and `make_messages` returns them or raises what the user's function raises.
    """

    role: ClassVar[str] = "generate"
    id: int
    messages: tuple[Message, ...]
    make_messages: Callable[[], tuple[Message, ...]] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def slot(self) -> Slot:
        return ("candidate", self.id)


@dataclass(frozen=True, slots=True)
class Refine:
    """Ask a model for a better version of `parent`; `make_messages` as in `Generate`."""

    role: ClassVar[str] = "refine"
    id: int
    messages: tuple[Message, ...]
    parent: int
    make_messages: Callable[[], tuple[Message, ...]] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def slot(self) -> Slot:
        return ("candidate", self.id)


@dataclass(frozen=True, slots=True)
class Repair:
    """Let the editor repair what it can of `parent` without a model."""

    role: ClassVar[str] = "repair"
    id: int
    task: Task
    parent: Candidate

    @property
    def slot(self) -> Slot:
        return ("candidate", self.id)


@dataclass(frozen=True, slots=True)
class Grade:
    """Ask a grader for feedback on one candidate; `repeat` numbers repeated grades, from 0."""

    role: ClassVar[str] = "grade"
    grader: str
    task: Task
    candidate: Candidate
    repeat: int = 0

    @property
    def slot(self) -> Slot:
        return ("feedback", self.candidate.id, self.grader, self.repeat)


@dataclass(frozen=True, slots=True)
class Compare:
    """Ask a grader to rank candidates; `repeat` numbers repeated comparisons, from 0."""

    role: ClassVar[str] = "compare"
    grader: str
    task: Task
    candidates: tuple[Candidate, ...]
    repeat: int = 0

    @property
    def slot(self) -> Slot:
        return (
            "comparison",
            tuple(sorted(c.id for c in self.candidates)),
            self.grader,
            self.repeat,
        )


Stop: TypeAlias = Outcome
"""End the run: the step is the record that it leaves, `Stop(best, reason, note)`."""

Step: TypeAlias = Generate | Refine | Repair | Grade | Compare | Stop


class Round(list[Step]):
    """Steps of which feedback on one changes nothing in the others, nor adds any, whatever the
    feedback says.

    Only for plans of Redraft's own: a user's plan may return these steps as its own, and stop after
    feedback.
    """
