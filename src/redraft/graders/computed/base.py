"""What computed graders share: reading options and the fields of a task, making feedback, and a
time limit for long texts.

No reason or action quotes the reference: the model would copy it, and the score would mean nothing.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from importlib import import_module
from math import isfinite
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ...base import checks
from ...base.own_code import fingerprint_name, is_own, removed_settings
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


@fingerprint_name("computed_grader")
class ComputedGrader:
    """A grader that asks no model. `assess` gets the answer, the reference and the context in the
    composed form of Unicode.

    It is called at once for short texts, in a thread for longer ones, and in a worker process for
    long ones; a user's subclass never in a worker, and so without a limit.
    """

    name: str

    model_free = True
    package: ClassVar[str] = ""  # that `assess` loads

    def __post_init__(self) -> None:
        """Check the options that have a choice."""
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal:
                checks.one_of(name, vars(self)[name], get_args(hint))

    async def grade(self, task: Task, candidate: Candidate, ask: JudgeClient) -> Feedback:
        """Return the feedback. Raises ConfigError for a task that it cannot grade."""
        size = _text_size(task, candidate)
        reads_metadata = traits_of(self).reads_metadata
        if size <= IN_PROCESS or not is_own(type(self)):
            if reads_metadata:  # of any size
                return await asyncio.to_thread(self.assess_composed, task, candidate)
            return await compute(size, self.assess_composed, task, candidate, package=self.package)
        sent = Candidate(
            0,
            candidate.text,
            tool_calls=candidate.tool_calls,
            reasoning_form=reasoning_form_of(candidate),
        )
        feedback: Feedback = unpack(
            Feedback,
            await run(
                _assess_in_worker,
                type(self).__module__,
                type(self).__qualname__,
                dict(vars(self)),
                pack(task if reads_metadata else replace(task, metadata={})),
                pack(sent),
                failure_text=f"{self.name} could not be computed",
                text_length=size,
            ),
        )
        return feedback

    def assess_composed(self, task: Task, candidate: Candidate) -> Feedback:
        """Call `assess` with composed texts."""
        return self.assess(*_compose(task, candidate))

    def assess(self, task: Task, candidate: Candidate) -> Feedback:
        """Return the feedback on an answer. Raises ConfigError for a task that it cannot grade."""
        raise NotImplementedError


def _assess_in_worker(
    module: str,
    name: str,
    settings: dict[str, Any],
    task: dict[str, Any],
    candidate: dict[str, Any],
) -> dict[str, Any]:
    grader: ComputedGrader = getattr(import_module(module), name)(**settings)
    return pack(grader.assess_composed(unpack(Task, task), unpack(Candidate, candidate)))


_used_packages = {""}
R = TypeVar("R")


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


async def with_composed_texts(task: Task, candidate: Candidate) -> tuple[Task, Candidate]:
    """Return both with the answer, the reference and the context in the composed form of
    Unicode.
    """
    return await compute(_text_size(task, candidate), _compose, task, candidate)


def _text_size(task: Task, candidate: Candidate) -> int:
    return len(candidate.display_text) + len(task.reference or "") + len(task.context or "")


def _compose(task: Task, candidate: Candidate) -> tuple[Task, Candidate]:
    if all(map(str.isascii, (candidate.text, task.reference or "", task.context or ""))):
        return task, candidate
    composed = replace(
        task,
        reference=None if task.reference is None else compose_nfc(task.reference),
        context=None if task.context is None else compose_nfc(task.context),
    )
    return composed, replace(candidate, text=compose_nfc(candidate.text))


def reference_of(task: Task, grader: str) -> str:
    """Return the reference. Raises ConfigError if the task has none."""
    check_needs(grader, ("reference",), task)
    return str(task.reference)


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


# ---- options


T = TypeVar("T")
SEPARATOR = "|"  # between the texts of one value


class _Format(NamedTuple):
    """How a value of some type is written in the name of a grader."""

    hint: str
    parse: Callable[[str], Any]  # raises KeyError or ValueError


def _read_flag(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _read_texts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(SEPARATOR) if part.strip())


def _read_finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError
    return value


_FORMATS: Mapping[Any, _Format] = {
    bool: _Format("true|false", _read_flag),
    int: _Format("a whole number", int),
    float: _Format("a number", _read_finite),
    str: _Format("TEXT", str),
    tuple[str, ...]: _Format(f"A{SEPARATOR}B{SEPARATOR}C", _read_texts),
}


def _format_of(hint: Any) -> _Format | None:
    """Return how a value of this type is written: a choice, a text, a number, a flag, or several
    texts; None for any other type.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _format_of(next(part for part in parts if part is not type(None)))
    if origin is Literal:
        choices = {str(choice): choice for choice in parts}
        return _Format("|".join(choices), choices.__getitem__)
    return _FORMATS.get(hint)


def parse_options(cls: type[T], argument: str) -> T:
    """Return an instance with the options in `argument` ("" for none). Raises ConfigError naming
    what is allowed.
    """
    hints = get_type_hints(cls)
    options = {f.name: _format_of(hints[f.name]) for f in fields(cls) if f.name != "name"}  # type: ignore[arg-type]
    allowed = {name: written for name, written in options.items() if written}
    pairs = argument.split(",") if argument.strip() else []
    for key in (pair.partition("=")[0].strip() for pair in pairs):
        if key in options and key not in allowed:
            raise ConfigError(
                f"{key} cannot be given in a name: use {cls.__name__}({key}=...) in Python"
            )
        if key in removed_settings(cls):
            raise ConfigError(f"{key} is no longer an option: leave it out")
    return cls(**dict(_parse_option(pair, allowed) for pair in pairs))


def _parse_option(pair: str, allowed: Mapping[str, _Format]) -> tuple[str, Any]:
    key, equals, value = (part.strip() for part in pair.partition("="))
    if not equals or key not in allowed:
        near = checks.closest_names(key, allowed, 1)
        hint = f"did you mean {near[0]}={allowed[near[0]].hint}? " if near else ""
        known = ", ".join(f"{name}={written.hint}" for name, written in allowed.items()) or "none"
        raise ConfigError(
            f"{checks.format_value(pair.strip())} is not an option; {hint}there are: {known}"
        )
    try:
        return key, allowed[key].parse(value)
    except (KeyError, ValueError):
        wanted = allowed[key].hint.replace("|", " or ")
        raise ConfigError(f"{key} must be {wanted}, got {value!r}") from None
