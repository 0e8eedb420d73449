"""The report of a comparison: is B better than A, worse, or is it undecided, and how many more rows
or labels would decide it.

Nothing is a win inside the noise: a verdict follows from an interval, that of people's labels if
there are any, else that of the scores. `estimates.py` computes the report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias

from ..base.text import pluralize
from ..errors import ConfigError
from ..usage import NO_USAGE, Usage
from ..validation.statistics import (
    Interval,
    LabelEstimate,
    PairedDifference,
    ThreeWayVerdict,
    WinRate,
    interval_verdict,
    rows_to_decide,
)
from .labels import LabelUnit
from .results import PairedBy

GateVerdict: TypeAlias = Literal["not worse", "worse", "undecided"]
Evidence: TypeAlias = Literal["labels", "errors", "scores", "scores at any time", "win rate"]
DEFAULT_MARGIN = 0.02  # for scores from 0 to 1
UNITS: dict[LabelUnit, str] = {
    "score": "people",
    "preference": "people's preference for B less one half",
}


@dataclass(frozen=True)
class PeopleEstimate:
    """By how much people rate B above A on average, from few labels and all scores.

    Attributes:
        estimate: The estimate with its interval, in the unit of the labels.
        unit: "score": points of people's labels; "preference": the share of people who prefer B,
            less one half.
        labels_only: The same from the labels alone.
        needed: About how many labels in all would decide whether B is better, if the difference
            stays as it is; None: decided, or unknown.
        gate_needed: The same for the gate.
        same_answers: How many rows have the same answer in both runs. They need no label: their
            difference is 0.
    """

    estimate: LabelEstimate
    unit: LabelUnit
    labels_only: LabelEstimate
    needed: int | None = None
    gate_needed: int | None = None
    same_answers: int = 0

    def summary_line(self) -> str:
        """Return the estimate in words, with what it is from."""
        found, unit = self.estimate, UNITS[self.unit]
        basis = f"{pluralize(found.labels, 'label')} and {pluralize(found.unlabelled, 'score')}"
        if self.same_answers:
            basis += f", and 0 for {pluralize(self.same_answers, 'row')} with equal answers"
        alone = format_interval(self.labels_only.interval)
        return f"{unit}: {format_difference(found)} from {basis}; labels alone {alone}"


class _Finding(NamedTuple):
    """What a verdict follows from: the difference B - A with its interval (None: unknown), and how
    many rows or labels it is of.
    """

    evidence: Evidence
    value: float
    interval: Interval | None
    rows: int


@dataclass(frozen=True)
class ComparisonReport:
    """Whether B is better than A.

    Attributes:
        a: The name of the first run.
        b: The name of the second run.
        difference: By how much B scores above A, over the rows with a score in both; if lower is
            better, by how much below A. `mean_a` and `mean_b` are means of the scores as they are.
        people: By how much people rate B above A; None without labels.
        errors: By how much smaller the absolute errors of B's scores are, against people's labels,
            if both runs have the same answers; None without such labels. `mean_a` and `mean_b` are
            negative errors.
        wins: How often B wins in the eyes of a judge that compares answers in both orders; None
            without such a grader.
        slices: For each column, the difference in each of its slices; the intervals hold for all
            slices of all columns at once.
        score_name: The name of the score.
        paired_by: How rows were paired: by "id" or by "task".
        only_a: Rows that B does not have.
        only_b: Rows that A does not have.
        unscored_a: Rows of both runs without a score in A.
        unscored_b: Rows of both runs without a score in B.
        blank_a: Blank answers in A, of tasks that B has. They have no score.
        blank_b: The same in B. With more of them than A, B is never better, and does not pass the
            gate.
        repeats: Results beyond the first of their row; the scores of a row are averaged.
        equal_tasks: Rows with the task of an earlier row, under another ID. Unless a column of
            clusters was named, the rows of one task are one cluster.
        same_answers: Whether both runs have the same answers. Then it is the graders that differ.
        anytime: The interval that may be looked at after every row; None if it was not asked for.
        worst_case: The difference if every answer that only B has no score for, or that B lacks,
            counted as 0 (scores that are not from 0 to 1: as the lowest score of both runs; where
            lower is better: as 1, or the highest); None if there is none.
        margin: The loss that does not matter, in the unit of the interval that the verdict follows
            from; None if none was given for scores that are not from 0 to 1.
        level: The confidence of the intervals.
        lower_is_better: Whether lower scores are better.
        unused_labels: How many labels do not count, by the reason, such as "of rows that were not
            drawn at random".
        forms: What wrote the two runs, such as ("redraft", "promptfoo").
        skipped: Rows that could not be read, with the reasons.
        usage: What it took to run or grade the answers.
    """

    a: str
    b: str
    difference: PairedDifference
    people: PeopleEstimate | None = None
    errors: PairedDifference | None = None
    wins: WinRate | None = None
    slices: Mapping[str, Mapping[str, PairedDifference]] = field(default_factory=dict)
    score_name: str = "score"
    paired_by: PairedBy = "id"
    only_a: int = 0
    only_b: int = 0
    unscored_a: int = 0
    unscored_b: int = 0
    blank_a: int = 0
    blank_b: int = 0
    repeats: int = 0
    equal_tasks: int = 0
    same_answers: bool = False
    anytime: Interval | None = None
    worst_case: PairedDifference | None = None
    margin: float | None = DEFAULT_MARGIN
    level: float = 0.95
    lower_is_better: bool = False
    unused_labels: Mapping[str, int] = field(default_factory=dict)
    forms: tuple[str, str] = ("table", "table")
    skipped: tuple[str, ...] = ()
    usage: Usage = NO_USAGE

    @property
    def _finding(self) -> _Finding:
        d = self.difference
        if self.people is not None:
            found = self.people.estimate
            return _Finding("labels", found.value, found.interval, found.labels)
        if self.errors is not None:
            return _Finding("errors", self.errors.value, self.errors.interval, self.errors.rows)
        if self.wins is not None:
            ends = self.wins.interval
            interval = ends and (ends[0] - 0.5, ends[1] - 0.5)
            return _Finding("win rate", self.wins.value - 0.5, interval, self.wins.pairs)
        if self.anytime is not None:
            return _Finding("scores at any time", d.value, self.anytime, d.rows)
        return _Finding("scores", d.value, d.interval, d.rows)

    @property
    def evidence(self) -> Evidence:
        """What the verdict follows from.

        "labels" of people; "errors" of the scores against labels, if only the graders differ; the
        "win rate" in both orders; or "scores".
        """
        return self._finding.evidence

    @property
    def interval(self) -> Interval | None:
        """The interval of B - A that the verdict follows from; of a win rate, less one half."""
        return self._finding.interval

    @property
    def value(self) -> float:
        """The difference B - A that the interval is of."""
        return self._finding.value

    @property
    def verdict(self) -> ThreeWayVerdict:
        """Whether B is "better" than A, "worse", or "undecided".

        Scores of the same answers by different graders decide nothing without labels: a higher
        score is no better grader. B is not better with more blank answers than A.
        """
        verdict: ThreeWayVerdict = (
            "undecided" if self._only_graders_differ else interval_verdict(self.interval)
        )
        return "undecided" if verdict == "better" and self._is_more_silent else verdict

    @property
    def gate(self) -> GateVerdict:
        """What a release check says: "not worse" by more than the margin, "worse", or "undecided".

        With rows that only B has no score for, or that B lacks, B is not worse only if it is not
        worse when it loses them; with more blank answers than A it is worse. The same answers with
        the same scores are not worse, however few they are. Raises ConfigError if there is no
        margin.
        """
        margin = self._known_margin
        if self._is_more_silent:
            return "worse"
        if self._is_unchanged:
            return "not worse"
        if self._only_graders_differ or (interval := self.interval) is None:
            return "undecided"
        if interval[0] >= -margin:
            return "not worse" if self._low_if_lost(interval[0]) >= -margin else "undecided"
        return "worse" if interval[1] < 0 else "undecided"

    @property
    def rows_needed(self) -> int | None:
        """About how many rows in all would decide whether B is better; None if it is decided, or
        nothing would decide it.
        """
        return self._rows_to_decide() if self.verdict == "undecided" else None

    @property
    def gate_rows_needed(self) -> int | None:
        """About how many rows in all would decide the gate; None if it is decided, or nothing would
        decide it.
        """
        return self._rows_to_decide(self._known_margin) if self.gate == "undecided" else None

    @property
    def _known_margin(self) -> float:
        if self.margin is None:
            raise ConfigError(
                "margin: the scores are not from 0 to 1; give the loss that does not matter in "
                "their unit"
            )
        return self.margin

    def _rows_to_decide(self, margin: float | None = None) -> int | None:
        """Return how many rows would decide; None if that depends on labels, or nothing would
        decide it.
        """
        if self.people or self._only_graders_differ or self._is_more_silent:
            return None
        _, value, interval, rows = self._finding
        found = replace(self.difference, value=value, interval=interval, rows=rows)
        return rows_to_decide(found, margin)

    @property
    def _only_graders_differ(self) -> bool:
        return (
            self.same_answers
            and not self._has_equal_scores
            and not (self.people or self.errors or self.wins)
        )

    @property
    def _is_more_silent(self) -> bool:
        """Whether B has more blank answers than A."""
        return self.blank_b > self.blank_a

    @property
    def _blanks_line(self) -> str:
        return (
            f"{self.b} has {pluralize(self.blank_b, 'blank answer')}, {self.a} has "
            f"{self.blank_a or 'none'}"
        )

    def _low_if_lost(self, low: float) -> float:
        """Return the lower end of the interval if B lost all rows that only it has no score for;
        `low` is that without them.
        """
        if not self.worst_case:
            return low
        if self.evidence == "scores":
            return self.worst_case.interval[0] if self.worst_case.interval else -inf
        share = 1 - self.difference.rows / self.worst_case.rows
        by_preference = self.wins or (self.people and self.people.unit == "preference")
        return (1 - share) * low - share * (0.5 if by_preference else 1.0)

    @property
    def _is_unchanged(self) -> bool:
        """Whether both runs have the same answers with the same scores, and B lacks none that A
        has.
        """
        return self._has_equal_scores and not (self.unscored_a or self.unscored_b or self.only_a)

    @property
    def _has_equal_scores(self) -> bool:
        return self.same_answers and self.difference.ties == self.difference.rows

    def summary(self) -> list[str]:
        """Return lines for people: the verdict first, then what it follows from, then what is
        missing.
        """
        return [self.headline(), *self._figures(), *self._remarks()]

    def headline(self) -> str:
        """Return the verdict in a sentence, with what would decide it."""
        if self._only_graders_differ:
            return (
                "undecided: the answers are the same, so only the graders differ; labels of "
                "people say which is better"
            )
        if self._is_unchanged:
            return "undecided: both runs have the same answers with the same scores"
        if self.verdict != "undecided":
            return f"{self.b} is {self.verdict} than {self.a}"
        if self._is_more_silent:
            return f"undecided whether {self.b} is better than {self.a}: {self._blanks_line}"
        needed = self.people.needed if self.people else self.rows_needed
        return f"undecided whether {self.b} is better than {self.a}{self._more_needed(needed)}"

    def gate_line(self) -> str:
        """Return the verdict of the gate in a sentence."""
        if self._is_unchanged:
            return f"passed: the answers of {self.b} are those of {self.a}"
        margin = f"{self._known_margin:g}"
        if self.gate == "not worse":
            return f"passed: {self.b} is not worse than {self.a} by more than {margin}"
        if self.gate == "worse":
            worse = f"{self.b} is worse than {self.a}"
            return f"failed: {self._blanks_line if self._is_more_silent else worse}"
        if self._only_graders_differ:
            return self.headline()
        reason = self._reason_of_doubt()
        return f"undecided whether {self.b} is worse than {self.a} by more than {margin}{reason}"

    def _reason_of_doubt(self) -> str:
        """Say why the gate is undecided: rows that may hide a loss, or too few rows or labels."""
        if self.worst_case and self.interval and self.interval[0] >= -self._known_margin:
            lost = _count_phrases(
                (self.unscored_b, f"without a score in {self.b}"),
                (self.only_a, f"only in {self.a}"),
            )
            return f"; {' and '.join(lost)} may hide a loss"
        return self._more_needed(self.people.gate_needed if self.people else self.gate_rows_needed)

    def _more_needed(self, needed: int | None) -> str:
        have = self._finding.rows
        if not needed or needed <= have:
            return ""
        noun = "label" if self.people or self.errors else "row"
        line = f"; about {pluralize(needed - have, f'more {noun}')} would decide"
        if self.people and needed > self.difference.rows - self.people.same_answers:
            line += ", and there are too few rows for them"
        return line

    def _figures(self) -> list[str]:
        """Return a line for each figure: the scores, then what else the verdict may follow from."""
        more = (
            self.anytime and f"valid at any look: {format_interval(self.anytime)}",
            self.people and self.people.summary_line(),
            self.errors and _errors_line(self.errors),
            self.wins and _wins_line(self.wins),
        )
        return [self._scores_line(), *(line for line in more if line)]

    def _scores_line(self) -> str:
        d, lower = self.difference, self.lower_is_better
        won, lost = ("better", "worse") if lower else ("higher", "lower")
        return (
            f"{self.score_name}{' (lower is better)' * lower}: {d.mean_a:.3f} to {d.mean_b:.3f}, "
            f"{'better by ' * lower}{format_difference(d)} over {pluralize(d.rows, 'row')}; "
            f"{d.wins:,} {won}, {d.ties:,} equal, {d.losses:,} {lost}"
        )

    def _remarks(self) -> list[str]:
        """Return what is missing from the figures, and how their rows were made."""
        left_out = _count_phrases(
            (self.only_a, f"only in {self.a}"),
            (self.only_b, f"only in {self.b}"),
            (self.unscored_a, f"without a score in {self.a}"),
            (self.unscored_b, f"without a score in {self.b}"),
            (len(self.skipped), "unreadable"),
            *(
                (n, f"{'label' if n == 1 else 'labels'} {reason}")
                for reason, n in self.unused_labels.items()
            ),
        )
        lost = self.worst_case and format_difference(self.worst_case)
        averaged = pluralize(
            self.repeats,
            "repeat was averaged with its row",
            "repeats were averaged with their rows",
        )
        one_task = (
            "all rows have the same task, which is one cluster, so there is no interval; name "
            "another column, such as id"
        )
        equal_tasks = (
            f"{pluralize(self.equal_tasks, 'row')} with the task of an earlier row: equal tasks "
            "are one cluster, unless another column of clusters is named"
        )
        lines = (
            (left_out, f"left out: {', '.join(left_out)}"),
            (self.blank_a + self.blank_b, f"{self._blanks_line}; a blank answer has no score"),
            (lost, f"if {self.b} loses those without a score, and those that it lacks: {lost}"),
            (self.repeats, averaged),
            (self.equal_tasks, one_task if self.difference.clusters == 1 else equal_tasks),
        )
        return [line for applies, line in lines if applies]

    def as_data(self) -> dict[str, Any]:
        """Return plain data that `json.dumps` accepts."""
        gate = () if self.margin is None else ("gate", "gate_rows_needed")
        derived = ("verdict", *gate, "evidence", "interval", "value", "rows_needed")
        difference = {**asdict(self.difference), "verdict": self.difference.verdict}
        return {
            **{name: getattr(self, name) for name in derived},
            **asdict(self),
            "usage": self.usage.totals,
            "difference": difference,
        }


def _count_phrases(*counts: tuple[int, str]) -> list[str]:
    """Return counts with what they are of, but for those of 0."""
    return [f"{n:,} {what}" for n, what in counts if n]


def _errors_line(errors: PairedDifference) -> str:
    return (
        f"error against people: {-errors.mean_a:.3f} to {-errors.mean_b:.3f}, smaller by "
        f"{format_difference(errors)} over {pluralize(errors.rows, 'label')}"
    )


def _wins_line(wins: WinRate) -> str:
    return (
        f"win rate of B: {wins.value:.3f} {format_interval(wins.interval)} over "
        f"{pluralize(wins.pairs, 'pair')} in both orders; the same verdict in both "
        f"{wins.consistency:.0%}, bias to the first {format_signed(wins.position_bias)}"
    )


def format_signed(value: float) -> str:
    """Return a number with its sign and three digits."""
    return f"{value:+.3f}"


def format_interval(interval: Interval | None) -> str:
    """Return an interval in brackets."""
    return "(no interval)" if interval is None else f"({interval[0]:+.3f} to {interval[1]:+.3f})"


def format_difference(found: PairedDifference | LabelEstimate) -> str:
    """Return a difference with its interval: "+0.120 (+0.031 to +0.209)"."""
    return f"{format_signed(found.value)} {format_interval(found.interval)}"
