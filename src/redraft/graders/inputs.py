"""The fields of a task that a grader needs, and the errors for a task that lacks one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..core.records import Task
from ..errors import ConfigError

CLI_OPTIONS = {"context": ", --context FILE", "reference": ", --reference FILE"}  # options that set a field


def check_needs(name: str, needs: Iterable[str], task: Task) -> None:
    """Raise ConfigError if the task lacks a field; the message says how to give each."""
    if missing := [field for field in needs if not (getattr(task, field) or "").strip()]:
        raise ConfigError(
            f"grader {name!r} needs a task with {' and '.join(missing)}; this task has none: give "
            + " and ".join(
                f"Task(..., {field}=...){CLI_OPTIONS.get(field, '')} or a column {field!r} in the data" for field in missing
            )
        )


def check_columns(graders: Iterable[Any], columns: Any, data: str) -> None:
    """Raise ConfigError if a grader needs a field that no column of the data holds: no row could be graded."""
    for grader in graders:
        for field in getattr(grader, "needs", ()):
            if getattr(columns, field, field) is None:
                raise ConfigError(
                    f"grader {grader.name!r} needs a {field}, and no column of {data} holds one: name the column with "
                    f"--column {field}=NAME (from Python: columns={{{field!r}: COLUMN}}), or choose another grader"
                )


def needs_of(grader: Any) -> Iterator[tuple[str, str]]:
    """Yield (grader name, field) for each field that a grader, or a part of it, needs."""
    for field in getattr(grader, "needs", ()):
        yield grader.name, field
    for part in getattr(grader, "parts", ()):
        yield from needs_of(part)
