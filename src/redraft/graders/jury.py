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
from ..errors import OUTAGES, GradingError, error_of
from ..protocols import Ask
from .composite import agreed, all_free, as_parts, or_failure, own_names, spent, together, told, twice, unlike, view_of
from .judging.pairwise import copeland
from .seating import MOST_LOOKS

How = Literal["mean", "median", "majority", "trimmed"]
APART = 1000  # between the looks of jurors, so that a jury itself may be asked for so many looks


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

    jurors: Any
    how: How = "mean"
    quorum: int | None = None
    name: str = "jury"
    looks: int = 1
    passes: float = 0.5

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "jurors", as_parts(self.jurors, self.name))
        checks.one_of(f"{self.name}: how", self.how, get_args(How))
        checks.whole_number(f"{self.name}: looks", self.looks, 1, MOST_LOOKS)
        checks.whole_number(f"{self.name}: quorum", self.quorum, 1, len(self.jurors) * self.looks, optional=True)
        checks.share(f"{self.name}: passes", self.passes)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.jurors)

    @property
    def free(self) -> bool:
        return all_free(self.parts)

    async def grade(self, task: Task, candidate: Candidate, ask: Ask) -> Feedback:
        """One view made of all votes. Raises GradingError without a quorum, and BudgetExhaustedError."""
        return self.verdict(await together(self._vote(juror, task, candidate, ask) for juror in sworn(self.jurors, self.looks)))

    async def _vote(self, juror: Juror, task: Task, candidate: Candidate, ask: Ask) -> Feedback | Failure:
        work = view_of(juror.part, task, candidate, ask, name=juror.name, look=juror.apart)
        vote = await or_failure(work, ("feedback", candidate.id, juror.name, juror.look), "grade")
        return replace(vote, look=juror.look) if isinstance(vote, Feedback) else vote

    def verdict(self, votes: Sequence[Feedback | Failure]) -> Feedback:
        """What the votes come to. Raises GradingError without a quorum."""
        heard = [vote for vote in votes if isinstance(vote, Feedback)]
        scores = [vote.score for vote in heard if vote.score is not None]
        _check_quorum(self.name, len(scores), votes, self.quorum, [_silence(v) for v in votes if not _scored(v)])
        below = [vote for vote in heard if vote.score is not None and vote.score < 1]
        return Feedback(
            self._score(scores),
            f"{self.how} of {len(scores)}: {', '.join(map(told, votes))}"
            + "".join(f"; {reason}" for reason in unlike(vote.reason for vote in heard if vote.reason)),
            unlike(action for vote in below for action in vote.actions),
            agreed(vote.done for vote in heard),
            usage=spent(votes),
            votes=tuple(votes),
        )

    def _score(self, scores: list[float]) -> float:
        match self.how:
            case "median":
                return median(scores)
            case "majority":
                return median(float(score >= self.passes) for score in scores)
            case "trimmed" if len(scores) >= 3:
                return fmean(sorted(scores)[1:-1])
        return fmean(scores)


@dataclass(frozen=True)
class Council:
    """A comparer made of several: whoever most of them place before another beats it, and wins decide (Copeland).

    `comparers` are names or comparers such as `Ranker` and `Pairwise`; each looks `looks` times (>= 1). Equally many
    wins tie. One that fails counts for nothing, as long as `quorum` are heard (None: more than half). Raises ConfigError.
    """

    comparers: Any
    quorum: int | None = None
    name: str = "council"
    looks: int = 1

    def __post_init__(self) -> None:
        checks.text("name", self.name)
        object.__setattr__(self, "comparers", as_parts(self.comparers, self.name, "compare"))
        checks.whole_number(f"{self.name}: looks", self.looks, 1, MOST_LOOKS)
        checks.whole_number(f"{self.name}: quorum", self.quorum, 1, len(self.comparers) * self.looks, optional=True)

    @property
    def parts(self) -> tuple[Any, ...]:
        return tuple(self.comparers)

    @property
    def free(self) -> bool:
        return all_free(self.parts)

    async def compare(self, task: Task, candidates: Sequence[Candidate], ask: Ask) -> Comparison:
        """One ranking made of all. Raises GradingError without a quorum, and BudgetExhaustedError."""
        jurors = sworn(self.comparers, self.looks)
        return self.verdict(await together(self._vote(juror, task, candidates, ask) for juror in jurors))

    async def _vote(self, juror: Juror, task: Task, candidates: Sequence[Candidate], ask: Ask) -> Comparison | Failure:
        ids = sorted(c.id for c in candidates)
        way = ask.on(getattr(juror.part, "model", None), juror.apart)

        async def compare() -> Comparison:
            said: Comparison = await juror.part.compare(task, candidates, way)
            if sorted(said.ranking) != ids:
                raise ValueError(f"it ranked {said.ranking!r}; it must rank each of {ids} once")
            return replace(said, grader=juror.name, look=juror.look)

        return await or_failure(twice(juror.name, compare), ("comparison", tuple(ids), juror.name, juror.look), "compare")

    def verdict(self, votes: Sequence[Comparison | Failure]) -> Comparison:
        """What the votes come to. Raises GradingError without a quorum."""
        heard = [vote for vote in votes if isinstance(vote, Comparison)]
        _check_quorum(self.name, len(heard), votes, self.quorum, [_silence(v) for v in votes if isinstance(v, Failure)])
        ranking, ties = copeland(heard)
        return Comparison(
            ranking,
            "; ".join(unlike(vote.reason for vote in heard if vote.reason)),
            unlike(action for vote in heard for action in vote.actions),
            agreed(vote.done for vote in heard),
            usage=spent(votes),
            ties=ties,
            votes=tuple(votes),
        )


@dataclass(frozen=True, slots=True)
class Juror:
    """One look of one part: the name and number it goes by, and the look it asks with, which no other juror asks with."""

    part: Any
    name: str
    look: int
    apart: int


def sworn(parts: Sequence[Any], looks: int) -> list[Juror]:
    """All looks of all parts. Parts may ask the same words, whatever they are called, so a cache must keep all apart."""
    sat = [(part, name, look) for part, name in zip(parts, own_names(parts), strict=True) for look in range(looks)]
    begins = accumulate((_room(part) for part, _, _ in sat), initial=0)
    return [Juror(*seat, apart * APART) for seat, apart in zip(sat, begins, strict=False)]


def _room(part: Any) -> int:
    """How many jurors sit in one look of a part: more than one where it is a jury itself, or made of juries."""
    return max(1, sum(map(_room, getattr(part, "parts", ()))) * (part.looks if isinstance(part, Jury | Council) else 1))


def _scored(vote: Feedback | Failure) -> bool:
    return isinstance(vote, Feedback) and vote.score is not None


def _silence(vote: Feedback | Comparison | Failure) -> str:
    """Why a vote counts for nothing."""
    return f"{vote.of[2]}: {vote.message}" if isinstance(vote, Failure) else f"{vote.grader}: no score ({vote.reason})"


def _check_quorum(name: str, heard: int, votes: Sequence[Record], quorum: int | None, silences: Sequence[str]) -> None:
    """Raises GradingError without a quorum; or what kept a juror from speaking, where that was the world's fault."""
    needed = len(votes) // 2 + 1 if quorum is None else quorum
    if heard < needed:
        why = f"{name}: {heard} of {len(votes)} were heard, it takes {needed}: {'; '.join(silences)}"[:2000]
        outages = [v for v in votes if isinstance(v, Failure) and v.error in OUTAGES]
        raise error_of(outages[0], why) if outages else GradingError(why)
