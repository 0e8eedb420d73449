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
from .cases import LabelKind, LabelledCase
from .columns import LABEL_SYNONYMS, PAIR_COLUMNS, LabelColumns, answer_at, list_at, read_filtered_rows, text_at, to_text, value_at
from .labels import AmbiguousLabel
from .recorded import read_verdicts

__all__ = ["LabelledCases", "read_cases", "read_verdicts"]


MAX_ROWS = 10**15


@dataclass(frozen=True, slots=True)
class LabelledCases:
    """What was read: the cases, what their labels are, and in words which column was taken as what.

    `scale`: the lowest and the highest number that people gave (kind score), else None. `skipped`: the rows that could
    not be understood, and why. `ignored`: the columns of a "where:COLUMN" that are not in this file.
    """

    cases: tuple[LabelledCase, ...]
    kind: LabelKind
    scale: tuple[float, float] | None
    skipped_rows: tuple[BadRow, ...]
    column_notes: tuple[str, ...]
    ignored_filters: tuple[str, ...] = ()
    column_list: str = ""


def read_cases(
    path: str | Path, columns: Mapping[str, str] = {}, *, kind: LabelKind | None = None, limit: int | None = None
) -> LabelledCases:
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
    if kind is not None and kind not in get_args(LabelKind):
        raise ConfigError(f"kind={kind!r}: there are {', '.join(get_args(LabelKind))}")
    checks.whole_number("limit", limit, 1, MAX_ROWS, optional=True)
    checks.mapping("columns", columns, '{"prompt": "question"}', optional=False)
    held, skipped, ignored = read_filtered_rows(path, columns, limit)
    table = LabelColumns(columns, held)
    if not held:
        raise ConfigError(f"{str(path)!r} holds no row{' that fits' if columns else ''}{_first_errors(skipped)}")
    shape = _infer_schema(table, kind)
    reader = _CaseReader(
        shape, _prompt_reader(table), _id_reader(table), *(table.find(role) for role in ("context", "reference", "group"))
    )
    cases = list(_read_all_cases(reader, held, skipped))
    if not cases:
        raise ConfigError(f"{str(path)!r}: none of its rows can be understood{_first_errors(skipped)}")
    said = [f"{len(cases)} cases of kind {shape.kind}: {KIND_DESCRIPTIONS[shape.kind]}", *_column_notes(table, shape)]
    return LabelledCases(
        tuple(cases), shape.kind, _label_range(cases), tuple(skipped), tuple(said), tuple(ignored), table.column_list()
    )


KIND_DESCRIPTIONS: dict[LabelKind, str] = {
    "score": "a number for a response",
    "pass": "a response passes or fails",
    "pair": "which of two responses is better",
    "ranking": "the order of several responses",
}


def _first_errors(bad_rows: Sequence[BadRow]) -> str:
    told = "; ".join(f"{bad.location}: {bad.message}" for bad in bad_rows[:3])
    return f" ({told}{'; ...' if len(bad_rows) > 3 else ''})" if told else ""


ResponsesReader: TypeAlias = Callable[[Row], tuple[str, ...]]


@dataclass(frozen=True)
class _Label:
    """What people said of one row, as a case holds it."""

    label: float | None = None
    ranks: tuple[int, ...] | None = None
    ratings: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class _LabelSchema:
    """What the labels are, where the responses are, how a row is told, and what its label was read as."""

    kind: LabelKind
    read_responses: ResponsesReader
    read_label: Callable[[Row, int], _Label]
    label_counts: Counter[tuple[str, str]]
    shuffle: bool = False


def _infer_schema(table: LabelColumns, kind: LabelKind | None) -> _LabelSchema:
    """How rows are to be read: by the responses that they hold, then by their labels."""
    meant: Counter[tuple[str, str]] = Counter()
    if kind in {None, "pair"} and (pair := _pair_columns(table)):
        return _LabelSchema("pair", _responses_reader(pair), _preference_reader(table, meant), meant)
    if kind in {None, "pair"} and (chosen := table.find("chosen")) and (rejected := table.find("rejected")):
        return _LabelSchema("pair", _responses_reader((chosen, rejected)), _first_is_better, meant, shuffle=True)
    if kind in {None, "pair", "ranking"} and (several := table.find("responses")):
        return _list_schema(table, several, kind, meant)
    if kind in {"pair", "ranking"}:
        raise table.missing_role_error("responses" if kind == "ranking" else "response_a")
    if not (single := table.find("response")):
        raise table.missing_role_error("response")
    return _single_schema(table, single, kind, meant)


