"""Labelled rows of any shape as cases.

Columns are stated, or recognised by their usual names and then reported. A row that cannot be understood is left out, with its
location and the reason; nothing is guessed. `labels` knows what a label means, `recorded` reads outputs of other judges.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, get_args

from .. import checks
from ..core.records import Message, Task, message_text
from ..errors import ConfigError
from ..jsontext import strict_loads
from ..tables.columns import MISSING, PROMPT_NAMES, RoleColumns, SampleColumns, value_at
from ..tables.readers import BadRow, Row, iter_rows
from ..tables.tasks import read_message
from . import labels
from .cases import LabelKind, LabelledCase
from .labels import AmbiguousLabel, short_repr

MAX_ROWS = 10**15
CASE_ID_NAMES = ("id", "pair_id", "question_id", "item_id", "uid", "unique_id")
PAIR_COLUMNS = tuple(
    (f"{stem}_{first}", f"{stem}_{second}")
    for stem in ("response", "output", "answer", "completion", "summary")
    for first, second in (("a", "b"), ("1", "2"), ("A", "B"))
)
LABEL_NAMES: dict[LabelKind, tuple[str, ...]] = {
    "pair": ("label", "winner", "preference", "preferred", "human_preference", "human", "majority", "majority_vote", "better"),
    "score": ("label", "score", "rating", "human_score", "human_rating", "human"),
    "pass": ("label", "pass", "passed", "correct", "is_correct", "acceptable", "human"),
}
INPUT_ROLES = ("prompt", "messages", "context", "reference", "response", "responses", "response_a", "response_b")
LABEL_ROLES = ("chosen", "rejected", "label", "ratings", "ranking", "order", "group", "id")
OUTPUT_ROLES = ("case", "look", "output", "output_ba", "score_1", "score_2", "shown")  # of recorded outputs
ROLES = frozenset((*INPUT_ROLES, *LABEL_ROLES, *OUTPUT_ROLES))


@dataclass(frozen=True, slots=True)
class LabelledCases:
    """The cases of a file.

    `scale`: the lowest and the highest number that people gave (kind score), else None. `skipped_rows`: the rows that cannot be
    understood, and why. `column_notes`: in words, which column was taken as what. `ignored_filters`: the columns of a
    "where:COLUMN" that are not in the file.
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
    """Read the first `limit` labelled rows of a file, in any format of `tables.iter_rows`.

    `columns` maps roles to columns: prompt, messages, context, reference, id, group; response, or response_a and response_b, or
    chosen and rejected, or responses; label, ratings (one for each rater), ranking (the rank of each response, from 1, equal for
    ties) or order (the numbers of the responses, best first). "scores.overall" reaches into objects, "r1,r2,r3" joins columns
    to a list (ratings, responses). "label:VALUE" gives the meaning of a value of the label: first, second, tie; pass, fail; a
    number. "where:COLUMN" keeps the rows with that value. Other roles are recognised by the usual names of their columns.

    `kind` is inferred from the columns and the labels unless given. Several ratings become one label: the mean of scores, else
    the most frequent rating. The order of chosen and rejected responses depends on their texts only. Raises ConfigError for a
    column that is not there, for a label that could be several columns, and if no row can be understood.
    """
    if kind is not None and kind not in get_args(LabelKind):
        raise ConfigError(f"kind={kind!r}: there are {', '.join(get_args(LabelKind))}")
    checks.whole_number("limit", limit, 1, MAX_ROWS, optional=True)
    checks.mapping("columns", columns, '{"prompt": "question"}', optional=False)
    rows, skipped, ignored = read_filtered_rows(path, columns, limit)
    table = LabelledTable(columns, rows)
    if not rows:
        raise ConfigError(f"{str(path)!r} holds no row{' that fits' if columns else ''}{_first_errors(skipped)}")
    schema = _infer_schema(table, kind)
    find = table.columns.find
    reader = _CaseReader(schema, _prompt_reader(table), _id_reader(table), find("context"), find("reference"), find("group"))
    cases = list(_read_all_cases(reader, rows, skipped))
    if not cases:
        raise ConfigError(f"{str(path)!r}: none of its rows can be understood{_first_errors(skipped)}")
    notes = (f"{len(cases)} cases of kind {schema.kind}: {KIND_DESCRIPTIONS[schema.kind]}", *_column_notes(table, schema))
    column_list = table.columns.sample.column_list()
    return LabelledCases(tuple(cases), schema.kind, _label_range(cases), tuple(skipped), notes, tuple(ignored), column_list)


KIND_DESCRIPTIONS: dict[LabelKind, str] = {
    "score": "a number for a response",
    "pass": "a response passes or fails",
    "pair": "which of two responses is better",
    "ranking": "the order of several responses",
}


