"""What computed graders share: reading options and the fields of a task, making feedback, and a
time limit for long texts.

No reason or action quotes the reference: the model would copy it, and the score would mean nothing.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable
from dataclasses import fields, replace
from functools import wraps
from importlib import import_module
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ...base import checks
from ...base.own_code import is_own, removed_settings
from ...base.text import compose_nfc
from ...errors import ConfigError
from ...loop.records import Candidate, Feedback
from ...loop.serialize import pack, unpack
from ...loop.task import Task
from ...protocols import JudgeClient
from ...requirements.spec import AT_ONCE
from ...workers.pool import IN_PROCESS, run
from ..base import check_needs
from ..traits import traits_of


def reference_of(task: Task, grader: str) -> str:
    """Return the reference. Raises ConfigError if the task has none."""
    check_needs(grader, ("reference",), task)
    return str(task.reference)


def context_of(task: Task, grader: str) -> str:
    """Return the context. Raises ConfigError if the task has none."""
    check_needs(grader, ("context",), task)
    return str(task.context)


def binary_feedback(ok: bool, reason: str, action: str) -> Feedback:  # noqa: FBT001
    """Return feedback with the score 1, or with 0, the action and `done` False."""
    return Feedback(1.0, reason) if ok else Feedback(0.0, reason, (action,), done=False)


def score_feedback(score: float, reason: str, action: str) -> Feedback:
    """Return feedback with a score, and the action if it is below 1. The score is rounded, so that
    it lies in [0, 1].
    """
    score = round(score, 9)
    return Feedback(score, reason, () if score == 1 else (action,))


def reasoning_form_of(candidate: Candidate) -> str | None:
    """Return how a reply contained its reasoning; without a record of that, the endpoint is assumed
    to have separated it.
    """
    return candidate.reasoning_form or ("separate" if (candidate.reasoning or "").strip() else None)


def preview(text: str, limit: int = 80) -> str:
    """Return a text on one line, truncated."""
    line = " ".join(text[: 4 * limit].split())
    return repr(line if len(line) <= limit else f"{line[: limit - 3]}...")


# ---- time limits


G = TypeVar("G", bound=type)
R = TypeVar("R")


_used_packages = {""}


async def compute(size: int, function: Callable[..., R], *arguments: Any, package: str = "") -> R:
    """Call a function that reads texts of `size` characters together: at once if they are short,
    else in a thread.

    For functions that take some 10 ms at most for any texts of `AT_ONCE` characters
    (bench/hostile_text.py). `package` is one that the function loads when it is first called, which
    can take a second: until that is done, it is called in a thread.
    """
    if size <= AT_ONCE and package in _used_packages:
        return function(*arguments)
    result = await asyncio.to_thread(function, *arguments)
    _used_packages.add(package)
    return result


def with_composed_texts(kind: G) -> G:
    """Return the class with a `grade` method that gets answer, reference and context in the
    composed form of Unicode.
    """
    grade = kind.grade  # type: ignore[attr-defined]

    @wraps(grade)
    async def composed_grade(
        self: Any, task: Task, candidate: Candidate, ask: JudgeClient
    ) -> Feedback:
        texts = candidate.text, task.reference or "", task.context or ""
        if not all(map(str.isascii, texts)):
            task, candidate = await compute(sum(map(len, texts)), _compose_texts, task, candidate)
        return await grade(self, task, candidate, ask)  # type: ignore[no-any-return]

    kind.grade = composed_grade  # type: ignore[attr-defined]
    return kind


def _compose_texts(task: Task, candidate: Candidate) -> tuple[Task, Candidate]:
    composed = replace(
        task,
        reference=None if task.reference is None else compose_nfc(task.reference),
        context=None if task.context is None else compose_nfc(task.context),
    )
    return composed, replace(candidate, text=compose_nfc(candidate.text))


def with_limit(kind: G) -> G:
    """Return the class with a `grade` method that composes texts, and grades long ones in a worker
    process.

    A user's subclass grades in this process, without a limit.
    """
    grade = with_composed_texts(kind).grade  # type: ignore[attr-defined]

    @wraps(grade)
    async def limited_grade(
        self: Any, task: Task, candidate: Candidate, ask: JudgeClient
    ) -> Feedback:
        size = len(candidate.display_text) + len(task.reference or "") + len(task.context or "")
        if size <= IN_PROCESS or not is_own(type(self)):
            return await grade(self, task, candidate, ask)  # type: ignore[no-any-return]
        packed_task = pack(task if traits_of(self).reads_metadata else replace(task, metadata={}))
        settings = {f.name: getattr(self, f.name) for f in fields(self)}
        failure = f"{self.name} could not be computed"
        packed_candidate = pack(
            Candidate(
                0,
                candidate.text,
                tool_calls=candidate.tool_calls,
                reasoning_form=reasoning_form_of(candidate),
            )
        )
        arguments = (
            type(self).__module__,
            type(self).__qualname__,
            settings,
            packed_task,
            packed_candidate,
        )
        feedback: Feedback = unpack(
            Feedback,
            await run(_grade_in_worker, *arguments, failure_text=failure, text_length=size),
        )
        return feedback

    kind.grade = limited_grade  # type: ignore[attr-defined]
    return kind


def _grade_in_worker(
    module: str,
    name: str,
    settings: dict[str, Any],
    task: dict[str, Any],
    candidate: dict[str, Any],
) -> dict[str, Any]:
    kind = getattr(import_module(module), name)
    grade = kind.grade.__wrapped__
    return pack(
        asyncio.run(grade(kind(**settings), unpack(Task, task), unpack(Candidate, candidate), None))
    )


# ---- options


T = TypeVar("T")
SEPARATOR = "|"  # between the texts of one value


def parse_options(cls: type[T], argument: str) -> T:
    """Return an instance with the options in `argument` ("" for none). Raises ConfigError naming
    what is allowed.
    """
    hints = get_type_hints(cls)
    options = {f.name: hints[f.name] for f in fields(cls) if f.name != "name"}  # type: ignore[arg-type]
    allowed = {name: hint for name, hint in options.items() if _is_text_option(hint)}
    pairs = argument.split(",") if argument.strip() else []
    for key in (pair.partition("=")[0].strip() for pair in pairs):
        if key in options and key not in allowed:
            raise ConfigError(
                f"{key} cannot be given in a name: use {cls.__name__}({key}=...) in Python"
            )
        if key in removed_settings(cls):
            raise ConfigError(f"{key} is no longer an option: leave it out")
    return cls(**dict(_parse_option(pair, allowed) for pair in pairs))


def _is_text_option(hint: Any) -> bool:
    """Whether a value of this type can be written in a name: a choice, a text, a number, a flag, or
    several texts.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _is_text_option(next(part for part in parts if part is not type(None)))
    if origin is tuple:
        return parts[:1] == (str,)
    return origin is Literal or hint in (bool, int, float, str)


