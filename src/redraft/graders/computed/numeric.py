"""The final number of an answer, or its list of numbers, compared with the reference."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context
from fractions import Fraction
from typing import Literal

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import THREAD_THRESHOLD
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from .answers import (
    Number,
    marked_answers,
    number_list,
    number_runs,
    numbers,
    standing_text,
)
from .base import ComputedGrader, binary_feedback, preview, reference_of


@fingerprint_name("numeric")
@dataclass(frozen=True)
class Numeric(ComputedGrader):
    r"""1 if the answer's final number equals the reference's, else 0; a list of numbers must be
    equal in the same order.

    The final number is the one that the answer marks (\boxed{...}, "####", "the answer is");
    without a mark, the `last` or the `first` number, or with `only` the one number in the answer.
    An answer that marks different numbers is wrong, unless it withdraws one before it marks another
    (see `answers.standing_text`). The difference may be at most `absolute` or `relative` times the
    reference's size, whichever is larger (both >= 0). 50% equals 50%, 0.5, and a bare 50.
    `answers.numbers` says which forms of numbers are read. An unmarked answer gets 1 whenever it
    ends with the right number: for untrusted answers use `only`, or ask for a marked answer. Reads
    `reference`, which must hold a number.

    A reference is a list if it holds only numbers, with commas, "and", "to", labels (x = 1, y = 2)
    and units between them, and at most three words before and after; of any other text with several
    numbers, the last counts. The answer's list is the marked one; without a mark, the `last` or
    `first` list of the reference's length, else that many numbers from the end or the beginning;
    with `only`, all its numbers.
    """

    absolute: float = 1e-9
    relative: float = 1e-6
    pick: Literal["last", "first", "only"] = "last"
    name: str = "numeric"

    needs = ("reference",)

    def __post_init__(self) -> None:
        checks.number("absolute", self.absolute, 0)
        checks.number("relative", self.relative, 0)
        super().__post_init__()

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a short reference without a number (a long one is read when it is
        needed).
        """
        text = task.reference or ""
        if len(text) < THREAD_THRESHOLD and not reference_numbers(text):
            raise ConfigError(
                f"grader {self.name!r} needs one number, or a list of them, in the task's "
                f"reference, got {preview(text)}"
            )

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return 1 or 0. Raises ConfigError for a reference without a number."""
        answer = candidate.text
        expected = reference_numbers(reference_of(task, self.name))
        if not expected:
            raise ConfigError(
                f"grader {self.name!r} needs one number, or a list of them, in the task's reference"
            )
        if len(expected) > 1:
            return self._compare_lists(answer, expected)
        actual = final_numbers(answer, self.pick)
        if len(actual) != 1:
            reason = (
                "the answer gives several numbers" if actual else "there is no number in the answer"
            )
            return binary_feedback(
                ok=False, reason=reason, action='State one number: "The answer is ...".'
            )
        ok = self._equal(actual[0], expected[0])
        reason = (
            f"the answer's number is {_format_number(actual[0][0])}, which is "
            f"{'right' if ok else 'wrong'}"
        )
        return binary_feedback(ok, reason, "Work the number out again.")

    def _compare_lists(self, answer: str, expected: list[Number]) -> Feedback:
        lists = final_lists(answer, len(expected), self.pick)
        if not lists or any(len(values) != len(expected) for values in lists):
            reason = f"the answer gives no list of {len(expected)} numbers"
            return binary_feedback(
                ok=False,
                reason=reason,
                action=f'State {len(expected)} numbers: "The answer is ..., ...".',
            )
        ok = all(
            self._equal(a, b) for values in lists for a, b in zip(values, expected, strict=True)
        )
        shown = ", ".join(_format_number(value) for value, _ in lists[-1][:20])
        return binary_feedback(
            ok,
            f"the answer's numbers are {shown}, which is {'right' if ok else 'wrong'}",
            "Work the numbers out again.",
        )

    def _equal(self, a: Number, b: Number) -> bool:
        readings = (
            {a[0]}
            | ({a[0] * 100} if a[1] and not b[1] else set())
            | ({a[0] / 100} if b[1] and not a[1] else set())
        )
        tolerance = max(Fraction(self.absolute), Fraction(self.relative) * abs(b[0]))
        return any(abs(reading - b[0]) <= tolerance for reading in readings)


def _format_number(number: Fraction) -> str:
    """Return six digits of a number of any size: no float holds 1e999."""
    return f"{Context(prec=6).divide(number.numerator, number.denominator):g}"


def final_numbers(text: str, pick: str) -> list[Number]:
    """Return the final number of a text; none, or several if the text does not say which is
    final.
    """
    text = standing_text(text)
    if answers := marked_answers(text):
        return list(dict.fromkeys(values[-1] for answer in answers if (values := numbers(answer))))
    values = numbers(text)
    if pick == "only":
        return list(dict.fromkeys(values))
    return values[-1:] if pick == "last" else values[:1]


def reference_numbers(text: str) -> list[Number]:
    """Return the final number of a reference, or the numbers of its list; none if it marks several
    different answers.
    """
    text = standing_text(text)
    lists = [
        number_list(answer) or numbers(answer)[-1:] for answer in marked_answers(text) or [text]
    ]
    return lists[0] if all(values == lists[0] for values in lists) else []


def final_lists(text: str, size: int, pick: str) -> list[list[Number]]:
    """Return each list of numbers that a text marks as final."""
    text = standing_text(text)
    if answers := marked_answers(text):
        lists = [values for answer in answers if (values := numbers(answer))]
        joined = [number for values in lists for number in values]
        return [joined] if len(joined) == size else lists
    runs = number_runs(text)
    every = [number for run in runs for number in run]
    if pick == "only":
        return [every]
    fitting = [run for run in runs if len(run) == size] or [every]
    return [fitting[-1][-size:] if pick == "last" else fitting[0][:size]]