def _first_is_better(row: Row, n: int) -> _Label:
    return _Label(ranks=labels.FIRST)


def _list_schema(table: LabelColumns, column: str, kind: LabelKind | None, label_counts: Counter[tuple[str, str]]) -> _LabelSchema:
    def responses(row: Row) -> tuple[str, ...]:
        found = list_at(row, column)
        if len(found) < 2 or not all(isinstance(text, str) for text in found):
            raise AmbiguousLabel(f"{column!r} must be a list of two texts or more")
        return tuple(found)

    if kind != "pair":
        if (name := table.find("ranking")) or (name := table.find("order")):
            reading = labels.zero_based_ranks if "ranking" in table.assigned_columns else labels.ranks_from_order
            return _LabelSchema("ranking", responses, lambda row, n: _Label(ranks=reading(list_at(row, name), n)), label_counts)
        if kind == "ranking":
            raise table.missing_role_error("ranking")

    def both(row: Row) -> tuple[str, ...]:
        found = responses(row)
        if len(found) != 2:
            raise AmbiguousLabel(f"a pair has two responses, {column!r} holds {len(found)}")
        return found

    return _LabelSchema("pair", both, _preference_reader(table, label_counts), label_counts)


def _single_schema(
    table: LabelColumns, column: str, kind: LabelKind | None, label_counts: Counter[tuple[str, str]]
) -> _LabelSchema:
    names = LABEL_SYNONYMS[kind] if kind else dict.fromkeys((*LABEL_SYNONYMS["score"], *LABEL_SYNONYMS["pass"]))
    label, ratings = _label_columns(table, [name for name in names if name != column])
    if kind is None:
        values = [value for row in table.rows for value in _label_values(row, label, ratings) if not labels.is_missing(value)]
        means = table.label_meanings()
        kind = "pass" if values and all(labels.is_pass(means.get(to_text(v), v)) for v in values) else "score"
    read = labels.parse_pass if kind == "pass" else labels.parse_number
    join = labels.majority_rating if kind == "pass" else _mean_rating
    words = {1.0: "pass", 0.0: "fail"} if kind == "pass" else {}

    def read_label(row: Row, n: int) -> _Label:
        value, rated = _read_label_and_ratings(row, label, ratings, table.label_meanings(), read)
        number = join(rated) if value is None else value
        if label and number in words:
            label_counts[to_text(value_at(row, label)), words[number]] += 1
        return _Label(number, ratings=rated)

    return _LabelSchema(kind, _responses_reader((column,)), read_label, label_counts)


def _preference_reader(table: LabelColumns, label_counts: Counter[tuple[str, str]]) -> Callable[[Row, int], _Label]:
    """How a row says which of two responses is better."""
    label, ratings = _label_columns(table, LABEL_SYNONYMS["pair"])
    means = table.label_meanings()
    values = [means.get(to_text(v), v) for row in table.rows for v in _label_values(row, label, ratings)]
    zero = labels.counts_from_zero(values)

    def parse(value: Any) -> float:
        return labels.as_rating(labels.parse_preference(value, from_zero=zero))

    def read_label(row: Row, n: int) -> _Label:
        value, rated = _read_label_and_ratings(row, label, ratings, means, parse)
        said = labels.majority_rating(rated) if value is None else value
        if label:
            label_counts[to_text(value_at(row, label)), PREFERENCE_WORDS[said]] += 1
        return _Label(ranks=labels.RANKS_BY_RATING[said], ratings=rated)

    return read_label


PREFERENCE_WORDS = {1.0: "the first is better", 2.0: "the second is better", 0.0: "a tie"}


