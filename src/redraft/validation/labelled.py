"""Labelled data of other people become cases: which column is what, what is in it, and which rows were left out.

Columns are stated, or recognised by their usual names, and then said. A row that cannot be understood is left out with
its place and the reason; nothing is guessed. What a label means is in `labels`, recorded outputs are in `outputs`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, get_args

from .. import checks
from ..core.records import Message, Task
from ..errors import ConfigError
from ..tables import BadRow, Row
from . import labels
from .cases import Case, Kind
from .columns import LABELS, PAIRS, Columns, answer_at, as_text, list_at, read_rows, text_at, value_at
from .labels import Unclear
from .recorded import read_verdicts

__all__ = ["Labelled", "read_cases", "read_verdicts"]


MOST_ROWS = 10**15


@dataclass(frozen=True, slots=True)
class Labelled:
    """What was read: the cases, what their labels are, and in words which column was taken as what.

    `scale`: the lowest and the highest number that people gave (kind score), else None. `skipped`: the rows that could
    not be understood, and why. `ignored`: the columns of a "where:COLUMN" that are not in this file.
    """

    cases: tuple[Case, ...]
    kind: Kind
    scale: tuple[float, float] | None
    skipped: tuple[BadRow, ...]
    recognised: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    columns: str = ""


def read_cases(
    path: str | Path, columns: Mapping[str, str] = {}, *, kind: Kind | None = None, limit: int | None = None
) -> Labelled:
    """Labelled rows of a file that `datasets.rows` reads, the first `limit` of them.

    `columns` says which column is what: prompt, messages, context, reference, id, group; response, or response_a and
    response_b, or chosen and rejected, or responses; label, ratings (what each rater said), ranking (the place of each
    response, from 1, equal for ties) or order (numbers of the responses, best first). "scores.overall" reaches into
    objects, "r1,r2,r3" joins columns to a list (ratings, responses). "label:VALUE" says what a value of the label means:
    first, second, tie; pass, fail; a number. "where:COLUMN" keeps the rows that hold a value. What is not stated is
    recognised by usual names.

    `kind` is inferred from the columns and the labels where it is not given. Several ratings become one label: scores
    by their mean, the rest by what most raters said. Chosen and rejected responses are put in an order that depends on
    their texts only. Raises ConfigError for a column that is not there, a label that could be several columns, or
    when no row can be understood.
    """
    if kind is not None and kind not in get_args(Kind):
        raise ConfigError(f"kind={kind!r}: there are {', '.join(get_args(Kind))}")
    checks.whole_number("limit", limit, 1, MOST_ROWS, optional=True)
    checks.mapping("columns", columns, '{"prompt": "question"}', optional=False)
    held, skipped, ignored = read_rows(path, columns, limit)
    table = Columns(columns, held)
    if not held:
        raise ConfigError(f"{str(path)!r} holds no row{' that fits' if columns else ''}{_first(skipped)}")
    shape = _shape(table, kind)
    reader = _Reader(shape, _asked(table), _ids(table), *(table.find(role) for role in ("context", "reference", "group")))
    cases = list(_read(reader, held, skipped))
    if not cases:
        raise ConfigError(f"{str(path)!r}: none of its rows can be understood{_first(skipped)}")
    said = [f"{len(cases)} cases of kind {shape.kind}: {WORDS[shape.kind]}", *_said(table, shape)]
    return Labelled(tuple(cases), shape.kind, _scale(cases), tuple(skipped), tuple(said), tuple(ignored), table.listed())


WORDS: dict[Kind, str] = {
    "score": "a number for a response",
    "pass": "a response passes or fails",
    "pair": "which of two responses is better",
    "ranking": "the order of several responses",
}


def _first(skipped: Sequence[BadRow]) -> str:
    told = "; ".join(f"{bad.place}: {bad.message}" for bad in skipped[:3])
    return f" ({told}{'; ...' if len(skipped) > 3 else ''})" if told else ""


Answers: TypeAlias = Callable[[Row], tuple[str, ...]]


@dataclass(frozen=True)
class _Told:
    """What people said of one row, as a case holds it."""

    label: float | None = None
    places: tuple[int, ...] | None = None
    ratings: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class _Shape:
    """What the labels are, where the responses are, how a row is told, and what its label was read as."""

    kind: Kind
    responses: Answers
    tell: Callable[[Row, int], _Told]
    meant: Counter[tuple[str, str]]
    shuffled: bool = False


def _shape(table: Columns, kind: Kind | None) -> _Shape:
    """How rows are to be read: by the responses that they hold, then by their labels."""
    meant: Counter[tuple[str, str]] = Counter()
    if kind in {None, "pair"} and (pair := _pair(table)):
        return _Shape("pair", _each(pair), _preferring(table, meant), meant)
    if kind in {None, "pair"} and (chosen := table.find("chosen")) and (rejected := table.find("rejected")):
        return _Shape("pair", _each((chosen, rejected)), _chosen, meant, shuffled=True)
    if kind in {None, "pair", "ranking"} and (several := table.find("responses")):
        return _of_several(table, several, kind, meant)
    if kind in {"pair", "ranking"}:
        raise table.need("responses" if kind == "ranking" else "response_a")
    if not (single := table.find("response")):
        raise table.need("response")
    return _of_one(table, single, kind, meant)


def _chosen(row: Row, n: int) -> _Told:
    return _Told(places=labels.FIRST)


def _of_several(table: Columns, column: str, kind: Kind | None, meant: Counter[tuple[str, str]]) -> _Shape:
    def responses(row: Row) -> tuple[str, ...]:
        found = list_at(row, column)
        if len(found) < 2 or not all(isinstance(text, str) for text in found):
            raise Unclear(f"{column!r} must be a list of two texts or more")
        return tuple(found)

    if kind != "pair":
        if (name := table.find("ranking")) or (name := table.find("order")):
            reading = labels.places_from_ranks if "ranking" in table.taken else labels.places_from_order
            return _Shape("ranking", responses, lambda row, n: _Told(places=reading(list_at(row, name), n)), meant)
        if kind == "ranking":
            raise table.need("ranking")

    def both(row: Row) -> tuple[str, ...]:
        found = responses(row)
        if len(found) != 2:
            raise Unclear(f"a pair has two responses, {column!r} holds {len(found)}")
        return found

    return _Shape("pair", both, _preferring(table, meant), meant)


def _of_one(table: Columns, column: str, kind: Kind | None, meant: Counter[tuple[str, str]]) -> _Shape:
    names = LABELS[kind] if kind else dict.fromkeys((*LABELS["score"], *LABELS["pass"]))
    label, ratings = _label(table, [name for name in names if name != column])
    if kind is None:
        values = [value for row in table.rows for value in _every(row, label, ratings) if not labels.missing(value)]
        means = table.meanings()
        kind = "pass" if values and all(labels.is_pass(means.get(as_text(v), v)) for v in values) else "score"
    read = labels.passed if kind == "pass" else labels.number
    join = labels.majority if kind == "pass" else _mean
    words = {1.0: "pass", 0.0: "fail"} if kind == "pass" else {}

    def tell(row: Row, n: int) -> _Told:
        value, rated = _told(row, label, ratings, table.meanings(), read)
        number = join(rated) if value is None else value
        if label and number in words:
            meant[as_text(value_at(row, label)), words[number]] += 1
        return _Told(number, ratings=rated)

    return _Shape(kind, _each((column,)), tell, meant)


def _preferring(table: Columns, meant: Counter[tuple[str, str]]) -> Callable[[Row, int], _Told]:
    """How a row says which of two responses is better."""
    label, ratings = _label(table, LABELS["pair"])
    means = table.meanings()
    values = [means.get(as_text(v), v) for row in table.rows for v in _every(row, label, ratings)]
    zero = labels.counts_from_zero(values)

    def read(value: Any) -> float:
        return labels.as_rating(labels.preference(value, zero=zero))

    def tell(row: Row, n: int) -> _Told:
        value, rated = _told(row, label, ratings, means, read)
        said = labels.majority(rated) if value is None else value
        if label:
            meant[as_text(value_at(row, label)), BETTER[said]] += 1
        return _Told(places=labels.NUMBERED[said], ratings=rated)

    return tell


BETTER = {1.0: "the first is better", 2.0: "the second is better", 0.0: "a tie"}


def _label(table: Columns, names: Sequence[str]) -> tuple[str | None, str | None]:
    """The columns of the label and of what each rater said. A column of labels that holds lists is one of ratings."""
    label = table.find("label", ())
    if label is None and len(usual := [name for name in names if table.has(name)]) > 1:
        raise ConfigError(f"any of the columns {', '.join(map(repr, usual))} may be the label; state it: label=COLUMN")
    label = label or table.find("label", names)
    ratings = table.find("ratings")
    if label and ratings is None and _holds_lists(table.rows, label):
        table.taken["ratings"] = table.taken.pop("label")
        return None, label
    if label is None and ratings is None:
        raise table.need("label")
    return label, ratings


def _holds_lists(rows: Sequence[Row], name: str) -> bool:
    """Whether a column holds lists and nothing else."""
    said = [value for row in rows if not labels.missing(value := value_at(row, name))]
    return bool(said) and all(isinstance(value, list) for value in said)


def _every(row: Row, label: str | None, ratings: str | None) -> list[Any]:
    """All values of the label in a row: itself, or what the raters said."""
    if label:
        return [value_at(row, label)]
    try:
        return list_at(row, ratings or "")
    except Unclear:
        return []


def _told(
    row: Row, label: str | None, ratings: str | None, means: Mapping[str, str], read: Callable[[Any], float]
) -> tuple[float | None, tuple[float | None, ...]]:
    """The label of a row (None where it has no column), and its ratings. Raises Unclear."""

    def one(value: Any) -> float | None:
        return None if labels.missing(value) else read(means.get(as_text(value), value))

    rated = tuple(one(value) for value in list_at(row, ratings)) if ratings else ()
    if label is None:
        return None, rated
    if (value := one(value_at(row, label))) is None:
        raise Unclear(f"the label is missing in {label!r}")
    return value, rated


def _mean(ratings: Sequence[float | None]) -> float:
    known = [rating for rating in ratings if rating is not None]
    if not known:
        raise Unclear("no rater said anything")
    return sum(known) / len(known)


def _pair(table: Columns) -> tuple[str, str] | None:
    """The columns of two responses."""
    stated = [table.find("response_a", ()), table.find("response_b", ())]
    if all(stated):
        return stated[0] or "", stated[1] or ""
    for first, second in () if "response" in table.stated else PAIRS:
        fits = stated[0] in {None, first} and stated[1] in {None, second}
        if fits and table.has(first) and table.has(second):
            table.taken.update(response_a=first, response_b=second)
            return first, second
    if any(stated):
        raise table.need("response_b" if stated[0] else "response_a")
    return None


def _each(names: Sequence[str]) -> Answers:
    return lambda row: tuple(answer_at(row, name) for name in names)


Asked: TypeAlias = Callable[[Row], str | list[Message]]


def _asked(table: Columns) -> Asked:
    """How a row says what was asked. Without any column for it, the task is empty: some labels need none."""
    used = set(table.taken.values())
    if messages := table.find("messages"):
        return lambda row: list_at(row, messages)
    prompt = table.find("prompt", [name for name in ("prompt", "instruction", "question", "query", "input") if name not in used])
    if prompt is None:
        chosen = table.taken.get("chosen")
        return lambda row: _before(value_at(row, chosen))
    if prompt == "instruction" and "prompt" not in table.stated and table.has("input") and "input" not in used:
        table.taken["prompt"] = "instruction, then input"
        return lambda row: "\n\n".join(filter(None, (text_at(row, "instruction"), text_at(row, "input"))))
    return lambda row: _prompt(row, prompt)


def _prompt(row: Row, name: str) -> str | list[Message]:
    value = value_at(row, name)
    if value is None:
        raise Unclear(f"nothing is asked in {name!r}")
    return value if isinstance(value, list) else text_at(row, name) or ""


def _before(chat: Any) -> str | list[Message]:
    """The messages before the last one of a chat."""
    return chat[:-1] if isinstance(chat, list) and len(chat) > 1 else ""


def _ids(table: Columns) -> Callable[[Row], str]:
    """How a row is called: by its id, where every row has another one, else by file and line."""
    name = table.find("id")
    if name and "id" not in table.stated:
        known = {as_text(value_at(row, name)) for row in table.rows if not labels.missing(value_at(row, name))}
        if len(known) < len(table.rows):
            del table.taken["id"]
            name = None

    def called(row: Row) -> str:
        if name is None:
            return Path(row.place).name
        if labels.missing(value := value_at(row, name)):
            raise Unclear(f"the id is missing in {name!r}")
        return as_text(value)

    return called


@dataclass(frozen=True)
class _Reader:
    """Makes cases of rows."""

    shape: _Shape
    asked: Asked
    called: Callable[[Row], str]
    context: str | None
    reference: str | None
    group: str | None

    def case(self, row: Row) -> Case:
        """The case in a row. Raises Unclear, or ValueError for messages that are none."""
        id, responses = self.called(row), self.shape.responses(row)
        context, reference = text_at(row, self.context) or None, text_at(row, self.reference) or None
        task = Task(self.asked(row), id=id, context=context, reference=reference)
        told = self.shape.tell(row, len(responses))
        group = value_at(row, self.group)
        name = "" if group is None else as_text(group)
        case = Case(id, self.shape.kind, task, responses, told.label, told.places, told.ratings, name)
        return _turned(case) if self.shape.shuffled else case


def _turned(case: Case) -> Case:
    """The case with its two responses the other way round, for every second one by its texts, so that place says nothing."""
    texts = "\0".join((case.task.prompt, *sorted(case.responses))).encode("utf-8", "surrogatepass")
    turn = sha256(texts).digest()[0] % 2 == (case.responses[0] < case.responses[1])
    return replace(case, responses=case.responses[::-1], places=(case.places or ())[::-1]) if turn else case


def _read(reader: _Reader, held: Sequence[Row], skipped: list[BadRow]) -> Any:
    """The cases of all rows that can be understood; the others are added to `skipped`."""
    seen: dict[str, str] = {}
    for row in held:
        try:
            case = reader.case(row)
            if case.id in seen:
                raise Unclear(f"the id {labels.shown(case.id)} was that of {seen[case.id]} already")
        except ValueError as error:
            skipped.append(BadRow(row.place, str(error)))
            continue
        seen[case.id] = row.place
        yield case


def _scale(cases: Sequence[Case]) -> tuple[float, float] | None:
    if cases[0].kind != "score":
        return None
    said = [value for case in cases for value in (case.label, *case.ratings) if value is not None]
    return min(said), max(said)


ROLES = ("prompt", "messages", "context", "reference", "response", "responses", "response_a", "response_b")
LAST = ("chosen", "rejected", "label", "ratings", "ranking", "order", "group", "id")


def _said(table: Columns, shape: _Shape) -> list[str]:
    """In words: what each column was taken as, and what the values of the label were taken for."""
    said = [f"{role}: column {table.taken[role]!r}" for role in (*ROLES, *LAST) if role in table.taken]
    if not {"prompt", "messages", "chosen"} & table.taken.keys():
        said.append("no column says what was asked: the task is empty")
    if "id" not in table.taken:
        said.append("id: file and line")
    if shape.shuffled:
        said.append("the chosen response is the better one; which of the two comes first depends on their texts only")
    read = shape.meant.most_common(12)
    said += [f"label {labels.shown(value)}: {meaning} ({n} rows)" for (value, meaning), n in read]
    if "label" not in table.taken and "ratings" in table.taken:
        said.append(f"the label is the {'mean of the ratings' if shape.kind == 'score' else 'most frequent rating'}")
    return said
