"""Which form of answer an argument stands for. The forms are loaded when there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .. import checks
from .base import EXPECTED, AnswerForm

if TYPE_CHECKING:
    from ..core.task import Task

CODE_PREFIX = "code:"


def as_answer_form(answer: Any) -> AnswerForm[Any] | None:
    """Return the form that the argument `answer` stands for; None for None. Raises ConfigError."""
    if answer is None:
        return None
    from .code import CodeAnswer
    from .json_forms import JsonAnswer, SchemaAnswer, TypedAnswer

    if isinstance(answer, JsonAnswer | CodeAnswer):
        return answer
    if isinstance(answer, str):
        if not answer.startswith(CODE_PREFIX):
            raise checks.invalid_argument("answer", EXPECTED, answer)
        return CodeAnswer(answer.removeprefix(CODE_PREFIX).strip().lower())
    if isinstance(answer, Mapping):
        return SchemaAnswer(answer)
    return TypedAnswer(answer)


def form_for_task(form: AnswerForm[Any] | None, task: Task) -> AnswerForm[Any] | None:
    """Return the form of the answers to a task: of code, its tests say which part of an answer counts."""
    for_task = getattr(form, "for_task", None)
    return for_task(task) if for_task else form
