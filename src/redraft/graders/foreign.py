"""Graders that someone names who may choose no file, no code and no host: a client of a server, or
an agent with a tool.

Such a name stands for a grader of Redraft: a requirement without a file, a judge by a rubric of the
gallery, or a grader that only computes. Whoever runs the server chooses all others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..base import checks
from ..errors import ConfigError
from ..requirements import kinds, parse
from .base import RequirementGrader
from .judge_options import split_options
from .registry import RUBRIC_JUDGES, GraderEntry, resolve_spec
from .rubric import aliased_rubric, is_gallery_rubric

MAX_SPEC = 2000  # characters
MAX_VOTERS = 9  # graders of a jury
# what else may cost more is for whoever runs the program to choose
ALLOWED_OPTIONS = ("scoring", "criteria_mode")
OWN = "redraft"  # the origin of Redraft's own graders


def foreign_grader(spec: str, task_fields: Collection[str] | None = None) -> Any:
    """Return the grader that a foreign spec names.

    Args:
        spec: "name" or "name:argument".
        task_fields: What the tasks have; a grader that computes from other fields is refused. None:
            any.

    Raises:
        ConfigError: There is no such grader, or it reads a file, runs a program or calls a server.
    """
    checks.text("a grader", spec)
    if len(spec) > MAX_SPEC:
        raise _refusal(spec, f"has more than {MAX_SPEC} characters")
    if spec.partition(":")[0] in kinds():
        return RequirementGrader(parse(spec, files=False))
    entry, argument = resolve_spec(spec)
    if why := _refusal_reason(entry):
        raise _refusal(spec, why)
    _check_fields(spec, entry, task_fields)
    _check_argument(spec, entry.name, argument, task_fields, calls_model=entry.calls_model)
    return entry.make(argument)


def _refusal(spec: str, why: str) -> ConfigError:
    return ConfigError(f"grader {checks.format_value(spec)} {why}, which is not allowed here")


def _refusal_reason(entry: GraderEntry) -> str:
    """Return why a grader is refused whatever its argument; "" if it is not."""
    if entry.origin != OWN:
        return f"runs code of {entry.origin}"
    if entry.calls_server:
        return "calls a server of its own"
    return "runs programs" if entry.runs_programs else ""


def _check_fields(spec: str, entry: GraderEntry, task_fields: Collection[str] | None) -> None:
    """Raise ConfigError for a grader that computes from a field which tasks do not have; a judge
    does without.
    """
    missing = (
        sorted(set(entry.task_fields) - set(task_fields))
        if task_fields is not None and not entry.calls_model
        else []
    )
    if missing:
        raise ConfigError(
            f"grader {checks.format_value(spec)} computes from the {' and '.join(missing)}, which "
            "no task has here"
        )


def _check_argument(
    spec: str, name: str, argument: str, task_fields: Collection[str] | None, *, calls_model: bool
) -> None:
    """Raise ConfigError for a file, for parameters of the judge, and for a jury with too many
    members or one that is refused.
    """
    parts = [part.strip() for part in argument.split(",") if part.strip()]
    if name == "jury":
        if len(parts) > MAX_VOTERS:
            raise _refusal(spec, f"has more than {MAX_VOTERS} members")
        for part in parts:
            foreign_grader(part, task_fields)
        return
    if not calls_model:
        return
    named, options = split_options(argument)
    keys = [option.partition("=")[0].strip() for option in options]
    if chosen := [key for key in keys if key not in ALLOWED_OPTIONS]:
        raise _refusal(spec, f"sets {checks.format_value(chosen[0])} of the judge")
    if name == "checklist" and named:
        raise _refusal(spec, "would read a file")
    if (
        name in RUBRIC_JUDGES
        and named
        and not is_gallery_rubric(named)
        and not aliased_rubric(named)
    ):
        reason = (
            f"names {checks.format_value(named)}, a file and no rubric of the gallery (see "
            "`redraft graders`)"
        )
        raise _refusal(spec, reason)
