"""Which column is which: what was stated, else the usual names; and the values in them.

A path such as "scores.overall" reaches into objects and lists. Nothing here knows what a value means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from .. import checks
from ..core.records import message_text
from ..errors import ConfigError
from ..jsontext import strict_loads
from ..tables import BadRow, Row, iter_rows
from .labels import AmbiguousLabel, short_repr

MISSING = object()
PAIR_COLUMNS = tuple(
    (f"{stem}_{first}", f"{stem}_{second}")
    for stem in ("response", "output", "answer", "completion", "summary")
    for first, second in (("a", "b"), ("1", "2"), ("A", "B"))
)
SYNONYMS: dict[str, tuple[str, ...]] = {
    "id": ("id", "pair_id", "question_id", "item_id", "uid"),
    "messages": ("messages", "conversation"),
    "prompt": ("prompt", "instruction", "question", "query", "input"),
    "context": ("context", "document", "passage"),
    "reference": ("reference", "reference_answer", "reference_response", "ideal"),
    "group": ("group", "subset", "category", "domain"),
    "response": ("response", "answer", "output", "completion", "system_output", "candidate", "generation", "prediction"),
    "responses": ("responses", "outputs", "answers", "completions", "candidates"),
    "ratings": ("ratings", "annotators", "annotations", "human_ratings", "human_scores", "human_labels", "labels"),
    "ranking": ("ranking", "ranks", "places"),
    "order": ("order",),
    "response_a": (),
    "response_b": (),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
    "label": (),
}
OUTPUT_ROLES = {"case", "output", "output_ba", "score_1", "score_2", "shown", "look"}
LABEL_SYNONYMS: dict[str, tuple[str, ...]] = {
    "pair": ("label", "winner", "preference", "preferred", "human_preference", "human", "majority", "majority_vote", "better"),
    "score": ("label", "score", "rating", "human_score", "human_rating", "human"),
    "pass": ("label", "pass", "passed", "correct", "is_correct", "acceptable", "human"),
}


def value_at_path(values: Mapping[str, Any], path: str) -> Any:
    """What stands under a column, or under a path into one; ABSENT where there is nothing."""
    if path in values:
        return values[path]
    found: Any = values
    for key in path.split("."):
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and len(key) < 6 and int(key) < len(found):
            found = found[int(key)]
        else:
            return MISSING
    return found


@dataclass(frozen=True)
class LabelColumns:
    """The columns of some rows, and what was stated about them: roles to names, "where:COLUMN" to a value, "label:VALUE"
    to its meaning. `taken` collects what each role was found to be. Raises ConfigError for what is not there.
    """

    explicit: Mapping[str, str]
    rows: Sequence[Row]
    assigned_columns: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, name in self.explicit.items():
            if ":" not in role and role not in SYNONYMS and role not in OUTPUT_ROLES:
                known = [*SYNONYMS, *sorted(OUTPUT_ROLES), "label:VALUE", "where:COLUMN"]
                raise ConfigError(checks.unknown_name_message("role", role, known, full_value=f"{role}={name}"))

    def find(self, role: str, synonyms: Iterable[str] | None = None) -> str | None:
        """The column of a role: the one that was stated, else the first of the usual names that is there."""
        if role in self.explicit:
            self._check_explicit(role, self.explicit[role])
            found: str | None = self.explicit[role]
        else:
            found = next((name for name in (SYNONYMS[role] if synonyms is None else synonyms) if self.has(name)), None)
        if found:
            self.assigned_columns[role] = found
        return found

    def has(self, name: str) -> bool:
        """Whether any row holds it."""
        return any(value_at_path(row.values, name) is not MISSING for row in self.rows)

    def missing_role_error(self, role: str) -> ConfigError:
        """The error for a role that no column has."""
        return ConfigError(f"no column is known to be the {role}; state it: {role}=COLUMN. There are {self.column_list()}")

    def column_list(self) -> str:
        """All columns, in the order in which they turn up, with what they hold one level down."""
        names: dict[str, None] = {}
        for row in islice(self.rows, 100):
            for key, value in row.values.items():
                names.update(dict.fromkeys([f"{key}.{k}" for k in value] if isinstance(value, Mapping) and value else [key]))
        return ", ".join(short_repr(name) for name in islice(names, 60)) or "none"

    def _check_explicit(self, role: str, name: str) -> None:
        for part in name.split(",") if role in {"ratings", "responses"} and not self.has(name) else [name]:
            if not self.has(part.strip()):
                near = checks.closest_names(
                    part.strip(), dict.fromkeys(key for row in islice(self.rows, 100) for key in row.values)
                )
                hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
                raise ConfigError(f"{role}={name}: there is no column {part.strip()!r}; {hint}there are {self.column_list()}")

    def label_meanings(self) -> dict[str, str]:
        """What was stated of values of labels, by value."""
        return {role.removeprefix("label:"): told for role, told in self.explicit.items() if role.startswith("label:")}


def read_filtered_rows(
    path: str | Path, explicit: Mapping[str, str], limit: int | None = None
) -> tuple[list[Row], list[BadRow], list[str]]:
    """The first `limit` rows that are as "where:COLUMN" says, those that cannot be read, and such columns as are not there."""
    wanted = {role.removeprefix("where:"): value for role, value in explicit.items() if role.startswith("where:")}
    bad: list[BadRow] = []
    held = list(islice(iter_rows(path, bad.append), None if wanted else limit))
    here = {name: value for name, value in wanted.items() if any(value_at_path(row.values, name) is not MISSING for row in held)}
    fitting = [row for row in held if all(to_text(value_at_path(row.values, name)) == value for name, value in here.items())]
    return fitting[:limit], bad, sorted(wanted.keys() - here.keys())


def to_text(value: Any) -> str:
    """A value as people would write it on a command line: texts as they are, the rest as JSON."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is MISSING else json.dumps(value)
    except TypeError:  # a date, say
        return str(value)
    except (ValueError, RecursionError):
        return short_repr(value)


def value_at(row: Row, name: str | None) -> Any:
    """What a row holds in a column, or None."""
    found = MISSING if name is None else value_at_path(row.values, name)
    return None if found is MISSING else found


def text_at(row: Row, name: str | None) -> str | None:
    """A text, or None where there is none. Raises Unclear for what is no text."""
    value = value_at(row, name)
    if value is not None and not isinstance(value, str):
        raise AmbiguousLabel(f"{name!r} must be text, got {short_repr(value)}")
    return value


def answer_at(row: Row, name: str) -> str:
    """A response: a text, or the last message of a chat. Raises Unclear where there is none."""
    return answer_text(value_at(row, name), name)


def answer_text(value: Any, name: str) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], Mapping) and "content" in value[-1]:
        value = message_text(value[-1])
    if not isinstance(value, str):
        raise AmbiguousLabel(f"{name!r} must be text, got {short_repr(value)}")
    return value


def list_at(row: Row, name: str) -> list[Any]:
    """A list: in one column, as JSON in a text, or in several columns "a,b,c". Raises Unclear."""
    value = value_at(row, name)
    if value is None and "," in name:
        return [value_at(row, part.strip()) for part in name.split(",")]
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = strict_loads(value)
        except ValueError as error:
            raise AmbiguousLabel(f"{name!r} is no list: {error}") from error
    if not isinstance(value, list):
        raise AmbiguousLabel(f"{name!r} must be a list, got {short_repr(value)}")
    return value
