"""Results of a run as rows with a score each, whatever program wrote them, and the pairing of two such runs.

Rows are paired by their ID, else by a hash of their task; the scores of repeats are averaged, and all of their answers are kept.
Rows without a partner, and rows without a score, are counted: nothing is dropped silently. This module knows no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from statistics import fmean
from typing import Any, Literal, TypeAlias

from ..checks import is_blank
from ..core.task import Task
from ..errors import ConfigError
from ..jsontext import dumps
from ..tables.row_values import has_value
from ..text import pluralize

PairedBy: TypeAlias = Literal["id", "task"]
MAX_RESULTS = 1_000_000  # rows of one run


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One result.

    `score` is None if the row failed or nobody could grade it. `task_hash` stands for the task (see `hash_task`); "" if it is
    unknown, or was not read (see `RunResults.with_tasks`). `text` is the answer, None if unknown. `values` are the columns of the
    row, for clusters and slices, `task` is the task if the row tells it completely.
    """

    id: str | None
    task_hash: str
    score: float | None
    text: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    task: Task | None = None

    @property
    def is_silent(self) -> bool:
        """Whether the answer is blank, and calls no tool."""
        return self.text is not None and is_blank(self.text) and not has_value(self.values.get("tool_calls"))


@dataclass(frozen=True)
class RunResults:
    """The results of one run.

    Attributes:
        name: What the run is called in reports.
        form: What wrote it: "redraft", "table", "promptfoo", "inspect", "deepeval", "lm-eval" or "openjudge".
        rows: The results.
        score_name: The name of the score.
        skipped: Rows that could not be read, with the reasons.
        read_task: Reads the task from the columns of a row; None if the rows have all that is known of their tasks.
    """

    name: str
    form: str
    rows: Sequence[ResultRow]
    score_name: str = "score"
    skipped: tuple[str, ...] = ()
    read_task: Callable[[Mapping[str, Any]], Task | None] | None = field(default=None, repr=False, compare=False)

    def without_scores_of_blanks(self) -> RunResults:
        """Return the results without the scores of blank answers, unless the run has no other answers: then they are unknown."""
        if all(is_blank(row.text) for row in self.rows if row.text is not None):
            return self
        return replace(self, rows=[replace(row, score=None) if row.is_silent else row for row in self.rows])

    def with_tasks(self) -> RunResults:
        """Return the results with the task of each row. Few comparisons need those of both runs, and reading them takes time."""
        if self.read_task is None:
            return self
        return replace(self, rows=[self.with_task(row) for row in self.rows], read_task=None)

    def with_task(self, row: ResultRow) -> ResultRow:
        """Return a row with its task."""
        if self.read_task is None:
            return row
        task = self.read_task(row.values)
        return replace(row, task=task, task_hash="" if task is None else task_key(task))


@dataclass(frozen=True, slots=True)
class ResultPair:
    """The results of one task in both runs.

    `a` and `b` have the mean score of repeats, and their text if it is the same in all; `a_rows` and `b_rows` are the repeats.
    `task` is equal for equal tasks (prompt, context and reference) under different IDs, None if the task is unknown.
    """

    key: str
    a: ResultRow
    b: ResultRow
    a_rows: Sequence[ResultRow]
    b_rows: Sequence[ResultRow]
    task: Hashable = None

    @property
    def values(self) -> dict[str, Any]:
        """The columns of the row, of A before B; its ID is one of them."""
        return {**({} if self.a.id is None else {"id": self.a.id}), **self.b.values, **self.a.values}

    @property
    def same_answer(self) -> bool:
        """Whether both runs have the same answers, each equally often."""
        a, b = self.answer_shares
        return a == b and None not in a

    @property
    def answer_shares(self) -> tuple[dict[str | None, float], dict[str | None, float]]:
        """The share of each answer among the repeats of A, and among those of B."""
        return _shares(self.a_rows), _shares(self.b_rows)


@dataclass(frozen=True)
class PairedResults:
    """Two runs, row by row, in the order of A.

    `pairs` have a score on both sides; `unscored_a` and `unscored_b` are those without a score in A or in B. `only_a` and
    `only_b` count the rows that the other run does not have, `repeats` those beyond the first of their task.
    """

    a: RunResults
    b: RunResults
    paired_by: PairedBy
    pairs: Sequence[ResultPair]
    unscored_a: Sequence[ResultPair]
    unscored_b: Sequence[ResultPair]
    only_a: int
    only_b: int
    repeats: int

    @property
    def silent_rows(self) -> tuple[int, int]:
        """The numbers of blank answers in A and in B, of the tasks that both have."""
        keys = {pair.key for pair in (*self.pairs, *self.unscored_a, *self.unscored_b)}
        a, b = (
            sum(row.is_silent and (row.id if self.paired_by == "id" else row.task_hash) in keys for row in run.rows)
            for run in (self.a, self.b)
        )
        return a, b