def _label_columns(table: LabelColumns, names: Sequence[str]) -> tuple[str | None, str | None]:
    """The columns of the label and of what each rater said. A column of labels that holds lists is one of ratings."""
    label = table.find("label", ())
    if label is None and len(usual := [name for name in names if table.has(name)]) > 1:
        raise ConfigError(f"any of the columns {', '.join(map(repr, usual))} may be the label; state it: label=COLUMN")
    label = label or table.find("label", names)
    ratings = table.find("ratings")
    if label and ratings is None and _holds_lists(table.rows, label):
        table.assigned_columns["ratings"] = table.assigned_columns.pop("label")
        return None, label
    if label is None and ratings is None:
        raise table.missing_role_error("label")
    return label, ratings


def _holds_lists(rows: Sequence[Row], name: str) -> bool:
    """Whether a column holds lists and nothing else."""
    said = [value for row in rows if not labels.is_missing(value := value_at(row, name))]
    return bool(said) and all(isinstance(value, list) for value in said)


def _label_values(row: Row, label: str | None, ratings: str | None) -> list[Any]:
    """All values of the label in a row: itself, or what the raters said."""
    if label:
        return [value_at(row, label)]
    try:
        return list_at(row, ratings or "")
    except AmbiguousLabel:
        return []


def _read_label_and_ratings(
    row: Row, label: str | None, ratings: str | None, meanings: Mapping[str, str], parse: Callable[[Any], float]
) -> tuple[float | None, tuple[float | None, ...]]:
    """The label of a row (None where it has no column), and its ratings. Raises Unclear."""

    def parse_one(value: Any) -> float | None:
        return None if labels.is_missing(value) else parse(meanings.get(to_text(value), value))

    rated = tuple(parse_one(value) for value in list_at(row, ratings)) if ratings else ()
    if label is None:
        return None, rated
    if (value := parse_one(value_at(row, label))) is None:
        raise AmbiguousLabel(f"the label is missing in {label!r}")
    return value, rated


def _mean_rating(ratings: Sequence[float | None]) -> float:
    known = [rating for rating in ratings if rating is not None]
    if not known:
        raise AmbiguousLabel("no rater said anything")
    return sum(known) / len(known)


def _pair_columns(table: LabelColumns) -> tuple[str, str] | None:
    """The columns of two responses."""
    stated = [table.find("response_a", ()), table.find("response_b", ())]
    if all(stated):
        return stated[0] or "", stated[1] or ""
    for first, second in () if "response" in table.explicit else PAIR_COLUMNS:
        fits = stated[0] in {None, first} and stated[1] in {None, second}
        if fits and table.has(first) and table.has(second):
            table.assigned_columns.update(response_a=first, response_b=second)
            return first, second
    if any(stated):
        raise table.missing_role_error("response_b" if stated[0] else "response_a")
    return None


def _responses_reader(names: Sequence[str]) -> ResponsesReader:
    return lambda row: tuple(answer_at(row, name) for name in names)


PromptReader: TypeAlias = Callable[[Row], str | list[Message]]


def _prompt_reader(table: LabelColumns) -> PromptReader:
    """How a row says what was asked. Without any column for it, the task is empty: some labels need none."""
    used = set(table.assigned_columns.values())
    if messages := table.find("messages"):
        return lambda row: list_at(row, messages)
    prompt = table.find("prompt", [name for name in ("prompt", "instruction", "question", "query", "input") if name not in used])
    if prompt is None:
        chosen = table.assigned_columns.get("chosen")
        return lambda row: _messages_before_last(value_at(row, chosen))
    if prompt == "instruction" and "prompt" not in table.explicit and table.has("input") and "input" not in used:
        table.assigned_columns["prompt"] = "instruction, then input"
        return lambda row: "\n\n".join(filter(None, (text_at(row, "instruction"), text_at(row, "input"))))
    return lambda row: _read_prompt(row, prompt)


def _read_prompt(row: Row, name: str) -> str | list[Message]:
    value = value_at(row, name)
    if value is None:
        raise AmbiguousLabel(f"nothing is asked in {name!r}")
    return value if isinstance(value, list) else text_at(row, name) or ""


def _messages_before_last(chat: Any) -> str | list[Message]:
    """The messages before the last one of a chat."""
    return chat[:-1] if isinstance(chat, list) and len(chat) > 1 else ""


