r"""Prompt templates with named fields. Only the fields in `FIELDS` are replaced; every other brace stays as written.

Unlike `str.format`, a template has no attribute access, no format specification and no code. Inserted text is never parsed
again. The meaning of braces:

- `{response}`: a field, if the name is one of `FIELDS`;
- `{word}` with any other name: an error that lists the fields, unless a letter, a digit or one of `^ _ $ \ }` stands directly
  before it, as in LaTeX (`\frac{a}{b}`) and in code (`${HOME}`): then it stays;
- `{{word}}`: the text `{word}`, whatever the name;
- everything else, such as `{"a": 1}`, `{x: 1}`, `{0}`, `{}`, `{ context }`: itself.

A template written for `str.format` doubles the braces of its JSON. If every single brace belongs to a field and every doubled
one opens JSON, the template is taken for one of these, and doubled braces become single.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from string import Formatter

from ..errors import ConfigError

FIELDS = {
    "query": "task",
    "task": "task",
    "response": "answer",
    "answer": "answer",
    "context": "context",
    "reference": "reference",
    "tests": "tests",
    "system": "system",
    "history": "history",
    "steps": "steps",
    "criteria": "criteria",
}
CONVERSATION_FIELDS = ("system", "history", "task", "steps")  # in the order of a conversation
FIELD_PATTERN = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
ATTRIBUTE_ACCESS = re.compile(rf"\{{({'|'.join(FIELDS)})(?:[.!\[]|:(?!\s))[^{{}}\n]*\}}")
LATEX_OR_CODE_PREFIX = re.compile(r"[A-Za-z0-9^_$\\}]\Z")
DOUBLED_BRACE = re.compile(r"\{\{(?!\s*[\"'{}]|[A-Za-z_]\w*\}\})")
FIELD_LIST = ", ".join(f"{{{name}}}" for name in FIELDS)


class Template:
    """A parsed template. Raises ConfigError for an unknown field, and if the answer does not occur in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._parts = list(_parse_str_format(text) or _parse_fields(text))
        self.fields = {FIELDS[name] for _, name in self._parts if name}
        if "answer" not in self.fields:
            raise ConfigError("the template must show the answer: put {response} where it belongs ({{response}} is the bare word)")

    def fill(self, texts: Mapping[str, str]) -> str:
        """Return the text with every field replaced; a field that the task does not have becomes "(none)".

        Parts of the conversation without a field of their own are shown with the task.
        """
        conversation = [
            texts[name] for name in CONVERSATION_FIELDS if name in texts and (name == "task" or name not in self.fields)
        ]
        values = {**texts, "task": "\n\n".join(conversation)} if "task" in texts else texts
        return "".join(text + (values.get(FIELDS[name], "(none)") if name else "") for text, name in self._parts)


def _parse_str_format(text: str) -> list[tuple[str, str]]:
    """Return the parts of a template that was written for `str.format`; an empty list for any other."""
    if "{{" not in text or DOUBLED_BRACE.search(text):
        return []
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return []
    if any(name is not None and (name not in FIELDS or spec or how) for _, name, spec, how in parts):
        return []
    return [(literal, name or "") for literal, name, _, _ in parts]


def _parse_fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the parts of a template: text, and the field that follows it ("" for none)."""
    if access := ATTRIBUTE_ACCESS.search(text):
        raise ConfigError(f"the template has {access[0][:60]!r}; a field is a bare name, {{{access[1]}}}; there are {FIELD_LIST}")
    end, after_field = 0, -1
    for found in FIELD_PATTERN.finditer(text):
        escaped, name = found.groups()
        before = text[end : found.start()]
        if escaped:
            yield f"{before}{{{escaped}}}", ""
        elif name in FIELDS:
            yield before, name
            after_field = found.end()
        elif LATEX_OR_CODE_PREFIX.search(text[max(0, found.start() - 1) : found.start()]) and found.start() != after_field:
            yield before + found[0], ""
        else:
            raise ConfigError(
                f"the template has no field {found[0]}; there are {FIELD_LIST}; write {{{{{name}}}}} for the bare word"
            )
        end = found.end()
    yield text[end:], ""
