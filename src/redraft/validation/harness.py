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
from ..core.records import NO_USAGE, Candidate, Comparison, Failure, Feedback, Record, StopReason, Usage
from ..core.steps import Compare, Grade
from ..core.trace import PanelGrader
from ..errors import EXTERNAL_ERRORS
from ..perform import Roles, make_performer
from ..protocols import Perform
from ..session import Session
from .cases import LabelledCase, Verdict

MAX_CONSECUTIVE_FAILURES = 10  # cases in a row of which nothing could be learnt: then the world is not asked any more


@dataclass(frozen=True)
class JudgedCase:
    """What a grader said of one case at one look, and what that took. `lost` says why nothing is known."""

    case: str
    repeat: int
    verdicts: tuple[Verdict, ...] = ()
    usage: Usage = NO_USAGE
    outage: str = ""
    stop_reason: StopReason | None = None


@dataclass
class GraderHarness:
    """Where a grader is asked about cases. `looks` is how often it is asked about each."""

    session: Session
    repeats: int = 1
    panel_grader: PanelGrader = field(init=False)
    roles: Roles = field(init=False)
    _perform: Perform = field(init=False)

    def __post_init__(self) -> None:
        panel, self.roles = self.session.resolve_panel(())
        seconds = self.session.options.deadline
        self.panel_grader, self._perform = panel[0], make_performer(self.roles, None if seconds is None else monotonic() + seconds)

    @property
    def model(self) -> str:
        """The name of the model that the grader asks; "" where it asks none."""
        line = self.roles.judges.get(self.panel_grader.name)
        return line.name if line and not self.panel_grader.model_free else ""

    async def judge(
        self, cases: Iterable[LabelledCase], done_keys: Container[tuple[str, int]] = frozenset()
    ) -> AsyncGenerator[JudgedCase, None]:
        """What it says, as it says it; cases and looks that are `known` are not asked again.

        At most `max_in_flight` cases are under way. No more are begun when money or time has run out, when the key is wrong,
        or when nothing could be learnt of IN_VAIN in a row.
        """
        in_vain = 0
        due: Iterator[tuple[LabelledCase, int]] = (
            (case, look) for case in cases for look in range(self.repeats) if (case.id, look) not in done_keys
        )
        under_way: set[asyncio.Task[JudgedCase]] = set()
        try:
            while under_way := self._start_pending(under_way, due):
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for judged in (task.result() for task in done):
                    in_vain = in_vain + 1 if judged.outage else 0
                    if in_vain >= MAX_CONSECUTIVE_FAILURES or judged.outage.startswith("AuthenticationError"):
                        judged = replace(judged, stop_reason=judged.stop_reason or StopReason.FAILED)  # noqa: PLW2901
                    due = iter(()) if judged.stop_reason else due
                    yield judged
        finally:
            await cancel_and_wait(under_way)

    def _start_pending(
        self, running: set[asyncio.Task[JudgedCase]], pending: Iterator[tuple[LabelledCase, int]]
    ) -> set[asyncio.Task[JudgedCase]]:
        free = self.session.options.max_in_flight - len(running)
        return running | {asyncio.ensure_future(self._judge_case(case, look)) for case, look in islice(pending, free)}

    async def _judge_case(self, case: LabelledCase, repeat: int) -> JudgedCase:
        candidates = [Candidate(i, text) for i, text in enumerate(case.responses)]
        if self.panel_grader.compares:
            records: Sequence[Record] = [await self._perform(Compare(self.panel_grader.name, case.task, tuple(candidates), repeat))]
        else:
            grades = (self._perform(Grade(self.panel_grader.name, case.task, c, repeat)) for c in candidates)
            records = await asyncio.gather(*grades)
        return _judged_case(case, repeat, records)


def _judged_case(case: LabelledCase, repeat: int, records: Sequence[Record]) -> JudgedCase:
    """The verdicts in the records of one case and look."""
    usage = sum((r.usage for r in records), NO_USAGE)
    failures = [r for r in records if isinstance(r, Failure)]
    if lost := [f for f in failures if f.error in EXTERNAL_ERRORS]:
        return JudgedCase(case.id, repeat, (), usage, f"{lost[0].error}: {lost[0].message}", lost[0].stop_reason)
    if failures and not any(isinstance(r, Feedback) for r in records):
        return JudgedCase(case.id, repeat, (Verdict(case.id, repeat=repeat, reason=failures[0].message),), usage)
    if isinstance(records[0], Comparison):
        return JudgedCase(case.id, repeat, tuple(_comparison_verdicts(case, repeat, records[0])), usage)
    scores = tuple(r.score if isinstance(r, Feedback) else None for r in records)
    why = failures[0].message if failures else "" if any(s is not None for s in scores) else "the score it gave is unknown"
    return JudgedCase(case.id, repeat, (Verdict(case.id, scores, repeat=repeat, reason=why),), usage)


def _comparison_verdicts(case: LabelledCase, repeat: int, comparison: Comparison) -> Iterator[Verdict]:
    """A verdict for each time that all responses were seen side by side; else one for what came of it."""
    whole = [v for v in comparison.votes if isinstance(v, Comparison) and len(v.ranking) == len(case.responses)]
    for vote in whole or [comparison]:
        places = vote.ranks
        yield Verdict(
            case.id,
            ranks=tuple(places[i] for i in range(len(case.responses))),
            presentation_order=vote.presentation_order,
            repeat=repeat,
        )
    for failed in comparison.votes:
        if isinstance(failed, Failure):
            yield Verdict(case.id, repeat=repeat, reason=failed.message)
