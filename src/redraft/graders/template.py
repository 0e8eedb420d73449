"""Prompt templates: a judge's prompt in a user's own words, with fields for the task and the
answers.

`templates` says what is a field and what stays as written; a name that is not in `FIELDS` is a key
of the task's metadata, which holds the other columns of data.

A template written for `str.format` doubles the braces of its JSON. If every single brace belongs to
a field and every doubled one opens JSON, the template is taken for one of these, and doubled braces
become single.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from string import Formatter
from typing import Any, Literal, TypeAlias

from ..base import checks
from ..base.templates import FIELD, TemplatePart, fill_template, parse_template
from ..errors import ConfigError
from ..loop.task import Task

Kind: TypeAlias = Literal["pointwise", "pairwise", "listwise"]

FIELDS = {
    "query": "task",
    "task": "task",
    "response": "answer",
    "answer": "answer",
    "response_a": "first",
    "response_b": "second",
    "answer_1": "first",
    "answer_2": "second",
    "responses": "answers",
    "answers": "answers",
    "context": "context",
    "reference": "reference",
    "tests": "tests",
    "messages": "messages",
    "system": "system",
    "history": "history",
    "steps": "steps",
    "criteria": "criteria",
}
ANSWER_FIELDS: dict[Kind, frozenset[str]] = {
    "pointwise": frozenset({"answer"}),
    "pairwise": frozenset({"first", "second"}),
    "listwise": frozenset({"answers"}),
}
CONVERSATION_FIELDS = ("system", "history", "task", "steps")  # in the order of a conversation
ATTRIBUTE_ACCESS = re.compile(rf"\{{({'|'.join(FIELDS)})(?:[.!\[]|:(?!\s))[^{{}}\n]*\}}")
DOUBLED_BRACE = re.compile(r"\{\{(?!\s*[\"'{}]|[A-Za-z_]\w*\}\})")
FIELD_LIST = ", ".join(f"{{{name}}}" for name in FIELDS)
MISSING_TEXT = "(none)"


class Template:
    """A parsed template. Raises ConfigError for a malformed field, and unless it shows one answer,
    two answers or all of them.

    `kind` says which: {response} makes it pointwise, {response_a} and {response_b} pairwise,
    {responses} listwise. `fields` are the values of `FIELDS` that occur, `metadata_fields` the keys
    of the task's metadata, in order.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = _parse_str_format(text) or _parse_fields(text)
        names = [name for _, name in self._parts if name]
        self.fields = {FIELDS[name] for name in names if name in FIELDS}
        self.metadata_fields = tuple(dict.fromkeys(name for name in names if name not in FIELDS))
        self.kind: Kind = self._find_kind()

    def _find_kind(self) -> Kind:
        shown = self.fields & frozenset().union(*ANSWER_FIELDS.values())
        for kind, fields in ANSWER_FIELDS.items():
            if shown == fields:
                return kind
        if shown:
            raise ConfigError(
                "the template must show one answer, {response}; or two, {response_a} and "
                "{response_b}; or all, {responses}"
            )
        others = ", ".join(f"{{{name}}}" for name in self.metadata_fields[:10])
        raise ConfigError(
            (
                "the template must show the answer: put {response} where it belongs "
                "({{response}} is the bare word)"
            )
            + (f"; it has {others}" if others else "")
        )

    @property
    def literal(self) -> str:
        """The text without its fields."""
        return "".join(literal for literal, _ in self._parts)

    def check_task(self, task: Task) -> None:
        """Raise ConfigError for a task whose metadata lacks a field."""
        if missing := [name for name in self.metadata_fields if name not in task.metadata]:
            known = dict.fromkeys([*FIELDS, *map(str, task.metadata)])
            raise ConfigError(
                f"the template has the field {{{missing[0]}}}, and the task has no such metadata: "
                f"{checks.unknown_name_message('field', missing[0], known)}; write "
                f"{{{{{missing[0]}}}}} for the bare word"
            )

    def metadata_texts(self, task: Task) -> dict[str, str]:
        """Return the metadata that occurs, as texts by `metadata_key`. Raises ConfigError if the
        task lacks a field.
        """
        self.check_task(task)
        values = {name: task.metadata[name] for name in self.metadata_fields}
        return {
            metadata_key(name): _as_text(value)
            for name, value in values.items()
            if value is not None
        }

    def fill(self, texts: Mapping[str, str]) -> str:
        """Return the text with every field replaced; a field that the task does not have becomes
        "(none)".

        Parts of the conversation without a field of their own are shown with the task.
        """
        shown_alone = {*self.fields, *(CONVERSATION_FIELDS if "messages" in self.fields else ())}
        conversation = [texts[name] for name in CONVERSATION_FIELDS if name in texts]
        with_task = [
            texts[name]
            for name in CONVERSATION_FIELDS
            if name in texts and (name == "task" or name not in shown_alone)
        ]
        values = {**texts, "messages": "\n\n".join(conversation)}
        if "task" in texts:
            values["task"] = "\n\n".join(with_task)
        return fill_template(
            self._parts,
            lambda name: values.get(FIELDS.get(name) or metadata_key(name), MISSING_TEXT),
        )


def metadata_key(name: str) -> str:
    """Return the key of a metadata field among the texts that a judge is shown."""
    return f"field-{name}"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)


def find_field(text: str) -> str:
    """Return the first field of `FIELDS` in a text, with its braces; "" if there is none."""
    names = (match[2] for match in FIELD.finditer(text) if match[2] in FIELDS)
    return next((f"{{{name}}}" for name in names), "")


def _parse_str_format(text: str) -> tuple[TemplatePart, ...]:
    """Return the parts of a template that was written for `str.format`; () for any other."""
    if "{{" not in text or DOUBLED_BRACE.search(text):
        return ()
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return ()
    if any(
        name is not None and (not _is_field_name(name) or spec or how)
        for _, name, spec, how in parts
    ):
        return ()
    return tuple((literal, name or "") for literal, name, _, _ in parts)


def _is_field_name(name: str) -> bool:
    return bool(FIELD.fullmatch(f"{{{name}}}"))


def _parse_fields(text: str) -> tuple[TemplatePart, ...]:
    """Return the parts of a template. Raises ConfigError for a field with an attribute, an index or
    a format.
    """
    if access := ATTRIBUTE_ACCESS.search(text):
        raise ConfigError(
            f"the template has {access[0][:60]!r}; a field is a bare name, {{{access[1]}}}; there "
            f"are {FIELD_LIST}"
        )
    return parse_template(text, FIELDS)
