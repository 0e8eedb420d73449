"""Labelled rows by the roles of their columns, and the values in them.

The user names columns, or they are recognised by their usual names. What a label means is not known
here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..base import checks
from ..errors import ConfigError
from ..loop.task import message_text
from ..tables.cells import START, load_cell
from ..tables.columns import SYNONYMS, SampleColumns
from ..tables.readers import BadRow, OnError, Row, iter_rows
from ..tables.row_values import (
    MISSING,
    has_value,
    is_python_chat,
    messages_in,
    text_at,
    value_at,
    value_or_none,
)
from .cases import AmbiguousLabel

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


def read_filtered_rows(
    path: str | Path, explicit: Mapping[str, str], limit: int | None = None
) -> tuple[list[Row], list[BadRow], list[str]]:
    """Return the first `limit` rows that pass the "where:COLUMN" filters, the unreadable rows, and
    the filters without a column.
    """
    return filter_rows(partial(iter_rows, path), explicit, limit)


def filter_rows(
    read: Callable[[OnError], Iterable[Row]], explicit: Mapping[str, str], limit: int | None
) -> tuple[list[Row], list[BadRow], list[str]]:
    """Return the same for rows from any source: `read` yields them, and calls its argument with
    those that cannot be read.
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


def text_cell(row: Row, name: str | None) -> str | None:
    """Return a text, or those of a list joined; None if it is missing. Raises AmbiguousLabel for
    anything else.
    """
    try:
        return text_at(row.values, name)
    except ValueError as error:
        raise AmbiguousLabel(str(error)) from error


def response_cell(row: Row, name: str, *, with_prompt: bool = False) -> str:
    """Return a response: a text, or the last message of a chat. Raises AmbiguousLabel for anything
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
    AmbiguousLabel.
    """
    value = cell(row, name)
    try:
        return (isinstance(value, str) and messages_in(value, name or "")) or value
    except ValueError as error:
        raise AmbiguousLabel(str(error)) from error


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
