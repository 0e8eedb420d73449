"""What another system's judge wrote about labelled cases, read into verdicts. Whoever calls brings the reader.

A row refers to its case by the case's id, or stands in the file that the labels came from. What the judge wrote and
cannot be read is an empty verdict with the complaint; what the row itself leaves open is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..graders.judging.json_reader import Unreadable
from ..tables import Row
from . import labels
from .cases import Case, Verdict
from .columns import USUAL, Columns, as_text, read_rows, value_at
from .recorded_formats import Reading

CASE = ("case", "case_id", *USUAL["id"])
OUTPUT = ("output", "completion", "text")
SHOWN = ("shown", "order", "swapped")
LOOK = ("look", "sample")
ORDERS = {"ab": (0, 1), "ba": (1, 0), "original": (0, 1), "swapped": (1, 0)}
PASSES = {1.0: True, 0.0: False}
Reader = Callable[[str], Reading]


def read_verdicts(
    path: str | Path,
    cases: Sequence[Case],
    columns: Mapping[str, str],
    reader: Callable[[str], Reading],
    ignored: Collection[str] | None = None,
) -> list[Verdict]:
    """The verdicts in recorded outputs, in the order of the file; rows about no case of these are left out.

    `columns`: case (the id of the case; else id, and the usual names of one), output (else output, completion or text),
    shown ("AB" or "BA" = swapped; in a column whose name holds "swap" also true and false), look. Without shown a pair
    was shown as it stands in the cases; then output_ba is the output for the swapped pair, in the same row. score_1 and
    score_2 are instead the outputs that score the two responses of a pair one by one. An output that is a list is one of
    several looks; so are further outputs on the same case in the same order. "where:COLUMN" keeps the rows that hold a
    value: of one judge, say.

    `reader` reads an output, as `graders.recorded.read` does: "first" is the first shown. Scores are used as they stand
    on their scale, in [0, 1]. Raises ConfigError for a row that cannot be read or says no order, for a reading that the
    cases have no use for, when no row is about any case, and for a "where:COLUMN" that is not here and is among those
    `ignored` with the labels (None: no matter).
    """
    held, bad, missing = read_rows(path, columns)
    if strange := [name for name in missing if ignored is not None and name in ignored]:
        raise ConfigError(f"where:{strange[0]}: no row has such a column. There are {Columns(columns, held).listed()}")
    if bad:
        raise ConfigError(f"{bad[0].place}: {bad[0].message}")
    desk = _Desk({case.id: case for case in cases}, Columns(columns, held), reader)
    found = [verdict for row in held for verdict in desk.verdicts(row)]
    if not found:
        raise ConfigError(f"{str(path)!r}: no row is about any of the {len(cases)} cases; state the column: case=COLUMN")
    return found


@dataclass
class _Desk:
    """Reads one row after the other; `seen` counts the looks at a case in an order."""

    cases: Mapping[str, Case]
    table: Columns
    reader: Reader
    seen: Counter[tuple[str, tuple[int, ...]]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._case = self._case_column()
        self._look, self._shown = self.table.find("look", LOOK), self._shown_column()
        self._scores = [name for role in ("score_1", "score_2") if (name := self.table.find(role, ()))]
        if len(self._scores) == 1:
            raise self.table.need("score_2" if "score_1" in self.table.taken else "score_1")
        self._output = None if self._scores else self.table.find("output", OUTPUT)
        self._swapped = self.table.find("output_ba", ())
        if not self._output and not self._scores:
            raise self.table.need("output")

    def _case_column(self) -> str | None:
        """The column with the ids of cases; None where a row's place is the id."""
        stated = self.table.stated.get("id")
        own = [stated] if stated and "case" not in self.table.stated and self.table.has(stated) else CASE
        names = [self.table.find("case", ())] if "case" in self.table.stated else own
        return next((n for n in names if n and any(as_text(value_at(row, n)) in self.cases for row in self.table.rows)), None)

    def _shown_column(self) -> str | None:
        pairs = all(case.kind == "pair" for case in self.cases.values())
        return self.table.find("shown", SHOWN if pairs else ())

    def verdicts(self, row: Row) -> Iterator[Verdict]:
        """All verdicts in a row."""
        id = Path(row.place).name if self._case is None else as_text(value_at(row, self._case))
        if (case := self.cases.get(id)) is None:
            return
        shown = self._order(row, case)
        if self._scores:
            yield from self._scored(row, case)
            return
        for text in _texts(value_at(row, self._output)):
            yield self._looked(row, self.verdict(case, text, shown))
        for text in _texts(value_at(row, self._swapped)) if self._swapped else ():
            yield self._looked(row, self.verdict(case, text, shown[::-1]))

    def _order(self, row: Row, case: Case) -> tuple[int, ...]:
        """The order in which the responses were shown."""
        if case.kind in {"score", "pass"}:
            return ()
        if self._shown is None:
            return tuple(range(len(case.responses)))
        said = labels.word(as_text(value_at(row, self._shown)))
        if "swap" in self._shown.casefold() and said in labels.PASS | {"0": 0.0, "1": 1.0}:
            return (1, 0) if labels.passed(value_at(row, self._shown)) else (0, 1)
        if said not in ORDERS:
            raise ConfigError(f"{row.place}: {self._shown!r} must say AB or BA, got {labels.shown(value_at(row, self._shown))}")
        return ORDERS[said]

    def _looked(self, row: Row, verdict: Verdict) -> Verdict:
        """The verdict with its look: as the row says, else one more in the same order."""
        key = (verdict.case, verdict.shown)
        look = self.seen[key]
        self.seen[key] += 1
        stated = value_at(row, self._look) if self._look else None
        try:
            return replace(verdict, look=look if stated is None else labels.whole(stated))
        except labels.Unclear as error:
            raise ConfigError(f"{row.place}: the look: {error}") from error

    def _scored(self, row: Row, case: Case) -> Iterator[Verdict]:
        """A verdict from two outputs, each a score of one response; the scores stay unknown where one cannot be read."""
        for texts in zip(*(_texts(value_at(row, name)) for name in self._scores), strict=True):
            scores: list[float | None] = []
            why = []
            for n, text in enumerate(texts, 1):
                try:
                    scores.append(_score(self._read(text), case))
                except Unreadable as error:
                    scores.append(None)
                    why.append(f"response {n}: {error}")
            yield self._looked(row, Verdict(case.id, tuple(scores), why="; ".join(why)))

    def verdict(self, case: Case, text: str | None, shown: tuple[int, ...]) -> Verdict:
        """What one output says of a case."""
        try:
            return _verdict(case, self._read(text), shown)
        except Unreadable as error:
            return Verdict(case.id, shown=shown, why=str(error))

    def _read(self, text: str | None) -> Reading:
        if text is None:
            raise Unreadable("no output was recorded")
        return self.reader(text)