def _id_reader(table: LabelColumns) -> Callable[[Row], str]:
    """How a row is called: by its id, where every row has another one, else by file and line."""
    name = table.find("id")
    if name and "id" not in table.explicit:
        known = {to_text(value_at(row, name)) for row in table.rows if not labels.is_missing(value_at(row, name))}
        if len(known) < len(table.rows):
            del table.assigned_columns["id"]
            name = None

    def read_id(row: Row) -> str:
        if name is None:
            return Path(row.location).name
        if labels.is_missing(value := value_at(row, name)):
            raise AmbiguousLabel(f"the id is missing in {name!r}")
        return to_text(value)

    return read_id


@dataclass(frozen=True)
class _CaseReader:
    """Makes cases of rows."""

    schema: _LabelSchema
    read_prompt: PromptReader
    read_id: Callable[[Row], str]
    context: str | None
    reference: str | None
    group: str | None

    def read_case(self, row: Row) -> LabelledCase:
        """The case in a row. Raises Unclear, or ValueError for messages that are none."""
        id, responses = self.read_id(row), self.schema.read_responses(row)
        context, reference = text_at(row, self.context) or None, text_at(row, self.reference) or None
        task = Task(self.read_prompt(row), id=id, context=context, reference=reference)
        told = self.schema.read_label(row, len(responses))
        group = value_at(row, self.group)
        name = "" if group is None else to_text(group)
        case = LabelledCase(id, self.schema.kind, task, responses, told.label, told.ranks, told.ratings, name)
        return _maybe_swapped(case) if self.schema.shuffle else case


def _maybe_swapped(case: LabelledCase) -> LabelledCase:
    """The case with its two responses the other way round, for every second one by its texts, so that place says nothing."""
    texts = "\0".join((case.task.prompt, *sorted(case.responses))).encode("utf-8", "surrogatepass")
    turn = sha256(texts).digest()[0] % 2 == (case.responses[0] < case.responses[1])
    return replace(case, responses=case.responses[::-1], ranks=(case.ranks or ())[::-1]) if turn else case


def _read_all_cases(reader: _CaseReader, rows: Sequence[Row], bad_rows: list[BadRow]) -> Any:
    """The cases of all rows that can be understood; the others are added to `skipped`."""
    seen: dict[str, str] = {}
    for row in rows:
        try:
            case = reader.read_case(row)
            if case.id in seen:
                raise AmbiguousLabel(f"the id {labels.short_repr(case.id)} was that of {seen[case.id]} already")
        except ValueError as error:
            bad_rows.append(BadRow(row.location, str(error)))
            continue
        seen[case.id] = row.location
        yield case


def _label_range(cases: Sequence[LabelledCase]) -> tuple[float, float] | None:
    if cases[0].kind != "score":
        return None
    said = [value for case in cases for value in (case.label, *case.ratings) if value is not None]
    return min(said), max(said)


INPUT_ROLES = ("prompt", "messages", "context", "reference", "response", "responses", "response_a", "response_b")
LABEL_ROLES = ("chosen", "rejected", "label", "ratings", "ranking", "order", "group", "id")


def _column_notes(table: LabelColumns, schema: _LabelSchema) -> list[str]:
    """In words: what each column was taken as, and what the values of the label were taken for."""
    said = [
        f"{role}: column {table.assigned_columns[role]!r}"
        for role in (*INPUT_ROLES, *LABEL_ROLES)
        if role in table.assigned_columns
    ]
    if not {"prompt", "messages", "chosen"} & table.assigned_columns.keys():
        said.append("no column says what was asked: the task is empty")
    if "id" not in table.assigned_columns:
        said.append("id: file and line")
    if schema.shuffle:
        said.append("the chosen response is the better one; which of the two comes first depends on their texts only")
    read = schema.label_counts.most_common(12)
    said += [f"label {labels.short_repr(value)}: {meaning} ({n} rows)" for (value, meaning), n in read]
    if "label" not in table.assigned_columns and "ratings" in table.assigned_columns:
        said.append(f"the label is the {'mean of the ratings' if schema.kind == 'score' else 'most frequent rating'}")
    return said
