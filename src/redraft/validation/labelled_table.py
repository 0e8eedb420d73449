"""Labelled rows as a table: the columns by role, the values in them, and what is judged in a row.

The user names columns, or they are recognised by their usual names. `infer_schema` decides from the
columns and their values what kind the labels are, and how the responses and the label of a row are
read; `cases` knows what a value means.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from ..base import checks
from ..errors import ConfigError
from ..loop.task import message_text
from ..tables.cells import START, load_cell
from ..tables.columns import SYNONYMS, SampleColumns
from ..tables.readers import BadRow, OnError, Row
from ..tables.row_values import (
    MISSING,
    as_list,
    has_value,
    is_python_chat,
    messages_in,
    read_responses,
    value_at,
    value_or_none,
)
from .cases import (
    FIRST_BETTER,
    RANKS_BY_RATING,
    AmbiguousLabel,
    LabelKind,
    as_rating,
    counts_from_zero,
    is_missing,
    is_read,
    letter_scores,
    majority_rating,
    parse_number,
    parse_pass,
    parse_preference,
    ranks_from_order,
    score_reader,
    zero_based_ranks,
)

INPUT_ROLES = (
    "prompt",
    "messages",
    "context",
    "reference",
    "tests",
    "response",
    "responses",
    "response_a",
    "response_b",
)
LABEL_ROLES = (
    "chosen",
    "rejected",
    "label",
    "ratings",
    "ranking",
    "order",
    "group",
    "id",
    "parent",
    "cluster",
)
# of recorded outputs
OUTPUT_ROLES = ("case", "repeat", "output", "output_ba", "score_1", "score_2", "shown")
MARKING_ROLES = ("group", "id", "parent", "cluster")  # their column may have another role, too
LIST_ROLES = ("ratings", "responses")  # the user may name several columns, separated by commas
CASE_ID_NAMES = ("id", "pair_id", "question_id", "item_id", "task_id", "uid", "unique_id")
FORMS_OF_RESPONSES = (
    ("response",),
    ("responses",),
    ("response_a", "response_b"),
    ("chosen", "rejected"),
)
RIVALS = {
    **{
        role: tuple(rival for other in FORMS_OF_RESPONSES if other != form for rival in other)
        for form in FORMS_OF_RESPONSES[1:]
        for role in form
    },
    "messages": ("prompt",),
    "ranking": ("order", "label", "ratings"),
    "order": ("ranking", "label", "ratings"),
}
"""Roles that are not guessed if the user names one of these others."""
SHARED_ROLES = (*OUTPUT_ROLES, *FORMS_OF_RESPONSES[2], *FORMS_OF_RESPONSES[3])
"""Roles whose usual column may have another role: outputs may be in another file, an answer of a
pair may be the reference.
"""
ROLES = frozenset((*INPUT_ROLES, *LABEL_ROLES, *OUTPUT_ROLES))

PAIR_COLUMNS = tuple(
    (f"{stem}_{first}", f"{stem}_{second}")
    for stem in ("response", "output", "answer", "completion", "summary")
    for first, second in (("a", "b"), ("1", "2"), ("A", "B"))
)
LABEL_NAMES: dict[LabelKind, tuple[str, ...]] = {
    "pair": (
        "label",
        "winner",
        "preference",
        "preferred",
        "human_preference",
        "human",
        "majority",
        "majority_vote",
        "better",
    ),
    "score": ("label", "score", "rating", "human_score", "human_rating", "human"),
    "pass": ("label", "pass", "passed", "correct", "is_correct", "acceptable", "human"),
}
# columns with a score of each of several answers
SCORE_LISTS = (*SYNONYMS["ratings"], "scores", "rewards")
SCORE_KEYS = ("overall_score", "score", "rating")  # the same in the objects that hold the answers
LABELLED_ANSWERS = "output"  # the column of answers that have labels of preference
PREFERENCE_RANKS = {"chosen": 0, "rejected": 1}  # by the label of an answer; 0 is the best
PREFERENCE_WORDS = {1.0: "the first is better", 2.0: "the second is better", 0.0: "a tie"}
PASS_WORDS = {1.0: "pass", 0.0: "fail"}


class LabelledTable:
    """Some rows and their columns by role: those that the user names, else the first usual name
    that is there.

    `explicit` is `columns` of `read_cases`; "" says that there is no such column. `assigned`
    collects the column of each role that was looked up. Raises ConfigError for an unknown role.
    """

    def __init__(self, explicit: Mapping[str, str], rows: Sequence[Row]) -> None:
        for role, name in explicit.items():
            if ":" not in role and role not in ROLES:
                known = [*INPUT_ROLES, *LABEL_ROLES, *OUTPUT_ROLES, "label:VALUE", "where:COLUMN"]
                raise ConfigError(
                    checks.unknown_name_message("role", role, known, full_value=f"{role}={name}")
                )
        self.explicit, self.rows = explicit, rows
        named = [
            part.strip()
            for role in (*INPUT_ROLES, *LABEL_ROLES)
            if role not in MARKING_ROLES and (column := explicit.get(role))
            for part in (column.split(",") if role in LIST_ROLES else [column])
        ]
        self.sample = SampleColumns([row.values for row in rows], named)
        self.assigned: dict[str, str] = {}

    def find(self, role: str, synonyms: Iterable[str] | None = None) -> str | None:
        """Return the column of a role; `synonyms` replaces the usual names. Raises ConfigError if
        the named column is not there.
        """
        column: str | None
        if column := self.explicit.get(role):
            several = role in LIST_ROLES and not self.sample.has(column)
            for part in column.split(",") if several else [column]:
                self.sample.require(f"{role}={column}", part.strip())
        else:
            names = SYNONYMS.get(role, ()) if synonyms is None else synonyms
            column = next(iter(self.usual(role, names)), None)
        if column:
            self.assigned[role] = column
        return column

    def usual(self, role: str, names: Iterable[str]) -> list[str]:
        """Return those of the usual names of a role that are there; none if no column is said to
        have it, or a rival is named.
        """
        if self.explicit.get(role) == "" or any(
            self.explicit.get(rival) for rival in RIVALS.get(role, ())
        ):
            return []
        known = [name for name in names if self.sample.has(name)]
        if role in SHARED_ROLES:
            return known
        return list(filter(self.sample.may_guess, known)) or (known if role == "prompt" else [])

    def find_tests(self) -> str | None:
        """Return the column of the tests; without an explicit one, what it holds must look like
        tests, as in a batch.
        """
        return self.find("tests", filter(None, [self.sample.tests_column()]))

    def missing_role_error(self, role: str) -> ConfigError:
        """Return the error for a role that no column has."""
        return ConfigError(
            f"no column is known to be the {role}; state it: {role}=COLUMN. There are "
            f"{self.sample.column_list()}"
        )

    def label_meanings(self) -> dict[str, str]:
        """Return the meanings that the user gives to values of the label."""
        return {
            role.removeprefix("label:"): text
            for role, text in self.explicit.items()
            if role.startswith("label:")
        }


def filter_rows(
    read: Callable[[OnError], Iterable[Row]], explicit: Mapping[str, str], limit: int | None = None
) -> tuple[list[Row], list[BadRow], list[str]]:
    """Return the first `limit` rows that pass the "where:COLUMN" filters, the unreadable rows, and
    the filters without a column.

    `read` yields all rows, and calls its argument with those that cannot be read.
    """
    filters = {
        role.removeprefix("where:"): value
        for role, value in explicit.items()
        if role.startswith("where:")
    }
    bad: list[BadRow] = []
    rows = list(islice(read(bad.append), None if filters else limit))
    sample = SampleColumns([row.values for row in rows])
    present = {name: value for name, value in filters.items() if sample.has(name)}
    matching = [
        row
        for row in rows
        if all(to_text(value_at(row.values, name)) == value for name, value in present.items())
    ]
    return matching[:limit], bad, sorted(filters.keys() - present.keys())


def without_repeats(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without those that are equal to an earlier one."""
    return list({repr(row.values): row for row in reversed(rows)}.values())[::-1]


