"""Which column of a table holds what: stated names, usual names, and paths into nested values.

`SYNONYMS` is the one table of usual names, for batches and validations alike. A path such as "output.text" or
"scores.0.value" reaches into objects and lists. Rows are foreign: nothing in one ever names a file. This module does not know
where rows come from or what is made of their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ..checks import closest_names, format_value
from ..errors import ConfigError
from .readers import delimiter_hint

PROMPT_NAMES = ("prompt", "instruction", "question", "query", "input")
MESSAGES_NAMES = ("messages", "conversations", "conversation", "input")
RESPONSE_NAMES = ("response", "completion", "answer", "output")
OTHER_RESPONSE_NAMES = ("system_output", "candidate", "generation", "prediction")  # used where none of RESPONSE_NAMES is there
SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "uid", "unique_id"),
    "prompt": PROMPT_NAMES,
    "messages": ("messages", "conversations", "conversation"),
    "response": (*RESPONSE_NAMES, *OTHER_RESPONSE_NAMES),
    "system": ("system", "system_prompt"),
    "reference": ("reference", "reference_answer", "reference_response", "ideal"),
    "context": ("context", "document", "passage"),
    "tests": ("tests",),
    "requirements": ("requirements",),
    "tools": ("tools",),
    "tool_choice": ("tool_choice",),
    "responses": ("responses", "outputs", "answers", "completions", "candidates"),
    "group": ("group", "subset", "category", "domain"),
    "ratings": ("ratings", "annotators", "annotations", "human_ratings", "human_scores", "human_labels", "labels"),
    "ranking": ("ranking", "ranks", "places"),
    "order": ("order",),
    "chosen": ("chosen",),
    "rejected": ("rejected",),
}
MAX_LISTED_COLUMNS = 60
MAX_LISTED_ROWS = 100  # rows whose columns error messages list
MISSING = object()


@dataclass(frozen=True, slots=True)
class TaskColumns:
    """The columns that make a task. None: look for a usual name. "": there is no such column, whatever the names are."""

    prompt: str | None = None
    messages: str | None = None
    response: str | None = None
    id: str | None = None
    system: str | None = None
    reference: str | None = None
    context: str | None = None
    tests: str | None = None
    requirements: str | None = None
    tools: str | None = None
    tool_choice: str | None = None


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value of a column, or of a path into one; MISSING where there is none."""
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


def has_value(value: Any) -> bool:
    """Return whether a value is neither null nor missing."""
    return value is not None and value is not MISSING


@dataclass(frozen=True)
class SampleColumns:
    """The columns of some rows."""

    rows: Sequence[Mapping[str, Any]]

    def has(self, path: str) -> bool:
        """Return whether any row has this column or path."""
        return any(value_at(values, path) is not MISSING for values in self.rows)

    def matching(self, names: Sequence[str], fits: Callable[[Any], bool], outer: Sequence[str] = ()) -> list[str]:
        """Return those of the names, also within the objects `outer`, under which any row holds a value that fits."""
        paths = [*names, *(f"{o}.{name}" for o in outer for name in names)]
        return [p for p in paths if any(fits(value_at(values, p)) for values in self.rows)]

    def empty_columns(self, names: Sequence[str]) -> list[str]:
        """Return those of the names under which rows hold null and nothing else."""
        found = {name: [value_at(values, name) for values in self.rows] for name in names}
        return [n for n in names if any(v is None for v in found[n]) and not any(map(has_value, found[n]))]

    def require(self, label: str, name: str) -> None:
        """Raise ConfigError, with suggestions, unless there is such a column. `label` is how the user named it."""
        if self.has(name):
            return
        near = closest_names(name, dict.fromkeys(str(key) for values in self.rows[:MAX_LISTED_ROWS] for key in values))
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise ConfigError(f"{label}: there is no column {name!r}; {hint}there are {self.column_list()}")

    def column_list(self) -> str:
        """List all columns, in the order of their first row, and the keys of objects one level down."""
        names: dict[str, None] = {}
        for values in islice(self.rows, MAX_LISTED_ROWS):
            for key, value in values.items():
                nested = isinstance(value, Mapping) and value
                names.update(dict.fromkeys([f"{key}.{inner}" for inner in value] if nested else [str(key)]))
        more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
        shown = ", ".join(repr(n[:80]) for n in islice(names, MAX_LISTED_COLUMNS))
        return (shown + more or "none") + delimiter_hint(list(names))


@dataclass(frozen=True)
class RoleColumns:
    """The columns of some rows by role: those that were stated, else the first usual name that is there.

    `explicit` maps roles to column names. `assigned` collects the column of each role that was looked up. `list_roles` may name
    several columns, separated by commas. Raises ConfigError for a stated column that is not there.
    """

    explicit: Mapping[str, str]
    sample: SampleColumns
    list_roles: tuple[str, ...] = ()
    assigned: dict[str, str] = field(default_factory=dict)

    def find(self, role: str, synonyms: Iterable[str] | None = None) -> str | None:
        """Return the column of a role; `synonyms` replaces the usual names."""
        if (stated := self.explicit.get(role)) is not None:
            several = role in self.list_roles and not self.sample.has(stated)
            for part in stated.split(",") if several else [stated]:
                self.sample.require(f"{role}={stated}", part.strip())
            found: str | None = stated
        else:
            names = SYNONYMS.get(role, ()) if synonyms is None else synonyms
            found = next((name for name in names if self.sample.has(name)), None)
        if found:
            self.assigned[role] = found
        return found

    def missing_role_error(self, role: str) -> ConfigError:
        """Return the error for a role that no column has."""
        return ConfigError(f"no column is known to be the {role}; state it: {role}=COLUMN. There are {self.sample.column_list()}")


def shorten(value: Any) -> str:
    """Return the repr of a foreign value in at most 80 characters."""
    text = format_value(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