def _first_errors(bad_rows: Sequence[BadRow]) -> str:
    told = "; ".join(f"{bad.location}: {bad.message}" for bad in bad_rows[:3])
    return f" ({told}{'; ...' if len(bad_rows) > 3 else ''})" if told else ""


@dataclass(frozen=True)
class LabelledTable:
    """Some rows, and their columns by role; `explicit` as `columns` of `read_cases`. Raises ConfigError for an unknown role."""

    explicit: Mapping[str, str]
    rows: Sequence[Row]
    columns: RoleColumns = field(init=False)

    def __post_init__(self) -> None:
        for role, name in self.explicit.items():
            if ":" not in role and role not in ROLES:
                known = [*INPUT_ROLES, *LABEL_ROLES, *OUTPUT_ROLES, "label:VALUE", "where:COLUMN"]
                raise ConfigError(checks.unknown_name_message("role", role, known, full_value=f"{role}={name}"))
        sample = SampleColumns([row.values for row in self.rows])
        object.__setattr__(self, "columns", RoleColumns(self.explicit, sample, list_roles=("ratings", "responses")))

    def label_meanings(self) -> dict[str, str]:
        """Return the stated meanings of label values."""
        return {role.removeprefix("label:"): said for role, said in self.explicit.items() if role.startswith("label:")}


def read_filtered_rows(
    path: str | Path, explicit: Mapping[str, str], limit: int | None = None
) -> tuple[list[Row], list[BadRow], list[str]]:
    """Return the first `limit` rows that every "where:COLUMN" keeps, the rows that cannot be read, and filters without a column."""
    filters = {role.removeprefix("where:"): value for role, value in explicit.items() if role.startswith("where:")}
    bad: list[BadRow] = []
    rows = list(islice(iter_rows(path, bad.append), None if filters else limit))
    sample = SampleColumns([row.values for row in rows])
    present = {name: value for name, value in filters.items() if sample.has(name)}
    kept = [row for row in rows if all(to_text(value_at(row.values, name)) == value for name, value in present.items())]
    return kept[:limit], bad, sorted(filters.keys() - present.keys())