def to_text(value: Any) -> str:
    """Return a value as people write it on a command line: a text as it is, anything else as
    JSON.
    """
    if isinstance(value, str):
        return value
    try:
        return "" if value is MISSING else json.dumps(value)
    except TypeError:  # for example a date
        return str(value)
    except (ValueError, RecursionError):
        return checks.format_value(value, 80)


def cell(row: Row, name: str | None) -> Any:
    """Return the value of a row in a column; None if it is missing or blank."""
    return value_or_none(row.values, name)


def response_cell(row: Row, name: str, *, with_prompt: bool = False) -> str:
    """Return a response: a text, or the last message of a chat. Raises ValueError for anything
    else.

    `with_prompt`: a chat may hold the prompt, too, and be JSON in a text; otherwise such a text is
    the response.
    """
    value = cell(row, name)
    if isinstance(value, str) and (with_prompt or is_python_chat(value)):
        value = chat_cell(row, name)
    if (
        isinstance(value, list)
        and value
        and isinstance(value[-1], Mapping)
        and "content" in value[-1]
    ):
        value = message_text(value[-1])
    if not isinstance(value, str):
        raise AmbiguousLabel(
            f"{name!r} {f'must be text, got {checks.format_value(value, 80)}' if has_value(value) else 'is missing'}"  # noqa: E501
        )
    return value


