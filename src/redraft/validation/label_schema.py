"""How to read the responses and the label of a row: the kind of the labels, and which columns hold
them.

`infer_schema` decides it from the columns and their values; `cases` knows what a value means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import ConfigError
from ..tables.columns import SYNONYMS
from ..tables.readers import Row
from ..tables.row_values import as_list, has_value, read_responses
from .cases import (
    FIRST_BETTER,
    RANKS_BY_RATING,
    AmbiguousLabel,
    LabelKind,
    as_rating,
    counts_from_zero,
    is_missing,
    is_pass,
    letter_scores,
    majority_rating,
    parse_number,
    parse_pass,
    parse_preference,
    ranks_from_order,
    score_reader,
    zero_based_ranks,
)
from .data_samples import COLUMN, answers_and_ranks, has_labelled_answers
from .labelled_table import LabelledTable, cell, list_cell, response_cell, to_text

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
ResponsesReader: TypeAlias = Callable[[Row], tuple[str, ...]]


@dataclass(frozen=True)
class RowLabel:
    """The label of one row, in the fields of `LabelledCase`."""

    label: float | None = None
    ranks: tuple[int, ...] | None = None
    ratings: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class LabelSchema:
    """The kind of the labels, and how to read responses and labels.

    `label_counts` counts the values of the label with their meanings. `shuffle`: the first response
    is always the better one in the file, so the order in the cases must not depend on it.
    """

    kind: LabelKind
    read_responses: ResponsesReader
    read_label: Callable[[Row, int], RowLabel]
    label_counts: Counter[tuple[str, str]]
    shuffle: bool = False


def infer_schema(table: LabelledTable, kind: LabelKind | None) -> LabelSchema:
    """Return how to read rows: the columns of the responses determine it first, then those of the
    labels.
    """
    label_counts: Counter[tuple[str, str]] = Counter()
    if (
        kind in {None, "pair", "ranking"}
        and not table.explicit
        and has_labelled_answers([row.values for row in table.rows])
    ):
        return _data_sample_schema(table, kind, label_counts)
    if kind in {None, "pair"} and (pair := _pair_columns(table)):
        return LabelSchema(
            "pair", _responses_reader(pair), _preference_reader(table, label_counts), label_counts
        )
    if (
        kind in {None, "pair"}
        and (chosen := table.find("chosen"))
        and (rejected := table.find("rejected"))
    ):
        first_is_better = RowLabel(ranks=FIRST_BETTER)
        responses = _responses_reader((chosen, rejected), with_prompt=True)
        return LabelSchema(
            "pair", responses, lambda _row, _n: first_is_better, label_counts, shuffle=True
        )
    if kind in {None, "pair", "ranking"} and (several := table.find("responses")):
        return _list_schema(table, several, kind, label_counts)
    if kind in {"pair", "ranking"}:
        raise table.missing_role_error("responses" if kind == "ranking" else "response_a")
    if not (single := table.find("response")):
        raise table.missing_role_error("response")
    return _single_schema(table, single, kind, label_counts)


def _data_sample_schema(
    table: LabelledTable, kind: LabelKind | None, label_counts: Counter[tuple[str, str]]
) -> LabelSchema:
    """Return how to read rows whose answers have labels: as pairs if every row has two answers,
    else as rankings.
    """
    table.assigned["responses"] = f"{COLUMN}, with a label on each"
    sizes = {len(items) for row in table.rows if (items := as_list(cell(row, COLUMN)))}
    kind = kind or ("pair" if sizes <= {0, 1, 2} else "ranking")

    def responses(row: Row) -> tuple[str, ...]:
        texts, _ = answers_and_ranks(row.values)
        if kind == "pair" and len(texts) != 2:
            raise AmbiguousLabel(f"a pair has two responses, {COLUMN!r} holds {len(texts)}")
        return texts

    def label(row: Row, _n: int) -> RowLabel:
        return RowLabel(ranks=answers_and_ranks(row.values)[1])

    return LabelSchema(kind, responses, label, label_counts, shuffle=kind == "pair")


def _list_schema(
    table: LabelledTable,
    column: str,
    kind: LabelKind | None,
    label_counts: Counter[tuple[str, str]],
) -> LabelSchema:
    def responses(row: Row) -> tuple[str, ...]:
        texts = list_cell(row, column)
        if len(texts) < 2 or not all(isinstance(text, str) for text in texts):
            raise AmbiguousLabel(f"{column!r} must be a list of two texts or more")
        return tuple(texts)

    if schema := _scored_list_schema(table, column, kind, label_counts):
        return schema
    if kind != "pair":
        if (name := table.find("ranking")) or (name := table.find("order")):
            reading = zero_based_ranks if "ranking" in table.assigned else ranks_from_order
            return LabelSchema(
                "ranking",
                responses,
                lambda row, n: RowLabel(ranks=reading(list_cell(row, name), n)),
                label_counts,
            )
        if kind == "ranking":
            raise table.missing_role_error("ranking")

    def both(row: Row) -> tuple[str, ...]:
        texts = responses(row)
        if len(texts) != 2:
            raise AmbiguousLabel(f"a pair has two responses, {column!r} holds {len(texts)}")
        return texts

    return LabelSchema("pair", both, _preference_reader(table, label_counts), label_counts)


def _scored_list_schema(
    table: LabelledTable,
    column: str,
    kind: LabelKind | None,
    label_counts: Counter[tuple[str, str]],
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

    def rated_answers(row: Row) -> list[tuple[Any, float]]:
        answers = as_list(cell(row, column))
        if ratings:
            scores = as_list(cell(row, ratings))
        else:
            objects = [answer if isinstance(answer, Mapping) else {} for answer in answers]
            scores = [
                next((each[key] for key in SCORE_KEYS if key in each), None) for each in objects
            ]
        if len(answers) != len(scores):
            raise AmbiguousLabel(
                f"{column!r} holds {len(answers)} answers, and there are {len(scores)} scores"
            )
        return [
            (answer, parse_number(score))
            for answer, score in zip(answers, scores, strict=True)
            if not is_missing(score)
        ]

    rows, others = [], 0
    for row in table.rows:
        try:
            if has_value(cell(row, ratings or column)) and (found := rated_answers(row)):
                rows.append(found)
        except AmbiguousLabel:
            others += 1
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

    def chosen_answers(row: Row) -> list[tuple[Any, float]]:
        if len(found := rated_answers(row)) < 2 or (of_two and len(found) != 2):
            raise AmbiguousLabel(
                f"{'a pair has two' if of_two else 'there must be two'} answers with a score, got "
                f"{len(found)}"
            )
        return found

    def responses(row: Row) -> tuple[str, ...]:
        try:
            return read_responses([answer for answer, _ in chosen_answers(row)], column)
        except ValueError as error:
            raise AmbiguousLabel(str(error)) from error

    def label(row: Row, _n: int) -> RowLabel:
        scores = [score for _, score in chosen_answers(row)]
        return RowLabel(ranks=tuple(sum(other > own for other in scores) for own in scores))

    table.assigned["ranking"] = f"{ratings or column}, a score of each answer"
    return LabelSchema("pair" if of_two else "ranking", responses, label, label_counts)


def _single_schema(
    table: LabelledTable,
    column: str,
    kind: LabelKind | None,
    label_counts: Counter[tuple[str, str]],
) -> LabelSchema:
    names = (
        LABEL_NAMES[kind] if kind else dict.fromkeys((*LABEL_NAMES["score"], *LABEL_NAMES["pass"]))
    )
    label, ratings = _label_columns(table, [name for name in names if name != column])
    means = table.label_meanings()
    values = [
        value
        for row in table.rows
        for value in _label_values(row, label, ratings)
        if not is_missing(value)
    ]
    values = [means.get(to_text(value), value) for value in values]
    passing = {
        letter: number for letter, number in letter_scores(values).items() if number in {0.0, 1.0}
    }

    def read_pass(value: Any) -> float:
        number = passing.get(value.strip().casefold()) if isinstance(value, str) else None
        return parse_pass(value) if number is None else number

    if kind is None:
        kind = (
            "pass"
            if values
            and all(
                is_pass(value) or to_text(value).strip().casefold() in passing for value in values
            )
            else "score"
        )
    read = read_pass if kind == "pass" else score_reader(values)
    join = majority_rating if kind == "pass" else _mean_rating
    words = {1.0: "pass", 0.0: "fail"} if kind == "pass" else {}

    def read_label(row: Row, n: int) -> RowLabel:
        value, rated = _read_label_and_ratings(row, label, ratings, means, read)
        number = join(rated) if value is None else value
        if label and number in words:
            label_counts[to_text(cell(row, label)), words[number]] += 1
        return RowLabel(number, ratings=rated)

    return LabelSchema(kind, _responses_reader((column,)), read_label, label_counts)


def _preference_reader(
    table: LabelledTable, label_counts: Counter[tuple[str, str]]
) -> Callable[[Row, int], RowLabel]:
    """Return the function that reads which of two responses is better."""
    label, ratings = _label_columns(table, LABEL_NAMES["pair"])
    means = table.label_meanings()
    values = [
        means.get(to_text(v), v) for row in table.rows for v in _label_values(row, label, ratings)
    ]
    zero = counts_from_zero(values)

    def parse(value: Any) -> float:
        return as_rating(parse_preference(value, from_zero=zero))

    def read_label(row: Row, n: int) -> RowLabel:
        value, rated = _read_label_and_ratings(row, label, ratings, means, parse)
        rating = majority_rating(rated) if value is None else value
        if label:
            label_counts[to_text(cell(row, label)), PREFERENCE_WORDS[rating]] += 1
        return RowLabel(ranks=RANKS_BY_RATING[rating], ratings=rated)

    return read_label


PREFERENCE_WORDS = {1.0: "the first is better", 2.0: "the second is better", 0.0: "a tie"}


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


def _label_values(row: Row, label: str | None, ratings: str | None) -> list[Any]:
    """Return the values of the label in a row: the label, or the ratings."""
    if label:
        return [cell(row, label)]
    try:
        return list_cell(row, ratings or "")
    except AmbiguousLabel:
        return []


def _read_label_and_ratings(
    row: Row,
    label: str | None,
    ratings: str | None,
    meanings: Mapping[str, str],
    parse: Callable[[Any], float],
) -> tuple[float | None, tuple[float | None, ...]]:
    """Return the label of a row (None if there is no column for it) and its ratings. Raises
    AmbiguousLabel.
    """

    def parse_one(value: Any) -> float | None:
        return None if is_missing(value) else parse(meanings.get(to_text(value), value))

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


def _responses_reader(names: Sequence[str], *, with_prompt: bool = False) -> ResponsesReader:
    return lambda row: tuple(response_cell(row, name, with_prompt=with_prompt) for name in names)