def _parse_option(pair: str, allowed: dict[str, Any]) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in pair.partition("="))
    if not equals or key not in allowed:
        near = checks.closest_names(key, allowed, 1)
        hint = f"did you mean {near[0]}={_format_hint(allowed[near[0]])}? " if near else ""
        known = (
            ", ".join(f"{name}={_format_hint(hint)}" for name, hint in allowed.items()) or "none"
        )
        raise ConfigError(
            f"{checks.format_value(pair.strip())} is not an option; {hint}there are: {known}"
        )
    return key, _parse_value(key, value, allowed[key])


def _parse_value(key: str, text: str, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin is Literal:
        return _parse_choice(key, text, {str(choice): choice for choice in get_args(hint)})
    if origin in (Union, types.UnionType):
        return _parse_value(
            key, text, next(part for part in get_args(hint) if part is not type(None))
        )
    if origin is tuple:
        return tuple(part.strip() for part in text.split(SEPARATOR) if part.strip())
    if hint is bool:
        return _parse_choice(key, text.lower(), {"true": True, "false": False})
    return text if hint is str else _parse_number(key, text, hint)


def _parse_choice(key: str, text: str, choices: dict[str, Any]) -> Any:
    if text not in choices:
        raise ConfigError(f"{key} must be {' or '.join(choices)}, got {text!r}")
    return choices[text]


def _parse_number(key: str, text: str, kind: Callable[[str], Any]) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not isfinite(value):
        raise ConfigError(f"{key} must be {_format_hint(kind)}, got {text!r}")
    return value


def _format_hint(hint: Any) -> str:
    """Return in words how a value of this type is written."""
    if get_origin(hint) is Literal:
        return "|".join(map(str, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return _format_hint(get_args(hint)[0])
    if get_origin(hint) is tuple:
        return f"A{SEPARATOR}B{SEPARATOR}C"
    return {bool: "true|false", int: "a whole number", float: "a number"}.get(hint, "TEXT")
