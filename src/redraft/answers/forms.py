"""Which form of answer an argument stands for. The forms are loaded when there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..base import checks
from ..errors import ConfigError
from .base import EXPECTED, AnswerForm

CODE_PREFIX = "code:"


def as_answer_form(answer: Any, context: Mapping[str, Any] | None = None) -> AnswerForm[Any] | None:
    """Return the form that the argument `answer` stands for; None for None. Raises ConfigError.

    `context` is what the validators of a type find as `info.context`.
    """
    if context is not None and (answer is None or isinstance(answer, str | Mapping)):
        raise ConfigError(
            "answer_context is for the validators of an `answer` that is a type, such as a "
            "pydantic model"
        )
    if answer is None:
        return None
    from .code import CodeAnswer
    from .json_forms import SchemaAnswer, TypedAnswer

    if isinstance(answer, TypedAnswer) and context is not None and context is not answer.context:
        return TypedAnswer(answer.type, context)
    if isinstance(answer, AnswerForm):
        return answer
    if isinstance(answer, str):
        if not answer.startswith(CODE_PREFIX):
            raise checks.invalid_argument("answer", EXPECTED, answer)
        return CodeAnswer(answer.removeprefix(CODE_PREFIX).strip().lower())
    if isinstance(answer, Mapping):
        return SchemaAnswer(answer)
    return TypedAnswer(answer, context)
