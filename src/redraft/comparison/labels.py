"""Labels of people on the answers of two runs: which pairs of results have one, and by how much
people rate B above A.

A label belongs to a text, not to a run: it counts for the pair whose answers have that text. Labels
of other texts are counted as unused, so that old labels never stand for new answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

from ..base import checks
from ..errors import ConfigError
from ..tables.columns import SampleColumns
from ..tables.readers import BadRow, Row, reject_bad_rows
from ..tables.row_values import MISSING, value_at
from ..tables.sources import Source
from ..validation.cases import (
    AmbiguousLabel,
    LabelledCase,
    is_missing,
    is_read,
    parse_number,
    parse_pass,
)
from ..validation.labelled import (
    LabelledCases,
    cases_of_source,
    labelled_source,
    random_cases,
)
from .readers import ID_NAMES
from .results import ResultPair, hash_task

LabelUnit: TypeAlias = Literal["score", "preference"]
Ends: TypeAlias = tuple[float, float]  # the lowest and the highest label of a scale
BOTH_LABELS = ("label_a", "label_b")
TOLERANCE = 1e-9  # of sums of shares


@dataclass(frozen=True)
class PairLabels:
    """What people say of the pairs.

    Attributes:
        unit: "score": `differences` are label of B - label of A; "preference": the share of people
            who prefer B, less one half.
        differences: By the key of the pair.
        levels: The labels of the answers of A, by the key of the pair and the text; the text is
            None for a label of all repeats. Empty for preferences.
        partial: The keys of pairs of which some answers have no label, although the other run has
            not the same.
        used: The number of labels that belong to a pair.
        unused: How many labels do not count, by the reason.
    """

    unit: LabelUnit
    differences: Mapping[str, float]
    used: int
    unused: Mapping[str, int]
    levels: Mapping[str, Mapping[str | None, float]] = field(default_factory=dict)
    partial: frozenset[str] = frozenset()


NOT_RANDOM = "of rows that were not drawn at random"
OF_OTHERS = "of other answers"
UNREADABLE = "unreadable"


def read_labels(
    source: Any,
    pairs: Sequence[ResultPair],
    *,
    columns: Mapping[str, str] | None = None,
    scale: Ends | None = None,
) -> PairLabels:
    """Return the labels of pairs of answers.

    Args:
        source: A file or rows, or a list of files. Each row has the ID of a task and `label_a` and
            `label_b`; or an answer with its label; or two answers and which of them is better. The
            last two forms are those of `redraft validate`, which reads the files of `redraft
            label`, too: of these, rows that were not drawn at random do not count, unless all pairs
            with different answers are labelled. If people disagree, and none of their ratings is
            the most frequent, it is a tie.
        pairs: The results of both runs.
        columns: The columns of the last two forms by role, as in `validate`.
        scale: The lowest and the highest label, which become 0 and 1; None: that of `redraft
            label`, or from 0 to 1.

    Raises:
        ConfigError: No label belongs to a pair, or a label is outside its scale.
    """
    several = (
        isinstance(source, list | tuple)
        and bool(source)
        and all(isinstance(each, str | Path) for each in source)
    )
    files = []
    for each in source if several else [source]:
        if isinstance(each, LabelledCases):  # all of them count
            files.append(replace(each, not_random=frozenset()))
            continue
        read = _read_once(labelled_source(each))
        rows = [row.values for row in read.rows(_ignore)]
        if not (columns or (several and len(source) > 1)) and SampleColumns(rows).has(
            BOTH_LABELS[0]
        ):
            return _column_labels(rows, pairs, scale)
        files.append(cases_of_source(read, columns or {}, keep_undecided=True))
    kinds = {file.kind for file in files}
    if len(kinds) > 1 or "ranking" in kinds:
        named = " and ".join(sorted(kinds))
        raise ConfigError(
            f"labels of kind {named} cannot be compared; give pairs, or a label for each answer"
        )
    labels = _representative_labels(files, _TextLabels(pairs), scale)
    unreadable = sum(len(file.skipped_rows) for file in files)
    return replace(labels, unused={**labels.unused, UNREADABLE: unreadable})


def _representative_labels(
    files: Sequence[LabelledCases], texts: _TextLabels, scale: Ends | None
) -> PairLabels:
    """Return the labels of rows that were drawn at random; all labels if every pair has one."""

    def collect(cases: Iterable[Sequence[LabelledCase]]) -> PairLabels:
        scaled = zip(files, cases, strict=True)
        return texts.collect(
            [(case, scale or file.label_scale) for file, some in scaled for case in some]
        )

    labels = collect(file.cases for file in files)
    not_random = sum(len(file.not_random) for file in files)
    if not not_random or texts.are_complete(labels):
        return labels
    labels = collect(random_cases(files))
    return replace(labels, unused={**labels.unused, NOT_RANDOM: not_random})


def _read_once(source: Source) -> Source:
    """Return a source that has been read, so that reading it again takes no time."""
    items: list[Row | BadRow] = []
    for row in source.rows(items.append):
        items.append(row)  # noqa: PERF402  (`items.append` is called with the others meanwhile)
    return replace(source, read=lambda on_error: reject_bad_rows(iter(items), on_error))


def _ignore(bad: BadRow) -> None:
    """Leave out a row that cannot be read; reading the cases counts it."""


def _unit_label(value: float, ends: Ends | None, where: str) -> float:
    """Return a label in the range from 0 to 1. Raises ConfigError if it is outside its scale."""
    low, high = ends or (0.0, 1.0)
    if not low <= value <= high:
        hint = "" if ends else "; give the scale, such as 1-5"
        raise ConfigError(
            f"labels: {where} has the label {value:g}, which is not from {low:g} to {high:g}{hint}"
        )
    return (value - low) / (high - low)


def _column_labels(
    rows: Iterable[Mapping[str, Any]], pairs: Sequence[ResultPair], scale: Ends | None
) -> PairLabels:
    """Return the labels of rows with the columns `label_a` and `label_b`."""
    table = list(rows)
    id = next((name for name in ID_NAMES if SampleColumns(table).has(name)), None)
    if id is None:
        raise ConfigError(
            "labels: with label_a and label_b there must be an ID, in one of the columns "
            f"{', '.join(ID_NAMES)}"
        )
    keys = {pair.a.id: pair.key for pair in pairs if pair.a.id is not None} | {
        pair.key: pair.key for pair in pairs
    }
    found: defaultdict[str, list[float]] = defaultdict(list)
    levels: defaultdict[str, list[float]] = defaultdict(list)
    unused = 0
    for values in table:
        both = [value_at(values, name) for name in BOTH_LABELS]
        key = keys.get(str(value_at(values, id)))
        if key is None or any(value is MISSING or is_missing(value) for value in both):
            unused += 1
            continue
        where = f"row {checks.format_value(value_at(values, id), 80)}"
        a, b = (_unit_label(_number(value, where), scale, where) for value in both)
        found[key].append(b - a)
        levels[key].append(a)
    if not found:
        raise ConfigError(f"labels: none of the {len(table)} rows belongs to a row of both runs")
    differences = {key: fmean(values) for key, values in found.items()}
    return PairLabels(
        "score",
        differences,
        sum(map(len, found.values())),
        {OF_OTHERS: unused},
        {key: {None: fmean(values)} for key, values in levels.items()},
    )


def _number(value: Any, where: str) -> float:
    try:
        return (
            parse_pass(value)
            if isinstance(value, bool) or (isinstance(value, str) and is_read(parse_pass, value))
            else parse_number(value)
        )
    except AmbiguousLabel as error:
        raise ConfigError(f"labels: {where}: {error}") from error


@dataclass
class _TextLabels:
    """Finds the pairs that labelled texts belong to, among all repeats."""

    pairs: Sequence[ResultPair]
    _keys: defaultdict[tuple[str, str], dict[str, None]] = field(
        default_factory=lambda: defaultdict(dict), init=False
    )

    def __post_init__(self) -> None:
        self._with_task = {
            pair.key
            for pair in self.pairs
            if _prompt_hash(pair.a.task) or _prompt_hash(pair.b.task)
        }
        for pair in self.pairs:
            for row in (*pair.a_rows, *pair.b_rows):
                if row.text is None:
                    continue
                for name in {row.id or "", _prompt_hash(row.task), ""}:
                    self._keys[name, hash_task(row.text)][pair.key] = None

    def are_complete(self, labels: PairLabels) -> bool:
        """Whether every pair of different answers has a label, so that no choice of rows can bias
        an estimate.
        """
        differing = [pair for pair in self.pairs if not pair.same_answer]
        return not labels.partial and all(
            pair.key in labels.differences for pair in differing or self.pairs
        )

    def collect(self, cases: Sequence[tuple[LabelledCase, Ends | None]]) -> PairLabels:
        """Return the labels of the pairs; an answer is found by the ID or the prompt of its case,
        or by its text alone.
        """
        are_pairs = bool(cases) and cases[0][0].kind == "pair"
        labels = self._preferences(cases) if are_pairs else self._levels(cases)
        if cases and not labels.used:
            what = (
                "a pair of answers of these two runs (`redraft label A B` shows them)"
                if are_pairs
                else "an answer of these runs"
            )
            raise ConfigError(
                f"labels: none of the {len(cases)} labels is of {what}; a label counts for the "
                "text it is of"
            )
        return labels

    def _levels(self, cases: Sequence[tuple[LabelledCase, Ends | None]]) -> PairLabels:
        """Return the labels of single answers. Those that both runs have equally often cancel, and
        need none.
        """
        given: defaultdict[str, defaultdict[str | None, list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        used = 0
        for case, scale in cases:
            keys = self._find(case, text := case.responses[0])
            used += bool(keys)
            for key in keys:
                given[key][text].append(
                    _unit_label(
                        float(case.label or 0.0), scale, f"case {checks.format_value(case.id, 80)}"
                    )
                )
        differences, levels, partial = {}, {}, set()
        for pair in self.pairs:
            if pair.key not in given:
                continue
            known = {text: fmean(values) for text, values in given[pair.key].items()}
            a, b = pair.answer_shares
            of_a, of_b = _surplus(a, b), _surplus(b, a)
            mean_a, mean_b = _weighted_mean(known, of_a), _weighted_mean(known, of_b)
            if mean_a is not None and mean_b is not None:
                differences[pair.key] = sum(of_b.values()) * (mean_b - mean_a)
                if not (of_a.keys() | of_b.keys()) <= known.keys():
                    partial.add(pair.key)
            if level := {text: label for text, label in known.items() if text in a}:
                levels[pair.key] = level
        if used and not differences:
            raise ConfigError(
                "labels: no pair has a label of both answers; label the answers of A and of B to "
                "the same tasks"
            )
        return PairLabels(
            "score", differences, used, {OF_OTHERS: len(cases) - used}, levels, frozenset(partial)
        )

    def _preferences(self, cases: Sequence[tuple[LabelledCase, Ends | None]]) -> PairLabels:
        """Return the labels of pairs of answers. Each answer of A meets each one of B; equal ones
        are a tie, and need no label.
        """
        shares = {pair.key: pair.answer_shares for pair in self.pairs}
        found: defaultdict[str, defaultdict[tuple[str, str], list[float]]] = defaultdict(
            lambda: defaultdict(list)
        )
        used = 0
        for case, _ in cases:
            first, second = case.responses
            ranks = case.ranks or (0, 0)
            win_of_second = 0.0 if ranks[0] == ranks[1] else 0.5 if ranks[1] < ranks[0] else -0.5
            others = set(self._find(case, second))
            used_before = used
            for key in self._find(case, first):
                if key not in others or first == second:
                    continue
                a, b = shares[key]
                for texts, win in (
                    ((first, second), win_of_second),
                    ((second, first), -win_of_second),
                ):
                    if texts[0] in a and texts[1] in b:
                        found[key][texts].append(win)
                        used = used_before + 1
        differences, partial = {}, set()
        for key, wins in found.items():
            a, b = shares[key]
            weights = {texts: a[texts[0]] * b[texts[1]] for texts in wins}
            different = 1 - sum(
                share * b.get(text, 0.0) for text, share in a.items() if text is not None
            )
            differences[key] = different * fmean(
                (fmean(values) for values in wins.values()), weights.values()
            )
            if sum(weights.values()) < different - TOLERANCE:
                partial.add(key)
        return PairLabels(
            "preference",
            differences,
            used,
            {OF_OTHERS: len(cases) - used},
            partial=frozenset(partial),
        )

    def _find(self, case: LabelledCase, text: str) -> list[str]:
        """Return the keys of the pairs that have this answer to the task of a case."""
        key = hash_task(text)
        for name in (case.id, _prompt_hash(case.task) if case.task.prompt else ""):
            if name and (name, key) in self._keys:
                return list(self._keys[name, key])
        alone = list(self._keys.get(("", key), ()))
        return (
            alone
            if len(alone) == 1 and not (case.task.prompt and alone[0] in self._with_task)
            else []
        )


def _prompt_hash(task: Any) -> str:
    return hash_task(["prompt", task.prompt]) if task is not None and task.prompt else ""


def _surplus(
    shares: Mapping[str | None, float], others: Mapping[str | None, float]
) -> dict[str | None, float]:
    """Return by how much each answer is more frequent than among the others. None stands for
    unknown answers, all different.
    """
    return {
        text: more
        for text, share in shares.items()
        if (more := share - (0.0 if text is None else others.get(text, 0.0))) > 0
    }


def _weighted_mean(
    labels: Mapping[str | None, float], weights: Mapping[str | None, float]
) -> float | None:
    """Return the mean label of those answers with a weight that have one; 0 without any weight,
    None without a label.
    """
    known = [text for text in weights if text in labels]
    if not weights:
        return 0.0
    return (
        fmean([labels[text] for text in known], [weights[text] for text in known])
        if known
        else None
    )
