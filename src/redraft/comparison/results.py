"""Results of a run as rows with a score each, whatever program wrote them, and the pairing of two
such runs.

Rows are paired by their ID, else by a hash of their task; the scores of repeats are averaged, and
all of their answers are kept. An ID that stands for different tasks in one run, as where each of
several files begins at 0, is none. Rows without a partner, and rows without a score, are counted:
nothing is dropped silently. This module knows no files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from statistics import fmean
from typing import Any, Literal, TypeAlias

from ..base.checks import format_value, is_blank
from ..base.jsontext import dumps
from ..base.text import pluralize
from ..errors import ConfigError
from ..loop.task import Task
from ..tables.row_values import has_value, value_at
from ..validation.cases import is_read, parse_number

PairedBy: TypeAlias = Literal["id", "task"]
MAX_RESULTS = 1_000_000  # rows of one run
WINS_NAME = "share of wins"


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One result.

    `score` is None if the row failed or nobody could grade it. `task_hash` stands for the task (see
    `hash_task`); "" if it is unknown, or was not read (see `RunResults.with_tasks`). `text` is the
    answer, None if unknown. `values` are the columns of the row, for clusters and slices, `task` is
    the task if the row tells it completely.
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
        return (
            self.text is not None
            and is_blank(self.text)
            and not has_value(self.values.get("tool_calls"))
        )


@dataclass(frozen=True)
class RunResults:
    """The results of one run.

    Attributes:
        name: What the run is called in reports.
        form: What wrote it: "redraft", "table", "promptfoo" or "inspect".
        rows: The results.
        score_name: The name of the score.
        skipped: Rows that could not be read, with the reasons.
        read_task: Reads the task from the columns of a row; None if the rows have all that is known
            of their tasks.
    """

    name: str
    form: str
    rows: Sequence[ResultRow]
    score_name: str = "score"
    skipped: tuple[str, ...] = ()
    read_task: Callable[[Mapping[str, Any]], Task | None] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def is_own_grade(self) -> bool:
        """Whether the score is that of a grader in an output of `redraft batch`, of which higher
        ones are better.
        """
        reason = self.score_name.removesuffix("_score") + "_reason"
        return self.form == "redraft" and any(reason in row.values for row in self.rows[:1])

    def without_scores_of_blanks(self) -> RunResults:
        """Return the results without the scores of blank answers, unless the run has no other
        answers: then they are unknown.
        """
        if all(is_blank(row.text) for row in self.rows if row.text is not None):
            return self
        return replace(
            self, rows=[replace(row, score=None) if row.is_silent else row for row in self.rows]
        )

    def without_scores(self) -> RunResults:
        """Return the results without their scores."""
        return replace(self, rows=[replace(row, score=None) for row in self.rows])

    def with_tasks(self) -> RunResults:
        """Return the results with the task of each row. Few comparisons need those of both runs,
        and reading them takes time.
        """
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

    `a` and `b` have the mean score of repeats, and their text if it is the same in all; `a_rows`
    and `b_rows` are the repeats. `task` is equal for equal tasks (prompt, context and reference)
    under different IDs, None if the task is unknown.
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
        return {
            **({} if self.a.id is None else {"id": self.a.id}),
            **self.b.values,
            **self.a.values,
        }

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

    `pairs` have a score on both sides; `unscored_a` and `unscored_b` are those without a score in A
    or in B. `only_a` are the rows that B does not have, beside an empty one; `only_b` counts those
    that A does not have, `repeats` those beyond the first of their task.
    """

    a: RunResults
    b: RunResults
    paired_by: PairedBy
    pairs: Sequence[ResultPair]
    unscored_a: Sequence[ResultPair]
    unscored_b: Sequence[ResultPair]
    only_a: Sequence[ResultPair]
    only_b: int
    repeats: int

    @property
    def silent_rows(self) -> tuple[int, int]:
        """The numbers of blank answers in A and in B, of the tasks that both have."""
        keys = {pair.key for pair in (*self.pairs, *self.unscored_a, *self.unscored_b)}
        a, b = (
            sum(
                row.is_silent and (row.id if self.paired_by == "id" else row.task_hash) in keys
                for row in run.rows
            )
            for run in (self.a, self.b)
        )
        return a, b


def pair_results(a: RunResults, b: RunResults, *, scored: bool = True) -> PairedResults:
    """Return the rows of two runs in pairs: by ID if all rows have one and the runs share some,
    else by task.

    If an ID stands for different tasks in a run, rows are paired by task, unless the runs share
    fewer than half of their tasks, as where options are in another order each time. `scored`:
    whether a pair needs a score on both sides; if not, `with_shares_of_wins` gives scores later.
    Raises ConfigError if they have no row in common.
    """
    a, b = a.without_scores_of_blanks(), b.without_scores_of_blanks()
    ids = _group_rows(a, b, lambda row: row.id) or ({}, {})
    share_ids = bool(ids[0].keys() & ids[1].keys())
    if share_ids and not any(map(_has_several_tasks, (a, b), ids)):
        return _make_pairs(a, b, "id", *ids, scored=scored)
    runs = a.with_tasks(), b.with_tasks()
    tasks = _group_rows(*runs, lambda row: row.task_hash or None) or ({}, {})
    shared = len(tasks[0].keys() & tasks[1].keys())
    if shared and (not share_ids or 2 * shared >= min(map(len, tasks))):
        return _make_pairs(*runs, "task", *tasks, scored=scored)
    if share_ids:
        return _make_pairs(a, b, "id", *ids, scored=scored)
    tried = [how for how, sides in (("id", ids), ("task", tasks)) if sides[0]]
    if not tried:
        raise ConfigError(
            f"rows of {a.name!r} and {b.name!r} cannot be paired: some have neither an ID nor a "
            "task; name their columns, such as id=NAME or prompt=NAME"
        )
    raise ConfigError(
        f"{a.name!r} ({pluralize(len(a.rows), 'row')}) and {b.name!r} "
        f"({pluralize(len(b.rows), 'row')}) have no row in common by {' or by '.join(tried)}: are "
        "they results of the same tasks?"
    )