def to_text(value: Any) -> str:
    """Return a value as people write it on a command line: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is MISSING else json.dumps(value)
    except TypeError:  # a date, say
        return str(value)
    except (ValueError, RecursionError):
        return short_repr(value)


def cell(row: Row, name: str | None) -> Any:
    """Return the value of a row in a column; None where there is none."""
    value = MISSING if name is None else value_at(row.values, name)
    return None if value is MISSING else value


def text_cell(row: Row, name: str | None) -> str | None:
    """Return a text; None where there is none. Raises AmbiguousLabel for anything else."""
    value = cell(row, name)
    if value is not None and not isinstance(value, str):
        raise AmbiguousLabel(f"{name!r} must be text, got {short_repr(value)}")
    return value


def response_cell(row: Row, name: str) -> str:
    """Return a response: a text, or the last message of a chat. Raises AmbiguousLabel for anything else."""
    value = cell(row, name)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        value = message_text(value[-1])
    if not isinstance(value, str):
        raise AmbiguousLabel(f"{name!r} must be text, got {short_repr(value)}")
    return value


def list_cell(row: Row, name: str) -> list[Any]:
    """Return a list: of one column, of JSON in a text, or of several columns "a,b,c". Raises AmbiguousLabel for anything else."""
    value = cell(row, name)
    if value is None and "," in name:
        return [cell(row, part.strip()) for part in name.split(",")]
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = strict_loads(value)
        except ValueError as error:
            raise AmbiguousLabel(f"{name!r} is not a list: {error}") from error
    if not isinstance(value, list):
        raise AmbiguousLabel(f"{name!r} must be a list, got {short_repr(value)}")
    return value


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


def _infer_schema(table: LabelledTable, kind: LabelKind | None) -> _LabelSchema:
    """How rows are to be read: by the responses that they hold, then by their labels."""
    meant: Counter[tuple[str, str]] = Counter()
    if kind in {None, "pair"} and (pair := _pair_columns(table)):
        return _LabelSchema("pair", _responses_reader(pair), _preference_reader(table, meant), meant)
    if kind in {None, "pair"} and (chosen := table.columns.find("chosen")) and (rejected := table.columns.find("rejected")):
        return _LabelSchema("pair", _responses_reader((chosen, rejected)), _first_is_better, meant, shuffle=True)
    if kind in {None, "pair", "ranking"} and (several := table.columns.find("responses")):
        return _list_schema(table, several, kind, meant)
    if kind in {"pair", "ranking"}:
        raise table.columns.missing_role_error("responses" if kind == "ranking" else "response_a")
    if not (single := table.columns.find("response")):
        raise table.columns.missing_role_error("response")
    return _single_schema(table, single, kind, meant)


def _first_is_better(row: Row, n: int) -> _Label:
    return _Label(ranks=labels.FIRST)


def _list_schema(table: LabelledTable, column: str, kind: LabelKind | None, label_counts: Counter[tuple[str, str]]) -> _LabelSchema:
    def responses(row: Row) -> tuple[str, ...]:
        found = list_cell(row, column)
        if len(found) < 2 or not all(isinstance(text, str) for text in found):
            raise AmbiguousLabel(f"{column!r} must be a list of two texts or more")
        return tuple(found)

    if kind != "pair":
        if (name := table.columns.find("ranking")) or (name := table.columns.find("order")):
            reading = labels.zero_based_ranks if "ranking" in table.columns.assigned else labels.ranks_from_order
            return _LabelSchema("ranking", responses, lambda row, n: _Label(ranks=reading(list_cell(row, name), n)), label_counts)
        if kind == "ranking":
            raise table.columns.missing_role_error("ranking")

    def both(row: Row) -> tuple[str, ...]:
        found = responses(row)
        if len(found) != 2:
            raise AmbiguousLabel(f"a pair has two responses, {column!r} holds {len(found)}")
        return found

    return _LabelSchema("pair", both, _preference_reader(table, label_counts), label_counts)


def _single_schema(
    table: LabelledTable, column: str, kind: LabelKind | None, label_counts: Counter[tuple[str, str]]
) -> _LabelSchema:
    names = LABEL_NAMES[kind] if kind else dict.fromkeys((*LABEL_NAMES["score"], *LABEL_NAMES["pass"]))
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
            label_counts[to_text(cell(row, label)), words[number]] += 1
        return _Label(number, ratings=rated)

    return _LabelSchema(kind, _responses_reader((column,)), read_label, label_counts)


def _preference_reader(table: LabelledTable, label_counts: Counter[tuple[str, str]]) -> Callable[[Row, int], _Label]:
    """How a row says which of two responses is better."""
    label, ratings = _label_columns(table, LABEL_NAMES["pair"])
    means = table.label_meanings()
    values = [means.get(to_text(v), v) for row in table.rows for v in _label_values(row, label, ratings)]
    zero = labels.counts_from_zero(values)

    def parse(value: Any) -> float:
        return labels.as_rating(labels.parse_preference(value, from_zero=zero))

    def read_label(row: Row, n: int) -> _Label:
        value, rated = _read_label_and_ratings(row, label, ratings, means, parse)
        said = labels.majority_rating(rated) if value is None else value
        if label:
            label_counts[to_text(cell(row, label)), PREFERENCE_WORDS[said]] += 1
        return _Label(ranks=labels.RANKS_BY_RATING[said], ratings=rated)

    return read_label


PREFERENCE_WORDS = {1.0: "the first is better", 2.0: "the second is better", 0.0: "a tie"}


def _label_columns(table: LabelledTable, names: Sequence[str]) -> tuple[str | None, str | None]:
    """The columns of the label and of what each rater said. A column of labels that holds lists is one of ratings."""
    label = table.columns.find("label", ())
    if label is None and len(usual := [name for name in names if table.columns.sample.has(name)]) > 1:
        raise ConfigError(f"any of the columns {', '.join(map(repr, usual))} may be the label; state it: label=COLUMN")
    label = label or table.columns.find("label", names)
    ratings = table.columns.find("ratings")
    if label and ratings is None and _holds_lists(table.rows, label):
        table.columns.assigned["ratings"] = table.columns.assigned.pop("label")
        return None, label
    if label is None and ratings is None:
        raise table.columns.missing_role_error("label")
    return label, ratings


def _holds_lists(rows: Sequence[Row], name: str) -> bool:
    """Whether a column holds lists and nothing else."""
    said = [value for row in rows if not labels.is_missing(value := cell(row, name))]
    return bool(said) and all(isinstance(value, list) for value in said)


def _label_values(row: Row, label: str | None, ratings: str | None) -> list[Any]:
    """All values of the label in a row: itself, or what the raters said."""
    if label:
        return [cell(row, label)]
    try:
        return list_cell(row, ratings or "")
    except AmbiguousLabel:
        return []


def _read_label_and_ratings(
    row: Row, label: str | None, ratings: str | None, meanings: Mapping[str, str], parse: Callable[[Any], float]
) -> tuple[float | None, tuple[float | None, ...]]:
    """The label of a row (None where it has no column), and its ratings. Raises Unclear."""

    def parse_one(value: Any) -> float | None:
        return None if labels.is_missing(value) else parse(meanings.get(to_text(value), value))

    rated = tuple(parse_one(value) for value in list_cell(row, ratings)) if ratings else ()
    if label is None:
        return None, rated
    if (value := parse_one(cell(row, label))) is None:
        raise AmbiguousLabel(f"the label is missing in {label!r}")
    return value, rated


def _mean_rating(ratings: Sequence[float | None]) -> float:
    known = [rating for rating in ratings if rating is not None]
    if not known:
        raise AmbiguousLabel("no rater gave a label")
    return sum(known) / len(known)


def _pair_columns(table: LabelledTable) -> tuple[str, str] | None:
    """The columns of two responses."""
    stated = [table.columns.find("response_a", ()), table.columns.find("response_b", ())]
    if all(stated):
        return stated[0] or "", stated[1] or ""
    for first, second in () if "response" in table.explicit else PAIR_COLUMNS:
        fits = stated[0] in {None, first} and stated[1] in {None, second}
        if fits and table.columns.sample.has(first) and table.columns.sample.has(second):
            table.columns.assigned.update(response_a=first, response_b=second)
            return first, second
    if any(stated):
        raise table.columns.missing_role_error("response_b" if stated[0] else "response_a")
    return None


def _responses_reader(names: Sequence[str]) -> ResponsesReader:
    return lambda row: tuple(response_cell(row, name) for name in names)


PromptReader: TypeAlias = Callable[[Row], str | list[Message]]


def _prompt_reader(table: LabelledTable) -> PromptReader:
    """Return how the prompt of a row is read. Without a column for it the task is empty: some labels need none."""
    used = set(table.columns.assigned.values())
    if messages := table.columns.find("messages"):
        return lambda row: [read_message(message, messages) for message in list_cell(row, messages)]
    prompt = table.columns.find("prompt", [name for name in PROMPT_NAMES if name not in used])
    if prompt is None:
        chosen = table.columns.assigned.get("chosen")
        return lambda row: _messages_before_last(cell(row, chosen))
    if prompt == "instruction" and "prompt" not in table.explicit and table.columns.sample.has("input") and "input" not in used:
        table.columns.assigned["prompt"] = "instruction, then input"
        return lambda row: "\n\n".join(filter(None, (text_cell(row, "instruction"), text_cell(row, "input"))))
    return lambda row: _read_prompt(row, prompt)


def _read_prompt(row: Row, name: str) -> str | list[Message]:
    value = cell(row, name)
    if value is None:
        raise AmbiguousLabel(f"the task is empty in {name!r}")
    return [read_message(message, name) for message in value] if isinstance(value, list) else text_cell(row, name) or ""


def _messages_before_last(chat: Any) -> str | list[Message]:
    """The messages before the last one of a chat."""
    return chat[:-1] if isinstance(chat, list) and len(chat) > 1 else ""


def _id_reader(table: LabelledTable) -> Callable[[Row], str]:
    """How a row is called: by its id, where every row has another one, else by file and line."""
    name = table.columns.find("id", CASE_ID_NAMES)
    if name and "id" not in table.explicit:
        known = {to_text(cell(row, name)) for row in table.rows if not labels.is_missing(cell(row, name))}
        if len(known) < len(table.rows):
            del table.columns.assigned["id"]
            name = None

    def read_id(row: Row) -> str:
        if name is None:
            return Path(row.location).name
        if labels.is_missing(value := cell(row, name)):
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
        context, reference = text_cell(row, self.context) or None, text_cell(row, self.reference) or None
        task = Task(self.read_prompt(row), id=id, context=context, reference=reference)
        told = self.schema.read_label(row, len(responses))
        group = cell(row, self.group)
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
                raise AmbiguousLabel(f"the id {short_repr(case.id)} was that of {seen[case.id]} already")
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


def _column_notes(table: LabelledTable, schema: _LabelSchema) -> list[str]:
    """In words: what each column was taken as, and what the values of the label were taken for."""
    said = [
        f"{role}: column {table.columns.assigned[role]!r}"
        for role in (*INPUT_ROLES, *LABEL_ROLES)
        if role in table.columns.assigned
    ]
    if not {"prompt", "messages", "chosen"} & table.columns.assigned.keys():
        said.append("no column holds the task: it is empty")
    if "id" not in table.columns.assigned:
        said.append("id: file and line")
    if schema.shuffle:
        said.append("the chosen response is the better one; which of the two comes first depends on their texts only")
    read = schema.label_counts.most_common(12)
    said += [f"label {short_repr(value)}: {meaning} ({n} rows)" for (value, meaning), n in read]
    if "label" not in table.columns.assigned and "ratings" in table.columns.assigned:
        said.append(f"the label is the {'mean of the ratings' if schema.kind == 'score' else 'most frequent rating'}")
    return said
