"""What is left to spend, and what a step takes of it: a plan offers only steps that can be paid for
to their end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from math import floor, inf
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..base import checks
from ..base.money import format_usd
from ..loop.records import Candidate, Feedback, StopReason
from ..loop.trace import Trace
from ..usage import Usage

CostUnit: TypeAlias = Literal["calls", "tokens", "usd"]
COST_UNITS: tuple[str, ...] = get_args(CostUnit)
UNIT_PHRASES = {"calls": "a call", "tokens": "for 1,000 tokens", "usd": "for a USD"}
TOLERANCE = 1e-9  # sums of USD are not exact
NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class Left:
    """What a task may still spend; None: without limit. Whoever asks a plan for steps says it.

    Args:
        calls: Number of model calls.
        tokens: Tokens that models read and write.
        usd: Cost in USD.
        seconds: Time before the deadline.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models write.

    Raises:
        ConfigError: A value is negative or not a number.
    """

    calls: float | None = None
    tokens: float | None = None
    usd: float | None = None
    seconds: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None

    def __post_init__(self) -> None:
        for value in self.amounts:  # plans make many
            if value is not None and not (type(value) in NUMBERS and 0 <= value < inf):
                self._check()

    def _check(self) -> None:
        for each in fields(self):
            checks.number(f"left: {each.name}", getattr(self, each.name), optional=True)

    @property
    def amounts(self) -> tuple[float | None, ...]:
        """The amounts in the order of the fields."""
        return (
            self.calls,
            self.tokens,
            self.usd,
            self.seconds,
            self.input_tokens,
            self.output_tokens,
        )

    @property
    def limit_names(self) -> list[str]:
        """The names of the amounts that are limited."""
        return [
            name for name, amount in zip(AMOUNTS, self.amounts, strict=True) if amount is not None
        ]

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited."""
        return self != UNLIMITED

    def allows(self, need: Left) -> bool:
        """Whether this much can be spent; an unknown need (None) can."""
        return not self.exceeded_limit(need)

    def exceeded_limit(self, need: Left) -> str:
        """Return the name of the first limit that the need exceeds; "" if it exceeds none."""
        if self is UNLIMITED:
            return ""
        pairs = zip(AMOUNTS, self.amounts, need.amounts, strict=True)
        return next(
            (
                name
                for name, left, need in pairs
                if left is not None and need is not None and need > left + TOLERANCE
            ),
            "",
        )


AMOUNTS = tuple(each.name for each in fields(Left))
UNLIMITED = Left()
NOTHING = Left(0, 0, 0, 0, 0, 0)
ONE_CALL = replace(NOTHING, calls=1)


class StepNeeds(NamedTuple):
    """What each kind of step takes: writing a text, all grades of one text, and one grade by a
    judge whose score counts.
    """

    text: Left
    grades: Left
    grade: Left

    @property
    def graded_text(self) -> Left:
        """A text with its grades, one after the other."""
        return total((self.text, self.grades))


def step_needs(trace: Trace, amounts: Collection[str] = AMOUNTS) -> StepNeeds:
    """Return the mean needs of the steps so far. A text and a grade take at least one call each.

    `amounts`: the names of those to compute; the others are None, except calls.
    """
    judges = trace.graders.judges
    texts = [c for c in trace.candidates if c.role in {"generate", "refine"}]
    grades: dict[str, list[Feedback]] = {judge.name: [] for judge in judges}
    for feedback in chain.from_iterable(trace.feedback.values()):
        if feedback.grader in grades:
            grades[feedback.grader].append(feedback)
    scoring = {grader.name for grader in trace.scorers}
    return StepNeeds(
        mean_need(texts, amounts),
        at_once([(mean_need(grades[judge.name], amounts), judge.repeats) for judge in judges]),
        mean_need([f for j in judges if j.name in scoring for f in grades[j.name]], amounts),
    )


