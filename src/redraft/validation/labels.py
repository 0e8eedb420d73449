"""The meaning of people's labels: preferences, pass or fail, scores, ranks and orders, in their many spellings.

A value that could mean two things raises `AmbiguousLabel`, and its row is left out and counted. This module knows no files or
columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from reprlib import Repr
from typing import Any

FIRST, SECOND, TIE = (0, 1), (1, 0), (0, 0)  # ranks of the two responses
NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?", re.ASCII)
MAX_NUMBER = 1e300
BRACKETS = re.compile(r"^\[\[(.*)\]\]$")


class AmbiguousLabel(ValueError):
    """A value without a clear meaning; the message says why."""


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
    """Return whether a value is null, NaN or an empty text."""
    return value is None or (isinstance(value, str) and not value.strip()) or (isinstance(value, float) and isnan(value))


def normalise_label(value: Any) -> str:
    """Return a text without case, spaces and double brackets; "" for anything else."""
    bare = BRACKETS.sub(r"\1", value.strip()) if isinstance(value, str) else ""
    return "".join(bare.split()).casefold()


def parse_number(value: Any) -> float:
    """Return a finite number, also from a text. Raises AmbiguousLabel for anything else, such as "4/5" or true."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_NUMBER <= value <= MAX_NUMBER:
        raise AmbiguousLabel(f"{short_repr(value)} is not a number")
    return float(value)


def short_repr(value: Any) -> str:
    """Return a shortened repr of a foreign value for messages."""
    short = Repr()
    short.maxlevel, short.maxlist, short.maxstring, short.maxother = 2, 8, 60, 60
    return short.repr(value)


def is_number(value: Any) -> bool:
    """Return whether `parse_number` accepts a value."""
    try:
        parse_number(value)
    except AmbiguousLabel:
        return False
    return True


def parse_whole_number(value: Any) -> int:
    """Return a whole number. Raises AmbiguousLabel."""
    found = parse_number(value)
    if found != int(found):
        raise AmbiguousLabel(f"{short_repr(value)} is not a whole number")
    return int(found)


def parse_pass(value: Any) -> float:
    """Return 1 for pass, 0 for fail. Raises AmbiguousLabel."""
    if isinstance(value, bool):
        return float(value)
    found = parse_number(value) if is_number(value) else PASS_SPELLINGS.get(normalise_label(value))
    if found not in {0.0, 1.0}:
        raise AmbiguousLabel(f"{short_repr(value)} means neither pass nor fail")
    return found


def is_pass(value: Any) -> bool:
    """Return whether `parse_pass` accepts a value."""
    try:
        parse_pass(value)
    except AmbiguousLabel:
        return False
    return True


def parse_preference(value: Any, *, from_zero: bool = False) -> tuple[int, ...]:
    """Return the ranks that a label gives to the two responses. Raises AmbiguousLabel.

    `from_zero`: 0 and 1 in the column may be the responses, or a tie and the first one, so numbers are ambiguous.
    """
    if isinstance(value, bool):
        raise AmbiguousLabel(f"{value!r} does not say which response is better")
    if not is_number(value):
        if (spelling := normalise_label(value)) in PAIR_SPELLINGS:
            return tuple(PAIR_SPELLINGS[spelling])
        raise AmbiguousLabel(f"{short_repr(value)} does not say which response is better")
    if from_zero:
        raise AmbiguousLabel(f"{short_repr(value)} may count from 0, or say tie; state what it means")
    if (found := parse_number(value)) in RANKS_BY_RATING:
        return RANKS_BY_RATING[found]
    raise AmbiguousLabel(f"{short_repr(value)} is neither 1, 2 nor 0 (tie)")


def counts_from_zero(values: Iterable[Any]) -> bool:
    """Return whether a column of preferences holds 0 and no 2, so that 0 may be the first response or a tie."""
    numbers = {parse_number(v) for v in values if is_number(v)}
    return 0.0 in numbers and 2.0 not in numbers


def as_rating(ranks: Sequence[int]) -> float:
    """Return a preference as the number of the better response: 1, 2, or 0 for a tie."""
    return {FIRST: 1.0, SECOND: 2.0}.get((ranks[0], ranks[1]), 0.0)


def majority_rating(ratings: Iterable[float | None]) -> float:
    """Return the most frequent rating. Raises AmbiguousLabel if there is none."""
    ranked = Counter(r for r in ratings if r is not None).most_common(2)
    if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]):
        raise AmbiguousLabel("no answer of the raters is the most frequent" if ranked else "no rater gave a label")
    return ranked[0][0]


def zero_based_ranks(ranks: Sequence[Any], n: int) -> tuple[int, ...]:
    """Return ranks from 0 of `n` responses, from ranks that count from 1, equal for ties. Raises AmbiguousLabel."""
    found = [parse_whole_number(rank) for rank in ranks]
    if len(found) != n or min(found, default=0) != 1 or max(found) > n:
        raise AmbiguousLabel(f"ranks of {n} responses are {n} numbers from 1 to {n}, got {short_repr(list(ranks))}")
    return tuple(sum(other < own for other in found) for own in found)


def ranks_from_order(order: Sequence[Any], n: int) -> tuple[int, ...]:
    """Return ranks from 0 of `n` responses, from their numbers (from 0 or 1), best first. Raises AmbiguousLabel."""
    found = [parse_whole_number(item) for item in order]
    start = min(found, default=0)
    if start not in {0, 1} or sorted(found) != list(range(start, start + n)):
        raise AmbiguousLabel(f"an order of {n} responses holds each of their numbers once, got {short_repr(list(order))}")
    return tuple(found.index(item) for item in range(start, start + n))
