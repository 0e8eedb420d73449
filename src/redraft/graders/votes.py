"""What becomes of several votes: their usage, consensus and reasons, and one ranking of many (Copeland 1951)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from itertools import combinations, groupby
from typing import Any, TypeVar

from ..core.cancellation import cancel_and_wait
from ..core.records import Comparison, Failure, Feedback, Record
from ..usage import NO_USAGE, Usage

T = TypeVar("T")


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. If one fails, or the caller is cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(tasks)


def format_vote(vote: Feedback | Failure) -> str:
    """Return the grader's name with its score, "unknown" or "failed"."""
    if isinstance(vote, Failure):
        return f"{vote.step_slot[2]} failed"
    return f"{vote.grader} {'unknown' if vote.score is None else format(vote.score, '.2f')}"


def total_usage(votes: Iterable[Record]) -> Usage:
    """Return the usage that the votes report themselves; model calls are accounted for by the caller."""
    return sum((vote.usage for vote in votes), NO_USAGE)


def consensus(values: Iterable[bool | None]) -> bool | None:
    """Return True if all known values are true, False if one is not, and None if none is known."""
    known = [value for value in values if value is not None]
    return all(known) if known else None


def unique_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts in order, each once."""
    return tuple(dict.fromkeys(texts))


def copeland(votes: Sequence[Comparison]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return a ranking and its ties from several comparisons.

    In each pair, the candidate that most comparisons place higher gets a point; in a tie both get half. Candidates with equal
    points tie, and so do those of a cycle (a beats b beats c beats a).
    """
    ranks = [vote.ranks for vote in votes]
    ids = sorted({id for places in ranks for id in places})
    points = dict.fromkeys(ids, 0.0)
    for a, b in combinations(ids, 2):
        margin = sum(_sign(places[b] - places[a]) for places in ranks if a in places and b in places)
        points[a] += (1 + _sign(margin)) / 2
        points[b] += (1 - _sign(margin)) / 2
    return ranking_from_points(points)


def ranking_from_points(points: Mapping[int, float]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the ids by points, the highest first, and the groups with equal points."""
    ranking = sorted(sorted(points), key=points.__getitem__, reverse=True)
    groups = [tuple(group) for _, group in groupby(ranking, key=points.__getitem__)]
    return tuple(ranking), tuple(group for group in groups if len(group) > 1)


def _sign(n: int) -> int:
    return (n > 0) - (n < 0)
