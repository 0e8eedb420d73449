"""What the adapters share: the grade of an answer that a framework has, and the number that stands
for it.

A framework that knows unknown scores is told of them in its own way. For the others, the user names
the number that stands for an unknown score. None is ever made up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import isfinite
from typing import Any

import redraft

from ..errors import ConfigError, GradingError, RedraftError
from ..grading import GradeReport, GradeSettings, grade, grade_sync

__all__ = [
    "AnswerGrade",
    "GradeArguments",
    "GradeSettings",
    "UnknownScore",
    "answer_text",
    "field_of",
]

log = logging.getLogger("redraft.adapters")


@dataclass(frozen=True)
class AnswerGrade:
    """The grade of an answer.

    Attributes:
        score: From 0 to 1, and 0 for an answer that breaks a condition (`must`); None if it is
            unknown.
        feedback: What each grader says of the answer, a line for each: its score, the reason, and
            what to change.
        problem: Why the score is unknown: the graders that failed, with the kinds of their errors.
            It holds no text of an answer or a server.
        interval: The 95% interval of the quality if a judge scored it, else None.
    """

    score: float | None
    feedback: str = ""
    problem: str = ""
    interval: tuple[float, float] | None = None

    @classmethod
    def from_report(cls, report: GradeReport) -> AnswerGrade:
        """Return the grade in a report."""
        lines = [
            f"{each.grader}{'' if each.score is None else f' ({each.score:.2f})'}: "
            + "; ".join(filter(None, (each.reason, *each.actions)))
            for each in report.feedback
            if each.repeats and not each.failure
        ]
        failed = (f"{name}: {failure.error}" for name, failure in report.failures.items())
        score = 0.0 if report.broken_musts else report.score
        problem = "" if score is not None else ", ".join(failed) or "no grader gave a score"
        return cls(score, "\n".join(lines), problem, report.score_interval)


BLANK_ANSWER = AnswerGrade(None, problem="there is no answer: it is blank")


@dataclass(frozen=True)
class GradeArguments:
    """The arguments of `redraft.grade` that an adapter was given, for all answers.

    Nothing but a mistake in them is an error (ConfigError) when an answer is graded. A grader that
    does not exist is one at once: some frameworks would make the error of each answer a 0.
    """

    graders: Any
    judge: Any
    settings: GradeSettings

    def __post_init__(self) -> None:
        named = self.graders if isinstance(self.graders, list | tuple) else [self.graders]
        for each in named:
            grader = each.grader if isinstance(each, redraft.graders.GraderSpec) else each
            if grader is not None:
                redraft.graders.as_grader(grader)

    async def grade(
        self, prompt: Any, answer: Any, *, reference: Any = None, context: str | None = None
    ) -> AnswerGrade:
        """Return the grade of an answer.

        Args:
            prompt: A text, chat messages, or an object that is graded as JSON.
            answer: A text, or an object that is graded as JSON.
            reference: A good answer, in the same form; None: there is none.
            context: What the answer must rest on; None: there is nothing.
        """
        if not (task := _task(prompt, answer, reference, context)):
            return BLANK_ANSWER
        try:
            return AnswerGrade.from_report(
                await grade(task, self.graders, self.judge, **self.settings)
            )
        except RedraftError as error:
            return _unknown_grade(error)

    def grade_sync(
        self, prompt: Any, answer: Any, *, reference: Any = None, context: str | None = None
    ) -> AnswerGrade:
        """Do the same without await."""
        if not (task := _task(prompt, answer, reference, context)):
            return BLANK_ANSWER
        try:
            return AnswerGrade.from_report(
                grade_sync(task, self.graders, self.judge, **self.settings)
            )
        except RedraftError as error:
            return _unknown_grade(error)


def _task(prompt: Any, answer: Any, reference: Any, context: str | None) -> redraft.Task | None:
    """Return the task to grade; None for a blank answer. Raises ConfigError."""
    text, known = answer_text(answer), None if reference is None else answer_text(reference)
    asked = prompt if isinstance(prompt, list) else answer_text(prompt)
    return redraft.Task(asked, text, reference=known, context=context) if text.strip() else None


def _unknown_grade(error: RedraftError) -> AnswerGrade:
    """Return the grade of an answer that nothing could grade. Raises a ConfigError."""
    if isinstance(error, ConfigError):
        raise error
    failures = error.result.trace.failures.items() if error.result else ()
    kinds = dict.fromkeys(f"{slot[2]}: {failure.error}" for slot, failure in failures)
    return AnswerGrade(None, problem=", ".join(kinds) or type(error).__name__)


class UnknownScore:
    """The number that stands for unknown scores in a framework that has no word for them.

    Args:
        value: The number, which the user named; None if an unknown score is an error.

    Raises:
        ConfigError: The value is not a finite number.
    """

    def __init__(self, value: float | None) -> None:
        if value is not None and not (
            isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        ):
            raise ConfigError(
                "unknown must be the finite number that stands for an unknown score, such as 0.0, "
                f"got {value!r}"
            )
        self.value = value
        self._numbers = count(1)

    def number(self, grade: AnswerGrade) -> float:
        """Return the score, or the number that stands for it; each of these is logged with its
        count.

        Raises:
            GradingError: The score is unknown, and no number was named.
        """
        if grade.score is not None:
            return grade.score
        if self.value is None:
            raise GradingError(f"the score is unknown: {grade.problem}")
        log.warning(
            "unknown score %d counts as %g, as `unknown` says: %s",
            next(self._numbers),
            self.value,
            grade.problem,
        )
        return self.value


def answer_text(value: Any) -> str:
    """Return a text as it is, and another value as JSON; a pydantic model is written by itself."""
    if isinstance(value, str):
        return value
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    return json.dumps(value, ensure_ascii=False, default=str)


def field_of(values: Mapping[str, Any], name: str | None, argument: str) -> Any:
    """Return the value with a name; without one, the only value. Raises ConfigError that names the
    argument by which the user chooses.
    """
    if name is None and len(values) == 1:
        return next(iter(values.values()))
    if name is None or name not in values:
        raise ConfigError(
            f"{argument} must be one of the fields {', '.join(map(repr, values)) or '(none)'}, "
            f"got {name!r}"
        )
    return values[name]