def mean_need(records: Sequence[Candidate | Feedback], amounts: Collection[str] = AMOUNTS) -> Left:
    """Return the mean need of steps, by their records; None where it is unknown. Before the first
    one it is one call.
    """
    if not records:
        return ONE_CALL
    usages = [record.usage for record in records]
    calls = [usage.calls + usage.cached_calls - usage.retried_calls for usage in usages]
    if tuple(amounts) == ("calls",):  # most plans count calls only
        return Left(max(1.0, sum(calls) / len(calls)))
    # of cached answers, only the sum of tokens is known
    uncached = [usage for usage in usages if not usage.cached_calls]
    return Left(
        max(1.0, sum(calls) / len(calls)),
        mean([usage.answer_tokens for usage in usages]) if "tokens" in amounts else None,
        mean([usage.answer_cost for usage in usages]) if "usd" in amounts else None,
        mean([record.seconds for record in records]) if "seconds" in amounts else None,
        mean([usage.input_tokens for usage in uncached]) if "input_tokens" in amounts else None,
        mean([usage.output_tokens for usage in uncached]) if "output_tokens" in amounts else None,
    )


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None if a value is unknown."""
    return None if not values or None in values else sum(filter(None, values)) / len(values)


def total(needs: Iterable[Left]) -> Left:
    """Return the needs of steps that follow one another; a part that is unknown makes the whole
    unknown.
    """
    columns = [*zip(*(need.amounts for need in needs), strict=True)]
    return Left(*(None if None in values else sum(values) for values in columns))


def at_once(needs: Sequence[tuple[Left, int]]) -> Left:
    """Return the needs of steps that are made at the same time, each so many times."""
    if not needs:
        return NOTHING
    if len(needs) == 1 and needs[0][1] == 1:
        return needs[0][0]
    times = [need.seconds for need, _ in needs]
    known = [seconds for seconds in times if seconds is not None]
    summed = total(need for need, number in needs for _ in range(number))
    return replace(summed, seconds=max(known) if len(known) == len(times) else None)


def minus(left: Left, need: Left) -> Left:
    """Return what is left beside a step that is made at the same time; its seconds are the same
    ones.
    """
    pairs = zip(left.amounts, need.amounts, strict=True)
    rest = Left(
        *(have if have is None or take is None else max(0.0, have - take) for have, take in pairs)
    )
    return replace(rest, seconds=left.seconds)


def shortage_text(limit: str, need: Left, left: Left) -> str:
    """Return what a step takes of a limit and what is left of it, in words."""
    needed, have = getattr(need, limit), getattr(left, limit)
    match limit:
        case "seconds":
            return f"{needed:.1f} s, {have:.1f} s are left before the deadline"
        case "usd":
            return f"{format_usd(needed)}, {format_usd(have)} are left of the budget"
        case _:
            return (
                f"{needed:.0f} {limit.replace('_', ' ')}, {have:.0f} "
                f"{'is' if have == 1 else 'are'} left of the budget"
            )


def affordable_count(left: Left, need: Left) -> float:
    """Return how many steps that take `need` each can be paid for, however long they take."""
    pairs = zip(replace(left, seconds=None).amounts, need.amounts, strict=True)
    return min(
        (floor(have / take + TOLERANCE) for have, take in pairs if have is not None and take),
        default=inf,
    )


def rounds_left(left: Left, need: Left) -> float:
    """Return how many steps that take `need` each can follow one another before the deadline."""
    if left.seconds is None or not need.seconds:
        return inf
    return floor(left.seconds / need.seconds + TOLERANCE)


def exhausted_reason(limit: str) -> StopReason:
    """Return the stop reason of a limit."""
    return StopReason.DEADLINE if limit == "seconds" else StopReason.BUDGET


# ---- in the unit in which a plan sets its price


class StepCosts(NamedTuple):
    """The cost of a text with its grades, and of one grade; None if unknown."""

    graded_text: float | None
    grade: float | None


def step_costs(needs: StepNeeds, unit: CostUnit) -> StepCosts:
    """Return the costs of steps that need so much (tokens in thousands)."""
    costs = getattr(needs.graded_text, unit), getattr(needs.grade, unit)
    return StepCosts(
        *[cost / 1000 if cost is not None and unit == "tokens" else cost for cost in costs]
    )


def answer_cost(usage: Usage, unit: CostUnit) -> float | None:
    """Return the cost of answers, paid for or from the cache (tokens in thousands); None if
    unknown.
    """
    match unit:
        case "calls":
            return float(usage.calls + usage.cached_calls - usage.retried_calls)
        case "tokens":
            return None if usage.answer_tokens is None else usage.answer_tokens / 1000
        case "usd":
            return usage.answer_cost
