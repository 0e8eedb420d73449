"""What a grader cannot do without, and the words for a task that lacks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..core.records import Task
from ..errors import ConfigError

CLI_OPTIONS = {"context": ", --context FILE", "reference": ", --reference FILE"}  # that give a field on the command line


def check_needs(name: str, needs: Iterable[str], task: Task) -> None:
    """Raises ConfigError when the task lacks a field, saying how each is given."""
    if missing := [field for field in needs if not (getattr(task, field) or "").strip()]:
        raise ConfigError(
            f"grader {name!r} needs a task with {' and '.join(missing)}; this task has none: give "
            + " and ".join(
                f"Task(..., {field}=...){CLI_OPTIONS.get(field, '')} or a column {field!r} in the data" for field in missing
            )
        )


def check_columns(graders: Iterable[Any], columns: Any, data: str) -> None:
    """Raises ConfigError when a grader needs a field that no column of the data gives: no row could be graded."""
    for grader in graders:
        for field in getattr(grader, "needs", ()):
            if getattr(columns, field, field) is None:
                raise ConfigError(
                    f"grader {grader.name!r} needs a {field}, and no column of {data} is known to hold one: say which does by "
                    f"--{field}-col COLUMN (from Python: columns={{{field!r}: COLUMN}}), or choose another grader"
                )


def needs_of(grader: Any) -> Iterator[tuple[str, str]]:
    """The fields of a task without which a grader, or a part of it, cannot grade: pairs of the grader's name and the field."""
    for field in getattr(grader, "needs", ()):
        yield grader.name, field
    for part in getattr(grader, "parts", ()):
        yield from needs_of(part)