Groups: TypeAlias = dict[str, list[ResultRow]]


def _group_rows(
    a: RunResults, b: RunResults, key: Callable[[ResultRow], str | None]
) -> tuple[Groups, Groups] | None:
    """Return the rows of both runs by their key; None if a row has none."""
    found: tuple[Groups, Groups] = {}, {}
    for run, groups in zip((a, b), found, strict=True):
        for row in run.rows:
            if (name := key(row)) is None:
                return None
            groups.setdefault(name, []).append(row)
    return found


def _has_several_tasks(run: RunResults, by_id: Groups) -> bool:
    """Return whether an ID stands for different tasks in a run."""
    return any(
        len({run.with_task(row).task_hash for row in rows}) > 1
        for rows in by_id.values()
        if len(rows) > 1
    )


def _make_pairs(
    a: RunResults,
    b: RunResults,
    how: PairedBy,
    a_rows: Groups,
    b_rows: Groups,
    *,
    scored: bool,
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
    if scored and not missing[False, False]:
        raise ConfigError(
            f"{a.name!r} and {b.name!r} have {pluralize(len(both), 'row')} in common, and none "
            "has a score in both"
        )
    return PairedResults(
        a,
        b,
        how,
        [
            pair
            for pair in both
            if not scored or (pair.a.score is not None and pair.b.score is not None)
        ],
        [pair for pair in both if scored and pair.a.score is None],
        [pair for pair in both if scored and pair.b.score is None],
        [
            ResultPair(
                key, _mean_row(rows), ResultRow(None, "", None), rows, [], _task_identity(a, rows)
            )
            for key, rows in a_rows.items()
            if key not in b_rows
        ],
        len(b_rows.keys() - a_rows.keys()),
        len(a.rows) - len(a_rows) + len(b.rows) - len(b_rows),
    )


def with_shares_of_wins(results: PairedResults, shares: Mapping[str, float]) -> PairedResults:
    """Return results whose pairs have scores: their own if all have them, else the share of
    verdicts that each answer won.

    `shares` are those of B, by the key of the pair. A pair without a verdict has no score where the
    answer is missing; if both are there, it has none at all.
    """
    if all(pair.a.score is not None and pair.b.score is not None for pair in results.pairs):
        return results
    scored, unscored = [], []
    for pair in results.pairs:
        share = shares.get(pair.key)
        if share is not None:
            scored.append(
                replace(pair, a=replace(pair.a, score=1 - share), b=replace(pair.b, score=share))
            )
        else:  # an answer that has no opponent wins
            has_a, has_b = map(_has_answer, (pair.a_rows, pair.b_rows))
            a = replace(pair.a, score=1.0 if has_a and not has_b else None)
            unscored.append(
                replace(pair, a=a, b=replace(pair.b, score=1.0 if has_b and not has_a else None))
            )
    names = [replace(side, score_name=WINS_NAME) for side in (results.a, results.b)]
    lost_by = [[pair for pair in unscored if getattr(pair, side).score is None] for side in "ab"]
    alone = [
        replace(pair, a=replace(pair.a, score=1.0 if _has_answer(pair.a_rows) else None))
        for pair in results.only_a
    ]
    return replace(
        results,
        a=names[0],
        b=names[1],
        pairs=scored,
        unscored_a=lost_by[0],
        unscored_b=lost_by[1],
        only_a=alone,
    )


def _has_answer(rows: Sequence[ResultRow]) -> bool:
    return any(row.text is not None for row in rows)


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
    """Return what is equal for equal tasks: the hash of the task and its reference; None if the
    task is unknown.
    """
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


def check_scales(a: RunResults, b: RunResults) -> None:
    """Raise ConfigError if one run has shares in words, such as "60%", and the other one scores
    that are not from 0 to 1.
    """
    for run, other in ((a, b), (b, a)):
        outside = next(
            (row.score for row in other.rows if row.score is not None and not 0 <= row.score <= 1),
            None,
        )
        values = (
            value_at(row.values, run.score_name)
            for row in run.rows
            if outside is not None and row.score is not None
        )
        share = next(
            (
                value
                for value in values
                if isinstance(value, bool | str) and not is_read(parse_number, value)
            ),
            None,
        )
        if share is not None:
            raise ConfigError(
                f"{run.name!r} has shares from 0 to 1, such as {format_value(share, 80)}, and "
                f"{other.name!r} scores on another scale, such as {outside:g}"
            )


def check_size(rows: Sequence[Any], name: str) -> None:
    """Raise ConfigError for more rows than can be compared."""
    if len(rows) > MAX_RESULTS:
        raise ConfigError(f"{name!r} has more than {MAX_RESULTS:,} rows")
