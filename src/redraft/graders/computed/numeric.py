"""The final number of an answer, or its list of numbers, compared with the reference."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Context
from fractions import Fraction
from typing import Literal

from ...core.cancellation import THREAD_THRESHOLD
from ...core.records import Candidate, Feedback, Task
from ...errors import ConfigError
from ...own_code import fingerprint_name
from ...protocols import JudgeClient
from .answers import Number, marked_answers, number_list, number_runs, numbers
from .arguments import check_choice, check_number
from .compute_limits import with_limit
from .views import binary_feedback, preview, reference_of


@fingerprint_name("numeric")
@with_limit
@dataclass(frozen=True)
class Numeric:
    r"""1 when the answer's number is the reference's, or its numbers are, in their order, where the reference is a list; else 0.

    The answer's number is the one it marks (\boxed{...}, "####", "the answer is"); without a mark the `last` or `first`
    one, or with `only` the one number there is. Marks on different numbers make it wrong. It may be off by `absolute`, or
    by `relative` times the reference's size, whichever is more (both >= 0). 50% equals 50%, 0.5, and a bare 50. See
    `answers.numbers` for how numbers are written. Without a mark whoever adds the right number at the end wins: use
    `only`, or ask for a marked answer, where answers are not to be trusted. Reads `reference`, which must hold a number.

    A reference is a list when it is nothing but numbers with commas, "and", "to", labels (x = 1, y = 2) and units between them,
    and three words at most before and after; of any other text with several numbers, the last counts. The answer's list
    is the marked one; without a mark the `last` or `first` list as long as the reference's, or else so many numbers there; with
    `only` all its numbers.
    """

    absolute: float = 1e-9
    relative: float = 1e-6
    pick: Literal["last", "first", "only"] = "last"
    name: str = "numeric"

    model_free = True
    needs = ("reference",)

    def __post_init__(self) -> None:
        check_number("absolute", self.absolute, 0)
        check_number("relative", self.relative, 0)
        check_choice("pick", self.pick, ("last", "first", "only"))

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a short reference without a number (a long one is read when it is needed)."""
        text = task.reference or ""
        if len(text) < THREAD_THRESHOLD and not reference_numbers(text):
            raise ConfigError(
                f"grader {self.name!r} needs one number, or a list of them, in the task's reference, got {preview(text)}"
            )

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return 1 or 0. Raises ConfigError for a reference without a number."""
        wanted = await asyncio.to_thread(reference_numbers, reference_of(task, self.name))
        if not wanted:
            raise ConfigError(f"grader {self.name!r} needs one number, or a list of them, in the task's reference")
        if len(wanted) > 1:
            return await asyncio.to_thread(self._compare_lists, candidate.text, wanted)
        found = await asyncio.to_thread(final_numbers, candidate.text, self.pick)
        if len(found) != 1:
            what = "there is no number in the answer" if not found else "the answer gives several numbers"
            return binary_feedback(ok=False, reason=what, action='State one number: "The answer is ...".')
        ok = self._equal(found[0], wanted[0])
        reason = f"the answer's number is {_format_number(found[0][0])}, which is {'right' if ok else 'wrong'}"
        return binary_feedback(ok, reason, "Work the number out again.")

    def _compare_lists(self, answer: str, expected: list[Number]) -> Feedback:
        """Compare all numbers with all of a list."""
        found = final_lists(answer, len(expected), self.pick)
        if not found or any(len(each) != len(expected) for each in found):
            reason = f"the answer gives no list of {len(expected)} numbers"
            return binary_feedback(ok=False, reason=reason, action=f'State {len(expected)} numbers: "The answer is ..., ...".')
        ok = all(self._equal(a, b) for each in found for a, b in zip(each, expected, strict=True))
        shown = ", ".join(_format_number(value) for value, _ in found[-1][:20])
        return binary_feedback(
            ok, f"the answer's numbers are {shown}, which is {'right' if ok else 'wrong'}", "Work the numbers out again."
        )

    def _equal(self, a: Number, b: Number) -> bool:
        readings = {a[0]} | ({a[0] * 100} if a[1] and not b[1] else set()) | ({a[0] / 100} if b[1] and not a[1] else set())
        room = max(Fraction(self.absolute), Fraction(self.relative) * abs(b[0]))
        return any(abs(reading - b[0]) <= room for reading in readings)


def _format_number(number: Fraction) -> str:
    """Return six digits of it, however large it is: no float holds 1e999."""
    return f"{Context(prec=6).divide(number.numerator, number.denominator):g}"


def final_numbers(text: str, pick: str) -> list[Number]:
    """Return the final number of a text; none, or several if the text does not say which is final."""
    if marks := marked_answers(text):
        found = [numbers(piece) for piece in marks]
        return list(dict.fromkeys(values[-1] for values in found if values))
    values = numbers(text)
    if pick == "only":
        return list(dict.fromkeys(values))
    return values[-1:] if pick == "last" else values[:1]


def reference_numbers(text: str) -> list[Number]:
    """Return the final number of a reference, or those of its list; none if it marks several different answers."""
    pieces = marked_answers(text) or [text]
    found = [number_list(piece) or numbers(piece)[-1:] for piece in pieces]
    return found[0] if found and all(each == found[0] for each in found) else []


def final_lists(text: str, size: int, pick: str) -> list[list[Number]]:
    """Return each list of numbers that a text marks as final."""
    if marks := marked_answers(text):
        found = [values for piece in marks if (values := numbers(piece))]
        joined = [number for values in found for number in values]
        return [joined] if len(joined) == size else found
    runs = number_runs(text)
    if pick == "only":
        return [[number for run in runs for number in run]]
    fitting = [run for run in runs if len(run) == size] or [[number for run in runs for number in run]]
    return [fitting[-1][-size:] if pick == "last" else fitting[0][:size]]
