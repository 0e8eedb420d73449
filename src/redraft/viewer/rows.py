"""The rows of a run as lists know them: the facts of each, and which rows a list shows in which
order.

`row_facts` makes the facts from the result and the trace that the journal holds. A row that cannot
be read has an error that says so, and no figures. A `RowQuery` is read from the address of a page,
checked, and written as SQL with bound values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from itertools import islice
from statistics import fmean
from typing import Any
from urllib.parse import urlencode

from ..base.checks import unknown_name_message
from ..base.jsontext import replace_lone_surrogates
from ..comparison.results import hash_task
from ..errors import ConfigError, StoreError
from ..loop.records import Candidate, Feedback, Outcome, Record
from ..loop.serialize import object_from_json, record_from_json, value_from_json
from ..loop.task import Task
from ..loop.trace import Trace
from ..plans.quality.result_facts import TOLERANCE, IterationFigures, ResultFacts
from ..storage.journal import STATUSES, StoredRow

MAX_PROMPT = 240  # characters of a prompt that a list shows
MAX_SEARCH = 2_000  # characters of the prompt, and of the answer, that a search finds
MAX_ERROR = 300
MAX_NAME = 200  # characters of a name, such as that of a criterion
MAX_PARTS = 500  # graders and criteria of a row
MAX_ITERATIONS = 1_000
UNREADABLE = "unreadable"
NO_TRACE = Trace(Task(""))  # of a row without records


@dataclass(frozen=True, slots=True)
class PartScore:
    """What one part of the grading says of the first answer and of the best one. None: unknown.

    `kind` is "grader", "criterion" (of a grader) or "must" (a requirement that the best answer does
    not meet).
    """

    kind: str
    name: str
    first: float | None
    best: float | None


@dataclass(frozen=True, slots=True)
class RowFacts:
    """The facts of one row; None means unknown.

    Attributes:
        number: The number of the row in the journal.
        id: The ID of the row.
        position: Its place in the input, from 0.
        status: "done", "failed" or "open".
        prompt: The start of the last user message, on one line.
        first: The score of the first answer.
        best: The score of the best answer.
        uplift: The difference.
        loss: If `worse`, by how much the lowest refinement scored below the first answer.
        basis: What stands behind the scores, as in `ResultFacts.score_basis`.
        iterations: The number of refinements.
        best_iteration: The first iteration after which the best score was reached.
        stop: Why the row ended; "" while it is in progress.
        error_kind: The class of the error, or "".
        error: The error in words, or "".
        calls: Calls of its answers.
        tokens: Their tokens.
        cost: Their cost in USD.
        seconds: The time that its steps took, added up.
        improved: As in `ResultFacts`.
        unsure: As in `ResultFacts`.
        worse: As in `ResultFacts`.
        musts: Whether the row has a must.
        broken: Whether the best answer violates one.
        rewritten: Whether the text or the tool calls of the best answer are others than those of
            the first.
        answer: A hash of the best answer with its tool calls, the same for equal answers; "" if
            there is none.
        task: A hash of the task, the same for equal tasks (prompt, context and reference); "" if it
            is unknown.
        search: Text that a search finds, in lower case.
        scores: What each grader and each criterion says, and which requirements are not met.
        by_iteration: The best score after each iteration, and the calls and the cost of its
            answers.
    """

    number: int
    id: str
    position: int
    status: str
    prompt: str = ""
    first: float | None = None
    best: float | None = None
    uplift: float | None = None
    loss: float | None = None
    basis: str = ""
    iterations: int | None = None
    best_iteration: int | None = None
    stop: str = ""
    error_kind: str = ""
    error: str = ""
    calls: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    improved: bool = False
    unsure: bool = False
    worse: bool = False
    musts: bool = False
    broken: bool = False
    rewritten: bool = False
    answer: str = ""
    task: str = ""
    search: str = ""
    scores: tuple[PartScore, ...] = ()
    by_iteration: tuple[IterationFigures, ...] = ()

    @property
    def met_more(self) -> bool:
        """Whether it improved without a higher score, by meeting more requirements."""
        return self.improved and (self.uplift or 0.0) <= TOLERANCE

    @property
    def lowest_later(self) -> float | None:
        """The score of the lowest refinement, if the row is `worse`."""
        return None if self.first is None or self.loss is None else self.first - self.loss


def row_facts(row: StoredRow) -> RowFacts:
    """Return the facts of a stored row."""
    try:
        return _read_facts(row)
    except (StoreError, ValueError, TypeError) as error:
        position = row.position if type(row.position) is int else 0
        id, why = _text(row.id)[:MAX_NAME], _text(error)[:MAX_ERROR]
        return RowFacts(row.number, id, position, "failed", error_kind=UNREADABLE, error=why)


def _read_facts(row: StoredRow) -> RowFacts:
    if row.status not in STATUSES:
        raise StoreError(f"a status cannot be {row.status!r:.80}")
    id = _text(value_from_json(row.id))
    facts, trace = (
        RowFacts(row.number, id, row.position, row.status, search=id[:MAX_NAME]),
        NO_TRACE,
    )
    if row.lines:
        header, *records = row.lines
        trace = Trace.from_header(object_from_json(header))
        trace = trace.with_records(map(record_from_json, records))
        facts = _with_trace(facts, trace)
    if row.result:
        result = ResultFacts.from_data({**object_from_json(row.result), "status": row.status})
        facts = _with_result(facts, result, trace)
    return replace(facts, search=facts.search.casefold())


def _with_trace(facts: RowFacts, trace: Trace) -> RowFacts:
    """Enter what the records say."""
    task, prompt = trace.task, _text(trace.task.prompt[: 4 * MAX_SEARCH])
    first = trace.candidates[0] if trace.candidates else None
    best = next((c for c in trace.candidates if trace.outcome and c.id == trace.outcome.best), None)
    return replace(
        facts,
        prompt=" ".join(prompt[:MAX_SEARCH].split())[:MAX_PROMPT],
        seconds=total_seconds(trace.records),
        musts=any(grader.must for grader in trace.panel),
        rewritten=bool(first and best and first.display_text != best.display_text),
        answer=_hash(best.display_text) if best else "",
        task=hash_task([list(task.messages), task.context, task.reference]),
        search=f"{facts.search}\n{prompt[:MAX_SEARCH]}",
        scores=tuple(islice(_part_scores(trace, first, best), MAX_PARTS)),
    )


def total_seconds(records: Iterable[Record]) -> float | None:
    """Return the time that steps took, added up; None if it is not known."""
    timed = (record for record in records if not isinstance(record, Outcome))
    seconds = [record.seconds for record in timed if record.seconds is not None]
    return float(sum(seconds)) if seconds else None


def _with_result(facts: RowFacts, result: ResultFacts, trace: Trace) -> RowFacts:
    """Enter what the result says."""
    answer, first, best = _text(result.answer or ""), result.initial_score, result.score
    broken = dict.fromkeys(_text(name)[:MAX_NAME] for name in result.broken)
    return replace(
        facts,
        first=first,
        best=best,
        uplift=None if first is None or best is None else best - first,
        loss=_loss(trace, first) if result.worse else None,
        basis=result.score_basis[:MAX_NAME],
        iterations=result.iterations,
        best_iteration=_best_iteration([score for score, _, _ in result.by_iteration]),
        stop=result.stop[:MAX_NAME],
        error_kind=_text(result.error_kind)[:MAX_NAME],
        error=" ".join(_text(result.error or "")[: 4 * MAX_ERROR].split())[:MAX_ERROR],
        calls=result.calls,
        tokens=result.tokens,
        cost=result.cost,
        improved=result.improved,
        unsure=result.unsure,
        worse=result.worse,
        broken=bool(broken),
        answer=facts.answer or _hash(answer),
        search=f"{facts.search}\n{answer[:MAX_SEARCH]}",
        scores=(*facts.scores, *(PartScore("must", name, None, None) for name in broken)),
        by_iteration=result.by_iteration[:MAX_ITERATIONS],
    )


def _text(value: Any) -> str:
    """Return a value as text that the index can hold."""
    return str(replace_lone_surrogates(str(value)))


def _hash(answer: str) -> str:
    """Return a hash of an answer; "" for none."""
    return sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()[:16] if answer else ""


def _loss(trace: Trace, first: float | None) -> float | None:
    """Return by how much the lowest refinement or repair scored below the first answer; 0 if it
    only broke a must. None: unknown.
    """
    scores = trace.with_estimates.scores
    later = [scores[each.id] for each in trace.candidates if each.parent is not None]
    known = [score for score in later if score is not None]
    return None if first is None or not known else max(0.0, first - min(known))


def _best_iteration(scores: Iterable[float | None]) -> int | None:
    known = [(n, score) for n, score in enumerate(scores) if score is not None]
    return next((n for n, score in known if score >= known[-1][1] - TOLERANCE), None)


def _part_scores(
    trace: Trace, first: Candidate | None, best: Candidate | None
) -> Iterator[PartScore]:
    """Yield the scores of each grader and criterion of the first and the best answer."""
    of_first, of_best = (
        _part_means(trace.feedback[each.id]) if each else {} for each in (first, best)
    )
    for kind, name in dict.fromkeys([*of_first, *of_best]):
        yield PartScore(kind, name, of_first.get((kind, name)), of_best.get((kind, name)))


def _part_means(feedback: Iterable[Feedback]) -> dict[tuple[str, str], float]:
    """Return the score of each grader and criterion of one candidate; of repeats the mean."""
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for each in feedback:
        grader = _text(each.grader)[:MAX_NAME]
        if each.score is not None:
            scores["grader", grader].append(each.score)
        for criterion in each.criteria:
            scores["criterion", _text(f"{grader}: {criterion.name}")[:MAX_NAME]].append(
                criterion.score
            )
    return {part: fmean(values) for part, values in scores.items()}


# ---- lists

PART_SCORE = "SELECT best FROM scores WHERE number = rows.number AND kind = '{}' AND name = :part"
ORDERS: Mapping[str, str] = {
    "position": "rows.position",
    "uplift": "rows.uplift",
    "change": "abs(rows.uplift)",
    "loss": "rows.loss",
    "score": "rows.best",
    "first": "rows.first",
    "iteration": "rows.best_iteration",
    "iterations": "rows.iterations",
    "cost": "rows.cost",
    "calls": "rows.calls",
    "seconds": "rows.seconds",
    "stop": "rows.stop",
    "error": "rows.error_kind",
    **{kind: f"({PART_SCORE.format(kind)})" for kind in ("grader", "criterion")},
}
"""The orders of a list, and their SQL."""

CHANGES: Mapping[str, str] = {
    "improved": "rows.improved",
    "unsure": "rows.unsure",
    "unchanged": "rows.uplift IS NOT NULL AND NOT (rows.improved OR rows.unsure OR rows.worse)",
    "worse": "rows.worse AND NOT (rows.improved OR rows.unsure)",
    "unknown": "rows.uplift IS NULL",
}
"""The groups of rows by what became of their score, as a batch's report counts them."""

