"""Rows in the shape of RM-Gallery's `DataSample`, with a label on each answer.

`output` is a list of `{"answer": {"role": "assistant", "content": ..., "label": {"preference":
"chosen"}}}`, one for each answer; the label of the others is "rejected". Two answers make a pair,
more a ranking in which equal labels tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..tables.columns import SampleColumns
from ..tables.row_values import as_list, read_responses, value_at
from .cases import AmbiguousLabel

COLUMN = "output"
PREFERENCES = {"chosen": 0, "rejected": 1}
"""The ranks of the values of a label, from 0, the best."""


def has_labelled_answers(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a row holds a list of answers that have labels of preference."""
    return bool(
        SampleColumns(rows).matching(
            [COLUMN], lambda value: any(_preference(item) for item in as_list(value))
        )
    )


def answers_and_ranks(row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the answers of a row and their ranks. Raises AmbiguousLabel for a row without a clear
    preference.
    """
    items = as_list(value_at(row, COLUMN))
    preferences = [_preference(item) for item in items]
    if len(items) < 2 or not {*preferences} <= PREFERENCES.keys() or len({*preferences}) < 2:
        raise AmbiguousLabel(
            f"{COLUMN!r} must hold two answers or more with the labels chosen and rejected"
        )
    ranks = tuple(PREFERENCES[str(preference)] for preference in preferences)
    try:
        return read_responses(items, COLUMN), ranks
    except ValueError as error:
        raise AmbiguousLabel(str(error)) from error


def _preference(item: Any) -> Any:
    """Return the value of the label of an answer; None if it has none."""
    answer = item.get("answer") if isinstance(item, Mapping) else None
    label = answer.get("label") if isinstance(answer, Mapping) else None
    preference = label.get("preference") if isinstance(label, Mapping) else None
    return preference if isinstance(preference, str) else None
