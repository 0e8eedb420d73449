"""What people's labels mean: the many spellings of better, kept and how good, each read in one way only.

A value that could mean two things means none: it raises `Unclear`, and the row is left out and counted. Nothing here
knows of files or columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from reprlib import Repr
from typing import Any

FIRST, SECOND, TIE = (0, 1), (1, 0), (0, 0)  # places
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
MAX_NUMBER = 1e300
BRACKETS = re.compile(r"^\[\[(.*)\]\]$")


class AmbiguousLabel(ValueError):
    """A value that cannot be understood; its text says why."""


def _meaning_by_spelling(meanings: Mapping[Any, str]) -> dict[str, Any]:
    return {word: meaning for meaning, words in meanings.items() for word in words.split()}


PAIR_SPELLINGS = _meaning_by_spelling(
    {
        FIRST: "first a a>b a>>b b<a b<<a model_a model_1 response_a response_1 output_a output_1 answer_a answer_1",
        SECOND: "second b b>a b>>a a<b a<<b model_b model_2 response_b response_2 output_b output_2 answer_b answer_2",
        TIE: "tie tied draw equal same both neither a=b b=a tie(bothbad) bothbad",
    }
)
PASS_SPELLINGS = _meaning_by_spelling(
    {
        1.0: "pass passed yes y true t correct right ok good acceptable accept accepted kept",
        0.0: "fail failed no n false f incorrect wrong bad unacceptable reject rejected broken",
    }
)
RANKS_BY_RATING = {1.0: FIRST, 2.0: SECOND, 0.0: TIE}


def is_missing(value: Any) -> bool:
    """Whether nothing was said: null, NaN, empty text."""
    return value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and isnan(value))


def normalise_label(value: Any) -> str:
    """A text as it is compared: without case, spaces and double brackets; "" for what is no text."""
    bare = BRACKETS.sub(r"\1", value.strip()) if isinstance(value, str) else ""
    return "".join(bare.split()).casefold()


def parse_number(value: Any) -> float:
    """A finite number, or a text that is one and nothing else. Raises Unclear: "4/5" is none, nor is true."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        value = float(value)
    real = isinstance(value, int | float) and not isinstance(value, bool)
    if not real or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise AmbiguousLabel(f"{short_repr(value)} is no number")
    return float(value)


def short_repr(value: Any) -> str:
    """A foreign value in a complaint: not all of it."""
    short = Repr()
    short.maxlevel, short.maxlist, short.maxstring, short.maxother = 2, 8, 60, 60
    return short.repr(value)


def is_number(value: Any) -> bool:
    """Whether `number` reads it."""
    try:
        parse_number(value)
    except AmbiguousLabel:
        return False
    return True


def parse_whole_number(value: Any) -> int:
    """A whole number. Raises Unclear."""
    found = parse_number(value)
    if found != int(found):
        raise AmbiguousLabel(f"{short_repr(value)} is no whole number")
    return int(found)


def parse_pass(value: Any) -> float:
    """1 for kept, 0 for not. Raises Unclear."""
    if isinstance(value, bool):
        return float(value)
    found = parse_number(value) if is_number(value) else PASS_SPELLINGS.get(normalise_label(value))
    if found not in {0.0, 1.0}:
        raise AmbiguousLabel(f"{short_repr(value)} means neither pass nor fail")
    return found


def is_pass(value: Any) -> bool:
    """Whether `passed` reads it."""
    try:
        parse_pass(value)
    except AmbiguousLabel:
        return False
    return True


def parse_preference(value: Any, *, from_zero: bool = False) -> tuple[int, ...]:
    """The places that a label gives to the two responses. Raises Unclear.

    `zero`: the column numbers the responses 0 and 1 or ties and wins 0 and 1; nobody can tell, so numbers are unclear.
    """
    if isinstance(value, bool):
        raise AmbiguousLabel(f"{value!r} does not say which response is better")
    if not is_number(value):
        if (said := normalise_label(value)) in PAIR_SPELLINGS:
            return tuple(PAIR_SPELLINGS[said])
        raise AmbiguousLabel(f"{short_repr(value)} does not say which response is better")
    if from_zero:
        raise AmbiguousLabel(f"{short_repr(value)} may count from 0, or say tie; state what it means")
    if (found := parse_number(value)) in RANKS_BY_RATING:
        return RANKS_BY_RATING[found]
    raise AmbiguousLabel(f"{short_repr(value)} is neither 1, 2 nor 0 (tie)")


def counts_from_zero(values: Iterable[Any]) -> bool:
    """Whether numbers in a column of preferences hold 0 and no 2, so that 0 may be the first response or a tie."""
    said = {parse_number(v) for v in values if is_number(v)}
    return 0.0 in said and 2.0 not in said


def as_rating(ranks: Sequence[int]) -> float:
    """A preference as raters' numbers: 1, 2, 0 for a tie."""
    return {FIRST: 1.0, SECOND: 2.0}.get((ranks[0], ranks[1]), 0.0)


def majority_rating(ratings: Iterable[float | None]) -> float:
    """What most raters said. Raises Unclear when no answer is the most frequent."""
    ranked = Counter(r for r in ratings if r is not None).most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        raise AmbiguousLabel("no answer of the raters is the most frequent" if ranked else "no rater said anything")
    return ranked[0][0]


def zero_based_ranks(ranks: Sequence[Any], n: int) -> tuple[int, ...]:
    """Places from 0 of `n` responses, from ranks that count from 1, equal for ties. Raises Unclear."""
    found = [parse_whole_number(rank) for rank in ranks]
    if len(found) != n or min(found, default=0) != 1 or max(found) > n:
        raise AmbiguousLabel(f"places of {n} responses are {n} numbers from 1 to {n}, got {short_repr(list(ranks))}")
    return tuple(sum(other < own for other in found) for own in found)


def ranks_from_order(order: Sequence[Any], n: int) -> tuple[int, ...]:
    """Places from 0 of `n` responses, from their numbers, best first; they count from 0 or from 1. Raises Unclear."""
    found = [parse_whole_number(item) for item in order]
    start = min(found, default=0)
    if start not in {0, 1} or sorted(found) != list(range(start, start + n)):
        raise AmbiguousLabel(f"an order of {n} responses holds each of their numbers once, got {short_repr(list(order))}")
    return tuple(found.index(item) for item in range(start, start + n))
