"""The number an answer comes to, against the number in the reference."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from decimal import Context
from fractions import Fraction
from typing import Literal, TypeAlias

from ...contracts import Ask
from ...core.errors import ConfigError
from ...core.records import Candidate, Feedback, Task
from .answers import marked, numbers
from .arguments import check_choice, check_number
from .views import reference_of, verdict

Number: TypeAlias = tuple[Fraction, bool]


@dataclass(frozen=True)
class Numeric:
    r"""1 when the answer's number is the reference's, else 0.

    The answer's number is the one it marks (\boxed{...}, "####", "the answer is"); without a mark the `last` or `first`
    one, or with `only` the one number there is. Marks on different numbers make it wrong. It may be off by `absolute`, or
    by `relative` times the reference's size, whichever is more (both >= 0). 50% equals 50%, 0.5, and a bare 50. See
    `answers.numbers` for how numbers are written. Without a mark whoever adds the right number at the end wins: use
    `only`, or ask for a marked answer, where answers are not to be trusted. Reads `reference`, which must hold a number.
    """

    absolute: float = 1e-9
    relative: float = 1e-6
    pick: Literal["last", "first", "only"] = "last"
    name: str = "numeric"

    free = True
    needs = ("reference",)

    def __post_init__(self) -> None:
        check_number("absolute", self.absolute, 0)
        check_number("relative", self.relative, 0)
        check_choice("pick", self.pick, ("last", "first", "only"))

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """1 or 0. Raises ConfigError for a reference without a number."""
        wanted = await asyncio.to_thread(final_numbers, reference_of(task, self.name), "last")
        if len(wanted) != 1:
            raise ConfigError(f"grader {self.name!r} needs one number in the task's reference, and there is none or more")
        found = await asyncio.to_thread(final_numbers, candidate.text, self.pick)
        if len(found) != 1:
            what = "there is no number in the answer" if not found else "the answer gives several numbers"
            return verdict(ok=False, reason=what, action='State one number: "The answer is ...".')
        ok = self._equal(found[0], wanted[0])
        reason = f"the answer's number is {_shown(found[0][0])}, which is {'right' if ok else 'wrong'}"
        return verdict(ok, reason, "Work the number out again.")

    def _equal(self, a: Number, b: Number) -> bool:
        readings = {a[0]} | ({a[0] * 100} if a[1] and not b[1] else set()) | ({a[0] / 100} if b[1] and not a[1] else set())
        room = max(Fraction(self.absolute), Fraction(self.relative) * abs(b[0]))
        return any(abs(reading - b[0]) <= room for reading in readings)


def _shown(number: Fraction) -> str:
    """Six digits of it, however large it is: no float could hold 1e999."""
    return f"{Context(prec=6).divide(number.numerator, number.denominator):g}"


def final_numbers(text: str, pick: str) -> list[Number]:
    """The number that a text comes to, none, or several where it does not say which."""
    if marks := marked(text):
        found = [numbers(piece) for piece in marks]
        return list(dict.fromkeys(values[-1] for values in found if values))
    values = numbers(text)
    if pick == "only":
        return list(dict.fromkeys(values))
    return values[-1:] if pick == "last" else values[:1]