def chat_cell(row: Row, name: str | None) -> Any:
    """Return the value of a row; that of a text which holds messages is a list of them. Raises
    ValueError for messages that cannot be read.
    """
    value = cell(row, name)
    return (isinstance(value, str) and messages_in(value, name or "")) or value


def list_cell(row: Row, name: str) -> list[Any]:
    """Return a list: of a column, of a text (see `load_cell`), or of several columns "a,b,c".
    Raises AmbiguousLabel otherwise.
    """
    value = cell(row, name)
    if value is None and "," in name:
        return [cell(row, part.strip()) for part in name.split(",")]
    if isinstance(value, str) and START.match(value):
        try:
            value = load_cell(value)
        except ValueError as error:
            raise AmbiguousLabel(f"{name!r} is not a list: {error}") from error
    if not isinstance(value, list):
        raise AmbiguousLabel(f"{name!r} must be a list, got {checks.format_value(value, 80)}")
    return value


# ---- what is judged in a row


@dataclass(frozen=True)
class JudgedResponses:
    """The responses in a row and their label, in the fields of `LabelledCase`."""

    responses: tuple[str, ...]
    label: float | None = None
    ranks: tuple[int, ...] | None = None
    ratings: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class LabelSchema:
    """The kind of the labels, and the function that reads what is judged in a row, which raises
    ValueError for a row without a clear label.

    `label_counts` counts the values of the label with their meanings. `shuffle`: the first response
    is always the better one in the file, so the order in the cases must not depend on it.
    """

    kind: LabelKind
    read: Callable[[Row], JudgedResponses]
    label_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    shuffle: bool = False


def infer_schema(
    table: LabelledTable, kind: LabelKind | None, *, keep_undecided: bool = False
) -> LabelSchema:
    """Return how to read rows: the columns of the responses determine it first, then those of the
    labels.

    `keep_undecided`: rows on which people disagree without a most frequent rating are ties (of
    kind pass, the mean), else they have no clear label.
    """
    of_pairs, of_several = kind in {None, "pair"}, kind in {None, "pair", "ranking"}
    if of_several and not table.explicit and _has_labelled_answers(table):
        return _labelled_answers_schema(table, kind)
    if of_pairs and (pair := _pair_columns(table)):
        return _preference_schema(
            table,
            lambda row: tuple(response_cell(row, name) for name in pair),
            keep_undecided=keep_undecided,
        )
    if of_pairs and (chosen := table.find("chosen")) and (rejected := table.find("rejected")):
        return LabelSchema("pair", partial(_chosen_first, chosen, rejected), shuffle=True)
    if of_several and (several := table.find("responses")):
        return _list_schema(table, several, kind, keep_undecided=keep_undecided)
    if kind in {"pair", "ranking"}:
        raise table.missing_role_error("responses" if kind == "ranking" else "response_a")
    if not (single := table.find("response")):
        raise table.missing_role_error("response")
    return _single_schema(table, single, kind, keep_undecided=keep_undecided)


def _chosen_first(chosen: str, rejected: str, row: Row) -> JudgedResponses:
    texts = tuple(response_cell(row, name, with_prompt=True) for name in (chosen, rejected))
    return JudgedResponses(texts, ranks=FIRST_BETTER)


def _check_two(column: str, responses: Sequence[str]) -> None:
    if len(responses) != 2:
        raise AmbiguousLabel(f"a pair has two responses, {column!r} holds {len(responses)}")