OF_PARTS = "rows.number IN (SELECT number FROM scores WHERE {})"
FILTERS: Mapping[str, str] = {
    "text": "rows.number IN (SELECT number FROM texts WHERE instr(text, :text))",
    "status": "rows.status = :status",
    "stop": "rows.stop = :stop",
    "error": "rows.error_kind = :error",
    "iteration": "rows.best_iteration = :iteration",
    "requirement": OF_PARTS.format("kind = 'must' AND name = :requirement"),
    "grader": OF_PARTS.format("kind = 'grader' AND name = :grader AND best < :below"),
    "criterion": OF_PARTS.format("kind = 'criterion' AND name = :criterion AND best < :below"),
}
"""The filters of a list, and their SQL."""

MAX_TEXT = 500  # characters of a search


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A list of rows: its filters ("" or None: none) and its order. Raises ConfigError for a value
    that is not allowed.

    Attributes:
        sort: One of `ORDERS`.
        descending: The highest first. Rows without a value come last either way.
        part: The name of the grader or criterion that `sort` means.
        text: Text in the ID, the prompt or the answer.
        change: One of `CHANGES`.
        status: "done", "failed" or "open".
        stop: The reason why the row ended.
        error: The kind of the error.
        iteration: The iteration of the best answer.
        requirement: The name of a requirement that the best answer does not meet.
        grader: The name of a grader that scored the best answer below `below`.
        criterion: The name of a criterion that scored it below `below`.
        below: A score.
    """

    sort: str = "position"
    descending: bool = False
    part: str = ""
    text: str = ""
    change: str = ""
    status: str = ""
    stop: str = ""
    error: str = ""
    iteration: int | None = None
    requirement: str = ""
    grader: str = ""
    criterion: str = ""
    below: float = 1.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("sort", self.sort, [*ORDERS]),
            ("change", self.change, ["", *CHANGES]),
            ("status", self.status, ["", *STATUSES]),
        ):
            if value not in allowed:
                raise ConfigError(unknown_name_message(name, value[:80], [*filter(None, allowed)]))
        if not 0 <= self.below <= 1:
            raise ConfigError(f"below must be a score from 0 to 1, got {self.below!r}")
        if len(self.text) > MAX_TEXT:
            raise ConfigError(f"a search has at most {MAX_TEXT} characters, got {len(self.text):,}")

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> RowQuery:
        """Return the query in the parameters of an address; unknown parameters are ignored."""
        values: dict[str, Any] = {
            f.name: parameters[f.name] for f in fields(cls) if parameters.get(f.name)
        }
        try:
            if "iteration" in values:
                values["iteration"] = int(values["iteration"][:9])
            if "below" in values:
                values["below"] = float(values["below"][:20])
        except ValueError as error:
            raise ConfigError(f"iteration and below are numbers, got {str(error)[:80]}") from None
        values["descending"] = values.get("descending") == "1"
        return cls(**values)

    def parameters(self, **changes: Any) -> str:
        """Return the query as parameters of an address, with changes; defaults are left out."""
        defaults = asdict(RowQuery())
        values = {
            name: value
            for name, value in {**asdict(self), **changes}.items()
            if value is not None and value != defaults.get(name)
        }
        if "descending" in values:
            values["descending"] = "1"
        return urlencode(values)

    @property
    def filters(self) -> dict[str, Any]:
        """The filters that are set, by name."""
        values = asdict(self)
        return {
            name: values[name] for name in (*FILTERS, "change") if values[name] not in {"", None}
        }

    @property
    def condition(self) -> str:
        """The condition of SQL on a row, with names for its `values`."""
        terms = [
            CHANGES[value] if name == "change" else FILTERS[name]
            for name, value in self.filters.items()
        ]
        return " AND ".join(f"({term})" for term in terms) or "1"

    @property
    def ordering(self) -> str:
        """The order of SQL, with names for its `values`."""
        direction = "DESC" if self.descending else "ASC"
        return f"{ORDERS[self.sort]} {direction} NULLS LAST, rows.position, rows.number"

    @property
    def values(self) -> dict[str, Any]:
        """The values that the names in the SQL stand for."""
        return asdict(self) | {"text": self.text.casefold()}
