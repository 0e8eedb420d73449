"""Asking a grader about labelled cases: each of them once a look, pairs in both orders where the grader sees both.

Nothing here knows what people said: a judge that could see the labels would be no judge. What a grader cannot say is a
verdict too, an empty one; what the world kept it from saying (no network, no money) is none, and is asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic

from ..core.cancellation import cancel_and_wait
from ..core.records import NOTHING, Candidate, Comparison, Failure, Feedback, Record, StopReason, Usage
from ..core.steps import Compare, Grade
from ..core.trace import Seat
from ..errors import OUTAGES
from ..perform import Cast, door
from ..protocols import Perform
from ..session import Desk
from .cases import Case, Verdict

IN_VAIN = 10  # cases in a row of which nothing could be learnt: then the world is not asked any more


@dataclass(frozen=True)
class Judged:
    """What a grader said of one case at one look, and what that took. `lost` says why nothing is known."""

    case: str
    look: int
    verdicts: tuple[Verdict, ...] = ()
    usage: Usage = NOTHING
    lost: str = ""
    ends: StopReason | None = None


@dataclass
class Bench:
    """Where a grader is asked about cases. `looks` is how often it is asked about each."""

    desk: Desk
    looks: int = 1
    seat: Seat = field(init=False)
    cast: Cast = field(init=False)
    _perform: Perform = field(init=False)

    def __post_init__(self) -> None:
        panel, self.cast = self.desk.seat(())
        seconds = self.desk.options.deadline
        self.seat, self._perform = panel[0], door(self.cast, None if seconds is None else monotonic() + seconds)

    @property
    def model(self) -> str:
        """The name of the model that the grader asks; "" where it asks none."""
        line = self.cast.judges.get(self.seat.grader)
        return line.name if line and not self.seat.free else ""

    async def judge(self, cases: Iterable[Case], known: Container[tuple[str, int]] = frozenset()) -> AsyncGenerator[Judged, None]:
        """What it says, as it says it; cases and looks that are `known` are not asked again.

        At most `max_in_flight` cases are under way. No more are begun when money or time has run out, when the key is wrong,
        or when nothing could be learnt of IN_VAIN in a row.
        """
        in_vain = 0
        due: Iterator[tuple[Case, int]] = (
            (case, look) for case in cases for look in range(self.looks) if (case.id, look) not in known
        )
        under_way: set[asyncio.Task[Judged]] = set()
        try:
            while under_way := self._filled(under_way, due):
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for judged in (task.result() for task in done):
                    in_vain = in_vain + 1 if judged.lost else 0
                    if in_vain >= IN_VAIN or judged.lost.startswith("AuthenticationError"):
                        judged = replace(judged, ends=judged.ends or StopReason.FAILED)  # noqa: PLW2901
                    due = iter(()) if judged.ends else due
                    yield judged
        finally:
            await cancel_and_wait(under_way)

    def _filled(self, under_way: set[asyncio.Task[Judged]], due: Iterator[tuple[Case, int]]) -> set[asyncio.Task[Judged]]:
        free = self.desk.options.max_in_flight - len(under_way)
        return under_way | {asyncio.ensure_future(self._one(case, look)) for case, look in islice(due, free)}

    async def _one(self, case: Case, look: int) -> Judged:
        candidates = [Candidate(i, text) for i, text in enumerate(case.responses)]
        if self.seat.compares:
            records: Sequence[Record] = [await self._perform(Compare(self.seat.grader, case.task, tuple(candidates), look))]
        else:
            grades = (self._perform(Grade(self.seat.grader, case.task, c, look)) for c in candidates)
            records = await asyncio.gather(*grades)
        return _judged(case, look, records)


def _judged(case: Case, look: int, records: Sequence[Record]) -> Judged:
    """The verdicts in the records of one case and look."""
    usage = sum((r.usage for r in records), NOTHING)
    failures = [r for r in records if isinstance(r, Failure)]
    if lost := [f for f in failures if f.error in OUTAGES]:
        return Judged(case.id, look, (), usage, f"{lost[0].error}: {lost[0].message}", lost[0].ends)
    if failures and not any(isinstance(r, Feedback) for r in records):
        return Judged(case.id, look, (Verdict(case.id, look=look, why=failures[0].message),), usage)
    if isinstance(records[0], Comparison):
        return Judged(case.id, look, tuple(_compared(case, look, records[0])), usage)
    scores = tuple(r.score if isinstance(r, Feedback) else None for r in records)
    why = failures[0].message if failures else "" if any(s is not None for s in scores) else "the score it gave is unknown"
    return Judged(case.id, look, (Verdict(case.id, scores, look=look, why=why),), usage)


def _compared(case: Case, look: int, found: Comparison) -> Iterator[Verdict]:
    """A verdict for each time that all responses were seen side by side; else one for what came of it."""
    whole = [v for v in found.votes if isinstance(v, Comparison) and len(v.ranking) == len(case.responses)]
    for vote in whole or [found]:
        places = vote.places
        yield Verdict(case.id, places=tuple(places[i] for i in range(len(case.responses))), shown=vote.shown, look=look)
    for failed in found.votes:
        if isinstance(failed, Failure):
            yield Verdict(case.id, look=look, why=failed.message)