# ---- answers that have labels of preference, as in RM-Gallery's `DataSample`: a list of
# {"answer": {"role": "assistant", "content": ..., "label": {"preference": "chosen"}}}


def _has_labelled_answers(table: LabelledTable) -> bool:
    def fits(value: Any) -> bool:
        return any(_preference_of(answer) for answer in as_list(value))

    return bool(table.sample.matching([LABELLED_ANSWERS], fits))


def _preference_of(item: Any) -> str | None:
    """Return the value of the label of an answer; None if it has none."""
    preference = value_at({"item": item}, "item.answer.label.preference")
    return preference if isinstance(preference, str) else None


def _labelled_answers_schema(table: LabelledTable, kind: LabelKind | None) -> LabelSchema:
    """Return how to read rows whose answers have labels: as pairs if every row has two answers,
    else as rankings in which equal labels tie.
    """
    table.assigned["responses"] = f"{LABELLED_ANSWERS}, with a label on each"
    sizes = {len(items) for row in table.rows if (items := as_list(cell(row, LABELLED_ANSWERS)))}
    kind = kind or ("pair" if sizes <= {0, 1, 2} else "ranking")

    def read(row: Row) -> JudgedResponses:
        items = as_list(value_at(row.values, LABELLED_ANSWERS))
        preferences = [_preference_of(item) for item in items]
        ranks = tuple(PREFERENCE_RANKS[each] for each in preferences if each in PREFERENCE_RANKS)
        if len(ranks) != len(items) or len({*ranks}) < 2:
            raise AmbiguousLabel(
                f"{LABELLED_ANSWERS!r} must hold two answers or more with the labels chosen and "
                "rejected"
            )
        texts = read_responses(items, LABELLED_ANSWERS)
        if kind == "pair":
            _check_two(LABELLED_ANSWERS, texts)
        return JudgedResponses(texts, ranks=ranks)

    return LabelSchema(kind, read, shuffle=kind == "pair")


# ---- several responses


def _list_schema(
    table: LabelledTable, column: str, kind: LabelKind | None, *, keep_undecided: bool
) -> LabelSchema:
    def responses(row: Row) -> tuple[str, ...]:
        texts = list_cell(row, column)
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise AmbiguousLabel(f"{column!r} must be a list of two texts or more")
        return tuple(texts)

    def both(row: Row) -> tuple[str, ...]:
        texts = responses(row)
        _check_two(column, texts)
        return texts

    if schema := _scored_list_schema(table, column, kind):
        return schema
    if kind != "pair":
        if (name := table.find("ranking")) or (name := table.find("order")):
            ranks = zero_based_ranks if "ranking" in table.assigned else ranks_from_order

            def read(row: Row) -> JudgedResponses:
                texts = responses(row)
                return JudgedResponses(texts, ranks=ranks(list_cell(row, name), len(texts)))

            return LabelSchema("ranking", read)
        if kind == "ranking":
            raise table.missing_role_error("ranking")
    return _preference_schema(table, both, keep_undecided=keep_undecided)


def _scored_list_schema(
    table: LabelledTable, column: str, kind: LabelKind | None
) -> LabelSchema | None:
    """Return how to read rows with a score for each of several answers; None if they have none, or
    another label.

    The scores are a list of as many numbers as there are answers, or are in the objects that hold
    these. An answer without one is left out, and so is a row with other ratings, unless most rows
    have such, or all numbers may be votes. Raises ConfigError for numbers that may also be the
    votes of two people.
    """
    other = [table.find("ranking"), table.find("order"), *table.usual("label", LABEL_NAMES["pair"])]
    if any(other) or "label" in table.explicit:
        return None
    ratings = table.explicit.get("ratings") or next(iter(table.usual("ratings", SCORE_LISTS)), None)

    rows, others = _rated_rows(table, column, ratings)
    sizes = {len(row) for row in rows}
    values = {score for row in rows for _, score in row}
    may_be_votes = values <= {0.0, 1.0, 2.0}
    if not rows or others > len(rows) or (others and may_be_votes) or table.label_meanings():
        return None
    if ratings and sizes == {2} and kind != "ranking" and may_be_votes and {1.0, 2.0} <= values:
        raise ConfigError(
            f"{ratings!r} holds two numbers from 0 to 2 for two answers, which may be a score of "
            "each or two votes: give kind ranking for scores, or label:1=first and label:2=second "
            "for votes"
        )
    of_two = kind == "pair" or (kind is None and sizes <= {1, 2})

    def read(row: Row) -> JudgedResponses:
        if len(found := _rated_answers(row, column, ratings)) < 2 or (of_two and len(found) != 2):
            raise AmbiguousLabel(
                f"{'a pair has two' if of_two else 'there must be two'} answers with a score, got "
                f"{len(found)}"
            )
        scores = [score for _, score in found]
        return JudgedResponses(
            read_responses([answer for answer, _ in found], column),
            ranks=tuple(sum(other > own for other in scores) for own in scores),
        )

    table.assigned["ranking"] = f"{ratings or column}, a score of each answer"
    return LabelSchema("pair" if of_two else "ranking", read)