def _texts(value: Any) -> list[str | None]:
    """The outputs in a cell: itself, or each of a list. Numbers are read as they are written."""
    values = value if isinstance(value, list) else [value]
    return [None if labels.missing(v) else as_text(v) for v in values] or [None]


def _verdict(case: Case, reading: Reading, shown: tuple[int, ...]) -> Verdict:
    """A reading in the terms of its case: what was "first" is the response that was shown first."""
    match case.kind:
        case "pair":
            places = _preference(case, reading)
            return Verdict(case.id, places=tuple(places[shown.index(i)] for i in range(2)), shown=shown)
        case "ranking":
            if reading.ranking is None:
                raise _no_use(case, reading)
            return Verdict(case.id, places=_ranked(reading.ranking, shown), shown=shown)
        case "pass" if reading.label is not None:
            return Verdict(case.id, passed=PASSES[_known(labels.passed, reading.label)])
        case _:
            return Verdict(case.id, (_score(reading, case),))


def _preference(case: Case, reading: Reading) -> tuple[int, ...]:
    """The places of the two responses in the order in which they were shown."""
    if reading.winner is not None:
        return {"first": labels.FIRST, "second": labels.SECOND, "tie": labels.TIE}[reading.winner]
    if reading.label is not None:
        return tuple(_known(labels.preference, reading.label))
    if reading.ranking is not None:
        return _ranked(reading.ranking, (0, 1))
    raise _no_use(case, reading)


def _ranked(ranking: Sequence[int], shown: tuple[int, ...]) -> tuple[int, ...]:
    """Places in the order of the case. The ranking numbers responses from 1, as they were shown."""
    if sorted(ranking) != list(range(1, len(shown) + 1)):
        raise Unreadable(f"a ranking of {len(shown)} responses holds each number once, got {list(ranking)[:20]}")
    order = [shown[n - 1] for n in ranking]
    return tuple(order.index(i) for i in range(len(shown)))


def _score(reading: Reading, case: Case) -> float:
    if reading.normalised is None:
        raise _no_use(case, reading)
    return reading.normalised


def _known(read: Callable[[str], Any], label: str) -> Any:
    try:
        return read(label)
    except labels.Unclear as error:
        raise Unreadable(str(error)) from error


def _no_use(case: Case, reading: Reading) -> ConfigError:
    held = next((name for name in ("winner", "score", "ranking", "label") if getattr(reading, name) is not None), "nothing")
    hint = "; a pair with scores needs the columns score_1 and score_2" if (case.kind, held) == ("pair", "score") else ""
    return ConfigError(f"the format reads a {held}, which says nothing about cases of kind {case.kind!r}{hint}")
