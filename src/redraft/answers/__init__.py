"""Typed answers: what form an answer must have, as the argument `answer` of `refine` and `batch`
says.

A form asks for the answer (a JSON schema for the endpoint, a demand for the prompt), extracts it
from what a model wrote, checks it, and converts it to a value. `as_answer_form` makes one from a
type, a JSON schema or "code:LANGUAGE":

- `TypedAnswer`: anything that pydantic's `TypeAdapter` takes. pydantic is imported only then.
- `SchemaAnswer`: a JSON Schema.
- `CodeAnswer`: the code in the answer's code block.

`AnswerGrader` is the hard constraint that every run with a form has. The form of JSON is repaired
without a model where nothing but commas, quotes and the text around the JSON is wrong; no value is
converted or completed by a repair. The forms are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy_imports import attribute_loader

if TYPE_CHECKING:
    from .base import AnswerForm, InvalidAnswer
    from .code import CodeAnswer
    from .forms import as_answer_form
    from .grader import AnswerGrader
    from .json_forms import JsonAnswer, SchemaAnswer, TypedAnswer
else:
    __getattr__ = attribute_loader(
        __name__,
        {
            "AnswerForm": "base",
            "AnswerGrader": "grader",
            "CodeAnswer": "code",
            "InvalidAnswer": "base",
            "JsonAnswer": "json_forms",
            "SchemaAnswer": "json_forms",
            "TypedAnswer": "json_forms",
            "as_answer_form": "forms",
        },
    )

__all__ = [
    "AnswerForm",
    "AnswerGrader",
    "CodeAnswer",
    "InvalidAnswer",
    "JsonAnswer",
    "SchemaAnswer",
    "TypedAnswer",
    "as_answer_form",
]