def _rated_rows(
    table: LabelledTable, column: str, ratings: str | None
) -> tuple[list[list[tuple[Any, float]]], int]:
    """Return the rated answers of all rows that have some, and how many rows hold something
    else.
    """
    rows, others = [], 0
    for row in table.rows:
        try:
            if has_value(cell(row, ratings or column)):
                rows.append(_rated_answers(row, column, ratings))
        except AmbiguousLabel:
            others += 1
    return [found for found in rows if found], others


def _rated_answers(row: Row, column: str, ratings: str | None) -> list[tuple[Any, float]]:
    """Return the answers of a row that have a score, with it: from the column `ratings`, or from
    the answers themselves if there is none. Raises AmbiguousLabel.
    """
    answers = as_list(cell(row, column))
    if ratings:
        scores = as_list(cell(row, ratings))
    else:
        objects = [answer if isinstance(answer, Mapping) else {} for answer in answers]
        scores = [next((each[key] for key in SCORE_KEYS if key in each), None) for each in objects]
    if len(answers) != len(scores):
        raise AmbiguousLabel(
            f"{column!r} holds {len(answers)} answers, and there are {len(scores)} scores"
        )
    return [
        (answer, parse_number(score))
        for answer, score in zip(answers, scores, strict=True)
        if not is_missing(score)
    ]


# ---- one response, or a pair: the label, or the ratings of several people


class _Votes:
    """The labels and ratings of rows: those that people gave, by the columns that hold them.

    `names` are the usual names of the label. `values` are all that are there, with the meanings
    that the user gives to them. `counts` counts the labels that were read, with their meanings.
    """

    def __init__(self, table: LabelledTable, names: Sequence[str]) -> None:
        self.label, self.ratings = _label_columns(table, names)
        self._meanings = table.label_meanings()
        self.values = [
            self._meaning(value)
            for row in table.rows
            for value in self._row_values(row)
            if not is_missing(value)
        ]
        self.counts: Counter[tuple[str, str]] = Counter()

    def _meaning(self, value: Any) -> Any:
        return self._meanings.get(to_text(value), value)

    def _row_values(self, row: Row) -> list[Any]:
        """Return the values in a row: the label, or the ratings."""
        if self.label:
            return [cell(row, self.label)]
        try:
            return list_cell(row, self.ratings or "")
        except AmbiguousLabel:
            return []

    def read(
        self,
        row: Row,
        parse: Callable[[Any], float],
        join: Callable[[Sequence[float]], float],
        words: Mapping[float, str],
    ) -> tuple[float, tuple[float | None, ...]]:
        """Return the label of a row, or else its ratings joined, and the ratings. `words` says
        what labels mean. Raises AmbiguousLabel.
        """

        def parse_one(value: Any) -> float | None:
            return None if is_missing(value) else parse(self._meaning(value))

        rated = tuple(map(parse_one, list_cell(row, self.ratings))) if self.ratings else ()
        if self.label is None:
            known = [rating for rating in rated if rating is not None]
            if not known:
                raise AmbiguousLabel("no rater gave a label")
            return join(known), rated
        if (value := parse_one(cell(row, self.label))) is None:
            raise AmbiguousLabel(f"the label is missing in {self.label!r}")
        if value in words:
            self.counts[to_text(cell(row, self.label)), words[value]] += 1
        return value, rated


