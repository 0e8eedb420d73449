"""One validation from end to end: labelled data in, verdicts as they come, a card out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..core.records import NOTHING, StopReason, Usage
from ..errors import ConfigError, GradingError
from ..graders.inputs import needs_of
from ..session import Desk
from . import statistics as m
from .attacks import Attack, attacked, resistance
from .card import RECORDED, Card, Shelf
from .cases import Case, Verdict
from .estimates import Report
from .harness import Bench, Judged
from .report import Reading, report
from .verdicts import VerdictFile


@dataclass(frozen=True)
class Data:
    """Labelled cases, the name of where they came from, and the sha256 of that and of how it was read.

    `skipped` counts the rows that could not be understood. `reading` says how labels and scores are to be read, `columns` names
    the columns that there are.
    """

    cases: Sequence[Case]
    name: str
    sha256: str
    skipped: int = 0
    reading: Reading = Reading()
    columns: str = ""

    def __post_init__(self) -> None:
        if not self.cases:
            raise ConfigError(f"{self.name}: there is nothing labelled in it")
        if len({case.kind for case in self.cases}) > 1:
            raise ConfigError(f"{self.name}: all labels must be of one kind")


@dataclass(frozen=True)
class Live:
    """How a grader is asked: how often about each case, with which attacks, and who is told of each answer.

    `afresh`: verdicts of an earlier run are not taken up, but set aside.
    """

    looks: int = 1
    attacks: Sequence[Attack] = ()
    afresh: bool = False
    on_judged: Callable[[Judged], object] | None = None


@dataclass(frozen=True)
class Validated:
    """What came of it: the card, where it lies, all measures, and why it ended early, if it did."""

    card: Card
    report: Report
    shelf: Shelf
    ends: StopReason | None = None

    @property
    def place(self) -> Any:
        card = self.card
        return self.shelf.place(card.grader, card.fingerprint, card.data, card.sha256)


@dataclass
class Asking:
    """A run of questions to one grader: what is known already is not asked, what is answered is kept."""

    bench: Bench
    kept: VerdictFile
    live: Live
    usage: Usage = NOTHING
    lost: dict[str, str] = field(default_factory=dict)
    ends: StopReason | None = None

    async def about(self, cases: Sequence[Case]) -> dict[str, list[Verdict]]:
        """All verdicts on these cases, by case: those known, and those asked for now."""
        async for judged in self.bench.judge(cases, self.kept.known):
            self._count(judged)
        said: defaultdict[str, list[Verdict]] = defaultdict(list)
        for verdict in self.kept.verdicts(case.id for case in cases):
            said[verdict.case].append(verdict)
        return dict(said)

    def _count(self, judged: Judged) -> None:
        self.kept.keep(judged)
        self.usage += judged.usage
        self.ends = self.ends or judged.ends
        if judged.lost:
            self.lost[judged.case] = judged.lost
        if self.live.on_judged:
            self.live.on_judged(judged)

    async def under_attack(self, data: Data, said: Mapping[str, Sequence[Verdict]]) -> dict[str, Any] | None:
        """How often the attacks turn its verdict; a note where there is nothing that could be turned."""
        if not self.live.attacks or self.ends:
            return None
        threshold = data.reading.threshold
        cases = [case for case, _ in attacked(data.cases, self.live.attacks, said, threshold)]
        turned = await self.about(cases)
        note = "" if cases else "nothing to attack: it prefers, or lets pass, every answer that people found worse"
        return {"measures": [asdict(measure) for measure in resistance(cases, turned, threshold) if measure.n], "note": note}


async def validate(data: Data, desk: Desk, shelf: Shelf, live: Live = Live()) -> Validated:
    """Ask the one grader of a desk about labelled cases, measure it, and say so on a card.

    Verdicts are kept as they arrive: a run that was cut short goes on where it stopped. Raises ConfigError for a kind of
    label that the grader cannot speak to, and GradingError when nothing at all could be judged.
    """
    m.ready()
    bench = Bench(desk, live.looks)
    _check(data, bench)
    mark = desk.fingerprint(bench.cast, bench.seat.grader)
    place = shelf.place(bench.seat.grader, mark, data.name, data.sha256)
    with VerdictFile(place / "verdicts.jsonl", {"grader": mark, "data": data.sha256}, afresh=live.afresh) as kept:
        asking = Asking(bench, kept, live)
        said = await asking.about(data.cases)
        if not said:
            raise GradingError(f"nothing could be judged: {next(iter(asking.lost.values()), 'no verdict')}", usage=asking.usage)
        found = report(data.cases, [v for held in said.values() for v in held], data.reading)
        attacks = await asking.under_attack(data, said)
    about = (bench.seat.grader, mark, bench.model, today(), data.name, data.sha256, "live")
    card = Card(*about, attacks=attacks, usage=asdict(asking.usage), **_counted(data, found))
    return Validated(card, found, shelf, asking.ends)


def recorded(data: Data, verdicts: Sequence[Verdict], shelf: Shelf, *, grader: str, form: str) -> Validated:
    """Measure recorded verdicts. The card is about those recordings: it has no fingerprint, and vouches for no live grader."""
    m.ready()
    if not verdicts:
        raise GradingError("no recorded output belongs to any of the labelled rows")
    found = report(data.cases, verdicts, data.reading)
    return Validated(Card(grader, RECORDED, "", today(), data.name, data.sha256, form, **_counted(data, found)), found, shelf)


def _counted(data: Data, found: Report) -> dict[str, Any]:
    """What a report says, and how many rows it says nothing about."""
    names = ("kind", "rows", "headline", "measures", "groups", "rates", "classes", "complaints")
    return {name: getattr(found, name) for name in names} | {"lost": len(data.cases) - found.rows, "skipped": data.skipped}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def _check(data: Data, bench: Bench) -> None:
    """Raises ConfigError for labels, or rows, that the grader cannot speak to."""
    kind = data.cases[0].kind
    for name, needed in needs_of(bench.cast.graders[bench.seat.grader]):
        if not any(getattr(case.task, needed) for case in data.cases):
            raise ConfigError(
                f"grader {name!r} needs a {needed}, and no row of {data.name} has one: say which column holds it, "
                f"such as -c {needed}=COLUMN" + (f"; there are {data.columns}" if data.columns else "")
            )
    if bench.seat.compares and kind in {"score", "pass"}:
        raise ConfigError(
            f"grader {bench.seat.grader!r} ranks answers; labels of kind {kind!r} need one that scores a single answer"
        )
