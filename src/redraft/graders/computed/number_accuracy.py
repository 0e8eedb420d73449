"""The share of a reference's numbers that an answer gives right."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter

from ...base import checks
from ...base.own_code import fingerprint_name
from ...base.threads import THREAD_THRESHOLD
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.task import Task
from .answers import Number, numbers
from .base import ComputedGrader, reference_of, score_feedback

MAX_REFERENCE_NUMBERS = 1000


@fingerprint_name("number_accuracy")
@dataclass(frozen=True)
class NumberAccuracy(ComputedGrader):
    """The share of the numbers in the reference that the answer gives.

    Each number of the answer counts for one number of the reference at most. With `order`, they
    must come in the order of the reference (the longest common subsequence counts); without it, in
    any order. Numbers of the answer that fit none cost nothing, so an answer that lists many
    numbers scores high; without `extra`, the share refers to the longer list, and they cost as
    much as missing ones.

    The difference may be at most `absolute` or `relative` times the reference's size, whichever is
    larger (both >= 0). 50% equals 50%, 0.5, and a bare 50. `answers.numbers` says which forms are
    read: grouped thousands, fractions, powers of ten, digits of any script. Reads `reference`,
    which must hold 1 to 1000 numbers.
    """

    order: bool = True
    extra: bool = True
    absolute: float = 1e-9
    relative: float = 1e-6
    name: str = "number_accuracy"

    needs = ("reference",)

    def __post_init__(self) -> None:
        checks.flag("order", self.order)
        checks.flag("extra", self.extra)
        checks.number("absolute", self.absolute, 0)
        checks.number("relative", self.relative, 0)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a short reference with too few or too many numbers (a long one is
        read when it is needed).
        """
        if len(text := task.reference or "") < THREAD_THRESHOLD:
            self._expected_numbers(text)

    def _expected_numbers(self, reference: str) -> list[Number]:
        expected = numbers(reference)
        if not 1 <= len(expected) <= MAX_REFERENCE_NUMBERS:
            raise ConfigError(
                f"grader {self.name!r} needs 1 to {MAX_REFERENCE_NUMBERS} numbers in the task's "
                f"reference, got {len(expected)}"
            )
        return expected

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return a score from 0 to 1. Raises ConfigError for a reference with too few or too many
        numbers.
        """
        expected = self._expected_numbers(reference_of(task, self.name))
        actual = numbers(candidate.text)
        matches = self._match_masks(expected, actual)
        right = longest_common_subsequence(matches) if self.order else maximum_matching(matches)
        total = len(expected) if self.extra else max(len(expected), len(actual))
        surplus = (
            ""
            if self.extra or len(actual) <= len(expected)
            else f"; the answer gives {len(actual)} numbers"
        )
        reason = (
            f"{right} of {len(expected)} numbers are "
            f"right{' and in order' if self.order else ''}{surplus}"
        )
        wrong = len(expected) - right
        action = (
            f"Check every number: {wrong} of {len(expected)} {'is' if wrong == 1 else 'are'} "
            "missing or wrong."
        )
        return score_feedback(
            right / total,
            reason,
            action if wrong else "Leave out the numbers that are not asked for.",
        )

    def _match_masks(self, expected: Sequence[Number], actual: Sequence[Number]) -> list[int]:
        """Return for each expected number a bit mask of the positions of the numbers in the answer
        that equal it.
        """
        as_read = sorted((value, n) for n, (value, _) in enumerate(actual))
        in_percent = sorted(
            (value * 100, n) for n, (value, percent) in enumerate(actual) if percent
        )
        as_share = sorted(
            (value / 100, n) for n, (value, percent) in enumerate(actual) if not percent
        )
        masks: dict[Number, int] = {}
        for value, percent in dict.fromkeys(expected):
            tolerance = max(Fraction(self.absolute), Fraction(self.relative) * abs(value))
            low, high = value - tolerance, value + tolerance
            scaled = as_share if percent else in_percent
            masks[value, percent] = _mask(as_read, low, high) | _mask(scaled, low, high)
        return [masks[number] for number in expected]


def _mask(items: Sequence[tuple[Fraction, int]], low: Fraction, high: Fraction) -> int:
    """Return a bit mask of the positions of the values from `low` to `high` among sorted pairs of
    value and position.
    """
    first, end = (
        bisect_left(items, low, key=itemgetter(0)),
        bisect_right(items, high, key=itemgetter(0)),
    )
    bits = bytearray(max((n for _, n in items[first:end]), default=-1) // 8 + 1)
    for _, n in items[first:end]:
        bits[n // 8] |= 1 << n % 8
    return int.from_bytes(bits, "little")


def longest_common_subsequence(masks: Sequence[int]) -> int:
    """Return the length of the longest common subsequence, given for each item of one list a bit
    mask of equal items in the other.

    Bit-parallel (Hyyro 2004): one step for each mask.
    """
    width = max((mask.bit_length() for mask in masks), default=0)
    every = (1 << width) - 1
    row = every  # a zero bit for each position at which the subsequence grows
    for mask in masks:
        common = row & mask
        row = ((row + common) | (row - common)) & every
    return width - row.bit_count()


def maximum_matching(masks: Sequence[int]) -> int:
    """Return the most pairs of equal items without an item in two pairs, given a bit mask of equal
    items for each item.

    By augmenting paths (Kuhn 1955), found in breadth.
    """
    item_at: dict[int, int] = {}  # the item that a position is paired with
    position_of: dict[int, int] = {}
    taken = 0
    for start in range(len(masks)):
        reached_from: dict[int, int] = {}
        position = _reach_free_position(masks, start, taken, item_at, reached_from)
        if position is None:
            continue
        taken |= 1 << position
        while position is not None:
            item = reached_from[position]
            item_at[position] = item
            position_of[item], position = position, position_of.get(item)
    return len(position_of)


def _reach_free_position(
    masks: Sequence[int],
    start: int,
    taken: int,
    item_at: Mapping[int, int],
    reached_from: dict[int, int],
) -> int | None:
    """Return a free position at the end of an augmenting path, or None; `reached_from` gets the
    item before each position.
    """
    unseen, queue = ~0, [start]
    for item in queue:
        if free := masks[item] & ~taken:
            position = _lowest_bit(free)
            reached_from[position] = item
            return position
        reachable = masks[item] & unseen
        unseen &= ~reachable
        while reachable:
            position = _lowest_bit(reachable)
            reachable &= reachable - 1
            reached_from[position] = item
            queue.append(item_at[position])
    return None


def _lowest_bit(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