def _single_schema(
    table: LabelledTable, column: str, kind: LabelKind | None, *, keep_undecided: bool
) -> LabelSchema:
    names = (
        LABEL_NAMES[kind] if kind else dict.fromkeys((*LABEL_NAMES["score"], *LABEL_NAMES["pass"]))
    )
    votes = _Votes(table, [name for name in names if name != column])
    passing = {
        letter: number
        for letter, number in letter_scores(votes.values).items()
        if number in {0.0, 1.0}
    }

    def read_pass(value: Any) -> float:
        number = passing.get(value.strip().casefold()) if isinstance(value, str) else None
        return parse_pass(value) if number is None else number

    def is_passing(value: Any) -> bool:
        return is_read(parse_pass, value) or to_text(value).strip().casefold() in passing

    def mean(ratings: Sequence[float]) -> float:
        return sum(ratings) / len(ratings)

    def majority_or_mean(ratings: Sequence[float]) -> float:
        return majority_rating(ratings, mean(ratings) if keep_undecided else None)

    if kind is None:
        kind = "pass" if votes.values and all(map(is_passing, votes.values)) else "score"
    is_pass_or_fail = kind == "pass"
    parse = read_pass if is_pass_or_fail else score_reader(votes.values)
    join = majority_or_mean if is_pass_or_fail else mean
    words = PASS_WORDS if is_pass_or_fail else {}

    def read(row: Row) -> JudgedResponses:
        responses = (response_cell(row, column),)
        number, rated = votes.read(row, parse, join, words)
        return JudgedResponses(responses, number, ratings=rated)

    return LabelSchema(kind, read, votes.counts)


def _preference_schema(
    table: LabelledTable, responses: Callable[[Row], tuple[str, ...]], *, keep_undecided: bool
) -> LabelSchema:
    """Return how to read rows that say which of two responses is better."""
    votes = _Votes(table, LABEL_NAMES["pair"])
    zero = counts_from_zero(votes.values)
    tie = 0.0 if keep_undecided else None

    def parse(value: Any) -> float:
        return as_rating(parse_preference(value, from_zero=zero))

    def read(row: Row) -> JudgedResponses:
        both = responses(row)
        rating, rated = votes.read(
            row, parse, lambda ratings: majority_rating(ratings, tie), PREFERENCE_WORDS
        )
        return JudgedResponses(both, ranks=RANKS_BY_RATING[rating], ratings=rated)

    return LabelSchema("pair", read, votes.counts)


def _label_columns(table: LabelledTable, names: Sequence[str]) -> tuple[str | None, str | None]:
    """Return the columns of the label and of the ratings. A label column that holds only lists is
    one of ratings.

    Where the ratings are named, one of several columns that may be the label is none; where the
    label is, ratings must be lists.
    """
    label = table.find("label", ())
    if label is None and len(usual := table.usual("label", names)) > 1:
        if not table.explicit.get("ratings"):
            raise ConfigError(
                f"any of the columns {', '.join(map(repr, usual))} may be the label; state it: "
                "label=COLUMN"
            )
        names = ()
    label = label or table.find("label", names)
    ratings = table.find("ratings")
    is_guess = table.explicit.get("label") and not table.explicit.get("ratings")
    if ratings and is_guess and not all(_is_list(cell(row, ratings)) for row in table.rows):
        del table.assigned["ratings"]
        ratings = None
    values = (
        [value for row in table.rows if not is_missing(value := cell(row, label))] if label else []
    )
    if label and ratings is None and values and all(map(_is_list, values)):
        table.assigned["ratings"] = table.assigned.pop("label")
        return None, label
    if label is None and ratings is None:
        raise table.missing_role_error("label")
    return label, ratings


def _is_list(value: Any) -> bool:
    """Return whether a value is a list, also in a text; "[[A]]" is a verdict."""
    return isinstance(value, list) or (
        (items := as_list(value)) != [] and not isinstance(items[0], list)
    )


def _pair_columns(table: LabelledTable) -> tuple[str, str] | None:
    """Return the columns of the two responses of a pair; None if there are none."""
    a, b = table.find("response_a", ()), table.find("response_b", ())
    if a and b:
        return a, b
    for first, second in PAIR_COLUMNS:
        fits = a in {None, first} and b in {None, second}
        if fits and {a or first, b or second} <= {
            a,
            b,
            *table.usual("response_a", [first, second]),
        }:
            table.assigned.update(response_a=first, response_b=second)
            return first, second
    if a or b:
        raise table.missing_role_error("response_b" if a else "response_a")
    return None
