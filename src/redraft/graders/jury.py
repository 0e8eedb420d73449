"""Several graders, or several looks of one, as one: a jury scores, a council ranks.

Every vote is kept, so that a grader's `spread` can be seen; one juror that fails does not lose the others' votes.
Panels of several judges: Verga et al., arXiv:2404.18796.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean, median
from typing import Any, Literal, get_args

from .. import checks
from ..core.records import Candidate, Comparison, Failure, Feedback, Record, Task
from ..errors import EXTERNAL_ERRORS, GradingError, error_from_failure
from ..protocols import JudgeClient
from .composite import (
    all_model_free,
    as_parts,
    capture_failure,
    consensus,
    format_vote,
    gather_or_cancel,
    grade_part,
    retry_once,
    total_usage,
    unique_names,
    unique_texts,
)
from .judging.pairwise import copeland
from .seating import MAX_REPEATS

Aggregation = Literal["mean", "median", "majority", "trimmed"]
REPEAT_STRIDE = 1000  # between the looks of jurors, so that a jury itself may be asked for so many looks


@dataclass(frozen=True)
class Jury:
    """A grader made of several, or of several looks of one; all are asked at once.

    `jurors`: names, functions or graders, or one of these alone; each looks `looks` times (>= 1). Looks of a model
    differ only at a temperature above 0. `how` makes one score of theirs: their "mean"; their "median"; the mean
    without the lowest and the highest ("trimmed"; of fewer than three, of all); or by "majority", where a score of at
    least `passes` is a vote to pass: 1 if more than half of the votes are, 0 if fewer are, 0.5 for as many.

    A vote that fails, or has no score, counts for nothing, as long as `quorum` votes do (None: more than half). The
    actions are those of the jurors that score below 1; `done` is True when all jurors that say anything about it say
    so. Raises ConfigError.
    """

    graders: Any
    aggregation: Aggregation = "mean"
    quorum: int | None = None
    name: str = "jury"
    repeats: int = 1
    pass_threshold: float = 0.5

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "graders", as_parts(self.graders, self.name))
        checks.one_of(f"{self.name}: how", self.aggregation, get_args(Aggregation))
        checks.whole_number(f"{self.name}: looks", self.repeats, 1, MAX_REPEATS)
        checks.whole_number(f"{self.name}: quorum", self.quorum, 1, len(self.graders) * self.repeats, optional=True)
        checks.share(f"{self.name}: passes", self.pass_threshold)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.graders)

    @property
    def model_free(self) -> bool:
        return all_model_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """One view made of all votes. Raises GradingError without a quorum, and BudgetExhaustedError."""
        return self.aggregate_votes(
            await gather_or_cancel(self._vote(juror, task, candidate, ask) for juror in assign_repeats(self.graders, self.repeats))
        )

    async def _vote(self, slot: VoteSlot, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback | Failure:
        work = grade_part(slot.part, task, candidate, ask, name=slot.name, repeat=slot.sample_offset)
        vote = await capture_failure(work, ("feedback", candidate.id, slot.name, slot.repeat), "grade")
        return replace(vote, repeat=slot.repeat) if isinstance(vote, Feedback) else vote

    def aggregate_votes(self, votes: Sequence[Feedback | Failure]) -> Feedback:
        """What the votes come to. Raises GradingError without a quorum."""
        heard = [vote for vote in votes if isinstance(vote, Feedback)]
        scores = [vote.score for vote in heard if vote.score is not None]
        _check_quorum(self.name, len(scores), votes, self.quorum, [_missing_vote_reason(v) for v in votes if not _has_score(v)])
        below = [vote for vote in heard if vote.score is not None and vote.score < 1]
        return Feedback(
            self._score(scores),
            f"{self.aggregation} of {len(scores)}: {', '.join(map(format_vote, votes))}"
            + "".join(f"; {reason}" for reason in unique_texts(vote.reason for vote in heard if vote.reason)),
            unique_texts(action for vote in below for action in vote.actions),
            consensus(vote.done for vote in heard),
            usage=total_usage(votes),
            votes=tuple(votes),
        )

    def _score(self, scores: list[float]) -> float:
        match self.aggregation:
            case "median":
                return median(scores)
            case "majority":
                return median(float(score >= self.pass_threshold) for score in scores)
            case "trimmed" if len(scores) >= 3:
                return fmean(sorted(scores)[1:-1])
        return fmean(scores)


@dataclass(frozen=True)
class RankingJury:
    """A comparer made of several: whoever most of them place before another beats it, and wins decide (Copeland).

    `comparers` are names or comparers such as `Ranker` and `Pairwise`; each looks `looks` times (>= 1). Equally many
    wins tie. One that fails counts for nothing, as long as `quorum` are heard (None: more than half). Raises ConfigError.
    """

    comparers: Any
    quorum: int | None = None
    name: str = "council"
    repeats: int = 1

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "comparers", as_parts(self.comparers, self.name, "compare"))
        checks.whole_number(f"{self.name}: looks", self.repeats, 1, MAX_REPEATS)
        checks.whole_number(f"{self.name}: quorum", self.quorum, 1, len(self.comparers) * self.repeats, optional=True)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.comparers)

    @property
    def model_free(self) -> bool:
        return all_model_free(self.parts)

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison:
        """One ranking made of all. Raises GradingError without a quorum, and BudgetExhaustedError."""
        jurors = assign_repeats(self.comparers, self.repeats)
        return self.aggregate_votes(await gather_or_cancel(self._vote(juror, task, candidates, ask) for juror in jurors))

    async def _vote(self, slot: VoteSlot, task: Task, candidates: Sequence[Candidate], ask: JudgeClient) -> Comparison | Failure:
        ids = sorted(c.id for c in candidates)
        way = ask.with_options(getattr(slot.part, "model", None), slot.sample_offset)

        async def compare() -> Comparison:
            said: Comparison = await slot.part.compare(task, candidates, way)
            if sorted(said.ranking) != ids:
                raise ValueError(f"it ranked {said.ranking!r}; it must rank each of {ids} once")
            return replace(said, grader=slot.name, repeat=slot.repeat)

        return await capture_failure(retry_once(slot.name, compare), ("comparison", tuple(ids), slot.name, slot.repeat), "compare")

    def aggregate_votes(self, votes: Sequence[Comparison | Failure]) -> Comparison:
        """What the votes come to. Raises GradingError without a quorum."""
        heard = [vote for vote in votes if isinstance(vote, Comparison)]
        _check_quorum(self.name, len(heard), votes, self.quorum, [_missing_vote_reason(v) for v in votes if isinstance(v, Failure)])
        ranking, ties = copeland(heard)
        return Comparison(
            ranking,
            "; ".join(unique_texts(vote.reason for vote in heard if vote.reason)),
            unique_texts(action for vote in heard for action in vote.actions),
            consensus(vote.done for vote in heard),
            usage=total_usage(votes),
            ties=ties,
            votes=tuple(votes),
        )


@dataclass(frozen=True, slots=True)
class VoteSlot:
    """One look of one part: the name and number it goes by, and the look it asks with, which no other juror asks with."""

    part: Any
    name: str
    repeat: int
    sample_offset: int


def assign_repeats(parts: Sequence[Any], repeats: int) -> list[VoteSlot]:
    """All looks of all parts. Parts may ask the same words, whatever they are called, so a cache must keep all apart."""
    sat = [(part, name, look) for part, name in zip(parts, unique_names(parts), strict=True) for look in range(repeats)]
    begins = accumulate((_slot_count(part) for part, _, _ in sat), initial=0)
    return [VoteSlot(*seat, apart * REPEAT_STRIDE) for seat, apart in zip(sat, begins, strict=False)]


def _slot_count(part: Any) -> int:
    """How many jurors sit in one look of a part: more than one where it is a jury itself, or made of juries."""
    return max(1, sum(map(_slot_count, getattr(part, "parts", ()))) * (part.repeats if isinstance(part, Jury | RankingJury) else 1))


def _has_score(vote: Feedback | Failure) -> bool:
    return isinstance(vote, Feedback) and vote.score is not None


def _missing_vote_reason(vote: Feedback | Comparison | Failure) -> str:
    """Why a vote counts for nothing."""
    return f"{vote.step_slot[2]}: {vote.message}" if isinstance(vote, Failure) else f"{vote.grader}: no score ({vote.reason})"


def _check_quorum(name: str, valid: int, votes: Sequence[Record], quorum: int | None, reasons: Sequence[str]) -> None:
    """Raises GradingError without a quorum; or what kept a juror from speaking, where that was the world's fault."""
    needed = len(votes) // 2 + 1 if quorum is None else quorum
    if valid < needed:
        why = f"{name}: {valid} of {len(votes)} were heard, it takes {needed}: {'; '.join(reasons)}"[:2000]
        outages = [v for v in votes if isinstance(v, Failure) and v.error in EXTERNAL_ERRORS]
        raise error_from_failure(outages[0], why) if outages else GradingError(why)
