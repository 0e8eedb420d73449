"""Recorded outputs of other systems' judges on labelled cases, read into verdicts. The caller
provides the parser of an output.

A row refers to its case by the ID of the case, or is in the file of the labels. An unreadable
output becomes an empty verdict with the reason; an ambiguous row is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..base.checks import format_value
from ..errors import ConfigError
from ..graders.judging.structured import UnreadableOutput
from ..tables.readers import Row, iter_rows
from .cases import (
    PASS_SPELLINGS,
    RANKS_BY_WINNER,
    AmbiguousLabel,
    LabelledCase,
    Verdict,
    is_missing,
    normalise_label,
    parse_pass,
    parse_preference,
    parse_whole_number,
)
from .labelled_table import (
    CASE_ID_NAMES,
    LabelledTable,
    cell,
    filter_rows,
    to_text,
    without_repeats,
)
from .recorded_formats import ParsedOutput

CASE_COLUMNS = ("case", "case_id", *CASE_ID_NAMES)
OUTPUT_COLUMNS = ("output", "completion", "text")
ORDER_COLUMNS = ("shown", "order", "swapped")
REPEAT_COLUMNS = ("repeat", "sample")
ORDER_VALUES = {"ab": (0, 1), "ba": (1, 0), "original": (0, 1), "swapped": (1, 0)}
PASS_VALUES = {1.0: True, 0.0: False}
OutputReader = Callable[[str], ParsedOutput]


def read_verdicts(
    path: str | Path,
    cases: Sequence[LabelledCase],
    columns: Mapping[str, str],
    parse: Callable[[str], ParsedOutput],
    ignored_filters: Collection[str] | None = None,
    *,
    beside_labels: bool = False,
) -> list[Verdict]:
    """Return the verdicts in recorded outputs, in the order of the file. Rows about other cases are
    left out.

    `columns`: case (the ID of the case; default: id and its usual names), output (default: output,
    completion or text), shown ("AB" or "BA" = swapped; in a column whose name contains "swap" also
    true and false), repeat. Without shown, a pair was shown in the order of the case; then
    output_ba is the output for the swapped pair, in the same row. score_1 and score_2 are instead
    the outputs that score the two responses of a pair one by one. A list of outputs holds repeats;
    so do further outputs on the same case in the same order. "where:COLUMN" selects the rows with a
    value: those of one judge, for example.

    `parse` parses an output, as `recorded_formats.parse_output` does: "first" is the response shown
    first. Scores are used as they are on their scale, in [0, 1]. Raises ConfigError for a row that
    cannot be read or gives no order, for an output that does not fit the cases, if no row is about
    any case, and for a "where:COLUMN" that is neither here nor in the labels (`ignored_filters`;
    None: do not check). `beside_labels`: the outputs are in the file of the labels, where identical
    rows count once and are no repeats of the judge.
    """
    rows, bad, missing = filter_rows(partial(iter_rows, path), columns)
    rows = without_repeats(rows) if beside_labels else rows
    table = LabelledTable(columns, rows)
    if unknown_filters := [
        name for name in missing if ignored_filters is not None and name in ignored_filters
    ]:
        raise ConfigError(
            f"where:{unknown_filters[0]}: no row has such a column. There are "
            f"{table.sample.column_list()}"
        )
    if bad:
        raise ConfigError(f"{bad[0].location}: {bad[0].message}")
    reader = _VerdictReader({case.id: case for case in cases}, table, parse)
    verdicts = [verdict for row in rows for verdict in reader.verdicts(row)]
    if not verdicts:
        raise ConfigError(
            f"{str(path)!r}: no row is about any of the {len(cases)} cases; state the column: "
            "case=COLUMN"
        )
    return verdicts


class _VerdictReader:
    """Reads rows in order."""

    def __init__(
        self, cases: Mapping[str, LabelledCase], table: LabelledTable, parse: OutputReader
    ) -> None:
        self.cases, self.table, self._parse = cases, table, parse
        # of verdicts, by case and presentation order
        self._repeat_counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._case_name = self._find_case_column()
        self._repeat_name = table.find("repeat", REPEAT_COLUMNS)
        pairs = all(case.kind == "pair" for case in cases.values())
        self._order_name = table.find("shown", ORDER_COLUMNS if pairs else ())
        scores = [name for role in ("score_1", "score_2") if (name := table.find(role, ()))]
        if len(scores) == 1:
            raise table.missing_role_error("score_2" if "score_1" in table.assigned else "score_1")
        self._score_names = scores
        self._output_name = None if scores else table.find("output", OUTPUT_COLUMNS)
        self._swapped_output_name = table.find("output_ba", ())
        if not self._output_name and not scores:
            raise table.missing_role_error("output")

    def _find_case_column(self) -> str | None:
        """Return the column with the IDs of cases; None if the location of a row is its ID."""
        explicit = self.table.explicit
        names: Sequence[str | None] = CASE_COLUMNS
        if "case" in explicit:
            names = [self.table.find("case", ())]
        elif explicit.get("id") and self.table.sample.has(explicit["id"]):
            names = [explicit["id"]]
        return next(
            (
                n
                for n in names
                if n and any(to_text(cell(row, n)) in self.cases for row in self.table.rows)
            ),
            None,
        )

    def verdicts(self, row: Row) -> Iterator[Verdict]:
        """Yield the verdicts in a row."""
        id = (
            Path(row.location).name
            if self._case_name is None
            else to_text(cell(row, self._case_name))
        )
        if (case := self.cases.get(id)) is None:
            return
        order = self._presentation_order(row, case)
        if self._score_names:
            read = self._score_verdicts(row, case)
        else:
            read = self._output_verdicts(row, case, order)
        for verdict in read:
            yield self._with_repeat(row, verdict)

    def _output_verdicts(
        self, row: Row, case: LabelledCase, order: tuple[int, ...]
    ) -> Iterator[Verdict]:
        columns = ((self._output_name, order), (self._swapped_output_name, order[::-1]))
        for name, shown in columns:
            for text in _cell_texts(cell(row, name)) if name else ():
                try:
                    yield _verdict_from_output(case, self._parse_text(text), shown)
                except UnreadableOutput as error:
                    yield Verdict(case.id, presentation_order=shown, reason=str(error))

    def _presentation_order(self, row: Row, case: LabelledCase) -> tuple[int, ...]:
        """Return the order in which the responses were shown."""
        if case.kind in {"score", "pass"}:
            return ()
        if self._order_name is None:
            return tuple(range(len(case.responses)))
        text = normalise_label(to_text(cell(row, self._order_name)))
        if "swap" in self._order_name.casefold() and text in PASS_SPELLINGS | {"0": 0.0, "1": 1.0}:
            return (1, 0) if parse_pass(cell(row, self._order_name)) else (0, 1)
        if text not in ORDER_VALUES:
            raise ConfigError(
                f"{row.location}: {self._order_name!r} must say AB or BA, got "
                f"{format_value(cell(row, self._order_name), 80)}"
            )
        return ORDER_VALUES[text]

    def _with_repeat(self, row: Row, verdict: Verdict) -> Verdict:
        """Return the verdict with its repeat index: that in the row, else the next one for the same
        order.
        """
        key = (verdict.case, verdict.presentation_order)
        repeat = self._repeat_counts[key]
        self._repeat_counts[key] += 1
        value = cell(row, self._repeat_name) if self._repeat_name else None
        try:
            return replace(verdict, repeat=repeat if value is None else parse_whole_number(value))
        except AmbiguousLabel as error:
            raise ConfigError(f"{row.location}: the repeat: {error}") from error

    def _score_verdicts(self, row: Row, case: LabelledCase) -> Iterator[Verdict]:
        """Yield verdicts from pairs of outputs, each of which scores one response; an unreadable
        score is None.
        """
        for texts in zip(
            *(_cell_texts(cell(row, name)) for name in self._score_names), strict=True
        ):
            scores: list[float | None] = []
            reasons = []
            for n, text in enumerate(texts, 1):
                try:
                    scores.append(_normalised_score(self._parse_text(text), case))
                except UnreadableOutput as error:
                    scores.append(None)
                    reasons.append(f"response {n}: {error}")
            yield Verdict(case.id, tuple(scores), reason="; ".join(reasons))

    def _parse_text(self, text: str | None) -> ParsedOutput:
        if text is None:
            raise UnreadableOutput("no output was recorded")
        return self._parse(text)


def _cell_texts(value: Any) -> list[str | None]:
    """Return the outputs in a cell: its value, or the items of a list. Numbers are read as text."""
    values = value if isinstance(value, list) else [value]
    return [None if is_missing(v) else to_text(v) for v in values] or [None]


def _verdict_from_output(
    case: LabelledCase, parsed_output: ParsedOutput, presentation_order: tuple[int, ...]
) -> Verdict:
    """Return the verdict of a parsed output, in which "first" is the response shown first."""
    match case.kind:
        case "pair":
            ranks = _preference_ranks(case, parsed_output)
            return Verdict(
                case.id,
                ranks=tuple(ranks[presentation_order.index(i)] for i in range(2)),
                presentation_order=presentation_order,
            )
        case "ranking":
            if parsed_output.ranking is None:
                raise _unusable_error(case, parsed_output)
            return Verdict(
                case.id,
                ranks=_ranks_from_ranking(parsed_output.ranking, presentation_order),
                presentation_order=presentation_order,
            )
        case "pass" if parsed_output.label is not None:
            return Verdict(
                case.id, passed=PASS_VALUES[_parse_output_label(parse_pass, parsed_output.label)]
            )
        case _:
            return Verdict(case.id, (_normalised_score(parsed_output, case),))


def _preference_ranks(case: LabelledCase, parsed_output: ParsedOutput) -> tuple[int, ...]:
    """Return the ranks of the two responses in the order in which they were shown."""
    if parsed_output.winner is not None:
        return RANKS_BY_WINNER[parsed_output.winner]
    if parsed_output.label is not None:
        return tuple(_parse_output_label(parse_preference, parsed_output.label))
    if parsed_output.ranking is not None:
        return _ranks_from_ranking(parsed_output.ranking, (0, 1))
    raise _unusable_error(case, parsed_output)


def _ranks_from_ranking(
    ranking: Sequence[int], presentation_order: tuple[int, ...]
) -> tuple[int, ...]:
    """Return ranks in the order of the case. The ranking numbers responses from 1, as they were
    shown.
    """
    if sorted(ranking) != list(range(1, len(presentation_order) + 1)):
        raise UnreadableOutput(
            f"a ranking of {len(presentation_order)} responses holds each number once, got "
            f"{list(ranking)[:20]}"
        )
    order = [presentation_order[n - 1] for n in ranking]
    return tuple(order.index(i) for i in range(len(presentation_order)))


def _normalised_score(parsed_output: ParsedOutput, case: LabelledCase) -> float:
    if parsed_output.normalised_score is None:
        raise _unusable_error(case, parsed_output)
    return parsed_output.normalised_score


def _parse_output_label(parse: Callable[[str], Any], label: str) -> Any:
    try:
        return parse(label)
    except AmbiguousLabel as error:
        raise UnreadableOutput(str(error)) from error


def _unusable_error(case: LabelledCase, parsed_output: ParsedOutput) -> ConfigError:
    found = {
        "winner": parsed_output.winner,
        "score": parsed_output.score,
        "ranking": parsed_output.ranking,
        "label": parsed_output.label,
    }
    kind = next((name for name, value in found.items() if value is not None), "nothing")
    hint = (
        "; a pair with scores needs the columns score_1 and score_2"
        if (case.kind, kind) == ("pair", "score")
        else ""
    )
    return ConfigError(
        f"the format gives a {kind}, which does not fit cases of kind {case.kind!r}{hint}"
    )
