"""The answers of a trace in order of merit: by the criteria of `Trace.best`, with ties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .records import Candidate, Comparison, Feedback
from .trace import Trace


@dataclass(frozen=True, slots=True)
class RankedAnswer:
    """An answer and its rank.

    Attributes:
        candidate: The answer.
        rank: Its rank, from 1; None if it was not graded.
        tied: Whether others share the rank.
        score: Its score, from 0 to 1; None if it was never scored.
    """

    candidate: Candidate
    rank: int | None
    tied: bool = False
    score: float | None = None

    @property
    def text(self) -> str:
        """The text of the answer; it may be empty if the answer calls tools."""
        return self.candidate.text

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data that `json.dumps` accepts."""
        return {
            "rank": self.rank,
            "tie": self.tied,
            "candidate": self.candidate.id,
            "score": self.score,
            "text": self.text,
            "tool_calls": [call.as_message_part() for call in self.candidate.tool_calls],
        }


def ranking(trace: Trace) -> tuple[RankedAnswer, ...]:
    """Return the answers, best first, and then those that were not graded. Tied and ungraded
    answers are sorted by age.

    The criteria are as in `Trace.best`, which comes first. Copies of their parents, and ungraded
    answers that an editor's repair replaced, are left out.
    """
    rows: list[RankedAnswer] = []
    for group in _tied_groups(trace):
        rank, tied = len(rows) + 1, len(group) > 1
        rows += [RankedAnswer(trace.by_id[id], rank, tied, trace.scores[id]) for id in group]
    listed = {row.candidate.id for row in rows} | trace.replaced_ids | trace.unchanged_ids
    ungraded = sorted(
        (c for c in trace.candidates if c.id not in listed), key=lambda c: c is not trace.best
    )
    return (*rows, *(RankedAnswer(c, None) for c in ungraded))


def _tied_groups(trace: Trace) -> Iterator[list[int]]:
    """Yield the ids of the graded answers by merit, those that tie together; the best answer of the
    trace is the very first.
    """
    best = trace.best
    left = [c.id for c in trace.graded_candidates if c is best or c.id not in trace.unchanged_ids]
    if best is not None and best.id in left:
        group = trace.with_estimates.top_candidates(left)
        group = [best.id, *(id for id in group if id != best.id)] if best.id in group else [best.id]
        yield group
        left = [id for id in left if id not in group]
    while left:
        group = sorted(trace.with_estimates.top_candidates(left))
        yield group
        left = [id for id in left if id not in group]


def top_answers(trace: Trace, k: int) -> tuple[RankedAnswer, ...]:
    """Return the `k` best graded answers, best first; of a draft and its repairs, only the best
    one.
    """
    by_draft: dict[int, RankedAnswer] = {}
    for row in ranking(trace):
        if row.rank is not None:
            by_draft.setdefault(_unrepaired_id(trace, row.candidate), row)
    return tuple(by_draft.values())[:k]


def _unrepaired_id(trace: Trace, candidate: Candidate) -> int:
    """Return the id of the answer that the editor repaired, over several repairs, to this one."""
    while candidate.role == "repair" and candidate.parent in trace.by_id:
        candidate = trace.by_id[candidate.parent]
    return candidate.id


def rank_feedback(comparison: Comparison, candidate: int) -> Feedback:
    """Return what a comparison says of one of its candidates: its rank, the whole order, and why.
    What to change is about the best.

    The metadata has the `rank`, from 1, and the `ranking`.
    """
    c, rank = comparison, comparison.ranks[candidate] + 1
    place = f"rank {rank} of {len(c.ranking)} ({c.order_text})"
    return Feedback(
        reason=f"{place}: {c.reason}" if c.reason else place,
        actions=c.actions if rank == 1 else (),
        done=c.done if rank == 1 else None,
        candidate=candidate,
        grader=c.grader,
        repeat=c.repeat,
        by=c.by,
        usage=c.usage,
        seconds=c.seconds,
        metadata={"rank": rank, "ranking": list(c.ranking)},
    )


def ranked_text(trace: Trace) -> str:
    """Return the widest ranking in words, such as "ranked 3 > 2 > 1 > 0", if graders only rank; ""
    for others.
    """
    return (
        f"ranked {trace.comparisons[-1].order_text}"
        if trace.comparisons and not trace.scorers
        else ""
    )
