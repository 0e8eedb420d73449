"""The facts of one row that lists sort and filter by, read from the journal's JSON.

The records are read as plain data: 100,000 rows take seconds, and as traces they take minutes. A
row that cannot be understood has an error that says so, and no figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Any

from ..base.jsontext import loads, replace_lone_surrogates
from ..comparison.results import hash_task
from ..errors import StoreError
from ..loop.task import message_text
from ..runs.row_result import TOLERANCE
from ..storage.journal import STATUSES, StoredRow

MAX_PROMPT = 240  # characters of a prompt that a list shows
MAX_SEARCH = 2_000  # characters of the prompt, and of the answer, that a search finds
MAX_ERROR = 300
MAX_NAME = 200  # characters of a name, such as that of a criterion
MAX_PARTS = 500  # graders and criteria of a row
MAX_ITERATIONS = 1_000
MAX_NUMBER = 2**40  # of calls, tokens, USD and seconds: SQLite can add up those of all rows
SCORE_ERROR = 1e-6  # by which rounding may move a score out of 0 to 1
UNREADABLE = "unreadable"
TASK_FIELDS = ("messages", "context", "reference")  # by which tasks are equal


@dataclass(frozen=True, slots=True)
class PartScore:
    """What one grader, or one criterion of a grader, says of the first answer and of the best one.
    None: unknown.
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
        iterations: The number of refinements.
        best_iteration: The first iteration after which the best score was reached.
        stop: Why the row ended; "" while it is in progress.
        error_kind: The class of the error, or "".
        error: The error in words, or "".
        calls: Calls of its answers.
        tokens: Their tokens.
        cost: Their cost in USD.
        seconds: The time that its steps took, added up.
        improved: As in `RowResult`.
        unsure: As in `RowResult`.
        worse: As in `RowResult`.
        broken: Whether the best answer violates a must.
        rewritten: Whether the best answer is another than the first.
        answer: A hash of the best answer, the same for equal answers; "" if there is none.
        task: A hash of the task, the same for equal tasks (prompt, context and reference); "" if it
            is unknown.
        search: Text that a search finds, in lower case.
        scores: What each grader and each criterion says.
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
    broken: bool = False
    rewritten: bool = False
    answer: str = ""
    task: str = ""
    search: str = ""
    scores: tuple[PartScore, ...] = ()
    by_iteration: tuple[tuple[float | None, int | None, float | None], ...] = ()


def row_facts(row: StoredRow) -> RowFacts:
    """Return the facts of a stored row."""
    position = row.position if type(row.position) is int else 0
    try:
        return _read_facts(row, position)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        RecursionError,
        StoreError,
    ) as error:
        kind = type(error).__name__
        return RowFacts(
            row.number,
            str(row.id)[:MAX_NAME],
            position,
            "failed",
            error_kind=UNREADABLE,
            error=kind,
        )


def _read_facts(row: StoredRow, position: int) -> RowFacts:
    id = str(_json(row.id))
    if row.status not in STATUSES:
        raise ValueError(f"a status cannot be {row.status!r:.80}")
    header, *records = map(_json, row.lines) if row.lines else ({"task": {"messages": []}},)
    users = [message for message in header["task"]["messages"] if message.get("role") == "user"]
    prompt = message_text(users[-1])[: 4 * MAX_SEARCH] if users else ""
    result = _json(row.result) if row.result else None
    columns: Mapping[str, Any] = result["columns"] if result else {}
    by_iteration = (
        tuple((_score(s), _whole(n), _amount(c)) for s, n, c in result["score_by_iteration"])
        if result
        else ()
    )
    first, best = _score(columns.get("initial_score")), _score(columns.get("best_score"))
    outcome: Mapping[str, Any] = next(
        (r for r in reversed(records) if r.get("kind") == "outcome"), {}
    )
    answer = str(columns.get("best") or "")
    error = str(columns.get("error") or "")
    return RowFacts(
        row.number,
        id,
        position,
        row.status,
        " ".join(prompt[:MAX_SEARCH].split())[:MAX_PROMPT],
        first,
        best,
        None if first is None or best is None else best - first,
        _whole(columns.get("iterations")),
        _best_iteration([score for score, _, _ in by_iteration]),
        str(columns.get("stop") or "")[:MAX_NAME],
        str(result.get("error_kind") or "")[:MAX_NAME] if result else "",
        " ".join(error[: 4 * MAX_ERROR].split())[:MAX_ERROR],
        _whole(columns.get("calls")),
        _whole(columns.get("tokens")),
        _amount(columns.get("cost")),
        _seconds(records),
        improved=bool(result and result.get("improved")),
        unsure=bool(result and result.get("unsure")),
        worse=bool(result and result.get("worse")),
        broken=columns.get("broken") is not None,
        rewritten=outcome.get("best") is not None and outcome["best"] != _first_id(records),
        answer=sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()[:16] if answer else "",
        task=hash_task([header["task"].get(name) for name in TASK_FIELDS])
        if header["task"]["messages"]
        else "",
        search=f"{id[:MAX_NAME]}\n{prompt[:MAX_SEARCH]}\n{answer[:MAX_SEARCH]}".casefold(),
        scores=tuple(islice(_part_scores(records, outcome.get("best")), MAX_PARTS)),
        by_iteration=by_iteration[:MAX_ITERATIONS],
    )


def _json(text: str) -> Any:
    value = loads(text.encode())
    return replace_lone_surrogates(value) if "\\ud" in text or "\\uD" in text else value


def _score(value: Any) -> float | None:
    return (
        float(value)
        if type(value) in {int, float} and -SCORE_ERROR <= value <= 1 + SCORE_ERROR
        else None
    )


def _amount(value: Any) -> float | None:
    return float(value) if type(value) in {int, float} and 0 <= value < MAX_NUMBER else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_NUMBER else None


def _best_iteration(scores: Sequence[float | None]) -> int | None:
    known = [score for score in scores if score is not None]
    if not known:
        return None
    return next(
        n for n, score in enumerate(scores) if score is not None and score >= known[-1] - TOLERANCE
    )


def _seconds(records: Iterable[Mapping[str, Any]]) -> float | None:
    known = [s for record in records if (s := _amount(record.get("seconds"))) is not None]
    return sum(known) if known else None


def _first_id(records: Iterable[Mapping[str, Any]]) -> int | None:
    return min((c["id"] for c in records if c.get("kind") == "candidate"), default=None)


def _part_scores(records: Sequence[Mapping[str, Any]], best: Any) -> Iterable[PartScore]:
    """Yield the scores of each grader and criterion for the first and the best candidate; of
    repeats the mean.
    """
    sums: dict[tuple[str, str], dict[int, list[float]]] = {}
    for record in records:
        if record.get("kind") == "feedback":
            candidate, grader = record.get("candidate", 0), str(record.get("grader", ""))[:MAX_NAME]
            parts = [("grader", grader, record.get("score"))]
            parts += [
                ("criterion", f"{grader}: {c['name']}"[:MAX_NAME], c["score"])
                for c in record.get("criteria", ())
            ]
            for kind, name, value in parts:
                if (score := _score(value)) is not None:
                    sums.setdefault((kind, name), {}).setdefault(candidate, []).append(score)
    first = _first_id(records)
    for (kind, name), by_candidate in sums.items():
        means = {candidate: sum(scores) / len(scores) for candidate, scores in by_candidate.items()}
        yield PartScore(
            kind, name, means.get(first) if first is not None else None, means.get(best)
        )