def pair_results(a: RunResults, b: RunResults) -> PairedResults:
    """Return the rows of two runs in pairs: by ID if all rows have one and the runs share some, else by task.

    Raises ConfigError if they have no row in common.
    """
    tried: list[PairedBy] = []
    a, b = a.without_scores_of_blanks(), b.without_scores_of_blanks()
    if all(row.id is not None for run in (a, b) for row in run.rows):
        sides = [_by_key(run.rows, lambda row: row.id or "") for run in (a, b)]
        if sides[0].keys() & sides[1].keys():
            return _make_pairs(a, b, "id", *sides)
        tried.append("id")
    a, b = a.with_tasks(), b.with_tasks()
    if all(row.task_hash for run in (a, b) for row in run.rows):
        sides = [_by_key(run.rows, lambda row: row.task_hash) for run in (a, b)]
        if sides[0].keys() & sides[1].keys():
            return _make_pairs(a, b, "task", *sides)
        tried.append("task")
    if not tried:
        raise ConfigError(
            f"rows of {a.name!r} and {b.name!r} cannot be paired: some have neither an ID nor a task; name their columns, such as "
            "id=NAME or prompt=NAME"
        )
    raise ConfigError(
        f"{a.name!r} ({pluralize(len(a.rows), 'row')}) and {b.name!r} ({pluralize(len(b.rows), 'row')}) have no row in common "
        f"by {' or by '.join(tried)}: are they results of the same tasks?"
    )


def _by_key(rows: Iterable[ResultRow], key: Callable[[ResultRow], str]) -> dict[str, list[ResultRow]]:
    groups: dict[str, list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _make_pairs(
    a: RunResults, b: RunResults, how: PairedBy, a_rows: dict[str, list[ResultRow]], b_rows: dict[str, list[ResultRow]]
) -> PairedResults:
    both = [
        ResultPair(
            key,
            _mean_row(rows),
            _mean_row(b_rows[key]),
            rows,
            b_rows[key],
            _task_identity(a, rows) or _task_identity(b, b_rows[key]),
        )
        for key, rows in a_rows.items()
        if key in b_rows
    ]
    missing = Counter((pair.a.score is None, pair.b.score is None) for pair in both)
    if not missing[False, False]:
        raise ConfigError(f"{a.name!r} and {b.name!r} have {pluralize(len(both), 'row')} in common, and none has a score in both")
    return PairedResults(
        a,
        b,
        how,
        [pair for pair in both if pair.a.score is not None and pair.b.score is not None],
        [pair for pair in both if pair.a.score is None],
        [pair for pair in both if pair.b.score is None],
        len(a_rows.keys() - b_rows.keys()),
        len(b_rows.keys() - a_rows.keys()),
        len(a.rows) - len(a_rows) + len(b.rows) - len(b_rows),
    )


def _mean_row(rows: list[ResultRow]) -> ResultRow:
    """Return a row with the mean score of repeats; None if a repeat has no score."""
    first, scores = rows[0], [row.score for row in rows]
    if len(rows) == 1:
        return first
    known = [score for score in scores if score is not None]
    mean = fmean(known) if len(known) == len(scores) else None
    text = first.text if all(row.text == first.text for row in rows) else None
    return ResultRow(first.id, first.task_hash, mean, text, first.values, first.task)


def _task_identity(run: RunResults, rows: Sequence[ResultRow]) -> Hashable:
    """Return what is equal for equal tasks: the hash of the task and its reference; None if the task is unknown."""
    row = run.with_task(rows[0])
    return (row.task_hash, row.task and row.task.reference) if row.task_hash else None


def _shares(rows: Sequence[ResultRow]) -> dict[str | None, float]:
    if len(rows) == 1:  # as most are
        return {rows[0].text: 1.0}
    return {text: n / len(rows) for text, n in Counter(row.text for row in rows).items()}


def task_key(task: Task) -> str:
    """Return the hash of a task, by which rows of different runs are paired."""
    return hash_task([list(task.messages), task.context])


def hash_task(content: Any) -> str:
    """Return a hash of what identifies a task, such as its messages: plain data of JSON."""
    return sha256(dumps(content, sort_keys=True, default=str)).hexdigest()[:24]


def check_size(rows: Sequence[Any], name: str) -> None:
    """Raise ConfigError for more rows than can be compared."""
    if len(rows) > MAX_RESULTS:
        raise ConfigError(f"{name!r} has more than {MAX_RESULTS:,} rows")
